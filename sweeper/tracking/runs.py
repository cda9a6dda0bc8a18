"""The runs of sweeper in MLflow: what they show of a record or a sweep, and how they are found. Imports no mlflow."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sweeper.analysis.metrics import METRICS, Result
from sweeper.core.paths import check_sweep_name
from sweeper.core.record import Record
from sweeper.core.serialization import get_mapping
from sweeper.tracking.chart_points import Point, list_points
from sweeper.tracking.store import TrackingError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

EXPERIMENT = "sweeper"
# Tags by which sweeper recognises its runs.
KIND, SWEEP, TRIAL = "sweeper.kind", "sweep", "trial_id"
PARENT, NOTE = "mlflow.parentRunId", "mlflow.note.content"  # MLflow's pages know these two
# Digests of what a run shows, so that nothing is sent twice.
RECORD, REPORT, MANIFEST, OVERVIEW = "sweeper.record", "sweeper.report", "sweeper.invocations", "sweeper.overview"
RUN_STATUSES = {"ok": "FINISHED", "interrupted": "KILLED"}  # every other status: FAILED

# Characters that Markdown gives a meaning in the middle of a line.
_ESCAPES = str.maketrans({sign: f"\\{sign}" for sign in "\\`*[]<>&!~|"})

# Limits of mlflow.utils.validation; that of tags is the one of older servers. Longer values are cut.
MAX_PARAM_CHARACTERS = 6000
MAX_TAG_CHARACTERS = 5000
VIEW_VERSION = 2  # of what `build_view` makes of a record; a run that shows an older version is sent again
RUNS_PER_PAGE = 200  # MLflow needs 60 kB for a run with its params, metrics and tags


@dataclass(frozen=True)
class View:
    """Everything that a run shows besides its artifacts."""

    params: Mapping[str, str]
    metrics: Mapping[str, float]
    tags: Mapping[str, str]
    points: tuple[Point, ...] = ()


@dataclass(frozen=True)
class Overview:
    """Everything that the run of a sweep shows besides its artifacts: key figures and a description in Markdown."""

    metrics: Mapping[str, float]
    note: str

    @property
    def text(self) -> str:
        """All of it; overviews that show the same have the same text."""
        return json.dumps([dict(self.metrics), self.note], sort_keys=True)


def build_view(record: Record, result: Result, sweep: str, parent_id: str) -> View:
    """Build the view of a record's run. `sweep` names the record's folder, which may be a renamed copy of a sweep."""
    figures = ((metric.name, metric.value(result)) for metric in METRICS if metric.mlflow)
    numbers = ((name, float(value)) for name, value in figures if isinstance(value, (int, float)))
    tags = {
        PARENT: parent_id,
        KIND: "trial",
        SWEEP: sweep,
        TRIAL: record.trial_id,
        "status": record.status,
        "flags": ";".join(record.flags),
        "device_name": str(get_mapping(record.environment, "device").get("name", "")),
        NOTE: _describe_result(record, result),
        RECORD: digest_record(record),
    }
    return View(
        _params(record),
        {name: value for name, value in numbers if math.isfinite(value)},
        {key: value[:MAX_TAG_CHARACTERS] for key, value in tags.items()},
        list_points(record),
    )


def _params(record: Record) -> dict[str, str]:
    """Collect the axes in the tables, all others that are not at their defaults (`compile.scope`), and the versions."""
    trial, axes = record.trial, record.trial.axes()
    nested = {part: axes.get(part, {}) for part in ("model", "precision", "compile")}
    nested["version"] = get_mapping(record.environment, "versions")
    values = {
        **{name: getattr(trial.labels, name) for name in ("model", "family", "suite", "precision")},
        **{name: getattr(trial, name) for name in ("workload", "mode", "backend", "batch_size", "optimizer", "device")},
        "variant": trial.variant or None,
        **dict(_leaves(nested)),
    }
    values["library"] = values.pop("model.library")
    return {
        re.sub(r"[^\w. -]", "_", key): (value if isinstance(value, str) else json.dumps(value))[:MAX_PARAM_CHARACTERS]
        for key, value in values.items()
        if value is not None
    }


def _leaves(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value in nested mappings with its dotted key."""
    for key, value in node.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _describe_result(record: Record, result: Result) -> str:
    """Describe a run in Markdown: its speedup and flags on one line, or why it has no speedup."""
    if record.status != "ok" or result.speedup is None:
        return _describe_failure(record)
    low, high = result.speedup_low, result.speedup_high
    bounds = f" [{low:.2f}, {high:.2f}]" if low is not None and high is not None else ""
    device = f", device {result.device_speedup:.2f}" if result.device_speedup is not None else ""
    count = f"{result.processes} process{'' if result.processes == 1 else 'es'}"
    flags = f"; {', '.join(record.flags)}".translate(_ESCAPES) if record.flags else ""
    return f"speedup {result.speedup:.2f}{bounds} over {count}{device}{flags}"


def _describe_failure(record: Record) -> str:
    """Quote the message: the first line as text, the others as an indented block, which no character in them ends."""
    first, *others = (record.message or "").splitlines() or [""]
    line = f"{record.phase or record.status}: {first}".translate(_ESCAPES) if first or others else ""
    return "\n".join([line, *(["", *(f"    {other}" for other in others)] if others else [])])


def digest_record(record: Record) -> str:
    """Hash the record and `VIEW_VERSION`, so that runs from an earlier sweeper are sent again."""
    return hashlib.sha256(f"{VIEW_VERSION}\n{record.dumps()}".encode()).hexdigest()


def find_experiment(client: MlflowClient) -> str | None:
    """Find the id of our experiment, None when there is none.

    Raises TrackingError when the experiment was deleted, or when no MLflow server answers.
    """
    experiment = client.get_experiment_by_name(EXPERIMENT)
    if experiment is None:
        return None
    experiment_id = str(experiment.experiment_id)
    if not experiment_id:
        raise TrackingError("it answers, but not as an MLflow server does")
    if experiment.lifecycle_stage != "active":
        restore = f"mlflow experiments restore -x {experiment_id}"
        raise TrackingError(f"its experiment {EXPERIMENT} was deleted; bring it back: {restore}")
    return experiment_id


def build_sweep_filter(sweep: str) -> str:
    """Build the filter that finds every run of a sweep."""
    return f"tags.{SWEEP} = '{check_sweep_name(sweep)}'"


def search_runs(client: MlflowClient, experiment_id: str, filter_: str) -> Iterator[Run]:
    """Yield every run that the filter finds, oldest first. Keep only what you need: 10,000 runs take 600 MB.

    Delete no run before the search has ended: later runs would move up a page and be missed.
    """
    order, token = ["attributes.start_time ASC"], None
    while token != "":
        page = client.search_runs([experiment_id], filter_, max_results=RUNS_PER_PAGE, order_by=order, page_token=token)
        yield from page
        token = page.token or ""
