"""The runs of sweeper in MLflow: what they show of a record or a sweep, and how they are found.
Imports no mlflow.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from sweeper.analysis.metrics import METRICS
from sweeper.analysis.result import Result
from sweeper.core.libraries import SCRIPT
from sweeper.core.paths import check_sweep_name
from sweeper.core.record import Record, ScriptRun
from sweeper.core.serialization import flatten, get_mapping
from sweeper.core.text import escape_markdown

from .store import TrackingError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run

EXPERIMENT = "sweeper"
# Tags by which sweeper recognises its runs.
KIND, SWEEP, TRIAL = "sweeper.kind", "sweep", "trial_id"
PARENT, NOTE = "mlflow.parentRunId", "mlflow.note.content"  # MLflow's pages know these two
# Digests of what a run shows, so that nothing is sent twice.
RECORD, REPORT = "sweeper.record", "sweeper.report"
MANIFEST, OVERVIEW = "sweeper.invocations", "sweeper.overview"
RUN_STATUSES = {"ok": "FINISHED", "interrupted": "KILLED"}  # every other status: FAILED

# Params that are fields of `Labels` and of `Trial`.
LABELS = ("model", "family", "suite", "precision")
AXES = ("workload", "mode", "backend", "optimizer", "device", "decode_position")

# Limits of mlflow.utils.validation; that of tags is the one of older servers. Longer values are
# cut.
MAX_PARAM_CHARACTERS = 6000
MAX_TAG_CHARACTERS = 5000
# of what `build_view` makes of a record; a run that shows an older version is sent again
VIEW_VERSION = 5
# Limits per trial: with everything else that a run shows they stay below the 1,000 entities that
# MLflow takes per call.
MAX_ROUNDS = 150
MAX_FIRST_STEPS = 50
# Columns of the runs page that our link opens, as MLflow's pages name them.
PAGE_COLUMNS = (
    "metrics.`speedup`",
    "params.`mode`",
    "params.`backend`",
    "params.`precision`",
    "params.`batch_size`",
    "tags.`status`",
    "tags.`sure`",
    "tags.`answer`",
    "tags.`flags`",
)
# begins the tag of an experiment that holds what a link of MLflow's pages opens
SHARED_VIEW = "mlflow.sharedViewState."
RUNS_PER_PAGE = 200  # MLflow needs 60 kB for a run with its params, metrics and tags


class MetricPoint(NamedTuple):
    """One value of a metric."""

    name: str
    step: int
    value: float


class View(NamedTuple):
    """Everything that a run shows besides its artifacts."""

    params: Mapping[str, str]
    metrics: Mapping[str, float]
    tags: Mapping[str, str]
    points: tuple[MetricPoint, ...] = ()


@dataclass(frozen=True)
class Overview:
    """What the run of a sweep shows besides its artifacts, key figures and a description in
    Markdown, and what the runs of its trials show of the report.
    """

    metrics: Mapping[str, float]
    note: str
    # by trial id: `answer`, for the trial's model, and `sure`, which follows from it
    tags: Mapping[str, Mapping[str, str]]

    @property
    def text(self) -> str:
        """All of the sweep's run; overviews that show the same have the same text."""
        return json.dumps([self.metrics, self.note], sort_keys=True)


def build_view(record: Record, result: Result, sweep: str, parent_id: str) -> View:
    """Build the view of a record's run. `sweep` names the record's folder, which may be a renamed
    copy of a sweep.
    """
    metrics = {}
    for metric in METRICS:
        value = result.figures.get(metric.name)
        if metric.mlflow and isinstance(value, (int, float)) and math.isfinite(value):
            metrics[metric.name] = float(value)
    tags = {
        PARENT: parent_id,
        KIND: "trial",
        SWEEP: sweep,
        TRIAL: record.trial_id,
        "status": record.status,
        "flags": ";".join(record.flags),
        "device_name": str(get_mapping(record.environment, "device").get("name", "")),
        NOTE: _describe_result(record, result),
    }
    tags = {key: value[:MAX_TAG_CHARACTERS] for key, value in tags.items()}
    return View(_make_params(record, result.seen_of_script), metrics, tags, list_points(record))


def _make_params(record: Record, seen: ScriptRun | None) -> dict[str, str]:
    """Collect the axes in the tables, all others that are not at their defaults (`compile.scope`),
    and the versions. Of a script, `seen` says what it does in place of axes that it ignores.
    """
    trial, axes = record.trial, record.trial.axes()
    values = {name: getattr(trial.labels, name) for name in LABELS}
    values |= {name: getattr(trial, name) for name in AXES}
    values["batch_size"] = trial.known_batch_size
    values["variant"] = trial.variant or None
    for part in ("model", "precision", "compile", "text"):
        values |= flatten(axes.get(part, {}), f"{part}.")
    values |= flatten(get_mapping(record.environment, "versions"), "version.")
    if trial.workload == SCRIPT:
        seen = seen or ScriptRun()
        values["optimizer"] = ", ".join(seen.optimizers) or None
        values |= {"model.dropout": seen.dropout, "precision.autocast": seen.autocast}
    values["library"] = values.pop("model.library")
    params = {}
    for key, value in values.items():
        if value is not None:
            text = value if isinstance(value, str) else json.dumps(value)
            params[re.sub(r"[^\w. -]", "_", key)] = text[:MAX_PARAM_CHARACTERS]
    return params


def _describe_result(record: Record, result: Result) -> str:
    """Describe a run in Markdown: its speedup and flags on one line, or why it has no speedup. Of a
    script the loop comes first, since it decides.
    """
    if record.status != "ok" or result.speedup is None:
        lines = (record.message or "").splitlines()
        if not any(lines):
            return ""
        # the first line as text, the others as an indented block, which no character in them ends
        shown = [escape_markdown(f"{record.phase or record.status}: {lines[0]}")]
        if lines[1:]:
            shown += ["", *(f"    {line}" for line in lines[1:])]
        return "\n".join(shown)
    text = f"loop {result.loop_speedup.ratio:.2f}, step" if result.loop_speedup else "speedup"
    text += f" {result.speedup.ratio:.2f}"
    if bounds := result.speedup.interval():
        text += f" [{bounds.low:.2f}, {bounds.high:.2f}]"
    text += f" over {result.processes} process{'' if result.processes == 1 else 'es'}"
    if result.device_speedup:
        text += f", device {result.device_speedup.ratio:.2f}"
    if record.flags:
        text += f"; {escape_markdown(', '.join(record.flags))}"
    return text


def list_points(record: Record) -> tuple[MetricPoint, ...]:
    """List step times and speedups by round, and the first compiled steps by number. A missing
    value has no point.

    Rounds are numbered on from process to process, so that a process that differs shows as a level
    of its own. The compiled arm has points only for status `ok`: a wrong program has no speed.
    """
    is_ok = record.status == "ok"
    points = []
    # of the first process that compiled
    compiled = [process.first_steps_s for process in record.processes if process.first_steps_s]
    if is_ok and compiled:
        for step, took_s in enumerate(compiled[0][:MAX_FIRST_STEPS]):
            points.append(MetricPoint("first_step_ms", step, 1e3 * took_s))
    step = 0
    for process in record.processes:
        steps = process.steps_per_block
        for item in process.rounds:
            if steps and item.void is None and step < MAX_ROUNDS:  # a void round leaves a gap
                if item.eager_s:
                    points.append(MetricPoint("eager_step_ms", step, 1e3 * item.eager_s / steps))
                if item.compiled_s and is_ok:
                    compiled_ms = 1e3 * item.compiled_s / steps
                    points.append(MetricPoint("compiled_step_ms", step, compiled_ms))
                    if item.eager_s:
                        speedup = item.eager_s / item.compiled_s
                        points.append(MetricPoint("round_speedup", step, speedup))
            step += 1
    return tuple(points)


def digest_record(record: Record) -> str:
    """Hash the record and `VIEW_VERSION`, so that runs from an earlier sweeper are sent again."""
    return hashlib.sha256(f"{VIEW_VERSION}\n{record.dumps()}".encode()).hexdigest()


def find_experiment(client: MlflowClient) -> Experiment | None:
    """Find our experiment, None when there is none.

    Raises TrackingError when the experiment was deleted, or when no MLflow server answers.
    """
    experiment = client.get_experiment_by_name(EXPERIMENT)
    if experiment is None:
        return None
    if not experiment.experiment_id:
        raise TrackingError("it answers, but not as an MLflow server does")
    if experiment.lifecycle_stage != "active":
        raise TrackingError(
            f"its experiment {EXPERIMENT} was deleted; bring it back: mlflow experiments restore "
            f"-x {experiment.experiment_id}"
        )
    return experiment


def build_sweep_filter(sweep: str) -> str:
    """Build the filter that finds every run of a sweep."""
    return f"tags.{SWEEP} = '{check_sweep_name(sweep)}'"


def build_page(sweep: str) -> tuple[str, str]:
    """Build what the link of a sweep opens in MLflow's pages: the key in the link, and the state of
    the page as JSON.

    The page nests runs only in the order of time. In the order of speedup it shows every trial
    without a click. A link cannot carry columns; MLflow's own button "Share" keeps them in a tag of
    the experiment too.
    """
    state = {
        "searchFilter": build_sweep_filter(sweep),
        "orderByKey": "metrics.`speedup`",
        "orderByAsc": False,
        "selectedColumns": PAGE_COLUMNS,
        "columnOrder": PAGE_COLUMNS,
    }
    return f"sweeper-{hashlib.sha256(sweep.encode()).hexdigest()[:12]}", json.dumps(state)


def search_runs(client: MlflowClient, experiment_id: str, filter_: str) -> Iterator[Run]:
    """Yield every run that the filter finds, oldest first. Keep only what you need: 10,000 runs
    take 600 MB.

    Delete no run before the search has ended: later runs would move up a page and be missed.
    """
    order, token = ["attributes.start_time ASC"], None
    while token != "":
        page = client.search_runs(
            [experiment_id], filter_, max_results=RUNS_PER_PAGE, order_by=order, page_token=token
        )
        yield from page
        token = page.token or ""
