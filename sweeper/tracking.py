"""Records to MLflow and back: one experiment, one parent run a sweep, one child run a trial.

Place in the flow: the driver's `Tracker` sends each record after it is on disk, and the report last. Records are the
truth and MLflow a view of them, so a tracker that does not answer costs seconds, once, and nothing is lost:
`python -m sweeper.sync NAME` sends what is missing.

Runs are found by their tags. The child of a retried trial is used again; but MLflow cannot change a param nor take a
metric away, so a retry that needs that (another torch, a speedup that is no more) moves the old child to MLflow's trash
and gets a new one. The tag `sweeper.record`, written last, is the digest of the record that a child shows: whoever has
it is complete, and the same record is not sent twice.

Try: `mlflow ui --backend-store-uri sqlite:///runs/mlflow.db`
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sweeper import paths
from sweeper.mlflow_store import TrackingError, artifact_location, connect, default_uri, explained, sqlite_file
from sweeper.paths import SweepPaths, TrialPaths, check_sweep_name
from sweeper.record import Record
from sweeper.result import derive

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run

EXPERIMENT = "sweeper"
METRICS = (
    "speedup", "speedup_low", "speedup_high", "device_speedup", "eager_step_s", "compiled_step_s", "samples_per_s",
    "compile_cold_s", "compile_warm_s", "break_even_steps", "eager_peak_memory_bytes", "compiled_peak_memory_bytes",
    "graph_breaks", "recompiles",
)  # fmt: skip
RUN_STATUSES = {"ok": "FINISHED", "interrupted": "KILLED"}  # every other status: FAILED

KIND, SWEEP, TRIAL = "sweeper.kind", "sweep", "trial_id"
PARENT, NOTE = "mlflow.parentRunId", "mlflow.note.content"  # names that MLflow's pages know
RECORD, REPORT = "sweeper.record", "sweeper.report"  # digests of what was sent

# Limits of mlflow.utils.validation, the tag's that of older servers. Longer values are cut.
MOST_PARAM_CHARACTERS = 6000
MOST_TAG_CHARACTERS = 5000
MOST_PARAMS_A_CALL = 100
RUNS_A_PAGE = 1000

T = TypeVar("T")


@dataclass(frozen=True)
class Sent:
    """What `Tracker.catch_up` did: records sent now, records that were there already, files that hold no record."""

    sent: int
    unchanged: int
    unreadable: tuple[Path, ...] = ()


class Tracker:
    """Sends the records of one sweep. It stops at the first failure, never raises, and `failure` says what happened."""

    def __init__(self, uri: str | None, sweep: str, runs: Path = paths.RUNS) -> None:
        self.uri = uri or default_uri(runs)
        self.failure: str | None = None
        self._sweep = sweep
        self._paths = SweepPaths.of(sweep, runs)
        self._artifacts = artifact_location(self.uri, runs)
        self._runs: _Runs | None = None
        self._interrupted = False

    def log(self, record: Record) -> bool:
        """Send a record as the child run of its trial. False when it is there already or MLflow cannot be reached."""
        self._interrupted |= record.status == "interrupted"
        files = self._paths.trial(record.label, record.trial_id)
        return bool(self._attempt(lambda runs: runs.send(record, files)))

    def catch_up(self) -> Sent:
        """Log every record in the sweep's folder."""
        sent, unchanged, unreadable = 0, 0, []
        for path in self._paths.records():
            try:
                record = Record.loads(path.read_text(encoding="utf-8"))
            except ValueError:
                unreadable.append(path)
                continue
            if self.log(record):
                sent += 1
            elif self.failure is None:
                unchanged += 1
        return Sent(sent, unchanged, tuple(unreadable))

    def log_report(self, files: Sequence[Path]) -> None:
        """Put files, and folders with all they hold, under `report/` of the parent run; once, if they stay the same."""
        if files:
            self._attempt(lambda runs: runs.send_report(files))

    def finish(self) -> None:
        """End the parent run, when something was sent: KILLED after an interrupted trial, else FINISHED."""
        if self._runs is not None:
            self._attempt(lambda runs: runs.finish("KILLED" if self._interrupted else "FINISHED"))

    @property
    def page(self) -> str | None:
        """The runs in MLflow's pages, to go after the server's address; what it opens with is about traces."""
        return f"/#/experiments/{self._runs.experiment_id}/runs" if self._runs else None

    def _attempt(self, action: Callable[[_Runs], T]) -> T | None:
        if self.failure is not None:
            return None
        try:
            runs = self._runs = self._runs or self._open()
            with explained(self.uri):
                return action(runs)
        except TrackingError as error:
            self.failure = str(error)
            return None

    def _open(self) -> _Runs:
        return connect(self.uri, lambda client: _Runs(client, self._sweep, self._artifacts))


def records(uri: str | None, sweep: str, runs: Path = paths.RUNS) -> list[Record]:
    """Read a sweep's records back from MLflow, ordered by label; none for a sweep that MLflow does not know.

    Raises TrackingError when MLflow cannot be reached, ValueError for a bad name or a record of a newer schema.
    """
    check_sweep_name(sweep)
    uri = uri or default_uri(runs)
    file = sqlite_file(uri)
    if file is not None and not file.exists():
        raise TrackingError(f"{file} does not exist")
    client, found = connect(uri, lambda client: (client, _complete_children(client, sweep)))
    texts = []
    with explained(uri), tempfile.TemporaryDirectory() as folder:
        for run in found:
            texts.append(Path(client.download_artifacts(run.info.run_id, "record.json", folder)).read_text("utf-8"))
    return sorted(map(Record.loads, texts), key=lambda record: (record.label, record.trial_id))


@dataclass(frozen=True)
class View:
    """What a run shows, beside its artifacts."""

    params: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)

    def can_become(self, other: View) -> bool:
        """Whether MLflow can change a run from this to `other`: no param changes or goes, no metric goes."""
        return self.params.items() <= other.params.items() and self.metrics.keys() <= other.metrics.keys()


def view(record: Record, sweep: str, parent_id: str) -> View:
    """The child run of a record. `sweep` names the folder that it lies in, which may be a copy with another name."""
    return View(_params(record), _metrics(record), _tags(record, sweep, parent_id))


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
        re.sub(r"[^\w. /-]", "_", key): (value if isinstance(value, str) else json.dumps(value))[:MOST_PARAM_CHARACTERS]
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


def _metrics(record: Record) -> dict[str, float]:
    result = derive(record)
    values = {name: getattr(result, name) for name in METRICS}
    return {name: float(value) for name, value in values.items() if value is not None and math.isfinite(value)}


def _tags(record: Record, sweep: str, parent_id: str) -> dict[str, str]:
    device = record.environment.get("device")
    tags = {
        PARENT: parent_id,
        KIND: "trial",
        SWEEP: sweep,
        TRIAL: record.trial_id,
        "status": record.status,
        "flags": ";".join(record.flags),
        "device_name": str(device.get("name", "")) if isinstance(device, Mapping) else "",
        NOTE: f"{record.phase or record.status}: {record.message}" if record.message else "",
        RECORD: hashlib.sha256(record.dumps().encode()).hexdigest(),
    }
    return {key: value[:MOST_TAG_CHARACTERS] for key, value in tags.items()}


@dataclass(frozen=True)
class _Child:
    run_id: str
    view: View


class _Runs:
    """The runs of one sweep. One search finds them all; what is sent later is remembered."""

    def __init__(self, client: MlflowClient, sweep: str, artifacts: str | None) -> None:
        self._client = client
        self._sweep = sweep
        self.experiment_id = _experiment_id(client, artifacts)
        found = _search(client, self.experiment_id, sweep)
        parents = [run for run in found if run.data.tags.get(KIND) == "sweep"]
        tags = {SWEEP: sweep, KIND: "sweep"}
        parent = parents[0] if parents else client.create_run(self.experiment_id, tags=tags, run_name=sweep)
        self._parent_id: str = parent.info.run_id
        self._running = parent.info.status == "RUNNING"
        self._report = parent.data.tags.get(REPORT)
        self._children: dict[str, _Child] = {}
        for run in found:
            if run.data.tags.get(KIND) == "trial":
                self._adopt(run)
        for run in parents[1:]:
            client.delete_run(run.info.run_id)

    def send(self, record: Record, files: TrialPaths) -> bool:
        """Make the child run of the record's trial show this record; False when it does already."""
        new = view(record, self._sweep, self._parent_id)
        child = self._children.get(record.trial_id)
        if child is not None and all(child.view.tags.get(key) == new.tags[key] for key in (RECORD, PARENT)):
            return False
        self._begin()
        end_ms = int(1000 * (files.record.stat().st_mtime if files.record.exists() else time.time()))
        run_id = self._child_for(record, child, new, end_ms)
        self._client.log_text(run_id, record.dumps(), "record.json")
        for log in sorted(files.folder.glob("*.log")):
            self._client.log_artifact(run_id, str(log))
        self._client.set_terminated(run_id, RUN_STATUSES.get(record.status, "FAILED"), end_ms)
        self._log_batch(run_id, new)  # last, because it holds the digest
        self._children[record.trial_id] = _Child(run_id, new)
        return True

    def send_report(self, files: Sequence[Path]) -> None:
        """Put the files under `report/` of the parent, unless just these are there."""
        digest = _digest(files)
        if digest == self._report:
            return
        self._begin()
        for file in files:  # a folder goes with its name and all it holds
            self._client.log_artifact(self._parent_id, str(file), "report")
        self._client.set_tag(self._parent_id, REPORT, digest)
        self._report = digest

    def finish(self, status: str) -> None:
        """End the parent run, unless nothing was sent since it ended."""
        if self._running:
            self._client.set_terminated(self._parent_id, status)
            self._running = False

    def _adopt(self, run: Run) -> None:
        """Remember a child. Of two for one trial, as an answer that got lost leaves behind, the complete one stays."""
        trial_id = run.data.tags.get(TRIAL, "")
        new = _Child(run.info.run_id, View(run.data.params, run.data.metrics, run.data.tags))
        old = self._children.get(trial_id)
        if old is not None:
            new, dropped = (old, new) if RECORD in old.view.tags else (new, old)
            self._client.delete_run(dropped.run_id)
        self._children[trial_id] = new

    def _begin(self) -> None:
        """The parent of a resumed sweep runs again."""
        if not self._running:
            self._client.update_run(self._parent_id, status="RUNNING")
            self._running = True

    def _child_for(self, record: Record, child: _Child | None, new: View, end_ms: int) -> str:
        """The run that can show `new`: the child there is, or a new one, which began when the workers did."""
        if child is not None and child.view.can_become(new):
            return child.run_id
        if child is not None:
            self._client.delete_run(child.run_id)
            del self._children[record.trial_id]
        tags = {key: value for key, value in new.tags.items() if key != RECORD}
        start_ms = end_ms - int(1000 * sum(sum(process.phases_s.values()) for process in record.processes))
        run = self._client.create_run(self.experiment_id, start_ms, tags, run_name=record.label)
        return str(run.info.run_id)

    def _log_batch(self, run_id: str, new: View) -> None:
        from mlflow.entities import Metric, Param, RunTag

        now_ms = int(time.time() * 1000)
        metrics = [Metric(key, value, now_ms, 0) for key, value in new.metrics.items()]
        params = [Param(key, value) for key, value in new.params.items()]
        tags = [RunTag(key, value) for key, value in new.tags.items()]
        for start in range(MOST_PARAMS_A_CALL, len(params), MOST_PARAMS_A_CALL):
            self._client.log_batch(run_id, params=params[start : start + MOST_PARAMS_A_CALL], synchronous=True)
        self._client.log_batch(run_id, metrics, params[:MOST_PARAMS_A_CALL], tags, synchronous=True)


def _digest(files: Sequence[Path]) -> str:
    """SHA-256 of the names and bytes of files, and of those in folders."""
    digest = hashlib.sha256()
    for top in sorted(files):
        for file in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if file.is_file():
                content = hashlib.sha256(file.read_bytes()).hexdigest()
                digest.update(f"{file.relative_to(top.parent)} {content}\n".encode())
    return digest.hexdigest()


def _experiment_id(client: MlflowClient, artifacts: str | None) -> str:
    """The id of our experiment, created when there is none. Raises TrackingError for one that was deleted."""
    experiment = client.get_experiment_by_name(EXPERIMENT) or _create_experiment(client, artifacts)
    experiment_id = str(experiment.experiment_id)
    if not experiment_id:
        raise TrackingError("it answers, but not as an MLflow server does")
    if experiment.lifecycle_stage != "active":
        raise TrackingError(
            f"its experiment {EXPERIMENT} was deleted; bring it back: mlflow experiments restore -x {experiment_id}"
        )
    return experiment_id


def _create_experiment(client: MlflowClient, artifacts: str | None) -> Experiment:
    from mlflow.exceptions import MlflowException

    try:
        return client.get_experiment(client.create_experiment(EXPERIMENT, artifact_location=artifacts))
    except MlflowException:
        experiment = client.get_experiment_by_name(EXPERIMENT)
        if experiment is None:
            raise
        return experiment  # another driver was faster


def _search(client: MlflowClient, experiment_id: str, sweep: str) -> list[Run]:
    """Every run of a sweep, the oldest first."""
    found: list[Run] = []
    token: str | None = None
    while True:
        page = client.search_runs(
            [experiment_id],
            f"tags.{SWEEP} = '{check_sweep_name(sweep)}'",
            max_results=RUNS_A_PAGE,
            order_by=["attributes.start_time ASC"],
            page_token=token,
        )
        found += page
        token = page.token
        if not token:
            return found


def _complete_children(client: MlflowClient, sweep: str) -> list[Run]:
    """The child runs that hold a record, one a trial."""
    experiment = client.get_experiment_by_name(EXPERIMENT)
    if experiment is None:
        return []
    children: dict[str, Run] = {}
    for run in _search(client, experiment.experiment_id, sweep):
        if RECORD in run.data.tags:
            children.setdefault(run.data.tags.get(TRIAL, ""), run)
    return list(children.values())
