"""The life of a sweep in the driver: plan, check, run, track, report."""

import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.markup import escape

from sweeper.core.backends import NO_CUDA_GRAPHS
from sweeper.core.errors import ConfigError
from sweeper.core.paths import SweepPaths
from sweeper.core.settings import Settings
from sweeper.core.system import interrupts, shortages
from sweeper.core.system.command_line import make_resume_command, name_program, remember_sweep
from sweeper.core.system.exit_codes import INTERRUPTED, NOT_OK, OK
from sweeper.core.system.gpus import Device
from sweeper.core.system.pipes import outlive_output
from sweeper.core.trial import Trial
from sweeper.execution.disturbances import UNRELIABLE, read_disturbances
from sweeper.execution.execute import LOCAL, Launcher, NoSpaceError
from sweeper.execution.lock import hold_lock
from sweeper.execution.placement import Placement, place_trials
from sweeper.execution.scheduler import Finished
from sweeper.execution.turns import name_races
from sweeper.loading.sources import SweepFolder
from sweeper.report.build import begin_files, make_report, print_verdict, suggest_next
from sweeper.report.columns.formats import count, duration
from sweeper.report.text.mlflow_overview import overview
from sweeper.report.text.report import Report
from sweeper.report.text.terminal import Terminal, print_plain
from sweeper.tracking import known_stores
from sweeper.tracking.tracker import Tracker

from . import manifest
from .estimate import bound_processes, describe_estimate, describe_script_runs, read_history
from .plan import Plan, describe_plan, make_plan
from .preflight import Found, require_runnable
from .progress import Progress
from .resume import (
    describe_others,
    is_alike,
    keep_total_steps,
    move_unreadable,
    read_on_disk,
    require_same_scripts,
    require_same_settings,
)


def run_sweep(grid: Sequence[Trial], settings: Settings, launcher: Launcher = LOCAL) -> int:
    """Plan a grid, run the planned trials and return the exit code.

    Raises ConfigError before anything has started.
    """
    remember_sweep(settings.sweep)
    if not settings.dry_run:  # whose output is all there is
        outlive_output("stdout", "stderr")
    if settings.tracking.uri is None:
        settings = replace(
            settings, tracking=replace(settings.tracking, uri=known_stores.environment_uri())
        )
    sweep = _Sweep(
        grid,
        settings,
        launcher,
        Terminal(highlight=False, soft_wrap=True),
        SweepPaths.of(settings.sweep),
    )
    try:
        interrupts.check()  # what has come since the start of the program
        return sweep.plan_and_run()
    except KeyboardInterrupt:  # before the first trial
        if not settings.dry_run and sweep.paths.records():
            sweep.show_report(interrupted=True)
        sweep.print_how_to_go_on()
        return INTERRUPTED


@contextmanager
def _translate_shortages() -> Iterator[None]:
    """Raise ConfigError where the machine lacks what the body takes, before anything has
    started.
    """
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{shortages.describe(error)}. Nothing was started") from error


@dataclass(frozen=True)
class _Sweep:
    """The sweep that this command runs, and where it prints."""

    grid: Sequence[Trial]
    settings: Settings
    launcher: Launcher
    console: Terminal
    paths: SweepPaths

    def plan_and_run(self) -> int:
        settings, launcher = self.settings, self.launcher
        with _translate_shortages():
            plan, unreadable = self.make_plan()
        if launcher.name:
            if settings.sweep_time_s is not None:
                raise ConfigError(
                    "sweep_time_s limits sweeps that run on this machine; jobs of a cluster have "
                    "limits of their own"
                )
            placement = Placement(launcher.name)
        else:
            placement = place_trials(settings, len(plan.trials))
        if settings.dry_run:
            for path, problem in unreadable.items():
                _note(f"{path}: {problem}; a run moves it aside and measures the trial again")
            if plan.has_features:  # torch says which of them run
                plan = plan.without(self.require_runnable(plan, placement).lacks)
                self.announce(plan, placement)
            else:
                self.announce(plan, placement)
                self.require_runnable(plan, placement)
            if plan.trials:
                asked = "torch and the model libraries have these models and options"
                if not placement.devices:
                    asked += "; the devices of the jobs were not asked"
                estimate = describe_estimate(plan, placement, settings.measure)
                print_plain(f"{asked}; {estimate}; nothing was started", self.console)
            return OK
        if plan.trials and launcher.prepare:
            launcher.prepare()
        # before the check, which is work too
        disturbances = read_disturbances(placement.devices) if plan.trials else []
        found = self.require_runnable(plan, placement)
        with _translate_shortages():
            self.paths.require_no_links()
        with hold_lock(self.paths.lock, f"sweep={settings.sweep}", settings.scheduler.locks):
            with _translate_shortages():
                plan, unreadable = self.make_plan()  # another driver may have ended meanwhile
                move_unreadable(unreadable)
                plan = plan.without(found.lacks)
                keep_total_steps(self.paths, plan.finished)
                if min(placement.concurrency, len(plan.trials)) > 1:
                    history = read_history(placement, settings.measure)
                    plan = replace(plan, trials=history.longest_first(plan.trials))
            return self.run(plan, placement, disturbances)

    def require_runnable(self, plan: Plan, placement: Placement) -> Found:
        """Ask the libraries, and print what they say of the trials. Raises ConfigError for what
        cannot be built.
        """
        trials: Sequence[Trial] = plan.trials
        device = Device("cpu")
        if placement.devices:
            device = placement.devices[0]
        else:  # jobs may run on other machines, so the check must not ask for a GPU of this one
            trials = [replace(trial, device="cpu") for trial in trials]
        found = require_runnable(trials, device, self.settings.inspect)
        for note in found.notes:
            print_plain(note, self.console)
        return found

    def make_plan(self) -> tuple[Plan, Mapping[Path, str]]:
        """Make the plan, and say by path why a record that it counts as none cannot be read.

        Raises ConfigError where a record is newer, or stays and was measured with other settings
        than this command's.
        """
        settings = self.settings
        kept, unreadable = read_on_disk(self.paths, self.grid)
        statuses = {}
        for trial_id, found in kept.items():
            if settings.retry != "changed" or is_alike(found, settings.measure):
                statuses[trial_id] = found.status
        plan = make_plan(self.grid, statuses, settings.retry)
        stay = [kept[trial.id] for trial in plan.finished]
        require_same_settings(settings.sweep, stay, settings.measure)
        require_same_scripts(settings.sweep, plan.finished, kept)
        return plan, unreadable

    def announce(self, plan: Plan, placement: Placement) -> None:
        settings, measure = self.settings, self.settings.measure
        fewest, most = bound_processes(plan, measure)
        processes = "1 process" if most == 1 else f"{most} processes"
        if fewest < most:
            processes = f"{fewest} to {processes}"
        elif measure.draws > 1:
            processes += f" in {measure.draws} draws"
        if placement.shares and len({*name_races(plan.trials, measure)}) < len(plan.trials):
            processes += " (one where another mode is faster)"
        if plan.has_features and measure.goes_on_until_sure:
            processes += " (one where a feature makes no difference)"
        trials = count(len(plan.trials), "trial")
        lines = [f"sweep {settings.sweep}: {trials} to run on {placement.name}, {processes} each"]
        if settings.inspect:
            lines[0] += ", and one that shows what the compiler does"
        if settings.sweep_time_s is not None:
            lines[0] += f"; no process begins after {duration(settings.sweep_time_s)}"
        if any(trial.launch for trial in plan.trials):
            lines.append(
                "a process of a trial with ranks starts its launcher, which starts the ranks"
            )
        if plan.has_features and not settings.dry_run:
            lines.append(describe_estimate(plan, placement, measure))
        lines += describe_script_runs(plan.trials, measure)
        if any(trial.mode == "reduce-overhead" and trial.device == "cpu" for trial in plan.trials):
            lines.append(
                f"mode=reduce-overhead adds CUDA graphs to mode=default, and {NO_CUDA_GRAPHS}"
            )
        lines += describe_others(self.paths, plan.trials, placement)
        lines += describe_plan(plan if settings.dry_run else Plan((), plan.left_out))
        print_plain("\n".join(lines), self.console)

    def run(self, plan: Plan, placement: Placement, disturbances: Sequence[str]) -> int:
        """Run the plan, report even after an interruption or on a full disk, and return the exit
        code.
        """
        sweep = self.settings.sweep
        self.announce(plan, placement)
        for disturbance in disturbances:
            self.console.print(f"[bold yellow]{UNRELIABLE}[/] {escape(disturbance)}")
        if differences := manifest.add_invocation(self.paths, self.settings, plan, placement.name):
            note = f"note: changed since the last run of this sweep: {', '.join(differences)}"
            if plan.finished:
                note += "; its records are kept"
            print_plain(note, self.console)
        tracking = self.settings.tracking
        tracker = Tracker(tracking.uri, sweep) if tracking.enabled else None
        if tracker and plan.trials:
            tracker.begin()
            print_plain(tracker.describe_page(), self.console)
            self._remember_store()
        interrupted = False
        try:
            interrupted = self._run_trials(plan, placement, tracker)
        except KeyboardInterrupt:
            interrupted = True
        except NoSpaceError as error:
            print(f"sweeper: {error} and sweep={sweep}", file=sys.stderr)
        report = self.show_report(interrupted)
        if tracker:
            interrupted = self._complete(tracker, report, interrupted)
        if interrupted:
            self.print_how_to_go_on()
            return INTERRUPTED
        kept, unreadable = read_on_disk(self.paths, self.grid)
        for path, problem in unreadable.items():
            _note(f"{path}: {problem}")
        ok = {trial_id for trial_id, found in kept.items() if found.status == "ok"}
        wanted = {trial.id for trial in (*plan.trials, *plan.finished)}
        return OK if report and report.paths and wanted <= ok else NOT_OK

    def _run_trials(self, plan: Plan, placement: Placement, tracker: Tracker | None) -> bool:
        """Run the trials under the progress view, and send each record to MLflow; whether the run
        was interrupted.
        """
        statuses, settings = [], self.settings
        progress = Progress(plan.trials, settings.measure, self.console)
        begin = time.monotonic()
        run = closing(self.launcher.run(plan.trials, settings, placement))
        with progress.live, run as events:
            for event in interrupts.receive(events):
                if isinstance(event, Finished):
                    statuses.append(event.record.status)
                with _survive("what a trial has shown"):
                    if tracker and isinstance(event, Finished):
                        # while the worker of the next trial starts
                        tracker.log(event.record, event.result)
                    progress.show(event)
        if progress.has_unsure:
            self.console.print("a speedup with ? is not sure; the answer says why")
        left, limit_s = len(plan.trials) - len(statuses), settings.sweep_time_s
        if left and limit_s is not None and time.monotonic() - begin >= limit_s:
            text = f"sweep_time_s={limit_s:g} is over, and {count(left, 'trial')} did not begin"
            print_plain(f"{text}; go on with: {make_resume_command()}", self.console)
            left = 0
        # ended while a trial was inspected
        return "interrupted" in statuses or left > 0

    def print_how_to_go_on(self) -> None:
        print_plain(f"interrupted; go on with: {make_resume_command()}", self.console)

    def show_report(self, interrupted: bool) -> Report | None:
        """Print the answers, write the tables of the whole sweep to files, and print what to do
        next, unless that is to go on.

        The report is None where it could not be made, and has no paths where no file could be
        written.
        """
        report, sweep = None, self.settings.sweep
        with _survive("the report"):
            try:
                report = make_report([SweepFolder(self.paths.folder)])
                for problem in report.problems:
                    _note(problem)
                print_verdict(report, self.console)
                report = replace(report, paths=begin_files(report, self.paths.report)())
            except OSError as error:
                why = shortages.describe(error)
                command = name_program(f"python -m sweeper.report {sweep}")
                print(f"sweeper: no report: {why}, then write it: {command}", file=sys.stderr)
                return report
            for line in suggest_next(report, self.paths.report, None if interrupted else sweep):
                print_plain(line, self.console)
        return report

    def _complete(self, tracker: Tracker, report: Report | None, interrupted: bool) -> bool:
        """Send MLflow what it lacks, and end its run; whether the sweep was interrupted, so far or
        meanwhile.
        """
        try:
            tracker.catch_up()  # what an earlier run of this sweep could not send
            if report:
                with _survive("the overview of MLflow"):
                    tracker.log_overview(overview(report))
                if report.paths:  # none where they could not be written
                    tracker.log_report(report.paths)
        except KeyboardInterrupt:
            interrupted = True
        tracker.finish(interrupted)
        for line in tracker.not_sent:
            _note(line)
        print_plain(tracker.describe_page(), self.console)
        return interrupted

    def _remember_store(self) -> None:
        """Remember the store if the command line or the environment names it, so that `sync` may
        send there.
        """
        uri = self.settings.tracking.uri
        named = any(word.partition("=")[0].lstrip("+") == "tracking.uri" for word in sys.argv)
        if uri and (named or uri == known_stores.environment_uri()):
            try:
                known_stores.remember(uri)
            except OSError as error:
                _note(f"sync will ask for --tracking-uri, since {error}")


@contextmanager
def _survive(what: str) -> Iterator[None]:
    """Have what goes wrong in the body cost what it was to show, and neither trials nor records."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  # the records are on disk, and trials wait
        traceback.print_exc()
        _note(f"{what} is not shown: {type(error).__name__}: {error}")


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)
