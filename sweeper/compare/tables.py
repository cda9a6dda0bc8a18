"""The rows of a comparison as a table of plain values, and the columns of text that people read.

`COLUMNS` is what CSV and JSON have; units are in the names. A new column is one `Column`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import attrgetter

from sweeper.analysis.stats import Interval
from sweeper.compare.quantities import COMPILE, COMPILED, EAGER, MEMORY, QUANTITIES, SPEEDUP, Quantity
from sweeper.compare.sides import LOST, Side
from sweeper.compare.verdicts import VERDICTS, Change, Comparison, percent
from sweeper.compare.verdicts import Row as Judged
from sweeper.report import formatting
from sweeper.report.formatting import AXES, figure, number, ratio, text, text_column, trial_name
from sweeper.report.table import Column, Row, Table, TextColumn, Value

MIB = 2**20
MORE_DRAWS = 2  # three find a slowdown of 3 % in 38 of 100 cases, five in 99: docs/results/compare-power.md


def _trial_column(attribute: str) -> Column[Judged]:
    """What both trials have in common, or both values where the sides were chosen to differ."""

    def show(row: Judged) -> Value:
        trials = [side.trial for side in (row.pair.base, row.pair.head) if side]
        values: list[Value] = list(map(attrgetter(attribute), trials))
        return values[0] if len({*values}) == 1 else " → ".join("none" if one is None else str(one) for one in values)

    return Column(attribute.removeprefix("labels."), show)


def _side_columns(name: str, value: Callable[[Side], Value]) -> list[Column[Judged]]:
    return [
        Column(f"base_{name}", lambda row: value(row.pair.base) if row.pair.base else None),
        Column(f"head_{name}", lambda row: value(row.pair.head) if row.pair.head else None),
    ]


def _quantity_columns(quantity: Quantity) -> list[Column[Judged]]:
    name = quantity.name

    def column(suffix: str, value: Callable[[Change], Value]) -> Column[Judged]:
        return Column(f"{name}_{suffix}", lambda row: value(row.changes[name]) if row.changes else None)

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
    *map(_trial_column, ("labels.model", "labels.family", "workload", "mode", "backend", "labels.precision")),
    Column("batch_size", lambda row: row.pair.any.trial.batch_size),
    _trial_column("variant"),
    *_side_columns("trial_id", lambda side: side.trial.id),
    *_side_columns("status", lambda side: side.status),
    *_side_columns("message", lambda side: " | ".join((side.message or "").splitlines()) or None),
    *_side_columns("flags", lambda side: side.flags),
    *_side_columns("processes", lambda side: len(side.samples.get(COMPILED.name, ()))),
    *_side_columns("draws", _count_draws),
    *(column for quantity in QUANTITIES for column in _quantity_columns(quantity)),
)


def make_table(comparison: Comparison) -> Table:
    """Every row: regressions, then what broke, then the rest; the largest change of the compiled step first."""
    table = Table.of(COLUMNS, comparison.rows)

    def order(row: Row) -> tuple[int, float, str]:
        ratio = number(row, f"{COMPILED.name}_ratio")
        return VERDICTS.index(str(row["verdict"])), -abs(math.log(ratio)) if ratio else 0.0, trial_name(row, AXES)

    return Table(table.columns, tuple(sorted(table.rows, key=order)))


def is_worth_showing(row: Row) -> bool:
    """Whether something changed, or the row is not SAME; other rows are only counted."""
    return row["verdict"] != "SAME" or any(_change_verdict(row, item) for item in QUANTITIES if item is not EAGER)


def choose_columns(rows: Sequence[Row], every: bool = False) -> tuple[TextColumn, ...]:
    """What people read. Without `every`, compile time and memory have a column only where one of them changed."""
    costs = {
        COMPILE: TextColumn("compile s", lambda row: _with_verdict(row, COMPILE, figure)),
        MEMORY: TextColumn("memory MiB", lambda row: _with_verdict(row, MEMORY, lambda value: figure(value / MIB))),
    }
    columns = (
        text_column("model"),
        *formatting.axis_columns(rows),
        text_column("precision"),
        text_column("mode"),
        TextColumn("compiled ms", lambda row: _both_values(row, COMPILED, lambda value: figure(1e3 * value))),
        TextColumn("change", lambda row: _change_with_interval(row, COMPILED)),
        TextColumn("eager", lambda row: f"{_change_percent(row, EAGER)} {_change_verdict(row, EAGER)}".strip()),
        TextColumn("speedup", lambda row: _with_verdict(row, SPEEDUP, ratio)),
        *(column for item, column in costs.items() if every or any(_change_verdict(row, item) for row in rows)),
    )
    return text_column("verdict"), *(column for column in columns if any(text(column.text(row)) for row in rows))


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
    interval = "" if low is None or high is None else f" [{100 * (low - 1):+.1f}, {100 * (high - 1):+.1f}]"
    return f"{_change_percent(row, quantity)}{interval}"


def describe_control(comparison: Comparison) -> str:
    """What eager, the control, says about the two sessions."""
    if comparison.eager_shift is None:
        return "control: no row has an eager step time on both sides"
    rows = f"median of {comparison.controls} row{'' if comparison.controls == 1 else 's'}"
    line = f"control: the eager step moved by {percent(comparison.eager_shift)} ({rows})"
    if not comparison.moved:
        return line
    moved = "rise where only eager got slower" if comparison.eager_shift > 0 else "fall where only eager got faster"
    why = f"a shift of the whole machine does not touch them, but they {moved}"
    return f"{line}; beyond {100 * comparison.max_shift:.0f} % step times are not judged, only speedups: {why}"


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
    measured = [(row.pair, row.changes) for row in rows if row.changes and row.changes[COMPILED.name].estimate]
    if not measured:
        return "nothing could be judged: no trial was measured alike on both sides, and each row says why"
    if comparison.moved and any(changes[SPEEDUP.name].verdict != "UNRESOLVED" for _, changes in measured):
        again = "measure both again on one machine at rest (docs/comparing.md)"
        return f"nothing could be judged but speedups, since eager itself moved: {again}"
    over_draws = all(changes[COMPILED.name].unit == "draws" for _, changes in measured)
    draws = max(min(map(_count_draws, pair.both or ())) for pair, _ in measured)
    more = f" measure.draws={draws + MORE_DRAWS}" if over_draws else ""
    return f"nothing could be judged: measure both with measure=published{more} (docs/comparing.md)"


def explain_rows(rows: Sequence[Row]) -> list[str]:
    """A line for each row that broke or has a note, and one for each reason that several rows share."""
    axes = formatting.varying(rows, AXES)
    lines, shared = [], dict[str, list[str]]()
    for row in rows:
        name = trial_name(row, axes)
        statuses = (row["base_status"], row["head_status"])
        if statuses.count("ok") == 1 and not {None, *LOST}.intersection(statuses):
            message = text(row["head_message"] or row["base_message"])
            lines.append(f"{row['verdict']} {name}: {text(row['reason'])}{f': {message}' if message else ''}")
        elif row["reason"]:
            shared.setdefault(f"{row['verdict']}, {text(row['reason'])}", []).append(name)
        if row["note"]:
            lines.append(f"{name}: {text(row['note'])}")
    return [*lines, *(f"{reason}: {formatting.shortened(names)}" for reason, names in shared.items())]
