"""Records to MLflow: one experiment, one parent run a sweep, one child run a trial.

Place in the flow: the driver's `Tracker` sends each record after it is on disk, and the report last. Records are the
truth and MLflow a view of them, so a tracker that does not answer costs seconds, once, and nothing is lost:
`python -m sweeper.sync NAME` sends what is missing.

Runs are found by their tags. The child of a retried trial is used again; but MLflow cannot change a param nor take a
metric or a point of one away, so a retry that needs that (another torch, a speedup that is no more, rounds that were
timed anew) moves the old child to MLflow's trash and gets a new one; so does the parent of a sweep that loses a key
figure. The tag `sweeper.record`, written last, is the digest of the record that a child shows: whoever has it is
complete, and the same record is not sent twice.

Try: `mlflow ui --backend-store-uri sqlite:///runs/mlflow.db`
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sweeper.core import paths
from sweeper.core.errors import remove_password
from sweeper.core.paths import SweepPaths, TrialPaths
from sweeper.core.record import Record
from sweeper.tracking.runs import (
    EXPERIMENT,
    INVOCATIONS,
    KIND,
    NOTE,
    OVERVIEW,
    PARENT,
    RECORD,
    REPORT,
    RUN_STATUSES,
    SWEEP,
    TRIAL,
    Overview,
    View,
    digest_of,
    id_of,
    of_sweep,
    search,
    view,
)
from sweeper.tracking.store import TrackingError, artifact_location, connect, default_uri, explained

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run

MAX_PARAMS_PER_CALL = 100  # a limit of mlflow.utils.validation

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
        return self._log(record, self._paths.trial(record.label, record.trial_id))

    def catch_up(self) -> Sent:
        """Log every record in the sweep's folder."""
        sent, unchanged, unreadable = 0, 0, []
        for path in self._paths.records():
            try:
                record = Record.loads(path.read_text(encoding="utf-8"))
            except ValueError:
                unreadable.append(path)
                continue
            if self._log(record, TrialPaths(path.parent)):
                sent += 1
            elif self.failure is None:
                unchanged += 1
        return Sent(sent, unchanged, tuple(unreadable))

    def log_overview(self, overview: Overview) -> None:
        """Show key figures and a description on the parent run; once, if they stay the same."""
        self._attempt(lambda runs: runs.send_overview(overview))

    def log_report(self, files: Sequence[Path]) -> None:
        """Put files, and folders with all they hold, under `report/` of the parent run; once, if they stay the same."""
        if files:
            self._attempt(lambda runs: runs.send_report(files))

    def finish(self) -> None:
        """Send `sweep.json` and end the parent, when it has runs: KILLED after an interrupted trial, else FINISHED."""
        if self._runs is None:
            return
        if (invocations := without_plans(self._paths.sweep)) is not None:
            self._attempt(lambda runs: runs.send_invocations(invocations))
        self._attempt(lambda runs: runs.finish("KILLED" if self._interrupted else "FINISHED"))

    def _log(self, record: Record, files: TrialPaths) -> bool:
        self._interrupted |= record.status == "interrupted"
        return bool(self._attempt(lambda runs: runs.send(record, files)))

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
        """Only the first answer has a limit of its own: finding the runs of ten thousand trials takes many calls."""
        client, experiment_id = connect(self.uri, lambda client: (client, _experiment_id(client, self._artifacts)))
        with explained(self.uri):
            return _Runs(client, experiment_id, self._sweep)


@dataclass(frozen=True)
class _Child:
    """What is kept of a child run in memory; what it shows is asked for when it has to show something else."""

    run_id: str
    parent_id: str | None
    digest: str | None  # of the record that it shows; None: it is not complete


class _Runs:
    """The runs of one sweep. One search finds them all; what is sent later is remembered."""

    def __init__(self, client: MlflowClient, experiment_id: str, sweep: str) -> None:
        self._client = client
        self._sweep = sweep
        self.experiment_id = experiment_id
        self._children: dict[str, _Child] = {}
        parents: list[Run] = []
        dropped: list[str] = []
        for run in search(client, experiment_id, of_sweep(sweep)):
            kind = run.data.tags.get(KIND)
            if kind == "sweep":
                parents.append(run)
            elif kind == "trial":
                dropped += self._adopt(run)
        tags = {SWEEP: sweep, KIND: "sweep"}
        parent = parents[0] if parents else client.create_run(experiment_id, tags=tags, run_name=sweep)
        self._parent_id: str = parent.info.run_id
        self._started_ms: int = parent.info.start_time
        self._running = parent.info.status == "RUNNING"
        self._figures = dict(parent.data.metrics)
        self._overview = parent.data.tags.get(OVERVIEW)
        self._report = parent.data.tags.get(REPORT)
        self._invocations = parent.data.tags.get(INVOCATIONS)
        for run_id in [*dropped, *(run.info.run_id for run in parents[1:])]:
            client.delete_run(run_id)

    def send(self, record: Record, files: TrialPaths) -> bool:
        """Make the child run of the record's trial show this record; False when it does already."""
        digest = digest_of(record)
        child = self._children.get(record.trial_id)
        if child is not None and child.digest == digest:
            self._move(record.trial_id, child)
            return False
        self._begin()
        new = view(record, self._sweep, self._parent_id)
        end_ms = int(1000 * (files.record.stat().st_mtime if files.record.exists() else time.time()))
        run_id = self._child_for(record, child, new, end_ms)
        self._client.log_text(run_id, record.dumps(), "record.json")
        for log in sorted(files.folder.glob("*.log")):
            self._client.log_artifact(run_id, str(log))
        if record.inspection and record.inspection.folder and files.inspection.is_dir():
            self._client.log_artifacts(run_id, str(files.inspection), files.inspection.name)
        self._client.set_terminated(run_id, RUN_STATUSES.get(record.status, "FAILED"), end_ms)
        self._log_batch(run_id, new)  # last, because it holds the digest
        self._children[record.trial_id] = _Child(run_id, self._parent_id, digest)
        return True

    def send_overview(self, overview: Overview) -> None:
        """Show these figures and this description. What the parent shows is left alone while they stay the same."""
        if overview.digest == self._overview:
            return
        self._begin()
        if not self._figures.keys() <= overview.metrics.keys():
            self._replace_parent()
        new = {name: value for name, value in overview.metrics.items() if self._figures.get(name) != value}
        self._log_batch(self._parent_id, View({}, new, {NOTE: overview.note, OVERVIEW: overview.digest}))
        self._figures |= new
        self._overview = overview.digest

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

    def send_invocations(self, text: str) -> None:
        """Put `sweep.json` on the parent, unless it is there: a report from here has the same head then."""
        digest = hashlib.sha256(text.encode()).hexdigest()
        if digest == self._invocations:
            return
        self._begin()
        self._client.log_text(self._parent_id, text, "sweep.json")
        self._client.set_tag(self._parent_id, INVOCATIONS, digest)
        self._invocations = digest

    def finish(self, status: str) -> None:
        """End the parent run, unless nothing was sent since it ended."""
        if self._running:
            self._client.set_terminated(self._parent_id, status)
            self._running = False

    def _adopt(self, run: Run) -> list[str]:
        """Remember a child. Of two for one trial, as an answer that got lost leaves behind, the complete one stays.

        The ids of those to be deleted.
        """
        tags = run.data.tags
        trial_id = tags.get(TRIAL, "")
        new = _Child(run.info.run_id, tags.get(PARENT), tags.get(RECORD))
        old = self._children.get(trial_id)
        kept = new if old is None or old.digest is None else old
        self._children[trial_id] = kept
        return [child.run_id for child in (old, new) if child is not None and child is not kept]

    def _begin(self) -> None:
        """The parent of a resumed sweep runs again."""
        if not self._running:
            self._client.update_run(self._parent_id, status="RUNNING")
            self._running = True

    def _replace_parent(self) -> None:
        """Another parent, which shows nothing yet, in the place of one with a figure that is no more."""
        tags = {SWEEP: self._sweep, KIND: "sweep"}
        parent = self._client.create_run(self.experiment_id, self._started_ms, tags, run_name=self._sweep)
        old, self._parent_id = self._parent_id, parent.info.run_id
        self._figures, self._overview, self._report, self._invocations = {}, None, None, None
        for trial_id, child in self._children.items():
            self._move(trial_id, child)
        self._client.delete_run(old)

    def _move(self, trial_id: str, child: _Child) -> None:
        """Put a child under the parent that there is."""
        if child.parent_id != self._parent_id:
            self._client.set_tag(child.run_id, PARENT, self._parent_id)
            self._children[trial_id] = replace(child, parent_id=self._parent_id)

    def _child_for(self, record: Record, child: _Child | None, new: View, end_ms: int) -> str:
        """The run that can show `new`: the child there is, or a new one, which began when the workers did."""
        if child is not None and self._shown_by(child).can_become(new):
            return child.run_id
        if child is not None:
            self._client.delete_run(child.run_id)
            del self._children[record.trial_id]
        tags = {key: value for key, value in new.tags.items() if key != RECORD}
        start_ms = end_ms - int(1000 * sum(sum(process.phases_s.values()) for process in record.processes))
        run = self._client.create_run(self.experiment_id, start_ms, tags, run_name=record.label)
        return str(run.info.run_id)

    def _shown_by(self, child: _Child) -> View:
        data = self._client.get_run(child.run_id).data
        return View(data.params, data.metrics, data.tags)

    def _log_batch(self, run_id: str, new: View) -> None:
        from mlflow.entities import Metric, Param, RunTag

        now_ms = int(time.time() * 1000)
        metrics = [Metric(key, value, now_ms, 0) for key, value in new.metrics.items()]
        metrics += [Metric(point.name, point.value, now_ms, point.step) for point in new.points]
        params = [Param(key, value) for key, value in new.params.items()]
        tags = [RunTag(key, value) for key, value in new.tags.items()]
        for start in range(MAX_PARAMS_PER_CALL, len(params), MAX_PARAMS_PER_CALL):
            self._client.log_batch(run_id, params=params[start : start + MAX_PARAMS_PER_CALL], synchronous=True)
        self._client.log_batch(run_id, metrics, params[:MAX_PARAMS_PER_CALL], tags, synchronous=True)


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
    """The id of our experiment, created when there is none."""
    return id_of(client.get_experiment_by_name(EXPERIMENT) or _create_experiment(client, artifacts))


def _create_experiment(client: MlflowClient, artifacts: str | None) -> Experiment:
    from mlflow.exceptions import MlflowException

    try:
        return client.get_experiment(client.create_experiment(EXPERIMENT, artifact_location=artifacts))
    except MlflowException:
        experiment = client.get_experiment_by_name(EXPERIMENT)
        if experiment is None:
            raise
        return experiment  # another driver was faster


def without_plans(path: Path) -> str | None:
    """What others may see of `sweep.json`: no passwords in URIs, and no lists of trials, which every resume repeats.

    None where there is no such file, or it is not ours.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        kept = [{key: item[key] for key in item if key not in ("plan", "left_out")} for item in data["invocations"]]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return remove_password(json.dumps({"sweep": path.parent.name, "invocations": kept}, indent=1))
