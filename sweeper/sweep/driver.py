"""The life of a sweep in the driver: plan, check, run, track, report."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from sweeper.core.errors import ConfigError, remove_password
from sweeper.core.gpus import Device
from sweeper.core.paths import RUNS, SweepPaths
from sweeper.core.record import Record, read_status
from sweeper.core.settings import MIN_PROCESSES_FOR_TARGET, Measure, Settings
from sweeper.core.trial import Trial
from sweeper.execution.execute import LOCAL, Launcher, NoSpaceError
from sweeper.execution.lock import hold_lock
from sweeper.execution.placement import Placement, place_trials
from sweeper.execution.scheduler import Finished
from sweeper.report.build import print_report, suggest_next, write_report
from sweeper.report.text.mlflow_overview import overview
from sweeper.sweep import manifest
from sweeper.sweep.plan import History, Plan, describe_plan, estimate_s, make_plan
from sweeper.sweep.preflight import require_runnable
from sweeper.sweep.progress import Progress, format_duration
from sweeper.tracking.store import sqlite_file
from sweeper.tracking.tracker import Tracker

OK, NOT_OK, BAD_CONFIGURATION, INTERRUPTED = 0, 1, 2, 130


def run_sweep(grid: Sequence[Trial], settings: Settings, launcher: Launcher = LOCAL) -> int:
    """Plan a grid, run the planned trials and return the exit code.

    Raises ConfigError before anything has started.
    """
    sweep = _Sweep(grid, settings, launcher, Console(highlight=False, soft_wrap=True))
    plan = sweep.make_plan()
    placement = Placement(launcher.name) if launcher.name else place_trials(settings, len(plan.trials))
    if settings.dry_run:
        sweep.announce(plan, placement)
        if plan.trials:
            sweep.print_estimate(plan, placement)
        return OK
    if placement.devices:
        notes = require_runnable(plan.trials, placement.devices[0])
    else:  # jobs may run on other machines, so the check must not ask for a GPU of this one
        notes = require_runnable([replace(trial, device="cpu") for trial in plan.trials], Device("cpu"))
    for note in notes:
        sweep.console.print(note, markup=False)
    with hold_lock(sweep.paths.lock, f"sweep={settings.sweep}"):
        plan = sweep.make_plan()  # another driver may have ended meanwhile
        if min(placement.concurrency, len(plan.trials)) > 1:
            plan = replace(plan, trials=_read_history(plan.trials)[0].longest_first(plan.trials))
        return sweep.run(plan, placement)


@dataclass(frozen=True)
class _Sweep:
    """The sweep that this command runs, and where it prints."""

    grid: Sequence[Trial]
    settings: Settings
    launcher: Launcher
    console: Console

    @property
    def paths(self) -> SweepPaths:
        return SweepPaths.of(self.settings.sweep)

    def make_plan(self) -> Plan:
        return make_plan(self.grid, self._read_statuses(), self.settings.retry)

    def announce(self, plan: Plan, placement: Placement) -> None:
        count, settings = len(plan.trials), self.settings
        trials = f"{count} trial{'' if count == 1 else 's'} to run on {placement.name}"
        inspected = ", and one that shows what the compiler does" if settings.inspect else ""
        processes = f"{_describe_processes(settings.measure)} each{inspected}"
        self.console.print(f"sweep {settings.sweep}: {trials}, {processes}")
        if settings.dry_run or plan.left_out:
            lines = describe_plan(plan if settings.dry_run else Plan((), plan.left_out))
            self.console.print("\n".join(lines).strip(), markup=False)

    def print_estimate(self, plan: Plan, placement: Placement) -> None:
        """Print the last line of a dry run."""
        whole, on_device = _read_history(plan.trials)
        num_devices = max(len(placement.devices), 1)
        in_flight = max(placement.concurrency // num_devices, 1)
        process_s = estimate_s(plan.trials, whole, on_device, num_devices, in_flight)
        estimate = "no estimate yet"
        if process_s is not None:
            duration = format_duration(process_s * self.settings.measure.processes * self.settings.measure.draws)
            where = "one device" if num_devices == 1 else f"{num_devices} devices"
            if placement.concurrency > num_devices:
                where += f" with {placement.concurrency} trials in flight"
            estimate = f"about {duration} on {where}, judging by {len(whole)} earlier trials"
        self.console.print(f"{estimate}; nothing was started")

    def run(self, plan: Plan, placement: Placement) -> int:
        """Run the plan, report even after an interruption or on a full disk, and return the exit code."""
        sweep = self.settings.sweep
        self.announce(plan, placement)
        if differences := manifest.add_invocation(self.paths, self.settings, plan, placement.name):
            changed = ", ".join(differences)
            self.console.print(f"note: changed since the earlier run of this sweep, whose records are kept: {changed}")
        tracker = Tracker(self.settings.tracking.uri, sweep) if self.settings.tracking.enabled else None
        interrupted = False
        try:
            interrupted = self._run_trials(plan, placement, tracker)
        except KeyboardInterrupt:
            interrupted = True
        except NoSpaceError as error:
            print(f"sweeper: {error} and sweep={sweep}", file=sys.stderr)
        self._report(tracker)
        if interrupted:
            self.console.print(f"interrupted; go on with the same command and sweep={sweep}")
            return INTERRUPTED
        wanted = {trial.id for trial in plan.trials} | {item.trial.id for item in plan.left_out if item.finished}
        statuses = self._read_statuses()
        return OK if all(statuses.get(trial_id) == "ok" for trial_id in wanted) else NOT_OK

    def _run_trials(self, plan: Plan, placement: Placement, tracker: Tracker | None) -> bool:
        """Run the trials under the progress view, and send each record to MLflow; whether the run was interrupted."""
        statuses = []
        progress = Progress(len(plan.trials), self.settings.measure.process_limit, self.console)
        with progress, closing(self.launcher.run(plan.trials, self.settings, placement)) as events:
            for event in events:
                if isinstance(event, Finished):
                    statuses.append(event.record.status)
                    if tracker:
                        tracker.log(event.record, event.result)  # while the worker of the next trial starts
                progress.show(event)
        return "interrupted" in statuses or len(statuses) < len(plan.trials)  # ended while a trial was inspected

    def _report(self, tracker: Tracker | None) -> None:
        """Write the tables of the whole sweep to files, terminal and MLflow, and print what to do next."""
        console, sweep, paths = self.console, self.settings.sweep, self.paths
        try:
            report = write_report([paths.folder], paths.report)
        except ConfigError as error:  # an earlier run of this sweep used another option for the same weight
            print(f"no tables: {error}", file=sys.stderr)
            return
        print_report(report, console)
        for problem in report.problems:
            print(f"note: {problem}", file=sys.stderr)
        for line in suggest_next(report, paths.report, sweep):
            console.print(line)
        if tracker is None:
            return
        tracker.catch_up()  # what an earlier run of this sweep could not send
        tracker.log_overview(overview(report.findings))
        tracker.log_report(report.paths)
        tracker.finish()
        if tracker.failure:
            console.print(f"MLflow: {tracker.failure}; nothing is lost, send it: python -m sweeper.sync {sweep}")
        elif sqlite_file(tracker.uri):
            python, here = Path(sys.executable), Path.cwd()
            typed = python.relative_to(here) if python.is_relative_to(here) else python
            console.print(f"MLflow: {typed} -m mlflow ui --backend-store-uri {tracker.uri}")
            console.print(f"        then open http://127.0.0.1:5000{tracker.page}")
        else:
            console.print(f"MLflow: {remove_password(tracker.uri)}{tracker.page}")

    def _read_statuses(self) -> dict[str, str]:
        """Read the status of each trial of the grid that has a record; an unreadable record counts as none."""
        statuses, known = {}, self.paths.trials()
        for trial_id in {trial.id for trial in self.grid} & known.keys():
            path = known[trial_id].record
            try:
                statuses[trial_id] = read_status(path.read_text())
            except FileNotFoundError:
                continue
            except ValueError as error:
                print(f"note: {path} cannot be read ({error}); the trial runs again", file=sys.stderr)
        return statuses


def _describe_processes(measure: Measure) -> str:
    """`3 processes`, `6 processes in 2 draws` or `5 to 20 processes`."""
    if measure.target is None:
        count = measure.process_limit
        draws = f" in {measure.draws} draws" if measure.draws > 1 else ""
        return f"{count} process{'' if count == 1 else 'es'}{draws}"
    minimum = max(measure.processes, MIN_PROCESSES_FOR_TARGET)
    return f"{minimum} to {max(minimum, measure.process_limit)} processes"


def _read_history(trials: Sequence[Trial]) -> tuple[History, History]:
    """Read the seconds per process, in total and on the device, of every ok trial on the same type of device."""
    types = {trial.device for trial in trials}
    whole, on_device = [], []
    for path in sorted(RUNS.glob("*/*/record.json"), key=lambda path: path.stat().st_mtime):
        with suppress(ValueError, OSError):  # a report says what cannot be read
            record = Record.loads(path.read_text(encoding="utf-8"))
            if record.status == "ok" and record.wall_s and record.processes and record.trial.device in types:
                whole.append((record.trial, record.wall_s / len(record.processes)))
                device_s = sum(process.device_s for process in record.processes)
                on_device.append((record.trial, device_s / len(record.processes)))
    return History(whole), History(on_device)
