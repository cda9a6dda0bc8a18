"""The report on a terminal: the best mode of each model and the verdict, or every table and the
whole verdict.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TypeVar

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table as RichTable

from sweeper.core.system.command_line import name_program
from sweeper.core.text import clean_text
from sweeper.report.answers.decision import OPEN, Answer
from sweeper.report.answers.findings import Findings
from sweeper.report.answers.trials import find_varying, name_trial, show_axes
from sweeper.report.columns.column import TERMINAL, Column, show_row
from sweeper.report.columns.formats import count, join, prefix, shorten
from sweeper.report.tables.registry import TABLES

from .report import Report
from .verdict import Verdict

T = TypeVar("T")


class Terminal(Console):
    """A console whose text changes no terminal, whoever has written it; only styles do."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield segment._replace(text=clean_text(segment.text))


# characters; a number that was cut would be another number, so those keep their width
MIN_FOLDED = 12
MAX_BEST = 16  # models whose best mode is shown
MAX_LINES = 8  # of the verdict, as a terminal breaks them; what to type next takes up to four more
MAX_NAME_CHARACTERS = 60  # of a trial that failed, where its message does not fit
UNSURE = " ?"


def print_verdict(report: Report, console: Console) -> None:
    """Print the best modes, and a verdict of at most `MAX_LINES` lines, in which only the first
    sentence may take the room of the last one, of what failed and of what to type next. Another
    line counts what had no room.
    """
    _print_best(report.findings.answers, console)
    console.print()
    last = len(report.verdict.sentences) - 1
    parts, least = [], []  # texts with their numbers of lines; the fewest of each part
    for texts in _write_verdict(report.verdict):
        sizes = {text: _count_lines(text, console) for text in texts}
        parts.append(sizes)
        least.append(min(sizes.values()))
    left, dropped = MAX_LINES, 0
    for place, sizes in enumerate(parts):
        needed = sum(least[place + 1 :])
        reserved = sum(least[max(place + 1, last) :])
        # In few lines, so that the others have room too.
        chosen = _find_fitting(sizes, left - needed)
        chosen = chosen or _find_fitting(sizes, left - reserved if place else left)
        if chosen:
            left -= sizes[chosen]
            print_plain(chosen, console)
        else:
            dropped += 1
    if dropped:
        print_plain(f"{dropped} more in report.md", console)


def print_whole_verdict(verdict: Verdict, console: Console) -> None:
    console.print()
    for whole, *_shorter in _write_verdict(verdict):
        print_plain(whole, console)


def _count_lines(text: str, console: Console) -> int:
    """Count the lines that a terminal makes of a text."""
    number = 0
    for line in text.split("\n"):
        number += math.ceil(cell_len(line) / console.width)
    return number


def _find_fitting(sizes: Mapping[str, int], lines: int) -> str:
    """Find the first text that needs no more than so many lines; empty where each needs more."""
    for text, size in sizes.items():
        if size <= lines:
            return text
    return ""


def _write_verdict(verdict: Verdict) -> Iterator[Sequence[str]]:
    """Yield what may be said, what matters most first: each as a text, and as a shorter one for
    where that does not fit.
    """
    for sentence in verdict.sentences:
        yield [sentence]
    if first := verdict.first_failed:
        said = join((first.name, first.message), ": ")
        name = shorten(first.name, MAX_NAME_CHARACTERS)
        log = prefix("\n  log: ", first.log)
        yield [f"{verdict.failed}; first {one}{log}" for one in (said, name)]
    elif verdict.failed:
        yield [verdict.failed]
    if verdict.again:
        lines = []
        models: set[str] = set()
        where = "named in report.md"
        for item in verdict.again:
            lines.append(f"worth another run: {item.line}")
            models.update(item.models)
            if item.command:
                lines.append(f"  {name_program(item.command)}")
                where = "with commands in report.md"
        yield ["\n".join(lines), f"worth another run: {count(len(models), 'model')}, {where}"]


def _print_best(answers: Sequence[Answer], console: Console) -> None:
    """Print a row for each model with its answer in each precision, the largest speedup first; of
    one model nothing.
    """
    if len(answers) < 2:
        return
    first = [answer.entry for answer in answers]
    axes = ["model", *find_varying(first, ("suite", "workload", "batch_size", "variant"))]
    nothing = {answer.trial.labels.precision: "" for answer in answers}
    best: dict[tuple[str, ...], dict[str, str]] = defaultdict(nothing.copy)
    for answer in sorted(answers, key=lambda answer: -answer.gain):
        names = show_axes(answer.entry, axes)
        best[names][answer.trial.labels.precision] = _show_answer(answer)
    rows: list[tuple[str, ...]] = []
    is_unsure = False
    for names, shown in list(best.items())[:MAX_BEST]:
        rows.append((*names, *shown.values()))
        is_unsure |= any(text.endswith(UNSURE) for text in shown.values())
    titles = [axis.replace("_", " ") for axis in axes] + list(nothing)
    columns = []
    for place, title in enumerate(titles):
        columns.append(Column[tuple[str, ...]]("", itemgetter(place), title=title, folds=True))
    print_table(columns, rows, console)
    if is_unsure:
        print_line("? : not sure, the report says why", console)
    if len(best) > MAX_BEST:
        print_line(f"and {len(best) - MAX_BEST} more in report.md", console)


def _show_answer(answer: Answer) -> str:
    """Show e.g. `reduce-overhead 2.67x`, with ` ?` where the answer is not sure; statuses where
    nothing is right.
    """
    if answer.best is None:
        return ", ".join(sorted({entry.record.status for entry in answer.entries}))
    doubted = "" if answer.is_sure or answer.verdict == OPEN else UNSURE
    speedup = f" {answer.chosen.shown}x" if answer.chosen else ""
    return f"{answer.recommended}{speedup}{doubted}"


def print_tables(findings: Findings, console: Console) -> None:
    """Print the tables of the registry, the one that people want to see last."""
    for spec in sorted(TABLES, key=lambda spec: spec.is_last_in_terminal):
        items = spec.items(findings)
        arranged = spec.arrange(items)
        shown = arranged[: spec.max_terminal_rows]
        if arranged:
            print_line(f"\n[bold]{escape(spec.title.lower())}[/]", console)
        print_line(escape(spec.lead(findings)), console)
        in_lines = False
        for item in shown:
            line, entry = spec.line(item), spec.entry(item)
            if line and entry:
                problem, rest = map(escape, line)
                name = escape(name_trial(entry, findings.axes))
                print_line(f"{name}: [red]{problem}[/]{rest}", console)
                in_lines = True
        if arranged and not in_lines:
            _print_in_parts(spec.shown(arranged, findings, TERMINAL), shown, console)
        if len(arranged) > len(shown):
            print_line(f"and {len(arranged) - len(shown)} more in {spec.name}.csv", console)
        for headline in spec.headlines(findings):
            style = "bold green" if headline.is_good else "bold"
            print_line(f"{escape(headline.rows)}: [{style}]{escape(headline.text)}[/]", console)
        for note in (*spec.notes(findings), *spec.terminal_notes(findings)):
            print_line(escape(note), console)


def _print_in_parts(columns: Sequence[Column[T]], items: Sequence[T], console: Console) -> None:
    """Print all columns as one table, or costs in a second one where the terminal is too narrow."""
    costs: list[Column[T]] = []
    others: list[Column[T]] = []
    named = []
    width = -1
    for column in columns:
        width += _min_width(column, items) + 1
        (costs if column.is_cost else others).append(column)
        if column.is_name or column.is_cost:
            named.append(column)
    if not costs or width <= console.width:
        print_table(columns, items, console)
        return
    print_table(others, items, console)
    known = [item for item in items if any(show_row(costs, item))]
    console.print("\n[bold]costs[/]", highlight=False)
    print_table(named, known, console)


def print_table(
    columns: Sequence[Column[T]], items: Sequence[T], console: Console, repeats: bool = False
) -> None:
    """Print rows; unless it `repeats`, a name that comes again in the first column is shown
    once.
    """
    table = RichTable(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    for column in columns:
        table.add_column(
            _break_title(column),
            overflow="fold",
            justify="right" if column.align_right else "left",
            min_width=_min_width(column, items),
        )
    above = None
    for item in items:
        first, *others = show_row(columns, item)
        table.add_row("" if first == above and not repeats else escape(first), *map(escape, others))
        above = first
    console.print(table, soft_wrap=False, crop=False)


def _break_title(column: Column[T]) -> str:
    if column.align_right:
        return "\n".join(column.title.split())
    return column.title


def _min_width(column: Column[T], items: Sequence[T]) -> int:
    """Count the characters that a column needs: as many as its widest cell has, or fewer where it
    may be folded.
    """
    cells = [*_break_title(column).split("\n"), *map(column.show, items)]
    widest = max(map(cell_len, cells))
    if column.folds:
        return min(widest, MIN_FOLDED)
    return widest


def widen(console: Console, width: int) -> None:
    """Make a console that is no terminal at least so many columns wide."""
    if not console.is_terminal:
        console.width = max(console.width, width)


def print_plain(line: str, console: Console) -> None:
    """Print a line as it is, without breaking it."""
    console.print(line, soft_wrap=True, markup=False, highlight=False)


def print_line(line: str, console: Console) -> None:
    """Print a line of markup without breaking it, so that pipes and logs get whole lines."""
    if line:
        console.print(line, soft_wrap=True, highlight=False)
