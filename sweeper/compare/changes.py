"""What else changed between BASE and HEAD: devices, versions, switches and how trials were
measured.

Only facts that both sides have are compared.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sweeper.core.text import printable
from sweeper.loading.environment import LIBRARIES, Facts, show_fact, show_facts
from sweeper.loading.sources import Source, read_last_run
from sweeper.report.columns.formats import count, shorten

from .pairs import Pair, Side

MAX_CHARACTERS = 80  # of a value

Change = tuple[str, str, str]  # name, value in BASE and value in HEAD


class VersionChange(NamedTuple):
    """A version that differs."""

    name: str
    base: str  # "none" where it is not installed
    head: str
    rows: int | None  # that it is true for; None: it is that of the two commands
    line: str

    def to_json(self) -> dict[str, str | int | None]:
        return {"name": self.name, "base": self.base, "head": self.head, "rows": self.rows}


def list_device_changes(pairs: Iterable[Pair]) -> list[str]:
    """A line for each two different devices whose times would be compared with each other."""
    found = Counter(_find_device_change(*sides) for sides in _with_records(pairs))
    return [_line(*change, rows) for change, rows in found.items() if change]


def list_version_changes(pairs: Sequence[Pair], *sweeps: Source) -> list[VersionChange]:
    """Find versions that differ, of libraries, CUDA and the driver.

    They are those in the records of rows or, where no row has any on both sides, of the last
    commands of `sweeps`.
    """
    known = [(base.versions, head.versions) for base, head in _with_records(pairs)]
    if sweeps and not any(base[LIBRARIES] and head[LIBRARIES] for base, head in known):
        base, head = ({LIBRARIES: show_facts(read_last_run(sweep, "versions"))} for sweep in sweeps)
        changes = _find_changes(base, head)
        return [VersionChange(*change, None, _line(*change)) for change in changes]
    return [VersionChange(*change, rows, line) for change, rows, line in _count_changes(known)]


def describe_versions(pair: Pair) -> str | None:
    """List what differs between the sides of a row: the device, and versions."""
    found: list[Change | None] = []
    for base, head in _with_records([pair]):
        found.append(_find_device_change(base, head))
        found += _find_changes(base.versions, head.versions)
    return "; ".join(_line(*change) for change in found if change) or None


def list_environment_changes(pairs: Sequence[Pair]) -> list[str]:
    """A line for each switch or other fact that differs, with the number of rows unless it is all
    of them.
    """
    facts = [(base.facts, head.facts) for base, head in _with_records(pairs)]
    return [line for _, _, line in _count_changes(facts)]


def list_setting_changes(base: Source, head: Source) -> list[str]:
    """A line for each setting of `measure` that differs between the last runs of two sweeps."""
    in_base, in_head = (read_last_run(sweep, "settings", "measure") for sweep in (base, head))
    lines = []
    for name, value in in_base.items():
        if name in in_head and value != in_head[name]:
            lines.append(_line(f"measure.{name}", show_fact(value), show_fact(in_head[name])))
    return lines


def _with_records(pairs: Iterable[Pair]) -> list[tuple[Side, Side]]:
    return [pair.both for pair in pairs if pair.both and not any(side.lost for side in pair.both)]


def _find_device_change(base: Side, head: Side) -> Change | None:
    if not base.device or not head.device or base.device.is_like(head.device):
        return None
    return "device", base.device.name_among([head.device]), head.device.name_among([base.device])


def _count_changes(known: Sequence[tuple[Facts, Facts]]) -> list[tuple[Change, int, str]]:
    """Find what differs in any row, in how many rows, and a line that says so."""
    found = Counter[Change]()
    for base, head in known:
        found.update(_find_changes(base, head))
    counted = []
    for change, rows in sorted(found.items()):
        in_some = rows if rows < len(known) else None
        counted.append((change, rows, _line(*change, in_some)))
    return counted


def _find_changes(base: Facts, head: Facts) -> list[Change]:
    """A group that a side does not have is left out, or all of its facts would seem to be gone."""
    found = []
    for group, facts in base.items():
        others = head[group]
        for name in facts.keys() | others.keys():
            value, other = facts.get(name, "none"), others.get(name, "none")
            if facts and others and value != other:
                found.append((f"{group} {name}".strip(), value, other))
    return sorted(found)


def _line(name: str, base: str, head: str, rows: int | None = None) -> str:
    where = "" if rows is None else f" ({count(rows, 'row')})"
    shown = [shorten(value or "none", MAX_CHARACTERS) for value in (base, head)]
    return printable(f"{name}: {' → '.join(shown)}{where}")
