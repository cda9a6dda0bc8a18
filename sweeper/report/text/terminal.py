"""The report on a terminal: which mode for which model first, the summary with the weighted mean in bold last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from sweeper.report.formatting import TRIAL_AXES, find_varying, text, trial_name
from sweeper.report.registry import TABLES
from sweeper.report.spec import TableSpec
from sweeper.report.table import TERMINAL, Row, Table, TextColumn

MIN_FOLDED = 12  # characters; a number that was cut would be another number, so those keep their width
MAX_ROWS = 60  # of a table; the files have all


def print_tables(tables: Mapping[str, Table], console: Console) -> None:
    """Print the tables of the registry; `tables` has them by name."""
    trials = tables["speedups"].rows
    first, *others = TABLES
    for spec in (*others, first):  # what stands last is what people see
        _print_section(spec, tables[spec.name].rows, trials, console)


def _print_section(spec: TableSpec, rows: Sequence[Row], trials: Sequence[Row], console: Console) -> None:
    if not rows:
        print_line(escape(spec.lead(rows)), console)
        return
    shown, limit = spec.arrange(rows), spec.max_terminal_rows or MAX_ROWS
    hidden = len(shown) - limit
    if shown:
        console.print(f"\n[bold]{escape(spec.title.lower())}[/]", soft_wrap=True, highlight=False)
    print_line(escape(spec.lead(rows)), console)
    if spec.as_line:
        axes = find_varying(trials or rows, TRIAL_AXES)
        for row in shown[:limit]:
            problem, rest = spec.as_line(row)
            print_line(f"{escape(trial_name(row, axes))}: [red]{escape(problem)}[/]{escape(rest)}", console)
    elif shown:
        _print_in_parts(spec.columns_for(TERMINAL, shown, trials), shown[:limit], console)
    if hidden > 0:
        print_line(f"and {hidden} more in {spec.name}.csv", console)
    for line in spec.headlines(rows):
        style = "bold green" if line.is_good else "bold"
        print_line(f"{escape(line.rows)}: [{style}]{escape(line.text)}[/]", console)
    for note in (*spec.notes(rows), *spec.terminal_notes(rows)):
        print_line(escape(note), console)


def _print_in_parts(columns: Sequence[TextColumn], rows: Sequence[Row], console: Console) -> None:
    """Print all columns as one table, or costs in a second one where the terminal is too narrow."""
    costs = [column for column in columns if column.is_cost]
    if not costs or sum(_min_width(column, rows) + 1 for column in columns) - 1 <= console.width:
        print_table(columns, rows, console)
        return
    print_table([column for column in columns if not column.is_cost], rows, console)
    known = [row for row in rows if any(text(column.text(row)) for column in costs)]
    console.print("\n[bold]costs[/]", highlight=False)
    print_table([column for column in columns if column.is_name or column.is_cost], known, console)


def print_table(columns: Sequence[TextColumn], rows: Sequence[Row], console: Console) -> None:
    """Print rows; a name that repeats in the first column is shown once."""
    table = RichTable(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    for column in columns:
        table.add_column(
            "\n".join(_split_title(column)),
            overflow="fold",
            justify="right" if column.align_right else "left",
            min_width=_min_width(column, rows),
        )
    above = None
    for first, *others in ([text(column.text(row)) for column in columns] for row in rows):
        table.add_row("" if first == above else escape(first), *map(escape, others))
        above = first
    console.print(table, soft_wrap=False, crop=False)


def _split_title(column: TextColumn) -> list[str]:
    return column.title.split() if column.align_right else [column.title]


def _min_width(column: TextColumn, rows: Sequence[Row]) -> int:
    """Count the characters that a column needs: as many as its widest cell has, or fewer where it may be folded."""
    cells = (text(column.text(row)) for row in rows)
    widest = max(map(cell_len, (*_split_title(column), *cells)))
    return min(widest, MIN_FOLDED) if column.folds else widest


def print_line(line: str, console: Console) -> None:
    """Print a line of markup without breaking it, so that pipes and logs get whole lines."""
    if line:
        console.print(line, soft_wrap=True, highlight=False)
