"""Declares a table of the report once, for CSV, Markdown, terminal, page, frames and MLflow.

A new table is one module under `report/tables/` with a `TableSpec`, and one line in
`report/tables/registry.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from sweeper.loading.entries import Entry
from sweeper.report.answers.findings import Findings
from sweeper.report.columns.column import Column, find_varying, write_csv


class HasEntry(Protocol):
    """A row with a trial."""

    @property
    def entry(self) -> Entry: ...


T = TypeVar("T")
E = TypeVar("E", bound=HasEntry)


@dataclass(frozen=True)
class Headline:
    """A line in bold, and the rows that it speaks of."""

    text: str
    rows: str
    is_good: bool


class TableSpec(Generic[T]):
    """A table over items of type `T`, which most tables have to declare with `items` and `columns`
    alone.
    """

    name: str  # also of the CSV file, of the frame and of the section of the page
    title: str
    word: str = ""  # in the contents bar of the page; "": the title
    place: int = 50  # on the page, from the top
    is_last_in_terminal = False  # what stands last is what people see
    has_every_axis = (
        False  # shows each axis that varies anywhere in the report, not only in its rows
    )
    shows_log = False  # on the page, the end of the log of each row
    shows_causes = False  # on the page, why the trial of each row is not faster
    max_markdown_rows = 1000  # the files have all
    max_terminal_rows = 60

    def items(self, findings: Findings) -> Sequence[T]:
        """Return an item for each row of the CSV file, in order."""
        raise NotImplementedError

    @property
    def columns(self) -> Sequence[Column[T]]:
        raise NotImplementedError

    def csv(self, findings: Findings) -> str:
        return write_csv(self.columns, self.items(findings))

    def arrange(self, items: Sequence[T]) -> Sequence[T]:
        """Return the items that people see, in order."""
        return items

    def shown(self, items: Sequence[T], findings: Findings, medium: str) -> list[Column[T]]:
        """Choose the columns that a medium shows for these items."""
        axes: Collection[str] = findings.axes
        if not self.has_every_axis:
            axes = find_varying(self.columns, items)
        return select_shown(self.columns, items, axes, medium)

    def lead(self, findings: Findings) -> str:
        """Say what stands above the table."""
        return ""

    def headlines(self, findings: Findings) -> Iterable[Headline]:
        return ()

    def notes(self, findings: Findings) -> Iterable[str]:
        """List what stands below the table."""
        return ()

    def terminal_notes(self, findings: Findings) -> Iterable[str]:
        """List what stands below the notes on a terminal."""
        return ()

    def explain(self, findings: Findings) -> str:
        """Explain the table, below it in Markdown and on the page."""
        return ""

    def line(self, item: T) -> tuple[str, str] | None:
        """Split a row into the words to highlight and the rest: a terminal then shows lines in
        place of a table.
        """
        return None

    def entry(self, item: T) -> Entry | None:
        """Return the trial whose details a row of the page opens to."""
        return None

    def parts(self, item: T) -> Sequence[tuple[str, str]]:
        """Return what else a row of the page opens to, pairs of a name and a text."""
        return ()

    def for_page(self) -> TableSpec[Any]:
        """Return the table that the page shows in place of this one."""
        return self


class TrialTable(TableSpec[E]):
    """A table whose rows have a trial each, to whose details they open on the page."""

    def entry(self, item: E) -> Entry:
        return item.entry


def select_shown(
    columns: Sequence[Column[T]], items: Sequence[T], axes: Collection[str], medium: str
) -> list[Column[T]]:
    """Choose the columns that a medium shows: axes where they are among `axes`, others where they
    have something to show.
    """
    shown: list[Column[T]] = []
    for column in columns:
        if not column.title or medium not in column.media:
            continue
        if column.is_axis:
            is_worth_it = column.name in axes
        else:
            is_worth_it = not shown or any(map(column.show, items))
        if is_worth_it:
            shown.append(column)
    return shown
