"""The life of a sweep in the driver: plan, check, run, track, report."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape

from sweeper.core.backends import NO_CUDA_GRAPHS
from sweeper.core.errors import ConfigError
from sweeper.core.libraries import SCRIPT
from sweeper.core.paths import SweepPaths
from sweeper.core.settings import MIN_PROCESSES_FOR_TARGET, Measure, Settings
from sweeper.core.system import interrupts, shortages
from sweeper.core.system.command_line import make_resume_command, remember_sweep
from sweeper.core.system.exit_codes import INTERRUPTED, NOT_OK, OK
from sweeper.core.system.gpus import Device
from sweeper.core.system.pipes import outlive_output
from sweeper.core.trial import Trial
from sweeper.core.uris import remove_credentials
from sweeper.execution.disturbances import UNRELIABLE, read_disturbances
from sweeper.execution.execute import LOCAL, Launcher, NoSpaceError
from sweeper.execution.lock import hold_lock
from sweeper.execution.placement import Placement, place_trials
from sweeper.execution.scheduler import Finished
from sweeper.loading.sources import SweepFolder
from sweeper.report.build import begin_files, make_report, print_verdict, suggest_next
from sweeper.report.contents import Report
from sweeper.report.text.mlflow_overview import overview
from sweeper.sweep import manifest
from sweeper.sweep.estimate import describe_estimate, read_history
from sweeper.sweep.plan import Plan, describe_plan, make_plan
from sweeper.sweep.preflight import require_runnable
from sweeper.sweep.progress import Progress
from sweeper.sweep.resume import (
    OnDisk,
    find_changed_scripts,
    find_other_devices,
    is_alike,
    keep_total_steps,
    move_unreadable,
    read_on_disk,
    require_same_scripts,
    require_same_settings,
)
from sweeper.tracking import trusted
from sweeper.tracking.store import sqlite_file
from sweeper.tracking.tracker import Tracker


def run_sweep(grid: Sequence[Trial], settings: Settings, launcher: Launcher = LOCAL) -> int:
    """Plan a grid, run the planned trials and return the exit code.

    Raises ConfigError before anything has started.
    """
    remember_sweep(settings.sweep)
    if not settings.dry_run:  # whose output is all there is
        outlive_output()
    if settings.tracking.uri is None:
        settings = replace(
            settings, tracking=replace(settings.tracking, uri=trusted.environment_uri())
        )
    sweep = _Sweep(grid, settings, launcher, Console(highlight=False, soft_wrap=True))
    try:
        interrupts.check()  # what has come since the start of the program
        return _plan_and_run(sweep, settings, launcher)
    except KeyboardInterrupt:  # before the first trial
        if not settings.dry_run and sweep.paths.records():
            sweep.show_report()
        sweep.print_how_to_go_on()
        return INTERRUPTED


def _plan_and_run(sweep: _Sweep, settings: Settings, launcher: Launcher) -> int:
    with _translate_shortages():
        plan, unreadable = sweep.make_plan()
    placement = (
        Placement(launcher.name) if launcher.name else place_trials(settings, len(plan.trials))
    )
    if settings.dry_run:
        for path, problem in unreadable.items():
            print(
                f"note: {path}: {problem}; a run moves it aside and measures the trial again",
                file=sys.stderr,
            )
        sweep.announce(plan, placement)
        sweep.require_runnable(plan, placement)
        if plan.trials:
            sweep.print_estimate(plan, placement)
        return OK
    if plan.trials and launcher.prepare:
        launcher.prepare()
    # before the check, which is work too
    disturbances = read_disturbances(placement.devices) if plan.trials else []
    sweep.require_runnable(plan, placement)
    with _translate_shortages():
        sweep.paths.require_no_links()
    with hold_lock(sweep.paths.lock, f"sweep={settings.sweep}", settings.scheduler.locks):
        with _translate_shortages():
            plan, unreadable = sweep.make_plan()  # another driver may have ended meanwhile
            move_unreadable(unreadable)
            keep_total_steps(sweep.paths, [item.trial for item in plan.left_out if item.finished])
            if min(placement.concurrency, len(plan.trials)) > 1:
                plan = replace(
                    plan,
                    trials=read_history(placement, settings.measure)[0].longest_first(plan.trials),
                )
        return sweep.run(plan, placement, disturbances)


@contextmanager
def _translate_shortages() -> Iterator[None]:
    """Raise ConfigError where the machine lacks what the body takes, before anything has
    started.
    """
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{shortages.describe(error)}. Nothing was started") from error


class _Shown(NamedTuple):
    """The report as it was printed, None where it could not be made; and whether its files were
    written.
    """

    report: Report | None
    written: bool = True


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

    def require_runnable(self, plan: Plan, placement: Placement) -> None:
        """Ask the libraries, and print what they say of the trials. Raises ConfigError for what
        cannot be built.
        """
        if placement.devices:
            trials, device = list(plan.trials), placement.devices[0]
        else:  # jobs may run on other machines, so the check must not ask for a GPU of this one
            trials, device = [replace(trial, device="cpu") for trial in plan.trials], Device("cpu")
        for note in require_runnable(trials, device, self.settings.inspect):
            self.console.print(note, markup=False)

    def make_plan(self) -> tuple[Plan, Mapping[Path, str]]:
        """Make the plan, and say by path why a record that it counts as none cannot be read.

        Raises ConfigError where a record is newer, or stays and was measured with other settings
        than this command's.
        """
        kept, unreadable = self._read_on_disk()
        measure, retry = self.settings.measure, self.settings.retry
        counted = (
            item for item in kept.items() if retry != "changed" or is_alike(item[1], measure)
        )
        plan = make_plan(self.grid, {trial_id: found.status for trial_id, found in counted}, retry)
        stay = [item.trial for item in plan.left_out if item.finished]
        require_same_settings(self.settings.sweep, (kept[trial.id] for trial in stay), measure)
        require_same_scripts(self.settings.sweep, stay, kept)
        return plan, unreadable

    def _read_on_disk(self) -> OnDisk:
        return read_on_disk(self.paths, {trial.id for trial in self.grid})

    def announce(self, plan: Plan, placement: Placement) -> None:
        count, settings = len(plan.trials), self.settings
        trials = f"{count} trial{'' if count == 1 else 's'} to run on {placement.name}"
        inspected = ", and one that shows what the compiler does" if settings.inspect else ""
        processes = f"{_describe_processes(settings.measure)} each{inspected}"
        self.console.print(f"sweep {settings.sweep}: {trials}, {processes}")
        scripts = [trial for trial in plan.trials if trial.workload == SCRIPT]
        if scripts:
            self.console.print(
                "a process runs its script three times: steps of both arms, the loop in eager, "
                "compiled"
            )
        if any(
            trial.model.arguments.get("trajectory") and trial.mode != "eager" for trial in scripts
        ):
            self.console.print(
                "with model.trajectory the first runs it once more, to compare arms step by step"
            )
        if any(trial.mode == "reduce-overhead" and trial.device == "cpu" for trial in plan.trials):
            self.console.print(
                f"mode=reduce-overhead adds CUDA graphs to mode=default, and {NO_CUDA_GRAPHS}"
            )
        if others := find_other_devices(self.paths, plan.trials, placement):
            here = ", ".join(placement.device_names) or placement.name
            told = (
                f"trials of this sweep ran on {', '.join(others)}, and these run on {here}; no "
                "mean mixes them"
            )
            self.console.print(f"note: {told}", markup=False)
        for script in find_changed_scripts(self.paths, plan.trials):
            self.console.print(
                f"note: other trials of this sweep ran another version of {script}", markup=False
            )
        if settings.dry_run or plan.left_out:
            lines = describe_plan(plan if settings.dry_run else Plan((), plan.left_out))
            self.console.print("\n".join(lines).strip(), markup=False)

    def print_estimate(self, plan: Plan, placement: Placement) -> None:
        """Print the last lines of a dry run."""
        asked = "torch and the model libraries have these models and options"
        asked += "" if placement.devices else "; the devices of the jobs were not asked"
        self.console.print(
            f"{asked}; {describe_estimate(plan, placement, self.settings.measure)}; nothing was "
            "started"
        )

    def run(self, plan: Plan, placement: Placement, disturbances: Sequence[str]) -> int:
        """Run the plan, report even after an interruption or on a full disk, and return the exit
        code.
        """
        sweep = self.settings.sweep
        self.announce(plan, placement)
        for disturbance in disturbances:
            self.console.print(f"[bold yellow]{UNRELIABLE}[/] {escape(disturbance)}")
        if differences := manifest.add_invocation(self.paths, self.settings, plan, placement.name):
            kept = "; its records are kept" if any(item.finished for item in plan.left_out) else ""
            self.console.print(
                f"note: changed since the last run of this sweep: {', '.join(differences)}{kept}"
            )
        tracker = (
            Tracker(self.settings.tracking.uri, sweep) if self.settings.tracking.enabled else None
        )
        if tracker and plan.trials:
            tracker.begin()
            self._print_link(tracker)
            self._remember_store()
        interrupted = False
        try:
            interrupted = self._run_trials(plan, placement, tracker)
        except KeyboardInterrupt:
            interrupted = True
        except NoSpaceError as error:
            print(f"sweeper: {error} and sweep={sweep}", file=sys.stderr)
        shown = self.show_report()
        if tracker and not self._complete(tracker, shown.report, interrupted):
            interrupted = True
        if interrupted:
            self.print_how_to_go_on()
            return INTERRUPTED
        wanted = {trial.id for trial in plan.trials} | {
            item.trial.id for item in plan.left_out if item.finished
        }
        now = self._read_on_disk()
        for path, problem in now.unreadable.items():
            print(f"note: {path}: {problem}", file=sys.stderr)
        statuses = {trial_id: found.status for trial_id, found in now.kept.items()}
        return (
            OK
            if shown.written and all(statuses.get(trial_id) == "ok" for trial_id in wanted)
            else NOT_OK
        )

    def _run_trials(self, plan: Plan, placement: Placement, tracker: Tracker | None) -> bool:
        """Run the trials under the progress view, and send each record to MLflow; whether the run
        was interrupted.
        """
        statuses = []
        progress = Progress(len(plan.trials), self.settings.measure.process_limit, self.console)
        with progress, closing(self.launcher.run(plan.trials, self.settings, placement)) as events:
            for event in interrupts.receive(events):
                if isinstance(event, Finished):
                    statuses.append(event.record.status)
                    if tracker:
                        # while the worker of the next trial starts
                        tracker.log(event.record, event.result)
                progress.show(event)
        # ended while a trial was inspected
        return "interrupted" in statuses or len(statuses) < len(plan.trials)

    def print_how_to_go_on(self) -> None:
        self.console.print(f"interrupted; go on with: {make_resume_command()}", markup=False)

    def show_report(self) -> _Shown:
        """Print the answers, write the tables of the whole sweep to files, and print what to do
        next.
        """
        report, again = None, f"python -m sweeper.report {self.settings.sweep}"
        try:
            report = make_report([SweepFolder(self.paths.folder)])
            for problem in report.problems:
                print(f"note: {problem}", file=sys.stderr)
            print_verdict(report, self.console)
            report = replace(report, paths=begin_files(report, self.paths.report)())
        except OSError as error:
            print(
                f"sweeper: no report: {shortages.describe(error)}, then write it: {again}",
                file=sys.stderr,
            )
            return _Shown(report, written=False)
        for line in suggest_next(report, self.paths.report, self.settings.sweep):
            self.console.print(line)
        return _Shown(report)

    def _complete(self, tracker: Tracker, report: Report | None, interrupted: bool) -> bool:
        """Send MLflow what it lacks, and end its run; False when an interrupt has kept something
        from it.

        `interrupted` is what the sweep was so far.
        """
        complete = False
        with suppress(KeyboardInterrupt):
            tracker.catch_up()  # what an earlier run of this sweep could not send
            if report:
                tracker.log_overview(overview(report.findings))
                tracker.log_report(report.paths)  # none where they could not be written
            complete = True
        tracker.finish(interrupted or not complete)
        for line in tracker.not_sent:
            print(f"note: {line}", file=sys.stderr)
        self._print_link(tracker)
        return complete

    def _remember_store(self) -> None:
        """Remember the store if the command line or the environment names it, so that `sync` may
        send there.
        """
        uri = self.settings.tracking.uri
        if uri and (uri == trusted.environment_uri() or trusted.is_named_by(sys.argv[1:])):
            try:
                trusted.remember(uri)
            except OSError as error:
                print(f"note: sync will ask for --tracking-uri, since {error}", file=sys.stderr)

    def _print_link(self, tracker: Tracker) -> None:
        """Print where MLflow shows the sweep, or why it cannot."""
        console, sweep = self.console, self.settings.sweep
        if tracker.failure:
            console.print(
                f"MLflow: {tracker.failure}; nothing is lost, send it: python -m sweeper.sync "
                f"{sweep}"
            )
        elif sqlite_file(tracker.uri):
            python, here = Path(sys.executable), Path.cwd()
            typed = python.relative_to(here) if python.is_relative_to(here) else python
            console.print(f"MLflow: {typed} -m mlflow ui --backend-store-uri {tracker.uri}")
            console.print(f"        then open http://127.0.0.1:5000{tracker.page}")
        else:
            console.print(f"MLflow: {remove_credentials(tracker.uri)}{tracker.page}")


def _describe_processes(measure: Measure) -> str:
    """`3 processes`, `6 processes in 2 draws` or `5 to 20 processes`."""
    if measure.target is None:
        count = measure.process_limit
        draws = f" in {measure.draws} draws" if measure.draws > 1 else ""
        return f"{count} process{'' if count == 1 else 'es'}{draws}"
    minimum = max(measure.processes, MIN_PROCESSES_FOR_TARGET)
    return f"{minimum} to {max(minimum, measure.process_limit)} processes"
