"""Tables: columns of plain values for files, columns of text for people."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from sweeper.analysis.stats import Estimate, Interval

Value = None | bool | int | float | str | tuple[str, ...]
Row = Mapping[str, Value]
T = TypeVar("T")

NEEDS_QUOTES = re.compile('[,"\r\n]')
# A formula, also after characters that a spreadsheet drops.
# https://owasp.org/www-community/attacks/CSV_Injection
FORMULA = re.compile(
    r"[\t\r]|[\s\x00-\x1f\x7f-\x9f\u200b-\u200f\ufeff]*[=+\-@\uff1d\uff0b\uff0d\uff20]"
)


@dataclass(frozen=True)
class Column(Generic[T]):
    """One column of a table over items of type `T`; `kind` is the type of its values, missing ones
    aside.
    """

    name: str
    value: Callable[[T], Value]
    kind: type = str


def interval_columns(
    name: str, read: Callable[[T], Interval | None]
) -> tuple[Column[T], Column[T]]:
    """Make the columns of the ends of an interval."""
    return (
        Column(f"{name}_low", lambda item: found.low if (found := read(item)) else None, float),
        Column(f"{name}_high", lambda item: found.high if (found := read(item)) else None, float),
    )


def estimate_columns(
    name: str, read: Callable[[T], Estimate | None]
) -> tuple[Column[T], Column[T], Column[T]]:
    """Make the columns of a ratio and of the ends of its interval."""
    ratio = Column[T](name, lambda item: found.ratio if (found := read(item)) else None, float)
    return ratio, *interval_columns(
        name, lambda item: found.interval() if (found := read(item)) else None
    )


@dataclass(frozen=True)
class Table:
    """Rows of plain values; every row has every column."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    kinds: Mapping[str, type] = field(default_factory=dict)  # of the values, by column

    @staticmethod
    def make(columns: Sequence[Column[T]], items: Iterable[T]) -> Table:
        """Make a row of each item, in order."""
        rows = tuple({column.name: column.value(item) for column in columns} for item in items)
        kinds = {column.name: column.kind for column in columns}
        return Table(tuple(kinds), rows, kinds)

    def csv(self) -> str:
        """Write CSV (RFC 4180 quoting, lines end in LF), the names of the columns first."""
        lines = [",".join(self.columns)]
        lines += [",".join([_csv(row[name]) for name in self.columns]) for row in self.rows]
        return "\n".join(lines) + "\n"


PAGE, MARKDOWN, TERMINAL = MEDIA = ("page", "markdown", "terminal")


@dataclass(frozen=True)
class TextColumn:
    """A column that people read."""

    title: str
    text: Callable[[Row], Value]
    # what the page sorts by; without it, by the text
    number: Callable[[Row], float | None] | None = None
    meaning: str = ""  # what the title does not say
    align_right: bool = False
    folds: bool = False  # on a narrow terminal the text may take several lines
    is_name: bool = False  # part of what tells the rows apart
    is_cost: bool = False  # goes into a second table where the terminal is too narrow for one
    needs: str = ""  # a column of the table: this one is shown where some row has a value there
    media: tuple[str, ...] = MEDIA  # where it is shown


def plain(value: Value) -> str:
    """Show floats in full precision, lists joined by `;`, and nothing for missing and non-finite
    values.
    """
    if value is None:
        return ""
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else ""
    if isinstance(value, str):
        return _encodable(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, int) else _encodable(";".join(value))


def _csv(value: Value) -> str:
    """Write a value of a CSV file; numbers need no look at their characters."""
    if value is None:
        return ""
    return _csv_text(value) if isinstance(value, (str, tuple)) else plain(value)


@functools.lru_cache(maxsize=10_000)
def _csv_text(value: str | tuple[str, ...]) -> str:
    return quote(cell(value))


def _encodable(text: str) -> str:
    """Replace lone surrogates, which JSON can carry and UTF-8 cannot."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def cell(value: Value) -> str:
    """Show a value as `plain` does, with an apostrophe before text that a spreadsheet would take
    for a formula.
    """
    text = plain(value)
    return f"'{text}" if isinstance(value, (str, tuple)) and FORMULA.match(text) else text


def quote(text: str) -> str:
    """Put text in double quotes where CSV needs them; the csv module quotes no bare CR, and no
    reader takes it.
    """
    if NEEDS_QUOTES.search(text):
        return '"' + text.replace('"', '""') + '"'
    return text
