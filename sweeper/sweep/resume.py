"""Going on with a sweep: what is on disk of its trials, and whether this command would measure the
rest alike.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from sweeper.core.errors import ConfigError
from sweeper.core.files import move_aside, write_text
from sweeper.core.libraries import SCRIPT
from sweeper.core.paths import SweepPaths
from sweeper.core.record import Record, RecordError, SchemaError
from sweeper.core.serialization import from_json, show_value
from sweeper.core.settings import Measure
from sweeper.core.system import shortages
from sweeper.core.text import printable
from sweeper.core.trial import Trial, find_script
from sweeper.execution.placement import Placement
from sweeper.loading.device_names import read_device

MAX_SHOWN = 5  # records of another schema


@dataclass(frozen=True)
class Kept:
    """What a record on disk says of its trial; `measure` is None where the record has none."""

    status: str
    measure: Measure | None
    script_sha256: str | None = None  # of a user's own script, as it was


class OnDisk(NamedTuple):
    """The records of a sweep's trials: what they say by trial id, and why others cannot be read by
    their paths.
    """

    kept: Mapping[str, Kept]
    unreadable: Mapping[Path, str]


def read_on_disk(paths: SweepPaths, trial_ids: Set[str]) -> OnDisk:
    """Read what is on disk of the trials.

    Raises ConfigError where some of it has another schema, OSError where the machine lacks what
    reading takes.
    """
    kept, unreadable, foreign, known = {}, {}, [], paths.trials()
    for trial_id in trial_ids & known.keys():
        trial = known[trial_id]
        if not os.path.lexists(trial.record):
            continue
        try:
            record = Record.read(trial.record)
        except SchemaError as error:
            foreign.append(f"  {trial.record} {error}")
        except RecordError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in shortages.PASSING:
                raise error.__cause__ from None
            unreadable[trial.record] = printable(str(error))
        else:
            kept[trial_id] = Kept(record.status, read_measure(record.measure), _read_hash(record))
    if foreign:
        count = (
            "1 of these trials has a record"
            if len(foreign) == 1
            else f"{len(foreign)} of these trials have records"
        )
        shown = [*sorted(foreign)[:MAX_SHOWN], *(["  ..."] if len(foreign) > MAX_SHOWN else [])]
        lines = [f"sweep={paths.folder.name}: {count} of another version of sweeper", *shown]
        raise ConfigError("\n".join([*lines, "nothing was started; give another sweep=NAME"]))
    return OnDisk(kept, dict(sorted(unreadable.items())))


def move_unreadable(unreadable: Mapping[Path, str]) -> None:
    """Move records that cannot be read out of the way of new ones. Raises ConfigError where that is
    impossible.
    """
    for path, problem in unreadable.items():
        try:
            moved = move_aside(path)
        except OSError as error:
            raise ConfigError(
                f"{path} {problem}, and it cannot be moved out of the way of a new record: "
                f"{error.strerror}; "
                "move it away, or give another sweep=NAME"
            ) from error
        print(
            f"note: {path}: {problem}; moved to {moved.name}, and the trial runs again",
            file=sys.stderr,
        )


def _read_hash(record: Record) -> str | None:
    scripts = (process.script for process in record.processes if process.script)
    return next((script.sha256 for script in scripts if script.sha256), None)


def _hash_script(trial: Trial) -> str | None:
    """The hash of a trial's script as it is now; None where there is none to read."""
    with suppress(OSError):
        return (
            hashlib.sha256(file.read_bytes()).hexdigest()
            if (file := find_script(trial.model))
            else None
        )
    return None


def require_same_scripts(sweep: str, trials: Iterable[Trial], kept: Mapping[str, Kept]) -> None:
    """Raise ConfigError where a script is no longer the one of which the sweep has a record that
    stays.
    """
    for trial in trials:
        before = kept[trial.id].script_sha256 if trial.id in kept else None
        if before is not None and _hash_script(trial) not in (before, None):
            again = "add retry=all to measure it again, or give another sweep=NAME"
            raise ConfigError(
                f"sweep={sweep}: {trial.model.name} has changed since it was measured; nothing was "
                f"started; {again}"
            )


def keep_total_steps(paths: SweepPaths, stay: Iterable[Trial]) -> None:
    """Write the length of the training that a command names into records that stay, whose figures
    it does not change.

    Raises RecordError for a record that cannot be read, OSError where it cannot be written.
    """
    folders = paths.trials()
    for trial in (trial for trial in stay if trial.labels.total_steps is not None):
        file = folders[trial.id].record
        record = Record.read(file)
        labels = replace(record.trial.labels, total_steps=trial.labels.total_steps)
        if labels != record.trial.labels:
            write_text(file, replace(record, trial=replace(record.trial, labels=labels)).dumps())


def _read_others(paths: SweepPaths, planned: Sequence[Trial]) -> Iterator[Record]:
    """The records of trials that are not planned; a report says which ones cannot be read."""
    ids = {trial.id for trial in planned}
    for path in paths.records() if planned else ():
        with suppress(RecordError):
            record = Record.read(path)
            if record.trial_id not in ids:
                yield record


def find_changed_scripts(paths: SweepPaths, planned: Sequence[Trial]) -> list[str]:
    """Name the scripts of planned trials of which other trials of the sweep ran another version."""
    trials = [trial for trial in planned if trial.workload == SCRIPT]
    now = {find_script(trial.model): _hash_script(trial) for trial in trials}
    changed = set()
    for record in _read_others(paths, trials):
        before = _read_hash(record)
        if before and now.get(find_script(record.trial.model), before) not in (before, None):
            changed.add(record.trial.model.name)
    return sorted(changed)


def find_other_devices(
    paths: SweepPaths, planned: Sequence[Trial], placement: Placement
) -> list[str]:
    """Name the devices of records that stay, as far as the planned trials will run on others.

    Where a cluster places the trials, only the type of its devices is known.
    """
    types, names = {trial.device for trial in planned}, placement.device_names
    read = (
        read_device(record.environment, record.trial.device)
        for record in _read_others(paths, planned)
    )
    others = (
        found
        for found in read
        if found and (found.type not in types or (names and found.name not in names))
    )
    return sorted({device.name for device in others})


def read_measure(of_record: Mapping[str, Any]) -> Measure | None:
    """The settings of a record; None where it has none."""
    with suppress(ValueError):
        return from_json(Measure, of_record) if of_record else None
    return None


def is_alike(kept: Kept, measure: Measure) -> bool:
    """Whether a record was measured with the same settings that change figures; an unknown one
    counts as alike.
    """
    return kept.measure is None or kept.measure.figure_settings() == measure.figure_settings()


def require_same_settings(sweep: str, kept: Iterable[Kept], measure: Measure) -> None:
    """Raise ConfigError when records that stay were measured with other settings that change
    figures.
    """
    now = measure.figure_settings()
    before = [
        item.measure.figure_settings()
        for item in kept
        if item.measure and not is_alike(item, measure)
    ]
    if not before:
        return
    those = (
        "1 of these trials has a record"
        if len(before) == 1
        else f"{len(before)} of these trials have records"
    )
    lines = [f"sweep={sweep}: {those} with other settings, which change figures"]
    # the others are not used on one side
    for name in (name for name in now if all(name in found for found in before)):
        was = dict.fromkeys(show_value(found.get(name)) for found in before)
        is_now = show_value(now.get(name))
        if list(was) != [is_now]:
            lines.append(f"  measure.{name}: {' or '.join(was)} -> {is_now}")
    again = "add retry=changed to measure these trials again, retry=all to measure all again"
    lines.append(f"nothing was started; {again}, or give another sweep=NAME")
    raise ConfigError("\n".join(lines))
