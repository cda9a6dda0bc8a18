"""Where the records of a sweep are read from: its folder, or an MLflow store.

Place in the flow: `runs/<sweep>/` or a server `-> FoundRecord`, which `load` makes entries of.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from sweeper.core import paths
from sweeper.core.errors import ConfigError, nearest, remove_password
from sweeper.core.paths import SWEEP_NAME, SweepPaths, TrialPaths
from sweeper.tracking.reader import Store, StoredRun, StoredSweep, side_by_side

MIN_OF_A_PART = 250  # trials; to begin a process takes as long as to read some ten
FIRST = 1.15  # times as many in the first part as in others, whose records have to be sent to the process that has that


@dataclass(frozen=True)
class FoundRecord:
    """The text of a trial's record, or why there is none."""

    folder: Path  # the trial's
    where: str  # what a complaint about the text is led by
    text: str = ""
    problem: str | None = None
    ended: bool = True  # False: the trial has left none yet


class Source(Protocol):
    """A sweep to be read."""

    @property
    def folder(self) -> Path:
        """The sweep's; of one in a store, where it would be here."""

    def parts(self, count: int, /) -> Sequence[Source]:
        """What can be read side by side, in order."""

    def records(self) -> Iterator[FoundRecord]:
        """Every trial, one at a time, ordered by the names of their folders."""

    def invocations(self) -> str:
        """The text of `sweep.json`. Raises OSError or ValueError when there is none."""


@dataclass(frozen=True)
class SweepFolder:
    """A sweep that ran here, or any folder of folders with records."""

    folder: Path
    names: tuple[str, ...] | None = None  # of the folders in it that are looked at; None: all

    def parts(self, count: int) -> list[SweepFolder]:
        """The same trials as up to `count` sources, one after the other, of about as many trials each."""
        names = self._names()
        size = max(math.ceil(len(names) / (FIRST + count - 1)), MIN_OF_A_PART)
        first = min(math.ceil(FIRST * size), len(names))
        starts = [0, *range(first, len(names), size)]
        return [replace(self, names=names[a:b]) for a, b in itertools.pairwise([*starts, len(names)])]

    def records(self) -> Iterator[FoundRecord]:
        for trial in self._folders():
            record = trial.record
            where = str(record)
            try:
                yield FoundRecord(trial.folder, where, record.read_text(encoding="utf-8"))
            except (FileNotFoundError, NotADirectoryError):
                if trial.trial.exists():
                    problem = "no record.json; the trial has not ended"
                    yield FoundRecord(trial.folder, str(trial.folder), problem=problem, ended=False)
            except (OSError, UnicodeDecodeError) as error:
                yield FoundRecord(trial.folder, where, problem=why_unreadable(error))

    def invocations(self) -> str:
        return SweepPaths(self.folder).sweep.read_text(encoding="utf-8")

    @property
    def holds_trials(self) -> bool:
        return any(trial.record.exists() or trial.trial.exists() for trial in self._folders())

    def _folders(self) -> Iterator[TrialPaths]:
        """Everything in the folder; what holds neither a record nor a trial is none."""
        return (TrialPaths(self.folder / name) for name in self._names())

    def _names(self) -> tuple[str, ...]:
        """Names, since paths take ten times as long to sort."""
        return tuple(sorted(path.name for path in self.folder.iterdir())) if self.names is None else self.names


@dataclass(frozen=True)
class SweepInStore:
    """A sweep whose records were sent to MLflow."""

    folder: Path
    store: Store
    runs: StoredSweep

    def parts(self, _count: int) -> Sequence[SweepInStore]:
        """One: the server takes longer to answer than we to read, and is asked several things at once."""
        return [self]

    def records(self) -> Iterator[FoundRecord]:
        runs = {f"{run.name}-{run.trial_id}": run for run in self.runs.trials}
        return side_by_side(self._read, sorted(runs.items()))

    def _read(self, named: tuple[str, StoredRun]) -> FoundRecord:
        name, run = named
        folder, where = self.folder / name, f"{name}, run {run.run_id}"
        try:
            return FoundRecord(folder, where, self.store.read(run, "record.json"))
        except (OSError, UnicodeDecodeError) as error:
            return FoundRecord(folder, where, problem=why_unreadable(error))

    def invocations(self) -> str:
        if self.runs.parent is None:
            raise FileNotFoundError("no run for the sweep")
        return self.store.read(self.runs.parent, "sweep.json")


def find_sweep(name: str) -> Path:
    """The folder of a sweep, `runs/NAME` or a path. Raises ConfigError when there is none or it holds no trial."""
    named = paths.RUNS / name
    folder = named if SWEEP_NAME.fullmatch(name) and named.is_dir() else Path(name)
    if not folder.is_dir():
        raise ConfigError(f"{name}: no sweep {named} and no folder of that name; {_known_folders(name)}")
    if not SweepFolder(folder).holds_trials:
        raise ConfigError(f"{folder} holds no trials: expected {folder}/<trial>/record.json; {_known_folders(name)}")
    return folder


def find_sources(names: Sequence[str], tracking_uri: str | None = None) -> Sequence[Source]:
    """Sweeps by name: in their folders, or in an MLflow store.

    Raises ConfigError for one that is not there, TrackingError when the store does not answer.
    """
    if tracking_uri is None:
        return [SweepFolder(find_sweep(name)) for name in names]
    return _find_in_store(names, tracking_uri)


def _find_in_store(names: Sequence[str], uri: str) -> list[SweepInStore]:
    folders = [_folder_of(name) for name in names]
    store = Store(uri)
    return [_find(name, folder, store) for name, folder in zip(names, folders, strict=True)]


def _folder_of(name: str) -> Path:
    if not SWEEP_NAME.fullmatch(name):
        example = Path(name).name or "night"
        raise ConfigError(f"{name}: with --tracking-uri a sweep is given by its name, e.g. {example}")
    return SweepPaths.of(name).folder


def _find(name: str, folder: Path, store: Store) -> SweepInStore:
    runs = store.sweep(name)
    if not runs.trials:
        known = store.sweeps()
        others = nearest(name, known) if known else "there are none"
        raise ConfigError(f"{name}: no such sweep at {remove_password(store.uri)}; {others}")
    return SweepInStore(folder, store, runs)


def _known_folders(name: str) -> str:
    folders = paths.RUNS.iterdir() if paths.RUNS.is_dir() else ()
    known = [path.name for path in folders if path.is_dir() and SweepFolder(path).holds_trials]
    return nearest(name, known) if known else f"there are no sweeps in {paths.RUNS.absolute()}"


def why_unreadable(error: Exception) -> str:
    if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):
        return f"not JSON, or cut short ({error})"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"cannot be read ({error})"


def add_tracking_uri(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tracking-uri",
        metavar="URI",
        help="read the records that were sent to this MLflow server or sqlite:/// store, in place of those in runs/; "
        "sweeps are given by NAME",
    )
