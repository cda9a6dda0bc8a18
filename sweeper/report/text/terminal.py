"""The report on a terminal: speedups by model, what failed, then the summary with the weighted mean in bold."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from sweeper.report import formatting
from sweeper.report.formatting import text
from sweeper.report.table import Column, Row
from sweeper.report.tables.causes import cause
from sweeper.report.tables.recommendations import recommendation_columns, what_certainty_means, where_eager_moved
from sweeper.report.tables.speedups import flagged, speedup_columns, what_intervals_mean
from sweeper.report.tables.summary import ALL, headlines, judged_groups, not_judged, summary_columns

FOLDED = ("model", "variant", "family", "recommended", "tied", "ruled out")  # text that may take several lines
MIN_FOLDED = 12  # characters; a number that was cut would be another number, so those keep their width
NUMBERS = ("host-bound", "total s", "eager ms", "compiled ms", "compile s", "break-even steps", "memory ratio")
COSTS = ("compile s", "break-even steps", "memory ratio")  # a table of their own where one would be too wide
MAX_ROWS = 60  # of a table; the files have all
MAX_FAILURES = 20
MAX_RECOMMENDATIONS = 20
MAX_CAUSES = 10


def print_speedups(rows: Sequence[Row], console: Console) -> None:
    """A table of all trials, and a line for each flag."""
    if not any(row["status"] == "ok" for row in rows):
        console.print("no trial is ok" if rows else "there are no records", style="bold red")
    if not rows:
        return
    rows = formatting.in_order(rows)
    columns = [column for column in speedup_columns(rows) if column.name != "flags"]
    parts = _parts(columns, rows, console.width)
    print_table(parts[0], rows, formatting.in_common(rows), console)
    for costs in parts[1:]:
        known = [row for row in rows if any(text(column.value(row)) for column in costs if column.name in COSTS)]
        print_table(costs, known, "costs", console)
    for line in (what_intervals_mean(rows), *flagged(rows)):
        print_line(escape(line), console)


def _parts(columns: Sequence[Column[Row]], rows: Sequence[Row], width: int) -> list[list[Column[Row]]]:
    """All columns as one table, or costs in a second one where that does not fit into `width`."""
    if _width(columns, rows) <= width:
        return [list(columns)]
    speedup = [column.name for column in columns].index("speedup")
    costs = [column for column in columns if column.name in COSTS]
    return [[column for column in columns if column not in costs], [*columns[:speedup], *costs]]


def print_recommendations(rows: Sequence[Row], console: Console) -> None:
    """Which mode for which model, and how sure that is."""
    if rows:
        columns = [column for column in recommendation_columns(rows) if column.name != "reason"]
        print_table(columns, rows, "which mode", console, MAX_RECOMMENDATIONS, "recommendations.csv")
        print_line(escape(what_certainty_means(rows)), console)
        print_line(escape(where_eager_moved(rows)), console)


def print_causes(rows: Sequence[Row], console: Console) -> None:
    """A line for each of the first causes of lost time."""
    if rows:
        console.print("\n[bold]causes of lost time[/]", highlight=False)
    axes = formatting.varying(rows, formatting.AXES)
    for row in rows[:MAX_CAUSES]:
        print_line(escape(f"{formatting.trial_name(row, axes)}: {cause(row)}"), console)
    if len(rows) > MAX_CAUSES:
        print_line(f"and {len(rows) - MAX_CAUSES} more in causes.csv", console)


def print_failures(rows: Sequence[Row], console: Console) -> None:
    """A line for each trial that is not ok."""
    axes = formatting.varying(rows, formatting.AXES)
    for row in formatting.in_order(rows)[:MAX_FAILURES]:
        phase = f" while {text(row['phase'])}" if row["phase"] else ""
        message = f": {text(row['message'])}" if row["message"] else ""
        name = formatting.trial_name(row, axes)
        print_line(f"{escape(name)}: [red]{escape(text(row['status']))}[/]{escape(phase + message)}", console)
    if len(rows) > MAX_FAILURES:
        print_line(f"and {len(rows) - MAX_FAILURES} more in failures.csv", console)


def print_summary(rows: Sequence[Row], amp: str, console: Console) -> None:
    """A row for each family, and a line with the weighted mean for each mode that has one."""
    if shown := judged_groups(rows, ALL):
        title = f"geometric means{f' (AMP: {amp})' if amp else ''}"
        print_table(summary_columns(shown), shown, title, console)
    overall = [row for row in rows if row["family"] == ALL]
    for key, headline, found in headlines(overall):
        print_line(f"{escape(key)}: [{'bold green' if found else 'bold'}]{escape(headline)}[/]", console)
    print_line(escape(not_judged(overall)), console)


def print_table(
    columns: Sequence[Column[Row]],
    rows: Sequence[Row],
    title: str,
    console: Console,
    most: int | None = None,
    file: str = "the files",
) -> None:
    """At most `most` rows, `MAX_ROWS` unless given; a name in the first column that repeats is shown once."""
    most = MAX_ROWS if most is None else most
    table = RichTable(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    cells = [[text(column.value(row)) for column in columns] for row in rows[:most]]
    for column in columns:
        table.add_column(
            "\n".join(_title_lines(column)),
            overflow="fold",
            justify="right" if column.name in NUMBERS else "left",
            min_width=_least_width(column, rows),
        )
    above = None
    for first, *others in cells:
        table.add_row("" if first == above else escape(first), *map(escape, others))
        above = first
    console.print(f"\n[bold]{escape(title)}[/]", soft_wrap=True, highlight=False)
    console.print(table, soft_wrap=False, crop=False)
    if len(rows) > most:
        print_line(f"and {len(rows) - most} more in {file}", console)


def _title_lines(column: Column[Row]) -> list[str]:
    return column.name.split() if column.name in NUMBERS else [column.name]


def _least_width(column: Column[Row], rows: Sequence[Row]) -> int:
    """Characters that a column cannot do without: all of its widest cell, unless it may be folded."""
    cells = (text(column.value(row)) for row in rows[:MAX_ROWS])
    widest = max(map(cell_len, (*_title_lines(column), *cells)))
    return min(widest, MIN_FOLDED) if column.name in FOLDED else widest


def _width(columns: Sequence[Column[Row]], rows: Sequence[Row]) -> int:
    """Characters of a table at its narrowest, with one between columns."""
    return sum(_least_width(column, rows) for column in columns) + len(columns) - 1


def print_line(line: str, console: Console) -> None:
    """A line of markup, as long as it is: a pipe or a log should not find it broken."""
    if line:
        console.print(line, soft_wrap=True, highlight=False)
