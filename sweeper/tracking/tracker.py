"""`Tracker` sends the records of a sweep to MLflow: one experiment, one parent run per sweep, one
child run per trial.

`runs.build_view` chooses what a run shows, and `METRICS` in `sweeper.analysis.metrics` names the
metrics.

Records on disk are the truth and MLflow is a view of them. So an MLflow that does not answer costs
seconds, once, and loses nothing: `python -m sweeper.sync NAME` sends what is missing.

Runs are found by their tags. A retried trial uses its child run again, unless a param would change,
or a metric or a point would go: MLflow cannot do that, so the child moves to MLflow's trash and a
new one takes its place. The parent of a sweep that loses a key figure is replaced in the same way.
The tag `sweeper.record` holds the digest of the record that a child shows. It is written last: a
child that has it is complete, and its record is not sent again.

Try: `mlflow ui --backend-store-uri sqlite:///runs/mlflow.db`
"""

from __future__ import annotations

import datetime as dt
import functools
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from sweeper.analysis.derive import derive
from sweeper.analysis.result import Result
from sweeper.core.files import MAX_FILE_BYTES, open_inside, read_json, write_text
from sweeper.core.paths import SweepPaths, TrialPaths, list_folder
from sweeper.core.record import Record, RecordError
from sweeper.core.serialization import get_mapping
from sweeper.core.system import interrupts
from sweeper.core.system.command_line import name_program
from sweeper.core.system.leftovers import make_temporary, remove_temporary
from sweeper.core.text import printable
from sweeper.core.uris import remove_credentials, remove_passwords

from . import runs, store
from .runs import Overview, View

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run

P = ParamSpec("P")
T = TypeVar("T")


class Sent(NamedTuple):
    """The result of `Tracker.catch_up`: how many records were sent or already there, and a line per
    problem.
    """

    sent: int
    unchanged: int
    problems: tuple[str, ...] = ()


class _Child(NamedTuple):
    """The part of a child run that stays in memory; MLflow is asked for the rest when a child has
    to change.
    """

    run_id: str
    parent_id: str | None
    digest: str | None  # of the record that it shows; None: it is not complete
    answer: str | None = None  # for its model, of the last report


def _never_raises(
    call: Callable[Concatenate[Tracker, P], T],
) -> Callable[Concatenate[Tracker, P], T | None]:
    """Make a method of `Tracker` keep why it failed and return None. The first call opens the
    store, and after a failure none does anything.
    """

    @functools.wraps(call)
    def attempt(tracker: Tracker, /, *arguments: P.args, **options: P.kwargs) -> T | None:
        if tracker.failure is not None:
            return None
        try:
            if tracker.page is None:
                tracker._open()
            with store.translate_errors(tracker.uri):
                return call(tracker, *arguments, **options)
        except store.TrackingError as error:
            tracker.failure = str(error)
            return None

    return attempt


class Tracker:
    """Sends the records of one sweep. It never raises: it stops at the first failure and keeps the
    reason.

    One search finds all runs of the sweep, and what is sent later is remembered. The folder of the
    sweep and the runs may both be somebody else's work.
    """

    def __init__(self, uri: str | None, sweep: str) -> None:
        self.uri = uri or store.default_uri()
        self.failure: str | None = None
        self.not_sent: list[str] = []  # files that stay here, and why
        # Path of the sweep's trials in MLflow's pages, with figures: MLflow itself opens with
        # traces. None until the store is open.
        self.page: str | None = None
        self._paths = SweepPaths.of(sweep)
        self._children: dict[str, _Child] = {}
        self._interrupted = False
        self._has_begun = False  # whether the sweep runs now, and ends with `finish`

    def _open(self) -> None:
        """Open the store and find the runs of the sweep."""
        self._client, experiment = store.connect(self.uri, self._ensure_experiment)
        self._artifacts = experiment.artifact_location
        self._experiment_id: str = experiment.experiment_id
        # No time limit as `connect` has one: finding the runs of ten thousand trials takes many
        # calls.
        with store.translate_errors(self.uri):
            remove_temporary()
            self._find_runs()
            key, page = runs.build_page(self._paths.folder.name)
            self._client.set_experiment_tag(self._experiment_id, runs.SHARED_VIEW + key, page)
        self.page = f"/#/experiments/{self._experiment_id}/runs?viewStateShareKey={key}"

    def _ensure_experiment(self, client: MlflowClient) -> Experiment:
        """Return our experiment, which is created when there is none."""
        from mlflow.exceptions import MlflowException

        found = runs.find_experiment(client)
        if found is None:
            try:
                place = store.artifact_location(self.uri)
                return client.get_experiment(client.create_experiment(runs.EXPERIMENT, place))
            except MlflowException:
                found = runs.find_experiment(client)  # another driver was faster
                if found is None:
                    raise
        return found

    def _find_runs(self) -> None:
        """Find the runs of the sweep, and delete duplicates, left behind when MLflow's answer was
        lost.
        """
        parents = []
        doubles = []
        found = runs.build_sweep_filter(self._paths.folder.name)
        for run in runs.search_runs(self._client, self._experiment_id, found):
            run_id, tags = run.info.run_id, run.data.tags
            kind, trial_id = tags.get(runs.KIND), tags.get(runs.TRIAL, "")
            child = self._children.get(trial_id)
            if kind == "sweep":
                parents.append(run)
            elif kind == "trial" and child and child.digest:
                doubles.append(run_id)
            elif kind == "trial":
                if child:
                    doubles.append(child.run_id)
                shown = map(tags.get, (runs.PARENT, runs.RECORD, "answer"))
                self._children[trial_id] = _Child(run_id, *shown)
        doubles += [run.info.run_id for run in parents[1:]]
        self._use_parent(parents[0] if parents else self._create_parent(self._read_start_ms()))
        for run_id in doubles:
            self._client.delete_run(run_id)

    @_never_raises
    def begin(self) -> None:
        """Open the store and create the run of a sweep that begins now, so that its page can be
        looked at.
        """
        self._has_begun = True
        self._resume()

    def catch_up(self) -> Sent:
        """Send every record in the sweep's folder that MLflow lacks. An interrupt takes effect
        between two records.
        """
        sent: list[bool | None] = []
        problems = []
        for path in self._paths.records():
            interrupts.check()
            try:
                record = Record.read(path)
            except RecordError as error:
                problems.append(printable(f"{path}: {error}"))
            else:
                sent.append(self.log(record, files=TrialPaths(path.parent)))
        return Sent(sent.count(True), sent.count(False), tuple(problems))

    def describe_page(self) -> str:
        """Say where MLflow's pages show the sweep, with the command that opens them, or why they
        cannot.
        """
        if self.failure:
            sync = name_program(f"python -m sweeper.sync {self._paths.folder.name}")
            return f"MLflow: {self.failure}; nothing is lost, send it: {sync}"
        if not store.sqlite_file(self.uri):
            return f"MLflow: {remove_credentials(self.uri)}{self.page}"
        command = name_program(f"python -m mlflow ui --backend-store-uri {self.uri}")
        return f"MLflow: {command}\n        then open http://127.0.0.1:5000{self.page}"

    def _read_start_ms(self) -> int | None:
        """Read when the first command of the sweep began; None where `sweep.json` does not say."""
        try:
            started = read_json(self._paths.sweep)["invocations"][0]["started"]
            return int(1000 * dt.datetime.fromisoformat(started).timestamp())
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def _create_parent(self, started_ms: int | None) -> Run:
        name = self._paths.folder.name
        return self._client.create_run(
            self._experiment_id, started_ms, {runs.SWEEP: name, runs.KIND: "sweep"}, run_name=name
        )

    def _use_parent(self, parent: Run) -> None:
        self._parent = parent
        self._parent_id: str = parent.info.run_id
        self._running: bool = parent.info.status == "RUNNING"

    @_never_raises
    def log(
        self, record: Record, result: Result | None = None, files: TrialPaths | None = None
    ) -> bool:
        """Make the child run of the record's trial show the record. False when it does already,
        None when MLflow is not reached.

        `result` is derived unless it is at hand. Logs come from `files`, by default the folder of
        the trial.
        """
        self._interrupted |= record.status == "interrupted"
        files = files or self._paths.trial(record.label, record.trial_id)
        digest = runs.digest_record(record)
        child = self._children.get(record.trial_id)
        if child is not None and child.digest == digest:
            self._move_to_parent(record.trial_id, child)
            return False
        self._resume()
        view = runs.build_view(
            record, result or derive(record), self._paths.folder.name, self._parent_id
        )
        end_ms = int(1000 * time.time())
        if files.record.exists():
            end_ms = int(1000 * files.record.stat().st_mtime)
        run = self._prepare_child(record, child, view, end_ms)
        run_id = run.info.run_id
        sent = sorted(list_folder(files.folder, "*.log"))
        if record.inspection and record.inspection.folder and files.inspection.exists():
            sent += _list_files(files.inspection)
        with self._copy(sent, files.folder) as copies:
            write_text(copies / "record.json", record.dumps())
            self._send_folder(run, copies)
        self._client.set_terminated(run_id, runs.RUN_STATUSES.get(record.status, "FAILED"), end_ms)
        # last, because it holds the digest
        self._log_batch(run_id, view._replace(tags={**view.tags, runs.RECORD: digest}))
        self._children[record.trial_id] = _Child(run_id, self._parent_id, digest)
        return True

    @_never_raises
    def log_overview(self, overview: Overview) -> None:
        """Make the parent show the overview, and children the answers. A description that somebody
        wrote stays until the overview changes.
        """

        def send() -> None:
            if not self._parent.data.metrics.keys() <= overview.metrics.keys():
                self._replace_parent()
            changed = dict(overview.metrics.items() - self._parent.data.metrics.items())
            self._log_batch(self._parent_id, View({}, changed, {runs.NOTE: overview.note}))

        self._send_once(runs.OVERVIEW, overview.text, send)
        for trial_id, tags in overview.tags.items():
            interrupts.check()
            child = self._children.get(trial_id)
            if child is not None and child.answer != tags["answer"]:
                self._log_batch(child.run_id, View({}, {}, tags))
                self._children[trial_id] = child._replace(answer=tags["answer"])

    @_never_raises
    def log_report(self, files: Sequence[Path]) -> None:
        """Put files of the report, and folders with everything in them, under `report/` of the
        parent.
        """
        found = [path for file in files for path in _list_files(file)]
        with self._copy(found, self._paths.report) as folder:
            lines = []
            for copy in _list_files(folder):
                with copy.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                lines.append(f"{copy.relative_to(folder)} {digest}\n")
            self._send_once(
                runs.REPORT,
                "".join(lines),
                functools.partial(self._send_folder, self._parent, folder, "report"),
            )

    @_never_raises
    def finish(self, interrupted: bool = False) -> None:
        """Put `sweep.json` on the parent run, for the head of a report from MLflow, and end it if
        anything was sent: KILLED after an interrupted trial or sweep, else FINISHED.
        """
        manifest = _read_public_manifest(self._paths.sweep)
        if manifest is not None:

            def send() -> None:
                with make_temporary() as folder:
                    write_text(folder / "sweep.json", manifest)
                    self._send_folder(self._parent, folder)

            self._send_once(runs.MANIFEST, manifest, send)
        if self._running:
            records = [] if self._has_begun else self._paths.records()
            # of a sweep that ran earlier: its last record
            end_s = max([path.stat().st_mtime for path in records], default=time.time())
            status = "KILLED" if self._interrupted or interrupted else "FINISHED"
            self._client.set_terminated(self._parent_id, status, int(1000 * end_s))
            self._running = False

    def _send_once(self, tag: str, text: str, send: Callable[[], object]) -> None:
        """Send what `text` stands for to the parent, and note the text's digest there, unless the
        parent has it.
        """
        digest = hashlib.sha256(text.encode()).hexdigest()
        if self._parent.data.tags.get(tag) != digest:
            self._resume()
            send()
            self._client.set_tag(self._parent_id, tag, digest)

    def _replace_parent(self) -> None:
        """Replace a parent that shows a figure which no longer exists by a new one, and move the
        children to it.
        """
        old = self._parent.info
        self._use_parent(self._create_parent(old.start_time))
        for trial_id, child in self._children.items():
            self._move_to_parent(trial_id, child)
        self._client.delete_run(old.run_id)

    def _resume(self) -> None:
        """Set the parent of a resumed sweep to running again."""
        if not self._running:
            self._client.update_run(self._parent_id, status="RUNNING")
            self._running = True

    def _move_to_parent(self, trial_id: str, child: _Child) -> None:
        """Put a child under the current parent."""
        if child.parent_id != self._parent_id:
            self._client.set_tag(child.run_id, runs.PARENT, self._parent_id)
            self._children[trial_id] = child._replace(parent_id=self._parent_id)

    def _prepare_child(self, record: Record, child: _Child | None, view: View, end_ms: int) -> Run:
        """Return a run that can show the view: the existing child, or a new run in its place.

        A run can change to another view if no param changes or is lost, and no metric is. Points
        count as metrics here, so a run that has points is always replaced.
        """
        if child is not None:
            run = self._client.get_run(child.run_id)
            if (
                run.data.params.items() <= view.params.items()
                and run.data.metrics.keys() <= view.metrics.keys()
            ):
                return run
            self._client.delete_run(child.run_id)
            del self._children[record.trial_id]
        took_s = sum(sum(process.phases_s.values()) for process in record.processes)
        start_ms = end_ms - int(1000 * took_s)
        return self._client.create_run(
            self._experiment_id, start_ms, dict(view.tags), run_name=record.label
        )

    def _log_batch(self, run_id: str, view: View) -> None:
        from mlflow.entities import Metric, Param, RunTag

        now_ms = int(time.time() * 1000)
        metrics = [Metric(key, value, now_ms, 0) for key, value in view.metrics.items()]
        metrics += [Metric(point.name, point.value, now_ms, point.step) for point in view.points]
        params = [Param(key, value) for key, value in view.params.items()]
        tags = [RunTag(key, value) for key, value in view.tags.items()]
        # A call takes 100 params at most (mlflow.utils.validation); MLflow splits what is too long,
        # and would send the tags first.
        if len(params) > 100:
            self._client.log_batch(run_id, params=params, synchronous=True)
            params.clear()
        self._client.log_batch(run_id, metrics, params, tags, synchronous=True)

    @contextmanager
    def _copy(self, files: Sequence[Path], top: Path) -> Iterator[Path]:
        """Copy files under `top` to a folder that goes with the body, so that what is sent is what
        was checked. What is not a regular file of the sweep stays here.
        """
        with make_temporary() as folder:
            for file in files:
                inside = file.relative_to(self._paths.folder)
                try:
                    source = open_inside(self._paths.folder, inside, MAX_FILE_BYTES)
                except OSError as error:
                    self.not_sent.append(
                        printable(f"{file}: {error.strerror}; it is not sent to MLflow")
                    )
                    continue
                target = folder / file.relative_to(top)
                target.parent.mkdir(parents=True, exist_ok=True)
                with source, target.open("wb") as copy:
                    shutil.copyfileobj(source, copy)
            yield folder

    def _send_folder(self, run: Run, folder: Path, path: str | None = None) -> None:
        """Send what lies in a folder of our own."""
        store.check_artifacts(self.uri, self._artifacts, run.info.artifact_uri)
        self._client.log_artifacts(run.info.run_id, str(folder), path)


def _list_files(top: Path) -> list[Path]:
    """List a file, or everything in a folder but its folders; links are files here."""
    if top.is_symlink() or not top.is_dir():
        return [top]
    return sorted(found for path in top.iterdir() for found in _list_files(path))


def _read_public_manifest(path: Path) -> str | None:
    """Read `sweep.json` without passwords in URIs, and without the lists of trials, which every
    resume repeats.

    None when there is no such file, or it is not ours.
    """
    try:
        invocations = list(map(dict[str, Any], read_json(path)["invocations"]))
    except (OSError, ValueError, LookupError, TypeError):
        return None
    known = []
    for invocation in invocations:
        invocation.pop("plan", None)
        invocation.pop("left_out", None)
        uri = get_mapping(invocation, "settings", "tracking").get("uri")
        if isinstance(uri, str):
            known.append(json.dumps(uri)[1:-1])  # as it stands in the text
    manifest = {"sweep": path.parent.name, "invocations": invocations}
    return remove_passwords(json.dumps(manifest, indent=1), *known)
