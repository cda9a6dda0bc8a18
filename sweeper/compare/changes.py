"""What else changed between BASE and HEAD: devices, versions, switches and how trials were
measured.

Only facts that both sides have are compared.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sweeper.compare.pairs import Pair, Side
from sweeper.core.serialization import get_mapping
from sweeper.core.text import printable
from sweeper.loading.sources import Source, read_last_run, read_settings

MAX_CHARACTERS = 80  # of a value
# Ends of environment variables that differ from trial to trial and say nothing about how it ran.
PER_TRIAL = ("_CACHE_DIR", "CUDA_VISIBLE_DEVICES")

Facts = Mapping[str, Mapping[str, str]]  # by group and name
Change = tuple[str, str, str]  # name, value in BASE and value in HEAD


class VersionChange(NamedTuple):
    """A version that differs."""

    name: str
    base: str  # "none" where it is not installed
    head: str
    rows: int | None  # that it is true for; None: it is that of the two commands
    line: str


def list_device_changes(pairs: Iterable[Pair]) -> list[str]:
    """A line for each two different devices whose times would be compared with each other."""
    found = Counter(
        change for sides in _with_records(pairs) if (change := _find_device_change(*sides))
    )
    return [_line(*change, count) for change, count in found.items()]


def list_version_changes(pairs: Sequence[Pair], *sweeps: Source) -> list[VersionChange]:
    """Find versions that differ, of libraries, CUDA and the driver.

    They are those in the records of rows or, where no row has any on both sides, of the last
    commands of `sweeps`.
    """
    both = _with_records(pairs)
    known = [(_versions(base), _versions(head)) for base, head in both]
    if sweeps and not any(base[""] and head[""] for base, head in known):
        base, head = ({"": _texts(read_last_run(sweep, "versions"))} for sweep in sweeps)
        return [
            VersionChange(*change, None, _line(*change)) for change in _find_changes(base, head)
        ]
    return [
        VersionChange(*change, count, _line(*change, count if count < len(both) else None))
        for change, count in _count_changes(known)
    ]


def describe_versions(pair: Pair) -> str | None:
    """List what differs between the sides of a row: the device, and versions."""
    found = [
        change
        for base, head in _with_records([pair])
        for change in (
            _find_device_change(base, head),
            *_find_changes(_versions(base), _versions(head)),
        )
    ]
    return "; ".join(_line(*change) for change in found if change) or None


def list_environment_changes(pairs: Sequence[Pair]) -> list[str]:
    """A line for each switch or other fact that differs, with the number of rows unless it is all
    of them.
    """
    both = _with_records(pairs)
    found = _count_changes((_facts(base), _facts(head)) for base, head in both)
    return [_line(*change, count if count < len(both) else None) for change, count in found]


def list_setting_changes(base: Source, head: Source) -> list[str]:
    """A line for each setting of `measure` that differs between the last runs of two sweeps."""
    in_base, in_head = read_settings(base, "measure"), read_settings(head, "measure")
    changed = [
        name for name, value in in_base.items() if name in in_head and value != in_head[name]
    ]
    return [
        _line(f"measure.{name}", _text(in_base[name]), _text(in_head[name])) for name in changed
    ]


def _with_records(pairs: Iterable[Pair]) -> list[tuple[Side, Side]]:
    return [pair.both for pair in pairs if pair.both and not any(side.lost for side in pair.both)]


def _find_device_change(base: Side, head: Side) -> Change | None:
    if not base.device or not head.device or base.device.is_like(head.device):
        return None
    return "device", base.device.name_among([head.device]), head.device.name_among([base.device])


def _count_changes(facts: Iterable[tuple[Facts, Facts]]) -> list[tuple[Change, int]]:
    return sorted(
        Counter(change for base, head in facts for change in _find_changes(base, head)).items()
    )


def _find_changes(base: Facts, head: Facts) -> list[Change]:
    """A group that a side does not have is left out, or all of its facts would seem to be gone."""
    found = []
    for group in base.keys() & head.keys():
        for name in base[group].keys() | head[group].keys() if base[group] and head[group] else ():
            values = base[group].get(name, "none"), head[group].get(name, "none")
            found.append((f"{group} {name}".strip(), *values))
    return sorted(change for change in found if change[1] != change[2])


def _versions(side: Side) -> Facts:
    driver = get_mapping(side.environment, "device").get("driver")
    return {
        "": _texts(get_mapping(side.environment, "versions")),
        "GPU": _texts({"driver": driver} if driver is not None else {}),
    }


def _facts(side: Side) -> Facts:
    """Facts by group, without devices and versions."""
    environment = side.environment
    power_limit_w = get_mapping(environment, "device").get("power_limit_w")
    variables = get_mapping(environment, "variables")
    groups: dict[str, Mapping[str, Any]] = {
        "GPU": {"power_limit_w": power_limit_w} if power_limit_w is not None else {},
        "CPU": get_mapping(environment, "cpu"),
        "variable": {
            name: value for name, value in variables.items() if not str(name).endswith(PER_TRIAL)
        },
        "setting": side.settings,
        "record": {
            name: environment[name]
            for name in ("inductor_config", "commit", "system")
            if name in environment
        },
    }
    return {name: _texts(group) for name, group in groups.items()}


def _texts(group: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): _text(value) for name, value in group.items()}


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _line(name: str, base: str, head: str, rows: int | None = None) -> str:
    where = "" if rows is None else f" ({rows} row{'' if rows == 1 else 's'})"
    values = (
        value if len(value) <= MAX_CHARACTERS else f"{value[: MAX_CHARACTERS - 1]}…"
        for value in (base, head)
    )
    return printable(f"{name}: {' → '.join(value or 'none' for value in values)}{where}")
