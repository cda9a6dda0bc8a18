"""The life of a sweep in the driver: plan, check, run, track, report.

Place in the flow: `app` has composed the trials and calls `drive`; an `Launcher` runs them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from sweeper.core.errors import ConfigError, remove_password
from sweeper.core.gpus import Device, resolve, visible_gpus
from sweeper.core.paths import RUNS, SweepPaths
from sweeper.core.record import Record, read_status
from sweeper.core.settings import MIN_PROCESSES_FOR_TARGET, Measure, Settings
from sweeper.core.trial import Trial
from sweeper.execution.device_slots import host_cores, shares_of
from sweeper.execution.execute import NoSpaceError, Watcher
from sweeper.execution.lock import held
from sweeper.report.build import print_report, what_next, write_report
from sweeper.report.text.mlflow_overview import overview
from sweeper.sweep import manifest
from sweeper.sweep.launch import HERE, Launcher
from sweeper.sweep.plan import History, Plan, describe, estimate_s, plan
from sweeper.sweep.preflight import require_runnable
from sweeper.sweep.progress import Progress, duration
from sweeper.tracking.store import sqlite_file
from sweeper.tracking.tracker import Tracker

OK, NOT_OK, BAD_CONFIGURATION, INTERRUPTED = 0, 1, 2, 130


def drive(grid: Sequence[Trial], settings: Settings, engine: Launcher = HERE) -> int:
    """Plan, check, run, report; the exit code. Raises ConfigError before anything has started."""
    console = Console(highlight=False, soft_wrap=True)
    paths = SweepPaths.of(settings.sweep)
    planned = plan(grid, _statuses(paths, grid), settings.retry)
    devices = resolve(settings.device, visible_gpus()) if engine.name is None else ()
    shares = shares_of(devices, host_cores(), len(planned.trials), settings.scheduler.prepare)
    in_hand = sum(share.prepare for share in shares)
    where = engine.name or _name(devices)
    if settings.dry_run:
        _announce(console, planned, settings, where)
        if planned.trials:
            _estimate(console, planned, settings, max(len(devices), 1), in_hand)
        return OK
    _require_runnable(planned, settings, engine)
    with held(paths.lock, f"sweep={settings.sweep}"):
        planned = plan(grid, _statuses(paths, grid), settings.retry)  # another driver may have ended meanwhile
        if min(in_hand, len(planned.trials)) > 1:
            planned = replace(planned, trials=_history(planned.trials)[0].longest_first(planned.trials))
        return _carry_out(planned, grid, settings, engine, where, console)


def _require_runnable(planned: Plan, settings: Settings, engine: Launcher) -> None:
    """Ask the libraries; of jobs, which may run on other machines, all but whether there is a GPU."""
    if engine.name is None:
        require_runnable(planned.trials, resolve(settings.device, visible_gpus())[0])
    else:
        require_runnable([replace(trial, device="cpu") for trial in planned.trials], Device("cpu"))


def _carry_out(
    planned: Plan, grid: Sequence[Trial], settings: Settings, engine: Launcher, where: str, console: Console
) -> int:
    paths = SweepPaths.of(settings.sweep)
    _announce(console, planned, settings, where)
    if differences := manifest.add(paths, settings, planned, where):
        changed = ", ".join(differences)
        console.print(f"note: changed since the earlier run of this sweep, whose records are kept: {changed}")
    tracker = Tracker(settings.tracking.uri, settings.sweep) if settings.tracking.enabled else None
    interrupted = False
    try:
        interrupted = _run(planned, settings, engine, tracker, console)
    except KeyboardInterrupt:
        interrupted = True
    except NoSpaceError as error:
        print(f"sweeper: {error} and sweep={settings.sweep}", file=sys.stderr)
    _report(paths, settings, tracker, console)
    if interrupted:
        console.print(f"interrupted; go on with the same command and sweep={settings.sweep}")
        return INTERRUPTED
    wanted = {trial.id for trial in planned.trials} | {item.trial.id for item in planned.left_out if item.finished}
    statuses = _statuses(paths, grid)
    return OK if all(statuses.get(trial_id) == "ok" for trial_id in wanted) else NOT_OK


def _run(planned: Plan, settings: Settings, engine: Launcher, tracker: Tracker | None, console: Console) -> bool:
    """Execute the plan under the progress view; each record goes to MLflow when it is on disk. Whether it was ended."""
    watchers: list[Watcher] = [_Tracking(tracker)] if tracker else []
    progress = Progress(len(planned.trials), settings.measure.process_limit, console)
    with progress, closing(engine.run(planned.trials, settings, [*watchers, progress])) as records:
        statuses = [record.status for record in records]
    return "interrupted" in statuses or len(statuses) < len(planned.trials)  # ended while a trial was inspected


class _Tracking(Watcher):
    """Sends each record to MLflow, while the worker of the next trial starts."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker

    def trial_finished(self, record: Record) -> None:
        self._tracker.log(record)


def _report(paths: SweepPaths, settings: Settings, tracker: Tracker | None, console: Console) -> None:
    """Tables to files, terminal and MLflow, over everything the sweep has, and what to do next."""
    try:
        report = write_report([paths.folder], paths.report)
    except ConfigError as error:  # an earlier run of this sweep used another option for the same weight
        print(f"no tables: {error}", file=sys.stderr)
        return
    print_report(report, console)
    for problem in report.problems:
        print(f"note: {problem}", file=sys.stderr)
    for line in what_next(report, paths.report, settings.sweep):
        console.print(line)
    if tracker is None:
        return
    tracker.catch_up()  # what an earlier run of this sweep could not send
    statuses = (str(row["status"]) for row in report.speedups.rows)
    tracker.log_overview(overview(report.summary, report.amp, statuses))
    tracker.log_report(report.paths)
    tracker.finish()
    if tracker.failure:
        console.print(f"MLflow: {tracker.failure}; nothing is lost, send it: python -m sweeper.sync {settings.sweep}")
    elif sqlite_file(tracker.uri):
        console.print(f"MLflow: {_python()} -m mlflow ui --backend-store-uri {tracker.uri}")
        console.print(f"        then open http://127.0.0.1:5000{tracker.page}")
    else:
        console.print(f"MLflow: {remove_password(tracker.uri)}{tracker.page}")


def _python() -> str:
    """This interpreter as the user would type it here."""
    executable = Path(sys.executable)
    return str(executable.relative_to(Path.cwd()) if executable.is_relative_to(Path.cwd()) else executable)


def _statuses(paths: SweepPaths, grid: Sequence[Trial]) -> dict[str, str]:
    """The status of each trial of the grid that has a record; one that cannot be read is as good as none."""
    statuses, known = {}, paths.trials()
    for trial_id in {trial.id for trial in grid} & known.keys():
        path = known[trial_id].record
        try:
            statuses[trial_id] = read_status(path.read_text())
        except FileNotFoundError:
            continue
        except ValueError as error:
            print(f"note: {path} cannot be read ({error}); the trial runs again", file=sys.stderr)
    return statuses


def _name(devices: Sequence[Device]) -> str:
    names = [device.gpu.name if device.gpu else "the CPU" for device in devices]
    return names[0] if len(names) == 1 else f"{len(names)} GPUs ({', '.join(dict.fromkeys(names))})"


def _announce(console: Console, planned: Plan, settings: Settings, where: str) -> None:
    count = len(planned.trials)
    trials = f"{count} trial{'' if count == 1 else 's'}"
    console.print(
        f"sweep {settings.sweep}: {trials} to run on {where}, {_processes(settings.measure)} each"
        + (", and one that shows what the compiler does" if settings.inspect else "")
    )
    if settings.dry_run or planned.left_out:
        lines = describe(planned if settings.dry_run else Plan((), planned.left_out))
        console.print("\n".join(lines).strip(), markup=False)


def _estimate(console: Console, planned: Plan, settings: Settings, devices: int, in_hand: int) -> None:
    """The last line of a dry run."""
    whole, on_device = _history(planned.trials)
    process_s = estimate_s(planned.trials, whole, on_device, devices, max(in_hand // devices, 1))
    processes = settings.measure.processes * settings.measure.draws
    known = "no estimate yet"
    if process_s is not None:
        where = "one device" if devices == 1 else f"{devices} devices"
        beside = f" with {in_hand} trials in hand" if in_hand > devices else ""
        known = f"about {duration(processes * process_s)} on {where}{beside}, judging by {len(whole)} earlier trials"
    console.print(f"{known}; nothing was started")


def _processes(measure: Measure) -> str:
    if measure.target is None:
        count = measure.process_limit
        draws = f" in {measure.draws} draws" if measure.draws > 1 else ""
        return f"{count} process{'' if count == 1 else 'es'}{draws}"
    least = max(measure.processes, MIN_PROCESSES_FOR_TARGET)
    return f"{least} to {max(least, measure.process_limit)} processes"


def _history(trials: Sequence[Trial]) -> tuple[History, History]:
    """Seconds of a process, and of that with the device, by every record under `runs/` of their type of device."""
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
