"""A comparison as text: for a terminal, as Markdown for a pull request, as CSV or as JSON.

`COLUMNS` is what CSV and JSON have; units are in the names. A new quantity
begins in `quantities`, and its column is one `Column` here. Text from
records is escaped for the format that it goes into.
"""

import io
import json
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, groupby
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
    estimate_columns,
    find_varying,
    lift,
    select,
    show_row,
    write_csv,
)
from sweeper.report.columns.formats import (
    count,
    figure,
    join,
    join_lines,
    prefix,
    ratio,
    shorten_names,
)
from sweeper.report.tables.spec import select_shown
from sweeper.report.text import markdown, terminal

from .changes import FactChange, describe_versions
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
from .verdicts import VERDICTS, Change, Comparison, JudgedPair, percent

FORMATS = ("text", "md", "csv", "json")
LEGEND = (
    "The verdict is on the compiled step, by wall clock or, where that shows no change, by device "
    "time. p values are adjusted for the number of rows and clocks; intervals are 95 % ones of a "
    "row alone. Size uncertain: too few draws or processes for a test, but the change is larger "
    "than they usually differ."
)
UNCHANGED = ("SAME", "UNRESOLVED")


def _trial_column(name: str, attribute: str = "", **shown: Any) -> Column[JudgedPair]:
    """Make a column of what both trials have in common, or of both values where the sides were
    chosen to differ.
    """
    read: Callable[[Trial], Value] = attrgetter(attribute or name)

    def value(row: JudgedPair) -> Value:
        values = [read(side.trial) for _, side in row.pair.sides]
        if len(set(values)) == 1:
            return values[0]
        return " → ".join(cell.show(value) or "none" for value in values)

    return Column(name, value, **shown)


def _side_columns(name: str, value: Callable[[Side], Value]) -> list[Column[JudgedPair]]:
    sides = ("base", "head")
    return [lift(Column(f"{side}_{name}", value), attrgetter(f"pair.{side}")) for side in sides]


def _quantity_columns(quantity: Quantity) -> list[Column[JudgedPair]]:
    name = quantity.name

    def read(*parts: str) -> list[Column[Change]]:
        return [Column(f"{name}_{part}", attrgetter(part)) for part in parts]

    columns: list[Column[Change]] = [
        *read("base", "head"),
        *estimate_columns(f"{name}_ratio", attrgetter("estimate")),
        *read("p", "unit", "verdict", "reason"),
    ]
    return [lift(column, lambda row: row.find_change(quantity)) for column in columns]


def _read_message(side: Side) -> str | None:
    return join_lines(side.message or "") or None


def _show_device(change: Change) -> str:
    """`+1.9 % SLOWER`, with the verdict in any case: it stands beside that by wall clock."""
    shown = _show_change(change)
    return f"{shown} {change.verdict}" if shown else ""


def _show_change(change: Change | None) -> str:
    return percent(change.log) if change and change.estimate else ""


def _show_compiled(change: Change) -> str:
    """`+3.1 % [+2.5, +3.7]`, the interval of this row alone."""
    shown = _show_change(change)
    if bounds := change.interval:
        shown += f" [{100 * (bounds.low - 1):+.1f}, {100 * (bounds.high - 1):+.1f}]"
    return shown


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


def _show_hidden(share: float | None) -> str:
    return "" if share is None else f"up to {100 * share:.1f} %"


def _shown_column(
    quantity: Quantity, title: str, show: Callable[[Change], str]
) -> Column[JudgedPair]:
    return lift(Column("", show, title=title), lambda row: row.find_change(quantity))


COLUMNS: tuple[Column[JudgedPair], ...] = (
    Column("verdict", attrgetter("verdict"), title="verdict"),
    Column("reason", attrgetter("reason")),
    Column("note", attrgetter("note")),
    _trial_column("model", "labels.model", title="model"),
    _trial_column("family", "labels.family"),
    _trial_column("workload", title="workload", is_axis=True),
    _trial_column("backend", title="backend", is_axis=True),
    _trial_column("batch_size", "known_batch_size", kind=int, title="batch", is_axis=True),
    _trial_column("variant", title="variant", is_axis=True, folds=True),
    _trial_column("precision", "labels.precision", title="precision"),
    _trial_column("mode", title="mode"),
    *_side_columns("trial_id", attrgetter("trial.id")),
    *_side_columns("status", attrgetter("status")),
    *_side_columns("message", _read_message),
    *_side_columns("flags", attrgetter("flags")),
    *_side_columns("processes", lambda side: len(side.take(COMPILED))),
    *_side_columns("draws", lambda side: len({sample.draw for sample in side.take(COMPILED)})),
    *chain.from_iterable(map(_quantity_columns, QUANTITIES)),
    Column("versions", lambda row: describe_versions(row.pair)),
    lift(
        Column("slowdown_ruled_out", attrgetter("ruled_out")), lambda row: row.find_change(COMPILED)
    ),
)

SHOWN: tuple[Column[JudgedPair], ...] = (
    *COLUMNS,
    _shown_column(
        COMPILED,
        "compiled ms",
        partial(_show_values, show=lambda time_s: figure(1e3 * time_s)),
    ),
    _shown_column(COMPILED, "change", _show_compiled),
    _shown_column(COMPILED, "may hide", lambda change: _show_hidden(change.ruled_out)),
    _shown_column(COMPILED_DEVICE, "device", _show_device),
    _shown_column(EAGER, "eager", lambda change: _add_verdict(_show_change(change), change)),
    _shown_column(SPEEDUP, "speedup", partial(_show_judged, show=ratio)),
)
# by the name of eager's quantity, with what is not tested once it moved
CONTROLS = {
    EAGER.name: (
        "the eager step",
        "only speedups are tested: a shift of the whole machine does not change them, but they "
        "fall where only eager got faster, and rise where only eager got slower",
    ),
    EAGER_DEVICE.name: ("eager's device step time", "no device step time is tested"),
}
COSTS = (
    (COMPILE, "compile time", "s", figure),
    (MEMORY, "memory", "MiB", lambda memory_bytes: figure(memory_bytes / 2**20)),
)


def rank(row: JudgedPair) -> tuple[int, float]:
    """Put regressions first, then what broke, then the rest; the largest change of the compiled
    step first.
    """
    size = 0.0
    if row.decisive and row.decisive.estimate:
        size = abs(row.decisive.log)
    return VERDICTS.index(row.verdict), -size


def is_worth_showing(row: JudgedPair) -> bool:
    """Whether something changed, or the row is not SAME; other rows are only counted."""
    judged = [change for name, change in row.changes.items() if name not in CONTROLS]
    return row.verdict != "SAME" or any(change.verdict not in UNCHANGED for change in judged)


def describe_controls(comparison: Comparison) -> list[str]:
    """What eager, the control, says about the two sessions by each clock."""
    lines = []
    for name, (what, untested) in CONTROLS.items():
        control = comparison.controls[name]
        if control.shift is not None:
            shift = f"{percent(control.log)} (median of {count(control.rows, 'row')})"
            moved = f"; above {100 * control.max_shift:.0f} %, {untested}" if control.moved else ""
            lines.append(f"control: {what} moved by {shift}{moved}")
    return lines or ["control: no row has an eager step time on both sides"]


def advise(comparison: Comparison) -> str:
    """What to do where no row has a verdict; empty where one has."""
    if not comparison.nothing_judged:
        return ""
    if not list_changes(comparison.rows, COMPILED):
        return (
            "nothing could be judged: no trial was measured alike on both sides, and each row says "
            "why"
        )
    how = "with measure=published or, if they have three draws, with measure.draws=5"
    if comparison.control.moved:
        how = "again on one machine at rest, since eager itself moved"
    return f"nothing could be judged: measure both {how} (docs/comparing.md)"


@dataclass(frozen=True)
class Document:
    """A comparison with everything that is printed beside its rows."""

    base: str
    head: str
    comparison: Comparison
    facts: Sequence[str]  # what else changed
    versions: Sequence[FactChange]  # that differ
    problems: Sequence[str]
    show_all: bool
    exit_code: int
    why: str  # the exit code is this one, where an option would change it

    @cached_property
    def rows(self) -> list[JudgedPair]:
        return sorted(self.comparison.rows, key=rank)

    @cached_property
    def shown(self) -> list[JudgedPair]:
        return [row for row in self.rows if self.show_all or is_worth_showing(row)]

    @cached_property
    def naming(self) -> list[Column[JudgedPair]]:
        """What tells rows apart."""
        varying = sorted(find_varying(COLUMNS, self.rows))
        return select(COLUMNS, ["model", "precision", "mode", *varying])

    def name(self, row: JudgedPair) -> str:
        """E.g. `vit_b16 amp default`."""
        return join(show_row(self.naming, row), " ")

    @cached_property
    def line(self) -> str:
        """All of it in one line, e.g. for the log of a CI."""
        costs, _ = describe_costs(self)
        code = f"exit code {self.exit_code}{prefix(': ', self.why)}"
        return f"compare {self.base} → {self.head}: {join((count_verdicts(self), *costs, code))}"


def choose_columns(document: Document) -> list[Column[JudgedPair]]:
    """What people read. Unless all is shown, compile time and memory have a column only where one
    of them changed.
    """
    columns, rows = list(SHOWN), document.shown
    for quantity, name, unit, show in COSTS:
        verdicts = {change.verdict for _, change in list_changes(rows, quantity)}
        if document.show_all or verdicts.difference(UNCHANGED):
            judged = partial(_show_judged, show=show)
            columns.append(_shown_column(quantity, f"{name.split()[0]} {unit}", judged))
    return select_shown(columns, rows, find_varying(columns, rows), TERMINAL)


def count_verdicts(document: Document) -> str:
    """`16 rows: 1 SLOWER (vit_b16 amp default +12.0 %), 15 SAME`."""
    counts = []
    for verdict, rows in groupby(document.rows, attrgetter("verdict")):
        names = []
        for row in rows:
            names.append(join((document.name(row), _show_change(row.decisive)), " "))
        counts.append(f"{len(names)} {verdict}")
        if verdict in ("SLOWER", "BROKE", "GONE"):
            counts[-1] += f" ({shorten_names(names)})"
    return f"{count(len(document.rows), 'row')}: {', '.join(counts)}"


def list_changes(rows: Sequence[JudgedPair], quantity: Quantity) -> list[tuple[JudgedPair, Change]]:
    """List how a quantity changed, of the rows in which it can be compared."""
    found = []
    for row in rows:
        change = row.find_change(quantity)
        if change and change.estimate:
            found.append((row, change))
    return found


def describe_costs(document: Document) -> tuple[list[str], list[str]]:
    """`memory MORE in 2 rows`, where any row has more, and in any case `memory: worst vit_b16 amp
    default 1,024 → 1,536 MiB (+50.0 %) MORE`.
    """
    briefs = []
    lines = []
    for quantity, name, unit, show in COSTS:
        more, _ = quantity.verdicts
        found = list_changes(document.rows, quantity)
        if not found:
            lines.append(f"{name}: no row has it on both sides")
            continue
        found.sort(key=lambda item: (item[1].verdict == more, item[1].log))
        row, change = found[-1]
        size = percent(change.log)
        judged = join((change.verdict, change.reason or ""), ", ")
        number = sum(change.verdict == more for _, change in found)
        if number:
            briefs.append(f"{name} {more} in {count(number, 'row')} (worst {size})")
        values = f"{_show_values(change, show)} {unit} ({size})"
        lines.append(f"{name}: worst {document.name(row)} {values} {judged}")
    return briefs, lines


def explain_rows(document: Document) -> list[str]:
    """A line for each reason and each note, with the rows that share it, and for each cost."""
    shared: dict[tuple[str, str], list[JudgedPair]] = defaultdict(list)
    for row in document.shown:
        failed = [side for _, side in row.pair.sides if side.status != "ok"]
        reason = cell.show(row.reason)
        if len(failed) == 1:
            reason = join((reason, cell.show(_read_message(failed[0]))), ": ")
        for words in filter(None, (reason, cell.show(row.note))):
            shared[row.verdict, words].append(row)
    lines = []
    for (verdict, words), rows in shared.items():
        names = shorten_names(list(map(document.name, rows)))
        shares = [change.ruled_out or 0.0 for _, change in list_changes(rows, COMPILED)]
        if any(shares):
            words += f"; a slowdown of {_show_hidden(max(shares))} may be hidden"
        lines.append(f"{verdict} {names}: {words}")
    _, costs = describe_costs(document)
    return lines + costs


def render(document: Document, kind: str) -> str:
    """Return the document in one of `FORMATS`."""
    if kind == "md":
        return _render_markdown(document)
    if kind == "csv":
        return write_csv(COLUMNS, document.rows)
    if kind == "json":
        return _render_json(document)
    file = io.StringIO()
    print_document(document, Console(file=file, width=160))
    return file.getvalue()


def print_document(document: Document, console: Console) -> None:
    """Print the document to a terminal; a pipe gets lines as long as they are."""
    terminal.widen(console, 140)
    shown = document.shown
    names = (f"BASE: {document.base}", f"HEAD: {document.head}")
    for line in (*names, *document.facts, *describe_controls(document.comparison)):
        terminal.print_line(escape(line), console)
    if shown:
        console.print("\n[bold]compared[/]", highlight=False)
        terminal.print_table(choose_columns(document), shown, console, repeats=True)
    for line in explain_rows(document):
        terminal.print_line(escape(line), console)
    style = "bold red" if document.exit_code else "bold"
    for line in filter(None, (advise(document.comparison), document.line)):
        terminal.print_line(f"[{style}]{escape(line)}[/]", console)


def _render_markdown(document: Document) -> str:
    """For a comment: the counts first, then what is worth a look, then what else changed."""
    shown = document.shown
    sections = [
        f"## torch.compile: {markdown.escape(f'BASE {document.base}, HEAD {document.head}')}",
        f"**{markdown.escape(document.line)}**",
        markdown.escape(advise(document.comparison)),
        markdown.bullets(describe_controls(document.comparison)),
    ]
    if shown:
        sections.append(markdown.table(choose_columns(document), shown))
    sections += [markdown.bullets(explain_rows(document)), LEGEND]
    if document.facts:
        sections += ["### What else changed", markdown.bullets(document.facts)]
    if document.problems:
        problems = markdown.bullets(document.problems)
        sections += ["### Records that could not be read", problems]
    return f"{markdown.PARAGRAPH.join(filter(None, sections))}\n"


def _render_json(document: Document) -> str:
    """Every row, whether shown or not; what is missing is null."""
    comparison = document.comparison
    device_control = comparison.controls[EAGER_DEVICE.name]
    rows = []
    for row in document.rows:
        rows.append({column.name: _finite(column.value(row)) for column in COLUMNS})
    data = {
        "base": document.base,
        "head": document.head,
        "regressed": comparison.regressed,
        "eager_shift": comparison.control.share,
        "eager_moved": comparison.control.moved,
        "changed": list(document.facts),
        "problems": list(document.problems),
        "nothing_judged": advise(comparison) or None,
        "device_shifts": {EAGER_DEVICE.name: device_control.share},
        "versions": [change._asdict() for change in document.versions],
        "rows": rows,
        "exit_code": document.exit_code,
        "line": document.line,
    }
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def _finite(value: Value) -> Value:
    return None if isinstance(value, float) and not math.isfinite(value) else value
