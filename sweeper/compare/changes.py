"""What else changed between BASE and HEAD: devices, versions, switches and how trials were
measured.

Only facts that both sides have are compared.
"""

from collections import Counter
from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple

from sweeper.core.text import printable
from sweeper.loading.environment import LIBRARIES, Facts, show_facts
from sweeper.loading.sources import Source, read_last_run
from sweeper.report.columns.formats import count, shorten

from .pairs import Pair

MAX_CHARACTERS = 80  # of a value


class FactChange(NamedTuple):
    """A fact that differs, and the number of rows in which it does."""

    name: str
    base: str  # "none" where BASE does not have it
    head: str
    rows: int = 0  # 0: it is that of a row, or of two commands

    @property
    def line(self) -> str:
        where = f" ({count(self.rows, 'row')})" if self.rows else ""
        old, new = (shorten(value or "none", MAX_CHARACTERS) for value in (self.base, self.head))
        return printable(f"{self.name}: {old} → {new}{where}")


def count_device_changes(pairs: Iterable[Pair]) -> list[FactChange]:
    """Find different devices whose times would be compared with each other."""
    found = []
    for pair in pairs:
        base, head = pair.base and pair.base.device, pair.head and pair.head.device
        if base and head and not base.is_like(head):
            names = base.name_among([head]), head.name_among([base])
            found.append(FactChange("device", *names))
    return _count_rows(found)


def count_changes(pairs: Iterable[Pair], group: str) -> list[FactChange]:
    """Find facts that differ: of `versions` of libraries, CUDA and the driver, or other `facts`. A
    side without a record has none.
    """
    found = []
    for pair in pairs:
        if pair.both:
            found += _find_changes(*map(attrgetter(group), pair.both))
    return _count_rows(found)


def describe_versions(pair: Pair) -> str | None:
    """List what differs between the sides of a row: the device, and versions."""
    found = [*count_device_changes([pair]), *count_changes([pair], "versions")]
    return "; ".join(change._replace(rows=0).line for change in found) or None


def list_setting_changes(*sweeps: Source) -> list[FactChange]:
    """Find each setting of `measure` that differs between the last runs of two sweeps."""
    measure = []
    for sweep in sweeps:
        measure.append({LIBRARIES: show_facts(read_last_run(sweep, "settings", "measure"))})
    found = _find_changes(*measure)
    return [change._replace(name=f"measure.{change.name}") for change in found]


def _count_rows(found: Iterable[FactChange]) -> list[FactChange]:
    return [change._replace(rows=rows) for change, rows in sorted(Counter(found).items())]


def _find_changes(base: Facts, head: Facts) -> list[FactChange]:
    """A group that a side does not have is left out, or all of its facts would seem to be gone."""
    found = []
    for group, facts in base.items():
        others = head.get(group, {})
        for name in facts.keys() | others.keys():
            value, other = facts.get(name, "none"), others.get(name, "none")
            if facts and others and value != other:
                found.append(FactChange(f"{group} {name}".strip(), value, other))
    return sorted(found)
