"""Records from the folders of sweeps; what cannot be read becomes a line for people, and the rest goes on.

Place in the flow: `runs/<sweep>/<trial>/record.json -> Entry`, the row that every table is made from.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sweeper import paths
from sweeper.errors import ConfigError, nearest
from sweeper.paths import SWEEP_NAME, TrialPaths
from sweeper.record import Record
from sweeper.report.readable import printable
from sweeper.result import Result, derive
from sweeper.stats import Interval

# What `Record.loads` and `derive` raise for JSON of the right shape whose values make no sense, e.g. text for a number.
BROKEN = (ValueError, ArithmeticError, RecursionError)


@dataclass(frozen=True, eq=False)
class Entry:
    """A record, its result and what the tables need beside them."""

    record: Record
    result: Result
    folder: Path  # the trial's
    variant: str  # the trial's, with `device=...` where the records at hand come from more than one type of device
    flags: tuple[str, ...] = ()  # the record's, and those that only a look at other trials can give
    moderated: Interval | None = None  # of the speedup, where `across` found enough trials like it


@dataclass(frozen=True)
class Loaded:
    """Entries in the order of sweeps and folders; `problems` has a line for each trial that could not be read."""

    entries: tuple[Entry, ...]
    problems: tuple[str, ...]


def find_sweep(name: str) -> Path:
    """The folder of a sweep, `runs/NAME` or a path. Raises ConfigError when there is none or it holds no trial."""
    named = paths.RUNS / name
    folder = named if SWEEP_NAME.fullmatch(name) and named.is_dir() else Path(name)
    if not folder.is_dir():
        raise ConfigError(f"{name}: no sweep {named} and no folder of that name; {_known_sweeps(name)}")
    if next(_trials(folder), None) is None:
        raise ConfigError(f"{folder} holds no trials: expected {folder}/<trial>/record.json; {_known_sweeps(name)}")
    return folder


def _known_sweeps(name: str) -> str:
    folders = paths.RUNS.iterdir() if paths.RUNS.is_dir() else ()
    known = [path.name for path in folders if path.is_dir() and next(_trials(path), None)]
    return nearest(name, known) if known else f"there are no sweeps in {paths.RUNS.absolute()}"


def load(sweeps: Sequence[Path]) -> Loaded:
    """Read every trial of the sweeps; a sweep that is named twice is read once."""
    read: list[tuple[Record, Result, Path]] = []
    problems: list[str] = []
    for sweep in {folder.resolve(): folder for folder in sweeps}.values():
        for trial in _trials(sweep):
            try:
                record = Record.loads(trial.record.read_text(encoding="utf-8"))
                read.append((record, derive(record), trial.folder))
            except FileNotFoundError:
                problems.append(printable(f"{trial.folder}: no record.json; the trial has not ended"))
            except (OSError, *BROKEN) as error:
                problems.append(printable(f"{trial.record}: {_reason(error)}"))
    several = len({record.trial.device for record, _, _ in read}) > 1
    entries = tuple(
        Entry(record, result, folder, _variant(record, several), record.flags) for record, result, folder in read
    )
    return Loaded(entries, tuple(problems))


def _trials(sweep: Path) -> Iterator[TrialPaths]:
    for folder in sorted(sweep.iterdir()):
        trial = TrialPaths(folder)
        if trial.record.exists() or trial.trial.exists():
            yield trial


def _reason(error: Exception) -> str:
    if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):
        return f"not JSON, or cut short ({error})"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"cannot be read ({error})"


def _variant(record: Record, several_devices: bool) -> str:
    parts = [record.trial.variant, f"device={record.trial.device}" if several_devices else ""]
    return "; ".join(part for part in parts if part)
