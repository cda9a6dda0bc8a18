"""What else changed between BASE and HEAD: devices, versions, switches and how trials were
measured.

Only facts that both sides have are compared.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

from sweeper.core.text import printable
from sweeper.loading.environment import LIBRARIES, Facts, show_fact, show_facts
from sweeper.loading.sources import Source, read_last_run
from sweeper.report.columns.formats import count, shorten

from .pairs import Pair, Side, Sides

MAX_CHARACTERS = 80  # of a value

FactChange = tuple[str, str, str]  # name, value in BASE and value in HEAD


class CountedChange(NamedTuple):
    """A fact that differs, and the number of rows in which it does."""

    name: str
    base: str  # "none" where BASE does not have it
    head: str
    rows: int | None  # None: it is that of the two commands
    line: str

    def to_json(self) -> dict[str, str | int | None]:
        return {"name": self.name, "base": self.base, "head": self.head, "rows": self.rows}


def list_device_changes(pairs: Iterable[Pair]) -> list[str]:
    """A line for each two different devices whose times would be compared with each other."""
    found = Counter[FactChange]()
    for base, head in _with_records(pairs):
        found.update(_find_device_change(base, head))
    return [_line(*change, rows) for change, rows in found.items()]


def list_version_changes(pairs: Sequence[Pair], *sweeps: Source) -> list[CountedChange]:
    """Find versions that differ, of libraries, CUDA and the driver.

    They are those in the records of rows or, where no row has any on both sides, of the last
    commands of `sweeps`.
    """
    known = any(
        base.versions[LIBRARIES] and head.versions[LIBRARIES] for base, head in _with_records(pairs)
    )
    if sweeps and not known:
        base, head = ({LIBRARIES: show_facts(read_last_run(sweep, "versions"))} for sweep in sweeps)
        changes = _find_changes(base, head)
        return [CountedChange(*change, None, _line(*change)) for change in changes]
    return _count_changes(pairs, attrgetter("versions"))


def describe_versions(pair: Pair) -> str | None:
    """List what differs between the sides of a row: the device, and versions."""
    lines = []
    if pair.recorded:
        base, head = pair.recorded
        for change in _find_device_change(base, head) + _find_changes(base.versions, head.versions):
            lines.append(_line(*change))
    return "; ".join(lines) or None


def list_environment_changes(pairs: Sequence[Pair]) -> list[str]:
    """A line for each switch or other fact that differs, with the number of rows unless it is all
    of them.
    """
    return [change.line for change in _count_changes(pairs, attrgetter("facts"))]


def list_setting_changes(base: Source, head: Source) -> list[str]:
    """A line for each setting of `measure` that differs between the last runs of two sweeps."""
    in_base = read_last_run(base, "settings", "measure")
    in_head = read_last_run(head, "settings", "measure")
    lines = []
    for name, value in in_base.items():
        if name in in_head and value != in_head[name]:
            lines.append(_line(f"measure.{name}", show_fact(value), show_fact(in_head[name])))
    return lines


def _with_records(pairs: Iterable[Pair]) -> list[Sides]:
    return [pair.recorded for pair in pairs if pair.recorded]


def _find_device_change(base: Side, head: Side) -> list[FactChange]:
    if not base.device or not head.device or base.device.is_like(head.device):
        return []
    names = base.device.name_among([head.device]), head.device.name_among([base.device])
    return [("device", *names)]


def _count_changes(pairs: Iterable[Pair], read: Callable[[Side], Facts]) -> list[CountedChange]:
    """Find what differs in any row; a line has the number of rows unless it is all of them."""
    found = Counter[FactChange]()
    known = _with_records(pairs)
    for base, head in known:
        found.update(_find_changes(read(base), read(head)))
    counted = []
    for change, rows in sorted(found.items()):
        in_some = rows if rows < len(known) else None
        counted.append(CountedChange(*change, rows, _line(*change, in_some)))
    return counted


def _find_changes(base: Facts, head: Facts) -> list[FactChange]:
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
    old, new = shorten(base or "none", MAX_CHARACTERS), shorten(head or "none", MAX_CHARACTERS)
    return printable(f"{name}: {old} → {new}{where}")
