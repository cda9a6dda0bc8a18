"""The report on a terminal: the best mode of each model and the verdict, or every table with the
summary last.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from sweeper.report.contents import Report
from sweeper.report.formatting import (
    TRIAL_AXES,
    find_varying,
    finite,
    ratio,
    text,
    text_column,
    trial_name,
)
from sweeper.report.registry import TABLES
from sweeper.report.spec import TableSpec
from sweeper.report.table import TERMINAL, Row, Table, TextColumn, Value
from sweeper.report.tables.recommendations import classify
from sweeper.report.verdict import Verdict, has_doubts

# characters; a number that was cut would be another number, so those keep their width
MIN_FOLDED = 12
MAX_ROWS = 60  # of a table; the files have all
MAX_BEST = 16  # models whose best mode is shown
MAX_LINES = 8  # of the verdict, as a terminal breaks them; what to type next takes up to four more


def print_verdict(report: Report, console: Console) -> None:
    """Print the best modes, and a verdict of at most `MAX_LINES` lines."""
    _print_best(report.tables["recommendations"].rows, console)
    console.print()
    parts = list(_write_verdict(report.verdict))
    heights = [[_count_lines(lines, console.width) for lines in choices] for choices in parts]
    left = MAX_LINES
    for number, choices in enumerate(parts):
        # in few lines, the others have room too
        free = left - sum(min(later) for later in heights[number + 1 :])
        fitting = [index for index, height in enumerate(heights[number]) if height <= free]
        fitting += [index for index, height in enumerate(heights[number]) if height <= left]
        if fitting:
            left -= heights[number][fitting[0]]
            console.print(
                "\n".join(choices[fitting[0]]), soft_wrap=True, markup=False, highlight=False
            )


def _count_lines(lines: Sequence[str], width: int) -> int:
    """Count the lines that a terminal of this width makes of these."""
    return sum(math.ceil(cell_len(line) / width) for line in lines)


def _write_verdict(verdict: Verdict) -> Iterator[Sequence[Sequence[str]]]:
    """Yield what may be said, what matters most first: each as lines, and as fewer lines for where
    these do not fit.
    """
    for sentence in verdict.sentences:
        yield [[sentence]]
    if verdict.failed:
        named, log = "", []
        for first in verdict.failures[:1]:
            named = f"; first {': '.join(filter(None, (first.trial, first.message)))}"
            log = [f"  log: {first.log}"] if first.log else []
        yield [[f"{verdict.failed}{named}", *log], [verdict.failed, *log]]
    if verdict.again:
        lines = []
        for item in verdict.again:
            lines += [
                f"worth another run: {item.line}",
                *([f"  {item.command}"] if item.command else []),
            ]
        count = len({model for item in verdict.again for model in item.models})
        where = (
            "with commands in report.md"
            if any(item.command for item in verdict.again)
            else "named in report.md"
        )
        yield [lines, [f"worth another run: {count} model{'' if count == 1 else 's'}, {where}"]]


def _print_best(rows: Sequence[Row], console: Console) -> None:
    """Print a row for each model with its answer in each precision, the largest speedup first; of
    one model nothing.
    """
    if len(rows) < 2:
        return
    precisions = list(dict.fromkeys(text(row["precision"]) for row in rows))
    names = ["model", *find_varying(rows, ("suite", "workload", "batch_size", "variant"))]
    best: dict[tuple[str, ...], dict[str, Value]] = {}
    for row in sorted(rows, key=lambda row: -(finite(row, "speedup") or 0.0)):
        key = tuple(text(row[name]) for name in names)
        best.setdefault(key, dict(zip(names, key, strict=True)))[f"in {text(row['precision'])}"] = (
            _show_answer(row)
        )
    blank: Row = {f"in {precision}": "" for precision in precisions}
    columns = [text_column(name, folds=True) for name in names]
    columns += [
        replace(text_column(f"in {precision}", folds=True), title=precision)
        for precision in precisions
    ]
    shown = [{**blank, **row} for row in best.values()][:MAX_BEST]
    print_table(columns, shown, console)
    hidden = len(best) - MAX_BEST
    is_flagged = any(text(row[name]).endswith(" ?") for row in shown for name in blank)
    print_line("? : flagged, see the report" if is_flagged else "", console)
    print_line(f"and {hidden} more in report.md" if hidden > 0 else "", console)


def _show_answer(row: Row) -> str:
    """Show e.g. `reduce-overhead 2.67x`, with ` ?` where a doubt flag is on it; a status where
    nothing was compared.
    """
    if row["recommended"] is None:
        return text(row["reason"]).rpartition(": ")[2]
    if row["mode"] is None:
        return classify(row)
    return (
        f"{text(row['recommended'])} "
        f"{ratio(finite(row, 'speedup'))}x{' ?' if has_doubts(row) else ''}"
    )


def print_tables(tables: Mapping[str, Table], console: Console) -> None:
    """Print the tables of the registry; `tables` has them by name."""
    trials = tables["speedups"].rows
    first, *others = TABLES
    for spec in (*others, first):  # what stands last is what people see
        _print_section(spec, tables[spec.name].rows, trials, console)


def _print_section(
    spec: TableSpec, rows: Sequence[Row], trials: Sequence[Row], console: Console
) -> None:
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
            print_line(
                f"{escape(trial_name(row, axes))}: [red]{escape(problem)}[/]{escape(rest)}", console
            )
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
    """Count the characters that a column needs: as many as its widest cell has, or fewer where it
    may be folded.
    """
    cells = (text(column.text(row)) for row in rows)
    widest = max(map(cell_len, (*_split_title(column), *cells)))
    return min(widest, MIN_FOLDED) if column.folds else widest


def print_line(line: str, console: Console) -> None:
    """Print a line of markup without breaking it, so that pipes and logs get whole lines."""
    if line:
        console.print(line, soft_wrap=True, highlight=False)
