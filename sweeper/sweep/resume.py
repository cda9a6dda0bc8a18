"""Going on with a sweep: what is on disk of its trials, and whether this command would measure the
rest alike.
"""

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from sweeper.core.errors import ConfigError
from sweeper.core.files import move_aside, write_text
from sweeper.core.paths import SweepPaths
from sweeper.core.record import Record, RecordError, SchemaError
from sweeper.core.serialization import from_json, show_value
from sweeper.core.settings import Measure
from sweeper.core.text import printable
from sweeper.core.trial import Trial, find_script
from sweeper.execution.attempts import raise_if_passing
from sweeper.execution.placement import Placement
from sweeper.loading.device_names import read_device

MAX_SHOWN = 5  # records of another schema


class Kept(NamedTuple):
    """What a record on disk says of its trial."""

    status: str
    figure_settings: Mapping[str, object]  # empty: the record does not say
    script_sha256: str | None  # of a user's own script, as it was


def read_on_disk(
    paths: SweepPaths, grid: Iterable[Trial]
) -> tuple[Mapping[str, Kept], Mapping[Path, str]]:
    """Read what records on disk say of the trials, by trial id, and why others cannot be read, by
    path.

    Raises ConfigError where some of it has another schema, OSError where the machine lacks what
    reading takes.
    """
    kept, unreadable, foreign, known = {}, {}, [], paths.trials()
    for trial_id in {trial.id for trial in grid} & known.keys():
        file = known[trial_id].record
        if not os.path.lexists(file):
            continue
        try:
            record = Record.read(file)
        except SchemaError as error:
            foreign.append(f"  {file} {error}")
        except RecordError as error:
            raise_if_passing(error)
            unreadable[file] = printable(str(error))
        else:
            measure = read_measure(record.measure)
            settings = measure.figure_settings() if measure else {}
            kept[trial_id] = Kept(record.status, settings, _read_hash(record))
    if foreign:
        lines = [
            f"sweep={paths.folder.name}: {_count_records(foreign)} of another version of sweeper",
            *sorted(foreign)[:MAX_SHOWN],
        ]
        if len(foreign) > MAX_SHOWN:
            lines.append("  ...")
        lines.append("nothing was started; give another sweep=NAME")
        raise ConfigError("\n".join(lines))
    return kept, dict(sorted(unreadable.items()))


def _count_records(found: Sequence[object]) -> str:
    if len(found) == 1:
        return "1 of these trials has a record"
    return f"{len(found)} of these trials have records"


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
                f"{error.strerror}; move it away, or give another sweep=NAME"
            ) from error
        print(
            f"note: {path}: {problem}; moved to {moved.name}, and the trial runs again",
            file=sys.stderr,
        )


def _read_hash(record: Record) -> str | None:
    for process in record.processes:
        if process.script and process.script.sha256:
            return process.script.sha256
    return None


def _hash_script(trial: Trial) -> str | None:
    """The hash of a trial's script as it is now; None where there is none to read."""
    with suppress(OSError):
        file = find_script(trial.model)
        return hashlib.sha256(file.read_bytes()).hexdigest() if file else None
    return None


def require_same_scripts(sweep: str, trials: Iterable[Trial], kept: Mapping[str, Kept]) -> None:
    """Raise ConfigError where a script is no longer the one of which the sweep has a record that
    stays.
    """
    for trial in trials:
        before = kept[trial.id].script_sha256
        if before is not None and _hash_script(trial) not in (before, None):
            raise ConfigError(
                f"sweep={sweep}: {trial.model.name} has changed since it was measured; nothing was "
                "started; add retry=all to measure it again, or give another sweep=NAME"
            )


def keep_total_steps(paths: SweepPaths, stay: Iterable[Trial]) -> None:
    """Write the length of the training that a command names into records that stay, whose figures
    it does not change.

    Raises RecordError for a record that cannot be read, OSError where it cannot be written.
    """
    folders = paths.trials()
    for trial in stay:
        if trial.labels.total_steps is None:
            continue
        file = folders[trial.id].record
        record = Record.read(file)
        labels = replace(record.trial.labels, total_steps=trial.labels.total_steps)
        if labels != record.trial.labels:
            write_text(file, replace(record, trial=replace(record.trial, labels=labels)).dumps())


def describe_others(
    paths: SweepPaths, planned: Sequence[Trial], placement: Placement
) -> Iterator[str]:
    """Say on which other devices, and with which other versions of the scripts, trials of the sweep
    ran that are not planned. A report says which records cannot be read.

    Where a cluster places the trials, only the type of its devices is known.
    """
    types, names = {trial.device for trial in planned}, placement.device_names
    now = {find_script(trial.model): _hash_script(trial) for trial in planned}
    ids = {trial.id for trial in planned}
    devices, changed = set(), set()
    for path in paths.records() if planned else ():
        with suppress(RecordError):
            record = Record.read(path)
            if record.trial_id in ids:
                continue
            found = read_device(record)
            if found and (found.type not in types or (names and found.name not in names)):
                devices.add(found.name)
            before = _read_hash(record)
            if before and now.get(find_script(record.trial.model), before) not in (before, None):
                changed.add(record.trial.model.name)
    if devices:
        here = ", ".join(names) or placement.name
        yield (
            f"note: trials of this sweep ran on {', '.join(sorted(devices))}, and these run on "
            f"{here}; no mean mixes them"
        )
    for name in sorted(changed):
        yield f"note: other trials of this sweep ran another version of {name}"


def read_measure(of_record: Mapping[str, Any]) -> Measure | None:
    """The settings of a record; None where it has none."""
    with suppress(ValueError):
        return from_json(Measure, of_record) if of_record else None
    return None


def is_alike(kept: Kept, measure: Measure) -> bool:
    """Whether a record was measured with the same settings that change figures; one that is unknown
    or not used on either side counts as alike.
    """
    now = measure.figure_settings()
    return all(now[name] == was for name, was in kept.figure_settings.items() if name in now)


def require_same_settings(sweep: str, kept: Iterable[Kept], measure: Measure) -> None:
    """Raise ConfigError when records that stay were measured with other settings that change
    figures.
    """
    before = [item.figure_settings for item in kept if not is_alike(item, measure)]
    if not before:
        return
    lines = [f"sweep={sweep}: {_count_records(before)} with other settings, which change figures"]
    for name, value in measure.figure_settings().items():
        was = dict.fromkeys(show_value(found[name]) for found in before if name in found)
        is_now = show_value(value)
        # a setting that some of them lack is not used there
        if all(name in found for found in before) and list(was) != [is_now]:
            lines.append(f"  measure.{name}: {' or '.join(was)} -> {is_now}")
    lines.append(
        "nothing was started; add retry=changed to measure these trials again, retry=all to "
        "measure all again, or give another sweep=NAME"
    )
    raise ConfigError("\n".join(lines))
