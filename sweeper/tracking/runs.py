"""What a run of ours is in MLflow: the tags that it is found by, and what it shows of a record.

Place in the flow: `tracking` writes such runs, `retrieval` finds them again. mlflow is not imported here.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sweeper.analysis.metrics import METRICS, Result, derive
from sweeper.core.paths import check_sweep_name
from sweeper.core.record import Record
from sweeper.tracking.chart_points import Point, points
from sweeper.tracking.store import TrackingError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run

EXPERIMENT = "sweeper"
RUN_STATUSES = {"ok": "FINISHED", "interrupted": "KILLED"}  # every other status: FAILED

KIND, SWEEP, TRIAL = "sweeper.kind", "sweep", "trial_id"
PARENT, NOTE = "mlflow.parentRunId", "mlflow.note.content"  # names that MLflow's pages know
# Digests of what was sent.
RECORD, REPORT, INVOCATIONS = "sweeper.record", "sweeper.report", "sweeper.invocations"
OVERVIEW = "sweeper.overview"
# What Markdown gives a meaning in the middle of a line.
_ESCAPES = str.maketrans({sign: f"\\{sign}" for sign in "\\`*[]<>&!~|"})

# Limits of mlflow.utils.validation, the tag's that of older servers. Longer values are cut.
MAX_PARAM_CHARACTERS = 6000
MAX_TAG_CHARACTERS = 5000
# A run with its params, metrics and tags takes 60 kB while MLflow reads it.
VIEW_VERSION = 2  # of what is sent of a record; runs that show an older one are sent again
RUNS_PER_PAGE = 200


@dataclass(frozen=True)
class View:
    """What a run shows, beside its artifacts."""

    params: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    points: tuple[Point, ...] = ()

    def can_become(self, other: View) -> bool:
        """Whether MLflow can change a run from this to `other`: no param changes or goes, no metric goes.

        What a run shows does not tell points from other metrics. So one that has points becomes no other.
        """
        return self.params.items() <= other.params.items() and self.metrics.keys() <= other.metrics.keys()


@dataclass(frozen=True)
class Overview:
    """What the run of a sweep shows, beside its artifacts: key figures, and a description in Markdown."""

    metrics: Mapping[str, float]
    note: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps([dict(self.metrics), self.note], sort_keys=True).encode()).hexdigest()


def view(record: Record, sweep: str, parent_id: str) -> View:
    """The child run of a record. `sweep` names the folder that it lies in, which may be a copy with another name."""
    result = derive(record)
    return View(_params(record), _metrics(result), _tags(record, result, sweep, parent_id), points(record))


def _params(record: Record) -> dict[str, str]:
    """The columns of the tables, every other axis that is not at its default (`compile.scope`), and the versions."""
    trial, axes = record.trial, record.trial.axes()
    parts = {part: axes.get(part) for part in ("model", "precision", "compile")}
    parts["version"] = record.environment.get("versions")
    values = {
        "model": trial.labels.model,
        "library": trial.model.library,
        "family": trial.labels.family,
        "suite": trial.labels.suite,
        "workload": trial.workload,
        "precision": trial.labels.precision,
        "mode": trial.mode,
        "backend": trial.backend,
        "batch_size": trial.batch_size,
        "variant": trial.variant or None,
        "optimizer": trial.optimizer,
        "device": trial.device,
        **{f"{part}.{key}": value for part, node in parts.items() for key, value in _leaves(node)},
    }
    del values["model.library"]  # the same as library
    return {
        re.sub(r"[^\w. -]", "_", key): (value if isinstance(value, str) else json.dumps(value))[:MAX_PARAM_CHARACTERS]
        for key, value in values.items()
        if value is not None
    }


def _leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value in nested mappings with its dotted key."""
    for key, value in node.items() if isinstance(node, Mapping) else ():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _metrics(result: Result) -> dict[str, float]:
    values = {metric.name: metric.value(result) for metric in METRICS if metric.mlflow}
    return {
        name: float(value) for name, value in values.items() if isinstance(value, (int, float)) and math.isfinite(value)
    }


def _tags(record: Record, result: Result, sweep: str, parent_id: str) -> dict[str, str]:
    device = record.environment.get("device")
    tags = {
        PARENT: parent_id,
        KIND: "trial",
        SWEEP: sweep,
        TRIAL: record.trial_id,
        "status": record.status,
        "flags": ";".join(record.flags),
        "device_name": str(device.get("name", "")) if isinstance(device, Mapping) else "",
        NOTE: _note(record, result),
        RECORD: digest_of(record),
    }
    return {key: value[:MAX_TAG_CHARACTERS] for key, value in tags.items()}


def _note(record: Record, result: Result) -> str:
    """The description of a run: the speedup and the flags on a line, or why there is none."""
    if record.status != "ok" or result.speedup is None:
        return _complaint(record)
    low, high = result.speedup_low, result.speedup_high
    bounds = f" [{low:.2f}, {high:.2f}]" if low is not None and high is not None else ""
    device = f", device {result.device_speedup:.2f}" if result.device_speedup is not None else ""
    count = f"{result.processes} process{'' if result.processes == 1 else 'es'}"
    flags = f"; {', '.join(record.flags)}".translate(_ESCAPES) if record.flags else ""
    return f"speedup {result.speedup:.2f}{bounds} over {count}{device}{flags}"


def _complaint(record: Record) -> str:
    """The message as it came: its first line as text, the others as a block of code, which nothing in it can end."""
    first, *others = (record.message or "").splitlines() or [""]
    line = f"{record.phase or record.status}: {first}".translate(_ESCAPES) if first or others else ""
    return "\n".join([line, *(["", *(f"    {other}" for other in others)] if others else [])])


def digest_of(record: Record) -> str:
    """Of the record and of what a run shows of one, so that runs of an earlier sweeper are sent again."""
    return hashlib.sha256(f"{VIEW_VERSION}\n{record.dumps()}".encode()).hexdigest()


def id_of(experiment: Experiment) -> str:
    """The id of our experiment. Raises TrackingError for one that was deleted, or that no MLflow server gave."""
    experiment_id = str(experiment.experiment_id)
    if not experiment_id:
        raise TrackingError("it answers, but not as an MLflow server does")
    if experiment.lifecycle_stage != "active":
        raise TrackingError(
            f"its experiment {EXPERIMENT} was deleted; bring it back: mlflow experiments restore -x {experiment_id}"
        )
    return experiment_id


def of_sweep(sweep: str) -> str:
    """The filter that finds every run of a sweep."""
    return f"tags.{SWEEP} = '{check_sweep_name(sweep)}'"


def search(client: MlflowClient, experiment_id: str, filter_: str) -> Iterator[Run]:
    """Every run that the filter finds, the oldest first. Ten thousand at once take half a gigabyte: take what you need.

    A run must not be deleted before the last one is there: those behind it would move up, over the edge of a page.
    """
    token: str | None = None
    while True:
        page = client.search_runs(
            [experiment_id],
            filter_,
            max_results=RUNS_PER_PAGE,
            order_by=["attributes.start_time ASC"],
            page_token=token,
        )
        yield from page
        token = page.token
        if not token:
            return
