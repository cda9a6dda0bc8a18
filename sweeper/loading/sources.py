"""`find_sources` finds sweeps by name, in their folders or in an MLflow store, where their records
can be read.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeAlias, Union

from sweeper.core import paths
from sweeper.core.errors import ConfigError, explain_unreadable, nearest
from sweeper.core.files import MAX_JSON_BYTES, read_text
from sweeper.core.paths import SWEEP_NAME, SweepPaths, TrialPaths
from sweeper.core.record import Record, RecordError
from sweeper.core.serialization import get_mapping, parse_json
from sweeper.core.text import printable
from sweeper.core.uris import remove_credentials
from sweeper.tracking.reader import RunReader, StoredRun, StoredSweep, map_concurrently

MIN_OF_A_PART = 250  # trials; to start a process takes as long as to read some ten

Source: TypeAlias = Union["SweepFolder", "SweepInStore"]


class FoundRecord(NamedTuple):
    """Where the record of a trial is, and how to read it."""

    folder: Path  # of the trial
    where: str  # begins a message about the record
    read: Callable[[], Record]  # raises RecordError
    ended: bool = True  # False: the trial has left no record yet


@dataclass(frozen=True)
class SweepFolder:
    """A sweep that ran here, or any folder of folders with records."""

    folder: Path
    names: Sequence[str] | None = None  # of the folders in it to read; None: all

    def split(self, count: int) -> list[SweepFolder]:
        """Split the trials, in order, into at most `count` sources that can be read at the same
        time.
        """
        names = self._list_names()
        size = max(math.ceil(len(names) / count), MIN_OF_A_PART)
        return [
            replace(self, names=names[start : start + size])
            for start in range(0, max(len(names), 1), size)
        ]

    def records(self) -> Iterator[FoundRecord]:
        """Yield the record of every trial, one at a time, ordered by the names of the trials'
        folders.
        """
        for name in self._list_names():
            trial = TrialPaths(self.folder / name)
            if _is_there(trial.record):
                read = functools.partial(Record.read, trial.record)
                yield FoundRecord(trial.folder, str(trial.record), read)
            elif _is_there(trial.trial):
                refuse = functools.partial(_refuse, "no record.json; the trial has not ended")
                yield FoundRecord(trial.folder, str(trial.folder), refuse, ended=False)

    def read_manifest(self) -> str:
        """Read `sweep.json`. Raises OSError or ValueError when there is none."""
        return read_text(SweepPaths(self.folder).sweep, MAX_JSON_BYTES)

    def _list_names(self) -> Sequence[str]:
        """Sort names, since paths take ten times as long."""
        if self.names is None:
            return sorted(path.name for path in self.folder.iterdir())
        return self.names


@dataclass(frozen=True)
class SweepInStore:
    """A sweep whose records were sent to MLflow. Its folder is where it would be here."""

    folder: Path
    store: RunReader
    runs: StoredSweep

    def split(self, _count: int) -> list[SweepInStore]:
        """Return the sweep whole: its server needs longer to answer than we to read, and is asked
        concurrently.
        """
        return [self]

    def records(self) -> Iterator[FoundRecord]:
        """Yield the record of every trial, ordered as `SweepFolder` orders them."""
        runs = sorted(self.runs.trials, key=lambda run: f"{run.name}-{run.trial_id}")
        return map_concurrently(self._read, runs)

    def _read(self, run: StoredRun) -> FoundRecord:
        # whoever writes to the store names its runs
        name = printable(f"{run.name}-{run.trial_id}").replace("/", "_")
        folder, where = self.folder / name, f"{name}, run {run.run_id}"
        try:
            text = self.store.read(run, "record.json")
        except (OSError, UnicodeDecodeError) as error:
            refuse = functools.partial(_refuse, explain_unreadable(error))
            return FoundRecord(folder, where, refuse)
        return FoundRecord(folder, where, functools.partial(Record.loads, text))

    def read_manifest(self) -> str:
        """Read `sweep.json`. Raises OSError or ValueError when there is none."""
        if self.runs.parent is None:
            raise FileNotFoundError("no run for the sweep")
        return self.store.read(self.runs.parent, "sweep.json")


def read_last_run(source: Source, *keys: str) -> Mapping[str, Any]:
    """Read what `sweep.json` says under nested keys of the sweep's last run; empty for a folder of
    records that is no sweep of ours.
    """
    try:
        return get_mapping(parse_json(source.read_manifest())["invocations"][-1], *keys)
    except (OSError, ValueError, LookupError, TypeError):
        return {}


def find_sweep(name: str) -> Path:
    """Find the folder of a sweep, `runs/NAME` or a path. Raises ConfigError when there is none or
    it holds no trial.
    """
    named = paths.RUNS / name
    folder = named if SWEEP_NAME.fullmatch(name) and named.is_dir() else Path(name)
    if not folder.is_dir():
        raise ConfigError(
            f"{name}: no sweep {named} and no folder of that name; {known_folders(name)}"
        )
    if not any(SweepFolder(folder).records()):
        raise ConfigError(
            f"{folder} holds no trials: expected {folder}/<trial>/record.json; "
            f"{known_folders(name)}"
        )
    return folder


def find_sources(names: Sequence[str], tracking_uri: str | None) -> Sequence[Source]:
    """Find sweeps by name: in their folders, or in an MLflow store.

    Raises ConfigError when a sweep is not there, TrackingError when the store does not answer.
    """
    if tracking_uri is None:
        return list(map(SweepFolder, map(find_sweep, names)))
    for name in names:
        if not SWEEP_NAME.fullmatch(name):
            example = Path(name).name or "night"
            raise ConfigError(
                f"{name}: with --tracking-uri a sweep is given by its name, e.g. {example}"
            )
    store = RunReader(tracking_uri)
    sources = []
    for name in names:
        runs = store.sweep(name)
        sources.append(SweepInStore(SweepPaths.of(name).folder, store, runs))
        if not runs.trials:
            known = store.sweeps()
            others = printable(nearest(name, known)) if known else "there are none"
            raise ConfigError(f"{name}: no such sweep at {remove_credentials(store.uri)}; {others}")
    return sources


def known_folders(name: str) -> str:
    """Name the sweeps under `runs/` that look most like `name`."""
    folders = filter(Path.is_dir, paths.list_folder(paths.RUNS, "*"))
    known = [path.name for path in folders if any(SweepFolder(path).records())]
    return nearest(name, known) if known else f"there are no sweeps in {paths.RUNS.absolute()}"


def _is_there(path: Path) -> bool:
    """Whether there is such a file, or a link, or whether it is not allowed to look."""
    try:
        os.lstat(path)
    except OSError as error:
        return not isinstance(error, FileNotFoundError | NotADirectoryError)
    return True


def _refuse(problem: str) -> NoReturn:
    raise RecordError(problem)


def add_tracking_uri(parser: argparse.ArgumentParser) -> None:
    """Add the option `--tracking-uri` to a command that reads sweeps."""
    parser.add_argument(
        "--tracking-uri",
        metavar="URI",
        help="read the records that were sent to this MLflow server or sqlite:/// store, in place "
        "of those in runs/; sweeps are given by NAME",
    )
