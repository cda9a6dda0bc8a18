"""`python -m sweeper`: Hydra composes, this module wires plan, check, execution, tracking and report together.

Place in the flow: Hydra calls `job` for a single run; for `-m` it calls our sweeper plugin, which composes the grid and
calls `run_grid`. Both end in `drive`, the whole life of a sweep in the driver.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.config_repository import IConfigRepository
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.console import Console

from sweeper import config, invocation
from sweeper.check import require_runnable
from sweeper.compose import Composed, chosen, repository
from sweeper.devices import Device, resolve, visible_gpus
from sweeper.errors import ConfigError
from sweeper.execute import NoSpaceError, Watcher, execute
from sweeper.lock import held
from sweeper.mlflow_store import sqlite_file, without_password
from sweeper.paths import RUNS, SweepPaths
from sweeper.plan import Plan, Took, describe, estimate_s, plan
from sweeper.progress import Progress, duration
from sweeper.record import Record, status_in
from sweeper.report.build import print_report, write_report
from sweeper.settings import FEWEST_FOR_A_TARGET, Measure, Settings
from sweeper.tracking import Tracker
from sweeper.trial import Trial

OK, NOT_OK, BAD_CONFIGURATION, INTERRUPTED = 0, 1, 2, 130


@hydra.main(version_base="1.3", config_path=str(config.conf_folder()), config_name="config")
def job(cfg: DictConfig) -> None:
    """What Hydra runs for a single configuration: the driver's whole work."""
    try:
        command: Any = HydraConfig.get()
        files = repository(GlobalHydra.instance().config_loader(), command)
        point = read_point(Composed(cfg, chosen(command), ()), files)
        code = drive([point.trial], point.settings)
    except ConfigError as error:  # Hydra would print the job's overrides before it passes the error on
        print(f"sweeper: {error}", file=sys.stderr)
        code = BAD_CONFIGURATION
    sys.exit(code)


def read_point(composed: Composed, files: IConfigRepository) -> config.Point:
    """A configuration as trial and settings; `files` holds what the options say. Raises ConfigError."""
    choices = composed.choices
    for group in config.GROUPS:
        if not isinstance(choices.get(group), str):  # a list of options leaves no choice behind
            raise ConfigError(f"{group}: give one option; several make a grid: -m {group}=a,b")
    own = {group: _own_values(files, f"{group}/{choices[group]}") for group in ("model", "precision")}
    return config.read(composed.config, choices, own, gpu=bool(visible_gpus()))


def _own_values(files: IConfigRepository, file: str) -> dict[str, Any]:
    """What an option's file says by itself, before anything is overridden."""
    found: Any = files.load_config(file)
    return {str(key): value for key, value in found.config.items()} if found else {}


def run_grid(composed: Iterable[Composed], files: IConfigRepository) -> int:
    """Run every configuration of a grid as one sweep; the exit code. Raises ConfigError before anything has started."""
    trials: list[Trial] = []
    settings: Settings | None = None
    for item in composed:  # one at a time: a configuration takes a hundred times the memory of its trial
        point = read_point(item, files)
        settings = settings or point.settings
        if point.settings != settings:
            keys = [key for key, value in vars(settings).items() if getattr(point.settings, key) != value]
            raise ConfigError(f"{', '.join(keys)}: cannot be swept, every trial of a sweep shares it; run two sweeps")
        trials.append(point.trial)
    assert settings is not None
    return drive(trials, settings)


def drive(grid: Sequence[Trial], settings: Settings) -> int:
    """Plan, check, run, report; the exit code. Raises ConfigError before anything has started."""
    console = Console(highlight=False, soft_wrap=True)
    paths = SweepPaths.of(settings.sweep)
    planned = plan(grid, _statuses(paths, grid), settings.retry)
    device = resolve(settings.device, visible_gpus())
    if settings.dry_run:
        _announce(console, planned, settings, device)
        return OK
    require_runnable(planned.trials, device)
    with held(paths.lock, f"sweep={settings.sweep}"):
        planned = plan(grid, _statuses(paths, grid), settings.retry)  # another driver may have ended meanwhile
        return _carry_out(planned, grid, settings, device, console)


def _carry_out(planned: Plan, grid: Sequence[Trial], settings: Settings, device: Device, console: Console) -> int:
    paths = SweepPaths.of(settings.sweep)
    _announce(console, planned, settings, device)
    if differences := invocation.add(paths, settings, planned, device):
        changed = ", ".join(differences)
        console.print(f"note: changed since the earlier run of this sweep, whose records are kept: {changed}")
    tracker = Tracker(settings.tracking.uri, settings.sweep) if settings.tracking.enabled else None
    interrupted = False
    try:
        interrupted = _run(planned, settings, tracker, console)
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


def _run(planned: Plan, settings: Settings, tracker: Tracker | None, console: Console) -> bool:
    """Execute the plan under the progress view; each record goes to MLflow when it is on disk. Whether it was ended."""
    watchers: list[Watcher] = [_Tracking(tracker)] if tracker else []
    interrupted = False
    with Progress(len(planned.trials), settings.measure.most_processes, console) as progress:
        for record in execute(planned.trials, settings, [*watchers, progress]):
            interrupted |= record.status == "interrupted"
    return interrupted


class _Tracking(Watcher):
    """Sends each record to MLflow, between two trials."""

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
    console.print(f"tables: {paths.report}")
    if tracker is None:
        return
    tracker.catch_up()  # what an earlier run of this sweep could not send
    tracker.log_report(report.paths)
    tracker.finish()
    if tracker.failure:
        console.print(f"MLflow: {tracker.failure}; nothing is lost, send it: python -m sweeper.sync {settings.sweep}")
    elif sqlite_file(tracker.uri):
        console.print(f"MLflow: {_python()} -m mlflow ui --backend-store-uri {tracker.uri}")
        console.print(f"        then open http://127.0.0.1:5000{tracker.page}")
    else:
        console.print(f"MLflow: {without_password(tracker.uri)}{tracker.page}")


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
            statuses[trial_id] = status_in(path.read_text())
        except FileNotFoundError:
            continue
        except ValueError as error:
            print(f"note: {path} cannot be read ({error}); the trial runs again", file=sys.stderr)
    return statuses


def _announce(console: Console, planned: Plan, settings: Settings, device: Device) -> None:
    where = device.gpu.name if device.gpu else "the CPU"
    count = len(planned.trials)
    trials = f"{count} trial{'' if count == 1 else 's'}"
    console.print(f"sweep {settings.sweep}: {trials} to run on {where}, {_processes(settings.measure)} each")
    if settings.dry_run or planned.left_out:
        lines = describe(planned if settings.dry_run else Plan((), planned.left_out))
        console.print("\n".join(lines).strip(), markup=False)
    if settings.dry_run and planned.trials:
        earlier = _earlier()
        seconds = estimate_s(planned.trials, settings.measure.processes * settings.measure.draws, earlier)
        known = f"about {duration(seconds)}, judging by {len(earlier)} earlier trials" if seconds else "no estimate yet"
        console.print(f"{known}; nothing was started")


def _processes(measure: Measure) -> str:
    if measure.target is None:
        count = measure.most_processes
        draws = f" in {measure.draws} draws" if measure.draws > 1 else ""
        return f"{count} process{'' if count == 1 else 'es'}{draws}"
    least = max(measure.processes, FEWEST_FOR_A_TARGET)
    return f"{least} to {max(least, measure.most_processes)} processes"


def _earlier() -> list[Took]:
    """How long trials took, from every record under `runs/`, the oldest first."""
    found = []
    for path in sorted(RUNS.glob("*/*/record.json"), key=lambda path: path.stat().st_mtime):
        with suppress(ValueError, OSError):  # a report says what cannot be read
            record = Record.loads(path.read_text())
            if record.status == "ok" and record.wall_s and record.processes:
                found.append(Took(record.trial, record.wall_s / len(record.processes)))
    return found
