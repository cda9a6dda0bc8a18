"""A comparison as text: for a terminal, as Markdown for a pull request, as CSV or as JSON.

Text from records is escaped for the format that it goes into.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from rich.console import Console
from rich.markup import escape

from sweeper.compare import tables
from sweeper.compare.verdicts import Comparison
from sweeper.report.table import Row, Value
from sweeper.report.text import markdown, terminal

FORMATS = ("text", "md", "csv", "json")
FILE_WIDTH = 160  # columns of a text file
MIN_WIDTH = 140  # columns of a console that is no terminal
LEGEND = (
    "The verdict is on the compiled step and makes up for the number of rows; intervals are 95 % ones of a row alone."
)


@dataclass(frozen=True)
class Document:
    """A comparison with everything that is printed beside its rows."""

    base: str
    head: str
    comparison: Comparison
    facts: Sequence[str]  # what else changed
    problems: Sequence[str] = ()
    show_all: bool = False

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        return tables.make_table(self.comparison).rows

    @cached_property
    def shown(self) -> list[Row]:
        return [row for row in self.rows if self.show_all or tables.is_worth_showing(row)]


def render(document: Document, kind: str) -> str:
    """Return the document in one of `FORMATS`."""
    if kind == "md":
        return _render_markdown(document)
    if kind == "csv":
        return tables.make_table(document.comparison).csv()
    if kind == "json":
        return _render_json(document)
    file = io.StringIO()
    print_document(document, Console(file=file, width=FILE_WIDTH))
    return file.getvalue()


def print_document(document: Document, console: Console) -> None:
    """Print the document to a terminal; a pipe gets lines as long as they are."""
    if not console.is_terminal:
        console.width = max(console.width, MIN_WIDTH)
    comparison, shown = document.comparison, document.shown
    head = (f"BASE: {document.base}", f"HEAD: {document.head}", *document.facts, tables.describe_control(comparison))
    for line in head:
        terminal.print_line(escape(line), console)
    if shown:
        console.print("\n[bold]compared[/]", highlight=False)
        terminal.print_table(tables.choose_columns(shown, document.show_all), shown, console)
    for line in tables.explain_rows(shown):
        terminal.print_line(escape(line), console)
    style = "bold red" if comparison.regressed else "bold"
    for line in filter(None, (tables.count_verdicts(document.rows), tables.advise_if_nothing_is_judged(comparison))):
        terminal.print_line(f"[{style}]{escape(line)}[/]", console)


def _render_markdown(document: Document) -> str:
    """For a comment: the counts first, then what is worth a look, then what else changed."""
    shown = document.shown
    sections = [
        f"## torch.compile: {markdown.escape(f'BASE {document.base}, HEAD {document.head}')}",
        f"**{markdown.escape(tables.count_verdicts(document.rows))}**",
        markdown.escape(tables.advise_if_nothing_is_judged(document.comparison) or ""),
        markdown.escape(tables.describe_control(document.comparison)),
        markdown.table(tables.choose_columns(shown, document.show_all), shown) if shown else "",
        markdown.bullets(tables.explain_rows(shown)),
        LEGEND if shown else "",
    ]
    sections += ["### What else changed", markdown.bullets(document.facts)] if document.facts else []
    sections += ["### Records that could not be read", markdown.bullets(document.problems)] if document.problems else []
    return "\n\n".join(filter(None, sections)) + "\n"


def _render_json(document: Document) -> str:
    """Every row, whether shown or not; what is missing is null."""
    comparison, shift = document.comparison, document.comparison.eager_shift
    data = {
        "base": document.base,
        "head": document.head,
        "regressed": comparison.regressed,
        "eager_shift": None if shift is None else math.expm1(shift),
        "eager_moved": comparison.moved,
        "changed": list(document.facts),
        "problems": list(document.problems),
        "nothing_judged": tables.advise_if_nothing_is_judged(comparison),
        "rows": [{name: _finite(value) for name, value in row.items()} for row in document.rows],
    }
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def _finite(value: Value) -> Value:
    return None if isinstance(value, float) and not math.isfinite(value) else value
