"""A comparison as text: for a terminal, as Markdown for a pull request, as CSV or as JSON.

`COLUMNS` is what CSV and JSON have; units are in the names. A new quantity
begins in `quantities`, and its column is one `Column` here. Text from
records is escaped for the format that it goes into.
"""

import io
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import Any

from rich.console import Console
from rich.markup import escape

from sweeper.core.trial import Trial
from sweeper.report.columns import cell
from sweeper.report.columns.cell import Value
from sweeper.report.columns.column import (
    TERMINAL,
    Column,
    find_varying,
    interval_columns,
    lift,
    write_csv,
)
from sweeper.report.columns.formats import count, figure, join, join_lines, ratio, shorten_names
from sweeper.report.tables.spec import select_shown
from sweeper.report.text import markdown, terminal

from .changes import CountedChange, describe_versions
from .pairs import Side
from .quantities import (
    COMPILE,
    COMPILED,
    COMPILED_DEVICE,
    EAGER,
    EAGER_DEVICE,
    MEMORY,
    QUANTITIES,
    SPEEDUP,
    Quantity,
)
from .verdicts import VERDICTS, Change, Comparison, Control, JudgedPair, percent

FORMATS = ("text", "md", "csv", "json")
FILE_WIDTH = 160  # columns of a text file
MIN_WIDTH = 140  # columns of a console that is no terminal
LEGEND = (
    "The verdict is on the compiled step, by wall clock or, where that shows no change, by device "
    "time. p values are adjusted for the number of rows and clocks; intervals are 95 % ones of a "
    "row alone. Size uncertain: too few draws or processes for a test, but the change is larger "
    "than they usually differ."
)
MIB = 2**20
UNCHANGED = ("SAME", "UNRESOLVED")
# Three draws find a slowdown of 3 % in 38 of 100 cases, five in 99: docs/results/compare-power.md
MORE_DRAWS = 2


def read_trial(row: JudgedPair, read: Callable[[Trial], Value]) -> Value:
    """Read what both trials have in common, or join both values where the sides were chosen to
    differ.
    """
    values = [read(side.trial) for _, side in row.pair.sides]
    if len(set(values)) == 1:
        return values[0]
    return " → ".join(map(_name_value, values))


def _name_value(value: Value) -> str:
    return "none" if value is None else str(value)


def _trial_column(name: str, attribute: str = "", **shown: Any) -> Column[JudgedPair]:
    read = attrgetter(attribute or name)
    return Column(name, lambda row: read_trial(row, read), **shown)


def _side_columns(name: str, value: Callable[[Side], Value]) -> list[Column[JudgedPair]]:
    return [
        lift(Column(f"base_{name}", value), lambda row: row.pair.base),
        lift(Column(f"head_{name}", value), lambda row: row.pair.head),
    ]


def _quantity_columns(quantity: Quantity) -> list[Column[JudgedPair]]:
    name = quantity.name
    columns: list[Column[Change]] = [
        Column(f"{name}_base", lambda change: change.base),
        Column(f"{name}_head", lambda change: change.head),
        Column(f"{name}_ratio", lambda change: change.ratio),
        *interval_columns(f"{name}_ratio", lambda change: change.interval),
        Column(f"{name}_p", lambda change: change.adjusted_p),
        Column(f"{name}_unit", lambda change: change.unit),
        Column(f"{name}_verdict", lambda change: change.verdict),
        Column(f"{name}_reason", lambda change: change.reason),
    ]
    return [lift(column, lambda row: row.find_change(quantity)) for column in columns]


def _read_message(side: Side) -> str | None:
    return join_lines(side.message or "") or None


def _show_device(change: Change) -> str:
    """`+1.9 % SLOWER`, with the verdict in any case: it stands beside that by wall clock."""
    if change.estimate is None:
        return ""
    return f"{_show_change(change)} {change.verdict}"


def _show_change(change: Change) -> str:
    if change.ratio is None:
        return ""
    return f"{100 * (change.ratio - 1):+.1f} %"


def _show_compiled(change: Change) -> str:
    """`+3.1 % [+2.5, +3.7]`, the interval of this row alone."""
    shown, bounds = _show_change(change), change.interval
    if bounds is None:
        return shown
    return f"{shown} [{100 * (bounds.low - 1):+.1f}, {100 * (bounds.high - 1):+.1f}]"


def _add_verdict(shown: str, change: Change) -> str:
    """Add the verdict where something changed."""
    if change.verdict in UNCHANGED:
        return shown
    return f"{shown} {change.verdict}".strip()


def _show_values(change: Change, show: Callable[[float], str]) -> str:
    if change.base is None or change.head is None:
        return ""
    return f"{show(change.base)} → {show(change.head)}"


def _show_judged(change: Change, show: Callable[[float], str]) -> str:
    """E.g. `1.58 → 1.53 LOWER`."""
    return _add_verdict(_show_values(change, show), change)


def _ms(time_s: float) -> str:
    return figure(1e3 * time_s)


def _mib(memory_bytes: float) -> str:
    return figure(memory_bytes / MIB)


def _shown_column(
    quantity: Quantity, title: str, show: Callable[[Change], str]
) -> Column[JudgedPair]:
    return lift(Column("", show, title=title), lambda row: row.find_change(quantity))


COLUMNS: tuple[Column[JudgedPair], ...] = (
    Column("verdict", lambda row: row.verdict, title="verdict"),
    Column("reason", lambda row: row.reason),
    Column("note", lambda row: row.note),
    _trial_column("model", "labels.model", title="model"),
    _trial_column("family", "labels.family"),
    _trial_column("workload", title="workload", is_axis=True),
    _trial_column("backend", title="backend", is_axis=True),
    _trial_column("batch_size", "known_batch_size", kind=int, title="batch", is_axis=True),
    _trial_column("variant", title="variant", is_axis=True, folds=True),
    _trial_column("precision", "labels.precision", title="precision"),
    _trial_column("mode", title="mode"),
    *_side_columns("trial_id", lambda side: side.trial.id),
    *_side_columns("status", lambda side: side.status),
    *_side_columns("message", _read_message),
    *_side_columns("flags", lambda side: side.flags),
    *_side_columns("processes", lambda side: len(side.take(COMPILED))),
    *_side_columns("draws", lambda side: side.count_draws(COMPILED)),
    *chain.from_iterable(map(_quantity_columns, QUANTITIES)),
    Column("versions", lambda row: describe_versions(row.pair)),
)

AXES = ("workload", "backend", "batch_size", "variant")
BY_NAME = {column.name: column for column in COLUMNS}
SHOWN: tuple[Column[JudgedPair], ...] = (
    *COLUMNS,
    _shown_column(COMPILED, "compiled ms", lambda change: _show_values(change, _ms)),
    _shown_column(COMPILED, "change", _show_compiled),
    _shown_column(COMPILED_DEVICE, "device", _show_device),
    _shown_column(EAGER, "eager", lambda change: _add_verdict(_show_change(change), change)),
    _shown_column(SPEEDUP, "speedup", lambda change: _show_judged(change, ratio)),
)
COSTS = (
    (COMPILE, _shown_column(COMPILE, "compile s", lambda change: _show_judged(change, figure))),
    (MEMORY, _shown_column(MEMORY, "memory MiB", lambda change: _show_judged(change, _mib))),
)


def sort_rows(comparison: Comparison) -> list[JudgedPair]:
    """Put regressions first, then what broke, then the rest; the largest change of the compiled
    step first.
    """

    def order(row: JudgedPair) -> tuple[int, float, str]:
        change = row.find_change(COMPILED)
        size = abs(math.log(change.ratio)) if change and change.ratio else 0.0
        return VERDICTS.index(row.verdict), -size, name_row(row, AXES)

    return sorted(comparison.rows, key=order)


def name_row(row: JudgedPair, axes: Sequence[str]) -> str:
    """Name a row by its model, precision and mode and its values of `axes`."""
    names = ("model", "precision", "mode", *axes)
    return join((cell.show(BY_NAME[name].value(row)) for name in names), " ")


def is_worth_showing(row: JudgedPair) -> bool:
    """Whether something changed, or the row is not SAME; other rows are only counted."""
    if row.verdict != "SAME":
        return True
    for quantity in QUANTITIES:
        is_control = quantity.name == quantity.control
        if not is_control and row.find_verdict(quantity) not in UNCHANGED:
            return True
    return False


def choose_columns(rows: Sequence[JudgedPair], every: bool = False) -> list[Column[JudgedPair]]:
    """What people read. Without `every`, compile time and memory have a column only where one of
    them changed.
    """
    columns = list(SHOWN)
    for quantity, column in COSTS:
        if every or any(row.find_verdict(quantity) not in UNCHANGED for row in rows):
            columns.append(column)
    return select_shown(columns, rows, find_varying(columns, rows), TERMINAL)


def describe_controls(comparison: Comparison) -> list[str]:
    """What eager, the control, says about the two sessions by each clock."""
    control, device = comparison.control, comparison.controls[EAGER_DEVICE.name]
    wall = "control: no row has an eager step time on both sides"
    if control.shift is not None:
        wall = f"control: the eager step moved by {_describe_shift(control)}"
        if control.moved:
            moved = "fall where only eager got faster"
            if control.shift > 0:
                moved = "rise where only eager got slower"
            wall += (
                f"; above {100 * control.max_shift:.0f} %, only speedups are tested: a shift of "
                f"the whole machine does not change them, but they {moved}"
            )
    if device.shift is None:
        return [wall]
    untested = "; it is not tested" if device.moved else ""
    return [
        wall,
        f"control: eager's device step time moved by {_describe_shift(device)}{untested}",
    ]


def _describe_shift(control: Control) -> str:
    return f"{percent(control.log)} (median of {count(control.rows, 'row')})"


def count_verdicts(rows: Sequence[JudgedPair]) -> str:
    """`16 rows: 1 SLOWER, 15 SAME`."""
    found = Counter(row.verdict for row in rows)
    counts = ", ".join(f"{found[name]} {name}" for name in VERDICTS if name in found)
    return f"{count(len(rows), 'row')}: {counts}"


def advise_if_nothing_is_judged(comparison: Comparison) -> str | None:
    """What to do where no row has a verdict; None where one has."""
    if not all(row.verdict in ("UNRESOLVED", "NEW", "GONE") for row in comparison.rows):
        return None
    units = set()
    draws = 0
    judged = set()  # what else than the compiled step by wall clock
    for row in comparison.rows:
        compiled = row.find_change(COMPILED)
        if compiled and compiled.estimate:
            units.add(compiled.unit)
            draws = max(draws, min(side.count_draws(COMPILED) for side in compiled.sides))
            for quantity in (COMPILED_DEVICE, SPEEDUP):
                if row.find_verdict(quantity) != "UNRESOLVED":
                    judged.add(quantity)
    if not units:
        return (
            "nothing could be judged: no trial was measured alike on both sides, and each row says "
            "why"
        )
    if comparison.control.moved and SPEEDUP in judged:
        but = "speedups and device times" if COMPILED_DEVICE in judged else "speedups"
        return (
            f"nothing could be judged but {but}, since eager itself moved: measure both again on "
            "one machine at rest (docs/comparing.md)"
        )
    more = ""
    if units == {"draws"}:
        more = f" measure.draws={draws + MORE_DRAWS}"
    but = " but device times" if COMPILED_DEVICE in judged else ""
    return (
        f"nothing could be judged{but}: measure both with measure=published{more} "
        "(docs/comparing.md)"
    )


def explain_rows(rows: Sequence[JudgedPair]) -> list[str]:
    """A line for each row that broke or has a note, and one for each reason that several rows
    share.
    """
    varying = find_varying(COLUMNS, rows)
    axes = [name for name in AXES if name in varying]
    lines = []
    shared: dict[str, list[str]] = {}
    for row in rows:
        name, reason = name_row(row, axes), cell.show(row.reason)
        recorded = row.pair.recorded
        if recorded and sum(side.status == "ok" for side in recorded) == 1:
            base, head = map(_read_message, recorded)
            message = cell.show(head or base)
            lines.append(join((f"{row.verdict} {name}: {reason}", message), ": "))
        elif row.reason:
            shared.setdefault(f"{row.verdict}, {reason}", []).append(name)
        if row.note:
            lines.append(f"{name}: {cell.show(row.note)}")
    for reason, names in shared.items():
        lines.append(f"{reason}: {shorten_names(names)}")
    return lines


@dataclass(frozen=True)
class Document:
    """A comparison with everything that is printed beside its rows."""

    base: str
    head: str
    comparison: Comparison
    facts: Sequence[str]  # what else changed
    versions: Sequence[CountedChange] = ()  # that differ
    problems: Sequence[str] = ()
    show_all: bool = False

    @cached_property
    def rows(self) -> list[JudgedPair]:
        return sort_rows(self.comparison)

    @cached_property
    def shown(self) -> list[JudgedPair]:
        return [row for row in self.rows if self.show_all or is_worth_showing(row)]


def render(document: Document, kind: str) -> str:
    """Return the document in one of `FORMATS`."""
    if kind == "md":
        return _render_markdown(document)
    if kind == "csv":
        return write_csv(COLUMNS, document.rows)
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
    names = (f"BASE: {document.base}", f"HEAD: {document.head}")
    for line in (*names, *document.facts, *describe_controls(comparison)):
        terminal.print_line(escape(line), console)
    if shown:
        console.print("\n[bold]compared[/]", highlight=False)
        terminal.print_table(choose_columns(shown, document.show_all), shown, console)
    for line in explain_rows(shown):
        terminal.print_line(escape(line), console)
    style = "bold red" if comparison.regressed else "bold"
    advice = advise_if_nothing_is_judged(comparison)
    for line in filter(None, (count_verdicts(document.rows), advice)):
        terminal.print_line(f"[{style}]{escape(line)}[/]", console)


def _render_markdown(document: Document) -> str:
    """For a comment: the counts first, then what is worth a look, then what else changed."""
    shown = document.shown
    sections = [
        f"## torch.compile: {markdown.escape(f'BASE {document.base}, HEAD {document.head}')}",
        f"**{markdown.escape(count_verdicts(document.rows))}**",
        markdown.escape(advise_if_nothing_is_judged(document.comparison) or ""),
        *map(markdown.escape, describe_controls(document.comparison)),
    ]
    if shown:
        sections.append(markdown.table(choose_columns(shown, document.show_all), shown))
        sections += [markdown.bullets(explain_rows(shown)), LEGEND]
    if document.facts:
        sections += ["### What else changed", markdown.bullets(document.facts)]
    if document.problems:
        problems = markdown.bullets(document.problems)
        sections += ["### Records that could not be read", problems]
    return f"{markdown.PARAGRAPH.join(filter(None, sections))}\n"


def _render_json(document: Document) -> str:
    """Every row, whether shown or not; what is missing is null."""
    comparison = document.comparison
    shifts = {name: _share(control) for name, control in comparison.controls.items()}
    rows = []
    for row in document.rows:
        rows.append({name: _finite(column.value(row)) for name, column in BY_NAME.items()})
    data = {
        "base": document.base,
        "head": document.head,
        "regressed": comparison.regressed,
        "eager_shift": shifts.pop(EAGER.name),
        "eager_moved": comparison.control.moved,
        "changed": list(document.facts),
        "problems": list(document.problems),
        "nothing_judged": advise_if_nothing_is_judged(comparison),
        "device_shifts": shifts,
        "versions": [change.to_json() for change in document.versions],
        "rows": rows,
    }
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def _share(control: Control) -> float | None:
    return None if control.shift is None else math.expm1(control.shift)


def _finite(value: Value) -> Value:
    return None if isinstance(value, float) and not math.isfinite(value) else value
