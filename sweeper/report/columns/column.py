"""Columns of tables: a value for files, and how people see it."""

import csv
import io
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Generic, TypeVar

from sweeper.analysis.stats import Estimate, Interval

from . import cell, formats
from .cell import Value

S = TypeVar("S")
T = TypeVar("T")

PAGE, MARKDOWN, TERMINAL = MEDIA = ("page", "markdown", "terminal")


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column over items of type `T`.

    Files have the columns with a `name`, people see those with a `title`. `kind` is the type of the
    values, missing ones aside.
    """

    name: str
    value: Callable[[T], Value]
    kind: type = str
    title: str = ""
    text: Callable[[T], str] | None = None  # what people see, where it is not the value alone
    meaning: str = ""  # what the title does not say
    media: tuple[str, ...] = MEDIA  # where it is shown
    align_right: bool = False
    folds: bool = False  # on a narrow terminal the text may take several lines
    is_name: bool = False  # part of what tells the rows apart
    is_axis: bool = False  # shown where it differs from row to row
    is_cost: bool = False  # goes into a second table where the terminal is too narrow for one
    is_filter: bool = False  # the page offers its values to choose rows by

    @property
    def is_number(self) -> bool:
        return self.kind in (int, float)

    def show(self, item: T) -> str:
        """Show the value of an item to people, numbers with three digits."""
        if self.text is not None:
            return self.text(item)
        value = self.value(item)
        if value is None:
            return ""
        if self.kind is float and isinstance(value, (int, float)):
            return formats.figure(value)
        return cell.show(value)

    def number(self, item: T) -> float | None:
        """Return what the page sorts by; None: by the text."""
        value = self.value(item) if self.is_number else None
        if isinstance(value, (int, float)) and math.isfinite(value):
            return float(value)
        return None


def lift(column: Column[T], get: Callable[[S], T | None]) -> Column[S]:
    """Make the same column over items that have a `T`; it is empty for items without one."""

    def value(item: S) -> Value:
        found = get(item)
        if found is None:
            return None
        return column.value(found)

    def text(item: S) -> str:
        found = get(item)
        if found is None:
            return ""
        return column.show(found)

    lifted: Column[Any] = column
    return replace(lifted, value=value, text=text)


def select(columns: Iterable[Column[T]], names: Sequence[str]) -> list[Column[T]]:
    """Select columns by their names, in the order of the names."""
    by_name = {column.name: column for column in columns}
    return [by_name[name] for name in names]


def interval_columns(name: str, read: Callable[[T], Estimate | None]) -> Iterator[Column[T]]:
    """Make the columns of the ends of an estimate's interval."""
    for end in Interval._fields:
        column = Column[Interval](f"{name}_{end}", attrgetter(end), float)
        yield lift(lift(column, Estimate.interval), read)


def estimate_column(name: str, read: Callable[[T], Estimate | None], **shown: Any) -> Column[T]:
    """Make the column of a ratio, which people see with its interval; `shown` says how."""
    ratio = Column[Estimate](name, lambda found: found.ratio, float, text=formats.estimated)
    return replace(lift(ratio, read), **shown)


def estimate_columns(
    name: str, read: Callable[[T], Estimate | None], **shown: Any
) -> list[Column[T]]:
    """Make the columns of a ratio and of the ends of its interval, which people see in one."""
    return [estimate_column(name, read, **shown), *interval_columns(name, read)]


def show_row(columns: Iterable[Column[T]], item: T) -> list[str]:
    """Show an item to people in each column."""
    return [column.show(item) for column in columns]


def find_varying(columns: Iterable[Column[T]], items: Collection[T]) -> frozenset[str]:
    """Name the axes in which items differ."""
    return frozenset(column.name for column in columns if column.is_axis and differs(column, items))


def differs(column: Column[T], items: Iterable[T]) -> bool:
    """Say whether items differ in a column."""
    return len(set(map(column.value, items))) > 1


def write_csv(columns: Sequence[Column[T]], items: Iterable[T]) -> str:
    """Write CSV (RFC 4180 quoting, lines end in LF), the names of the columns first."""
    named = [column for column in columns if column.name]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([column.name for column in named])
    # Before Python 3.13 the csv module quotes a bare CR only where it quotes everything.
    quoting = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
    for item in items:
        cells = [cell.guard(column.value(item)) for column in named]
        if "\r" in "".join(cells):
            quoting.writerow(cells)
        else:
            writer.writerow(cells)
    return file.getvalue()
