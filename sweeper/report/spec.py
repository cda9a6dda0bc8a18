"""Declares a table of the report once, for CSV, Markdown, terminal, page, frames and MLflow.

A new table is one module under `report/tables/` with a `TableSpec`, and one line in
`report/registry.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sweeper.loading.entries import Entry
from sweeper.report.findings import Findings
from sweeper.report.formatting import is_known
from sweeper.report.table import Row, Table, TextColumn


@dataclass(frozen=True)
class Headline:
    """A line in bold, and the rows that it speaks of."""

    text: str
    rows: str
    is_good: bool


@dataclass(frozen=True)
class Fold:
    """Rows that the page shows as one, `row`; it opens to `parts`, pairs of a name and a text."""

    row: Row
    parts: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class TableSpec:
    """A table of the report; `name` is also the name of the CSV file, of the frame and of the
    section of the page.
    """

    name: str
    title: str
    make: Callable[[Findings], Table]
    # of its rows and those of speedups
    text_columns: Callable[[Sequence[Row], Sequence[Row]], Sequence[TextColumn]]
    arrange: Callable[[Sequence[Row]], Sequence[Row]] = list  # the rows that people see, in order
    lead: Callable[[Sequence[Row]], str] = lambda _rows: ""  # above the table
    headlines: Callable[[Sequence[Row]], Sequence[Headline]] = lambda _rows: ()
    notes: Callable[[Sequence[Row]], Sequence[str]] = lambda _rows: ()  # below the table
    # Below the table of Markdown and of the page.
    explain: Callable[[Findings, Sequence[Row]], str] = lambda _findings, _rows: ""
    # more of them, for the terminal
    terminal_notes: Callable[[Sequence[Row]], Sequence[str]] = lambda _rows: ()
    # Splits a row into the words to highlight and the rest: terminals then show lines in place of a
    # table.
    as_line: Callable[[Row], tuple[str, str]] | None = None
    # of the rows, which open to their details on the page
    entries: Callable[[Findings], Sequence[Entry]] | None = None
    shows_log: bool = False  # of each row, its end among the details
    # for the page, of many rows a few
    fold: Callable[[Sequence[Row]], Sequence[Fold]] | None = None
    runs_apart: bool = False  # making it is worth a process of its own
    max_markdown_rows: int | None = None
    max_terminal_rows: int | None = None

    def columns_for(
        self, medium: str, rows: Sequence[Row], trials: Sequence[Row]
    ) -> list[TextColumn]:
        """Choose the columns of `rows` that a medium shows; `trials` are the rows of speedups."""
        return [
            column
            for column in self.text_columns(rows, trials)
            if medium in column.media and (not column.needs or is_known(rows, column.needs))
        ]
