"""A comparison as text: for a terminal, as Markdown for a pull request, as CSV or as JSON.

Everything that comes from records is escaped for where it goes.
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

from sweeper.compare.tables import (
    control_line,
    count_line,
    explanations,
    nothing_judged,
    table_of,
    text_columns,
    worth_showing,
)
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
    """A comparison with all that is said beside its rows."""

    base: str
    head: str
    comparison: Comparison
    facts: Sequence[str]  # what else is not as it was
    problems: Sequence[str] = ()
    show_all: bool = False

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        return table_of(self.comparison).rows

    @cached_property
    def shown(self) -> list[Row]:
        return [row for row in self.rows if self.show_all or worth_showing(row)]


def render(document: Document, kind: str) -> str:
    """The document as one of `FORMATS`."""
    if kind == "md":
        return as_markdown(document)
    if kind == "csv":
        return table_of(document.comparison).csv()
    if kind == "json":
        return as_json(document)
    console = Console(file=io.StringIO(), width=FILE_WIDTH)
    print_document(document, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def print_document(document: Document, console: Console) -> None:
    """For a terminal; a pipe gets lines as long as they are."""
    if not console.is_terminal:
        console.width = max(console.width, MIN_WIDTH)
    rows, shown = document.rows, document.shown
    for line in (f"BASE: {document.base}", f"HEAD: {document.head}", *document.facts):
        terminal.print_line(escape(line), console)
    terminal.print_line(escape(control_line(document.comparison)), console)
    if shown:
        console.print("\n[bold]compared[/]", highlight=False)
        terminal.print_table(text_columns(shown, document.show_all), shown, console)
    for line in explanations(shown):
        terminal.print_line(escape(line), console)
    style = "bold red" if document.comparison.regressed else "bold"
    for line in filter(None, (count_line(rows), nothing_judged(document.comparison))):
        terminal.print_line(f"[{style}]{escape(line)}[/]", console)


def as_markdown(document: Document) -> str:
    """For a comment: the counts first, then what is worth a look, then what else changed."""
    rows, shown = document.rows, document.shown
    named = f"BASE {document.base}, HEAD {document.head}"
    sections = [
        f"## torch.compile: {markdown.escape(named)}",
        f"**{markdown.escape(count_line(rows))}**",
        markdown.escape(nothing_judged(document.comparison) or ""),
        markdown.escape(control_line(document.comparison)),
        markdown.table(text_columns(shown, document.show_all), shown) if shown else "",
        markdown.bullets(explanations(shown)),
        LEGEND if shown else "",
    ]
    sections += ["### What else changed", markdown.bullets(document.facts)] if document.facts else []
    sections += ["### Records that could not be read", markdown.bullets(document.problems)] if document.problems else []
    return "\n\n".join(section for section in sections if section) + "\n"


def as_json(document: Document) -> str:
    """Every row, whether shown or not; what is missing is null."""
    comparison = document.comparison
    shift = comparison.eager_shift
    data = {
        "base": document.base,
        "head": document.head,
        "regressed": comparison.regressed,
        "eager_shift": None if shift is None else math.expm1(shift),
        "eager_moved": comparison.moved,
        "changed": list(document.facts),
        "problems": list(document.problems),
        "nothing_judged": nothing_judged(comparison),
        "rows": [{name: _json_value(value) for name, value in row.items()} for row in document.rows],
    }
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def _json_value(value: Value) -> Value | list[str]:
    if isinstance(value, tuple):
        return list(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
