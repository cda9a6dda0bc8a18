"""A comparison as text: for a terminal, as Markdown for a pull request, as CSV or as JSON.

`COLUMNS` is what CSV and JSON have; units are in the names. A new column is one `Column`. Text from
records is escaped for the format that it goes into.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

from rich.console import Console
from rich.markup import escape

from sweeper.analysis.stats import Interval
from sweeper.compare.changes import VersionChange, describe_versions
from sweeper.compare.pairs import LOST, Side
from sweeper.compare.quantities import (
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
from sweeper.compare.verdicts import (
    VERDICTS,
    Change,
    Comparison,
    Control,
    percent,
)
from sweeper.compare.verdicts import Row as Judged
from sweeper.report import formatting
from sweeper.report.formatting import AXES, figure, number, ratio, text, text_column, trial_name
from sweeper.report.table import Column, Row, Table, TextColumn, Value
from sweeper.report.text import markdown, terminal

FORMATS = ("text", "md", "csv", "json")
FILE_WIDTH = 160  # columns of a text file
MIN_WIDTH = 140  # columns of a console that is no terminal
LEGEND = (
    "The verdict is on the compiled step, by wall clock or, where that shows no change, by device "
    "time. It makes up "
    "for the number of rows and of clocks; intervals are 95 % ones of a row alone. Size uncertain: "
    "the change "
    "is beyond what too few draws or processes leave open."
)
MIB = 2**20
# three find a slowdown of 3 % in 38 of 100 cases, five in 99: docs/results/compare-power.md
MORE_DRAWS = 2


def _trial_column(attribute: str) -> Column[Judged]:
    """What both trials have in common, or both values where the sides were chosen to differ."""

    def show(row: Judged) -> Value:
        trials = [side.trial for side in (row.pair.base, row.pair.head) if side]
        values: list[Value] = list(map(attrgetter(attribute), trials))
        return (
            values[0]
            if len({*values}) == 1
            else " → ".join("none" if one is None else str(one) for one in values)
        )

    return Column(attribute.removeprefix("labels."), show)


def _side_columns(name: str, value: Callable[[Side], Value]) -> list[Column[Judged]]:
    return [
        Column(f"base_{name}", lambda row: value(row.pair.base) if row.pair.base else None),
        Column(f"head_{name}", lambda row: value(row.pair.head) if row.pair.head else None),
    ]


def _quantity_columns(quantity: Quantity) -> list[Column[Judged]]:
    name = quantity.name

    def column(suffix: str, value: Callable[[Change], Value]) -> Column[Judged]:
        return Column(
            f"{name}_{suffix}", lambda row: value(row.changes[name]) if row.changes else None
        )

    def interval(change: Change) -> Interval | None:
        return change.estimate.interval() if change.estimate else None

    return [
        column("base", lambda change: change.base),
        column("head", lambda change: change.head),
        column("ratio", lambda change: getattr(change.estimate, "ratio", None)),
        column("ratio_low", lambda change: getattr(interval(change), "low", None)),
        column("ratio_high", lambda change: getattr(interval(change), "high", None)),
        column("p", lambda change: change.adjusted_p),
        column("unit", lambda change: change.unit),
        column("verdict", lambda change: change.verdict),
        column("reason", lambda change: change.reason),
    ]


def _count_draws(side: Side) -> int:
    return len({sample.draw for sample in side.samples.get(COMPILED.name, ())})


COLUMNS: tuple[Column[Judged], ...] = (
    *(Column(name, attrgetter(name)) for name in ("verdict", "reason", "note")),
    *map(
        _trial_column,
        ("labels.model", "labels.family", "workload", "mode", "backend", "labels.precision"),
    ),
    Column("batch_size", lambda row: row.pair.any.trial.known_batch_size),
    _trial_column("variant"),
    *_side_columns("trial_id", lambda side: side.trial.id),
    *_side_columns("status", lambda side: side.status),
    *_side_columns("message", lambda side: " | ".join((side.message or "").splitlines()) or None),
    *_side_columns("flags", lambda side: side.flags),
    *_side_columns("processes", lambda side: len(side.samples.get(COMPILED.name, ()))),
    *_side_columns("draws", _count_draws),
    *(column for quantity in QUANTITIES for column in _quantity_columns(quantity)),
    Column("versions", lambda row: describe_versions(row.pair)),
)


def make_table(comparison: Comparison) -> Table:
    """Every row: regressions, then what broke, then the rest; the largest change of the compiled
    step first.
    """
    table = Table.make(COLUMNS, comparison.rows)

    def order(row: Row) -> tuple[int, float, str]:
        ratio = number(row, f"{COMPILED.name}_ratio")
        return (
            VERDICTS.index(str(row["verdict"])),
            -abs(math.log(ratio)) if ratio else 0.0,
            trial_name(row, AXES),
        )

    return Table(table.columns, tuple(sorted(table.rows, key=order)))


def is_worth_showing(row: Row) -> bool:
    """Whether something changed, or the row is not SAME; other rows are only counted."""
    shown = (item for item in QUANTITIES if item.name != item.control)
    return row["verdict"] != "SAME" or any(_change_verdict(row, item) for item in shown)


def choose_columns(rows: Sequence[Row], every: bool = False) -> tuple[TextColumn, ...]:
    """What people read. Without `every`, compile time and memory have a column only where one of
    them changed.
    """
    costs = {
        COMPILE: TextColumn("compile s", lambda row: _with_verdict(row, COMPILE, figure)),
        MEMORY: TextColumn(
            "memory MiB", lambda row: _with_verdict(row, MEMORY, lambda value: figure(value / MIB))
        ),
    }
    columns = (
        text_column("model"),
        *formatting.axis_columns(rows),
        text_column("precision"),
        text_column("mode"),
        TextColumn(
            "compiled ms",
            lambda row: _both_values(row, COMPILED, lambda value: figure(1e3 * value)),
        ),
        TextColumn("change", lambda row: _change_with_interval(row, COMPILED)),
        TextColumn("device", _device_change),
        TextColumn(
            "eager",
            lambda row: f"{_change_percent(row, EAGER)} {_change_verdict(row, EAGER)}".strip(),
        ),
        TextColumn("speedup", lambda row: _with_verdict(row, SPEEDUP, ratio)),
        *(
            column
            for item, column in costs.items()
            if every or any(_change_verdict(row, item) for row in rows)
        ),
    )
    return text_column("verdict"), *(
        column for column in columns if any(text(column.text(row)) for row in rows)
    )


def _change_verdict(row: Row, quantity: Quantity) -> str:
    """The verdict on a quantity that changed; empty otherwise."""
    verdict = row[f"{quantity.name}_verdict"]
    return str(verdict) if verdict not in (None, "SAME", "UNRESOLVED") else ""


def _both_values(row: Row, quantity: Quantity, show: Callable[[float], str]) -> str:
    """`28.1 → 29.0`."""
    base, head = number(row, f"{quantity.name}_base"), number(row, f"{quantity.name}_head")
    return "" if base is None or head is None else f"{show(base)} → {show(head)}"


def _with_verdict(row: Row, quantity: Quantity, show: Callable[[float], str]) -> str:
    """`1.58 → 1.53 LOWER`; a verdict only where something changed."""
    return f"{_both_values(row, quantity, show)} {_change_verdict(row, quantity)}".strip()


def _change_percent(row: Row, quantity: Quantity) -> str:
    change = number(row, f"{quantity.name}_ratio")
    return "" if change is None else f"{100 * (change - 1):+.1f} %"


def _change_with_interval(row: Row, quantity: Quantity) -> str:
    """`+3.1 % [+2.5, +3.7]`, the interval of this row alone."""
    low, high = (number(row, f"{quantity.name}_ratio_{which}") for which in ("low", "high"))
    interval = (
        "" if low is None or high is None else f" [{100 * (low - 1):+.1f}, {100 * (high - 1):+.1f}]"
    )
    return f"{_change_percent(row, quantity)}{interval}"


def _device_change(row: Row) -> str:
    """`+1.9 % SLOWER`, with the verdict in any case: it stands beside that by wall clock."""
    name = COMPILED_DEVICE.name
    if number(row, f"{name}_ratio") is None:
        return ""
    return f"{_change_percent(row, COMPILED_DEVICE)} {row[f'{name}_verdict']}"


def describe_controls(comparison: Comparison) -> list[str]:
    """What eager, the control, says about the two sessions by each clock."""
    control = comparison.control
    if control.shift is None:
        wall = "control: no row has an eager step time on both sides"
    else:
        wall = f"control: the eager step moved by {_describe_shift(control)}"
        if control.moved:
            moved = (
                "rise where only eager got slower"
                if control.shift > 0
                else "fall where only eager got faster"
            )
            why = f"a shift of the whole machine does not touch them, but they {moved}"
            wall += (
                f"; beyond {100 * control.max_shift:.0f} % step times are not tested, only "
                f"speedups: {why}"
            )
    device = comparison.controls[EAGER_DEVICE.name]
    if device.shift is None:
        return [wall]
    untested = "; it is not tested" if device.moved else ""
    return [
        wall,
        f"control: eager's device step time moved by {_describe_shift(device)}{untested}",
    ]


def _describe_shift(control: Control) -> str:
    return (
        f"{percent(control.shift)} (median of {control.rows} row{'' if control.rows == 1 else 's'})"
    )


def count_verdicts(rows: Sequence[Row]) -> str:
    """`16 rows: 1 SLOWER, 15 SAME`."""
    verdicts = [str(row["verdict"]) for row in rows]
    counts = ", ".join(f"{verdicts.count(name)} {name}" for name in VERDICTS if name in verdicts)
    return f"{len(rows)} row{'' if len(rows) == 1 else 's'}: {counts}"


def advise_if_nothing_is_judged(comparison: Comparison) -> str | None:
    """What to do where no row has a verdict; None where one has."""
    if not all(row.verdict in ("UNRESOLVED", "NEW", "GONE") for row in comparison.rows):
        return None
    rows = comparison.rows
    measured = [
        (row.pair, row.changes)
        for row in rows
        if row.changes and row.changes[COMPILED.name].estimate
    ]
    if not measured:
        return (
            "nothing could be judged: no trial was measured alike on both sides, and each row "
            "says why"
        )
    device = any(changes[COMPILED_DEVICE.name].verdict != "UNRESOLVED" for _, changes in measured)
    if comparison.control.moved and any(
        changes[SPEEDUP.name].verdict != "UNRESOLVED" for _, changes in measured
    ):
        again = "measure both again on one machine at rest (docs/comparing.md)"
        but = f"speedups{' and device times' if device else ''}"
        return f"nothing could be judged but {but}, since eager itself moved: {again}"
    over_draws = all(changes[COMPILED.name].unit == "draws" for _, changes in measured)
    draws = max(min(map(_count_draws, pair.both or ())) for pair, _ in measured)
    more = f" measure.draws={draws + MORE_DRAWS}" if over_draws else ""
    nothing = f"nothing could be judged{' but device times' if device else ''}"
    return f"{nothing}: measure both with measure=published{more} (docs/comparing.md)"


def explain_rows(rows: Sequence[Row]) -> list[str]:
    """A line for each row that broke or has a note, and one for each reason that several rows
    share.
    """
    axes = formatting.find_varying(rows, AXES)
    lines, shared = [], dict[str, list[str]]()
    for row in rows:
        name = trial_name(row, axes)
        statuses = (row["base_status"], row["head_status"])
        if statuses.count("ok") == 1 and not {None, *LOST}.intersection(statuses):
            message = text(row["head_message"] or row["base_message"])
            lines.append(
                f"{row['verdict']} {name}: {text(row['reason'])}{f': {message}' if message else ''}"
            )
        elif row["reason"]:
            shared.setdefault(f"{row['verdict']}, {text(row['reason'])}", []).append(name)
        if row["note"]:
            lines.append(f"{name}: {text(row['note'])}")
    return [
        *lines,
        *(f"{reason}: {formatting.shorten_names(names)}" for reason, names in shared.items()),
    ]


@dataclass(frozen=True)
class Document:
    """A comparison with everything that is printed beside its rows."""

    base: str
    head: str
    comparison: Comparison
    facts: Sequence[str]  # what else changed
    versions: Sequence[VersionChange] = ()  # that differ
    problems: Sequence[str] = ()
    show_all: bool = False

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        return make_table(self.comparison).rows

    @cached_property
    def shown(self) -> list[Row]:
        return [row for row in self.rows if self.show_all or is_worth_showing(row)]


def render(document: Document, kind: str) -> str:
    """Return the document in one of `FORMATS`."""
    if kind == "md":
        return _render_markdown(document)
    if kind == "csv":
        return make_table(document.comparison).csv()
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
    head = (
        f"BASE: {document.base}",
        f"HEAD: {document.head}",
        *document.facts,
        *describe_controls(comparison),
    )
    for line in head:
        terminal.print_line(escape(line), console)
    if shown:
        console.print("\n[bold]compared[/]", highlight=False)
        terminal.print_table(choose_columns(shown, document.show_all), shown, console)
    for line in explain_rows(shown):
        terminal.print_line(escape(line), console)
    style = "bold red" if comparison.regressed else "bold"
    for line in filter(
        None, (count_verdicts(document.rows), advise_if_nothing_is_judged(comparison))
    ):
        terminal.print_line(f"[{style}]{escape(line)}[/]", console)


def _render_markdown(document: Document) -> str:
    """For a comment: the counts first, then what is worth a look, then what else changed."""
    shown = document.shown
    sections = [
        f"## torch.compile: {markdown.escape(f'BASE {document.base}, HEAD {document.head}')}",
        f"**{markdown.escape(count_verdicts(document.rows))}**",
        markdown.escape(advise_if_nothing_is_judged(document.comparison) or ""),
        *map(markdown.escape, describe_controls(document.comparison)),
        markdown.table(choose_columns(shown, document.show_all), shown) if shown else "",
        markdown.bullets(explain_rows(shown)),
        LEGEND if shown else "",
    ]
    sections += (
        ["### What else changed", markdown.bullets(document.facts)] if document.facts else []
    )
    sections += (
        ["### Records that could not be read", markdown.bullets(document.problems)]
        if document.problems
        else []
    )
    return "\n\n".join(filter(None, sections)) + "\n"


def _render_json(document: Document) -> str:
    """Every row, whether shown or not; what is missing is null."""
    comparison, control = document.comparison, document.comparison.control
    data = {
        "base": document.base,
        "head": document.head,
        "regressed": comparison.regressed,
        "eager_shift": _share(control),
        "eager_moved": control.moved,
        "changed": list(document.facts),
        "problems": list(document.problems),
        "nothing_judged": advise_if_nothing_is_judged(comparison),
        "device_shifts": {
            name: _share(found)
            for name, found in comparison.controls.items()
            if found is not control
        },
        "versions": [
            {"name": item.name, "base": item.base, "head": item.head, "rows": item.rows}
            for item in document.versions
        ],
        "rows": [{name: _finite(value) for name, value in row.items()} for row in document.rows],
    }
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def _share(control: Control) -> float | None:
    return None if control.shift is None else math.expm1(control.shift)


def _finite(value: Value) -> Value:
    return None if isinstance(value, float) and not math.isfinite(value) else value
