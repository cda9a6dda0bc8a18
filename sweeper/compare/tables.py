"""The rows of a comparison as a table of plain values, and the columns of text that people read.

`COLUMNS` is what CSV and JSON have; units are in the names. A new column is one `Column`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from sweeper.compare.quantities import COMPILE, COMPILED, EAGER, MEMORY, QUANTITIES, SPEEDUP, Quantity
from sweeper.compare.sides import REASONS, Side
from sweeper.compare.verdicts import VERDICTS, Change, Comparison, percent
from sweeper.compare.verdicts import Row as Judged
from sweeper.core.trial import Trial
from sweeper.report.formatting import (
    axis_columns,
    figure,
    number,
    ratio,
    shortened,
    text,
    text_column,
    trial_name,
    varying,
)
from sweeper.report.table import Column, Row, Table, TextColumn, Value

MIB = 2**20
MORE_DRAWS = 2  # three find a slowdown of 3 % in 38 of 100 cases, five in 99: docs/results/compare-power.md
AXES = ("workload", "backend", "batch_size", "variant")  # shown only where rows differ


def _of_trial(name: str, value: Callable[[Trial], Value]) -> Column[Judged]:
    """What both sides have in common, or both values where the sides were chosen to differ."""

    def shown(row: Judged) -> Value:
        values = [value(side.trial) for side in (row.pair.base, row.pair.head) if side]
        return values[0] if len({*values}) == 1 else " → ".join("none" if one is None else str(one) for one in values)

    return Column(name, shown)


def _of_sides(name: str, value: Callable[[Side], Value]) -> list[Column[Judged]]:
    return [
        Column(f"base_{name}", lambda row: value(row.pair.base) if row.pair.base else None),
        Column(f"head_{name}", lambda row: value(row.pair.head) if row.pair.head else None),
    ]


def _of_quantity(quantity: Quantity) -> list[Column[Judged]]:
    name = quantity.name

    def column(suffix: str, value: Callable[[Change], Value]) -> Column[Judged]:
        return Column(f"{name}_{suffix}", lambda row: value(row.changes[name]) if row.changes else None)

    def bound(which: str) -> Callable[[Change], Value]:
        return lambda change: (
            getattr(found, which) if change.estimate and (found := change.estimate.interval()) else None
        )

    return [
        column("base", lambda change: change.base),
        column("head", lambda change: change.head),
        column("ratio", lambda change: change.estimate.ratio if change.estimate else None),
        column("ratio_low", bound("low")),
        column("ratio_high", bound("high")),
        column("p", lambda change: change.adjusted_p),
        column("unit", lambda change: change.unit),
        column("verdict", lambda change: change.verdict),
        column("reason", lambda change: change.reason),
    ]


COLUMNS: tuple[Column[Judged], ...] = (
    Column("verdict", lambda row: row.verdict),
    Column("reason", lambda row: row.reason),
    Column("note", lambda row: row.note),
    _of_trial("model", lambda trial: trial.labels.model),
    _of_trial("family", lambda trial: trial.labels.family),
    _of_trial("workload", lambda trial: trial.workload),
    _of_trial("mode", lambda trial: trial.mode),
    _of_trial("backend", lambda trial: trial.backend),
    _of_trial("precision", lambda trial: trial.labels.precision),
    Column("batch_size", lambda row: row.pair.any.trial.batch_size),
    _of_trial("variant", lambda trial: trial.variant),
    *_of_sides("trial_id", lambda side: side.trial.id),
    *_of_sides("status", lambda side: side.status),
    *_of_sides("message", lambda side: " | ".join((side.message or "").splitlines()) or None),
    *_of_sides("flags", lambda side: side.flags),
    *_of_sides("processes", lambda side: len(side.samples.get(COMPILED.name, ()))),
    *_of_sides("draws", lambda side: len({sample.draw for sample in side.samples.get(COMPILED.name, ())})),
    *(column for quantity in QUANTITIES for column in _of_quantity(quantity)),
)


def table_of(comparison: Comparison) -> Table:
    """Every row: regressions, then what broke, then the rest; the largest change of the compiled step first."""
    table = Table.of(COLUMNS, comparison.rows)

    def order(row: Row) -> tuple[int, float, str]:
        ratio = number(row, f"{COMPILED.name}_ratio")
        return VERDICTS.index(str(row["verdict"])), -abs(math.log(ratio)) if ratio else 0.0, trial_name(row, AXES)

    return Table(table.columns, tuple(sorted(table.rows, key=order)))


def worth_showing(row: Row) -> bool:
    """SAME rows are only counted, unless something beside the compiled step changed."""
    return row["verdict"] != "SAME" or any(_found(row, item) for item in QUANTITIES if item is not EAGER)


def _found(row: Row, quantity: Quantity) -> str:
    """The verdict on a quantity where that is a change."""
    verdict = row[f"{quantity.name}_verdict"]
    return str(verdict) if verdict not in (None, "SAME", "UNRESOLVED") else ""


def text_columns(rows: Sequence[Row], every: bool = False) -> tuple[TextColumn, ...]:
    """What people read. Without `every`, compile time and memory have a column only where one of them changed."""
    costs = {
        COMPILE: TextColumn("compile s", lambda row: _with_verdict(row, COMPILE, figure)),
        MEMORY: TextColumn("memory MiB", lambda row: _with_verdict(row, MEMORY, lambda value: figure(value / MIB))),
    }
    columns = (
        TextColumn("verdict", lambda row: text(row["verdict"])),
        text_column("model"),
        *axis_columns(rows),
        text_column("precision"),
        text_column("mode"),
        TextColumn("compiled ms", lambda row: _two(row, COMPILED, lambda value: figure(1e3 * value))),
        TextColumn("change", lambda row: _change(row, COMPILED)),
        TextColumn("eager", lambda row: f"{_short(row, EAGER)} {_found(row, EAGER)}".strip()),
        TextColumn("speedup", lambda row: _with_verdict(row, SPEEDUP, ratio)),
        *(column for item, column in costs.items() if every or any(_found(row, item) for row in rows)),
    )
    return tuple(
        column for column in columns if column.title == "verdict" or any(text(column.text(row)) for row in rows)
    )


def _two(row: Row, quantity: Quantity, show: Callable[[float], str]) -> str:
    """`28.1 → 29.0`."""
    base, head = number(row, f"{quantity.name}_base"), number(row, f"{quantity.name}_head")
    return "" if base is None or head is None else f"{show(base)} → {show(head)}"


def _with_verdict(row: Row, quantity: Quantity, show: Callable[[float], str]) -> str:
    """`1.58 → 1.53 LOWER`; a verdict only where something changed."""
    return f"{_two(row, quantity, show)} {_found(row, quantity)}".strip()


def _short(row: Row, quantity: Quantity) -> str:
    change = _signed(row, f"{quantity.name}_ratio")
    return f"{change} %" if change else ""


def _change(row: Row, quantity: Quantity) -> str:
    """`+3.1 % [+2.5, +3.7]`, the interval of this row alone."""
    low, high = (_signed(row, f"{quantity.name}_ratio_{which}") for which in ("low", "high"))
    return f"{_short(row, quantity)} [{low}, {high}]" if low and high else _short(row, quantity)


def _signed(row: Row, name: str) -> str:
    value = number(row, name)
    return "" if value is None else f"{100 * (value - 1):+.1f}"


def control_line(comparison: Comparison) -> str:
    """What eager, the control, says of the two sessions."""
    if comparison.eager_shift is None:
        return "control: no row has an eager step time on both sides"
    rows = f"median of {comparison.controls} row{'' if comparison.controls == 1 else 's'}"
    line = f"control: the eager step moved by {percent(comparison.eager_shift)} ({rows})"
    if not comparison.moved:
        return line
    moved = "rise where only eager got slower" if comparison.eager_shift > 0 else "fall where only eager got faster"
    return (
        f"{line}; beyond {100 * comparison.most_shift:.0f} % step times are not judged, only speedups: a shift of the "
        f"whole machine does not touch them, but they {moved}"
    )


def count_line(rows: Sequence[Row]) -> str:
    """`16 rows: 1 SLOWER, 15 SAME`."""
    verdicts = [str(row["verdict"]) for row in rows]
    counts = ", ".join(f"{verdicts.count(name)} {name}" for name in VERDICTS if name in verdicts)
    return f"{len(rows)} row{'' if len(rows) == 1 else 's'}: {counts}"


def nothing_judged(comparison: Comparison) -> str | None:
    """What to do where no row has a verdict; None where one has."""
    if not all(row.verdict in ("UNRESOLVED", "NEW", "GONE") for row in comparison.rows):
        return None
    return f"nothing could be judged{_what_to_measure(comparison)}"


def _what_to_measure(comparison: Comparison) -> str:
    measured = [row for row in comparison.rows if row.changes and row.changes[COMPILED.name].estimate]
    if not measured:
        return ": no trial was measured alike on both sides, and each row says why"
    if comparison.moved and any(row.changes and row.changes[SPEEDUP.name].judged for row in measured):
        return " but speedups, since eager itself moved: measure both again on one machine at rest (docs/comparing.md)"
    draws = [row.changes[COMPILED.name].unit == "draws" and _draws(row) for row in measured if row.changes]
    more = f" measure.draws={max(draws) + MORE_DRAWS}" if all(draws) else ""
    return f": measure both with measure=published{more} (docs/comparing.md)"


def _draws(row: Judged) -> int:
    """Of the side that has fewer."""
    sides = row.pair.both or ()
    return min(len({sample.draw for sample in side.samples[COMPILED.name]}) for side in sides)


def explanations(rows: Sequence[Row]) -> list[str]:
    """A line for each row that broke or has a note, and one for each reason that several rows share."""
    axes = varying(rows, AXES)
    lines, shared = [], dict[str, list[str]]()
    for row in rows:
        name = trial_name(row, axes)
        if _ok_on_one_side(row):
            message = text(row["head_message"] or row["base_message"])
            lines.append(f"{row['verdict']} {name}: {text(row['reason'])}{f': {message}' if message else ''}")
        elif row["reason"]:
            shared.setdefault(f"{row['verdict']}, {text(row['reason'])}", []).append(name)
        if row["note"]:
            lines.append(f"{name}: {text(row['note'])}")
    return [*lines, *(f"{reason}: {shortened(names)}" for reason, names in shared.items())]


def _ok_on_one_side(row: Row) -> bool:
    statuses = (row["base_status"], row["head_status"])
    return not {None, *REASONS}.intersection(statuses) and statuses.count("ok") == 1
