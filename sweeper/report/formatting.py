"""Rows of the CSV tables as text for people: rounded figures, names of trials, and the columns that
these need.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sweeper.core.text import printable
from sweeper.core.trial import MODES
from sweeper.report.table import Row, TextColumn, Value, plain

MAX_NAMES = 3  # in a line
_ORDER = ("model", "workload", "variant", "precision", "mode", "backend")
KEY = ("workload", "mode", "backend", "variant")
# Columns of a table only where rows differ; what all rows have in common stands above the table.
AXES = ("workload", "backend", "batch_size", "variant")
TRIAL_AXES = (*AXES, "sweep")  # of tables whose rows are trials


def number(row: Row, name: str) -> float | None:
    value = row[name]
    return float(value) if isinstance(value, (int, float)) else None


def finite(row: Row, name: str) -> float | None:
    """Return the number in column `name`; None where it is missing, infinite or no number."""
    value = number(row, name)
    return value if value is not None and math.isfinite(value) else None


def text(value: Value) -> str:
    if isinstance(value, str):
        return value.strip() if value.isprintable() else printable(plain(value))
    return printable(plain(value)) if isinstance(value, tuple) else plain(value)


def figure(value: float | None) -> str:
    """Show three significant digits, and large numbers without an exponent."""
    if value is None:
        return ""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return (
        f"{value:.1f}"
        if abs(value) >= 10
        else f"{value:.2f}"
        if abs(value) >= 1
        else f"{value:.3g}"
    )


def format_duration(seconds: float) -> str:
    """Show `42 s`, `3 min 05 s` or `2 h 07 min`."""
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def ratio(value: float | None) -> str:
    """Show two decimals, and more below 0.1."""
    return "" if value is None else f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def interval(row: Row, name: str) -> str:
    """Show `[1.55, 1.61]`, or nothing where the row has no interval."""
    low, high = number(row, f"{name}_low"), number(row, f"{name}_high")
    return "" if low is None or high is None else f"[{ratio(low)}, {ratio(high)}]"


def estimate(row: Row, name: str) -> str:
    """Show `1.58 [1.55, 1.61]`, or as much of it as the row has."""
    return f"{ratio(number(row, name))} {interval(row, name)}".strip()


def flags(row: Row) -> tuple[str, ...]:
    return read_texts(row, "flags")


def read_texts(row: Row, name: str) -> tuple[str, ...]:
    """Return the texts of a column of lists."""
    found = row[name]
    return tuple(map(text, found)) if isinstance(found, tuple) else ()


def sentence(line: str) -> str:
    """Begin the line with a capital and end it with a full stop."""
    return f"{line[:1].upper()}{line[1:]}{'' if line.endswith('.') else '.'}" if line else ""


def trial_name(row: Row, axes: Iterable[str]) -> str:
    """Name a trial by its model, precision and mode and its values of `axes`, e.g. `resnet50 amp
    default`.
    """
    return " ".join(
        part for name in ("model", "precision", "mode", *axes) if (part := text(row[name]))
    )


def shorten_names(names: Sequence[str], count: int | None = None, between: str = ", ") -> str:
    """Join the first few names and say how many more there are; `count` is their number where some
    are not given.
    """
    more = (len(names) if count is None else count) - MAX_NAMES
    return f"{between.join(names[:MAX_NAMES])}{f' and {more} more' if more > 0 else ''}"


def rank_mode(mode: Value) -> int:
    """Number the modes from mild to aggressive; unknown ones come last."""
    return MODES.index(mode) if mode in MODES else len(MODES)


def sort_rows(rows: Iterable[Row]) -> list[Row]:
    """Put rows of one model together, modes from mild to aggressive."""

    def order(row: Row) -> tuple[str | float, ...]:
        model, workload, variant, precision, mode, backend = (text(row[name]) for name in _ORDER)
        batch_size = number(row, "batch_size") or 0
        return (
            model,
            workload,
            batch_size,
            variant,
            precision,
            rank_mode(row["mode"]),
            mode,
            backend,
        )

    return sorted(rows, key=order)


def find_varying(rows: Sequence[Row], names: Iterable[str]) -> list[str]:
    """Return the columns, of those in `names`, in which the rows differ."""
    return [name for name in names if len({row[name] for row in rows}) > 1]


def name_common_axes(rows: Sequence[Row]) -> str:
    """Name the axes that all rows have in common, e.g. `train, inductor, batch 32`."""
    fixed = [
        name
        for name in AXES
        if rows and name not in find_varying(rows, AXES) and text(rows[0][name])
    ]
    return ", ".join(
        f"batch {text(rows[0][name])}" if name == "batch_size" else text(rows[0][name])
        for name in fixed
    )


def text_column(name: str, **settings: Any) -> TextColumn:
    """Make a column of the texts in column `name`; `settings` are fields of `TextColumn`."""
    return TextColumn(name.replace("_", " "), lambda row: text(row[name]), **settings)


def number_column(
    title: str, name: str, shown: Callable[[Row], str] | None = None, **settings: Any
) -> TextColumn:
    """Make a column of the figures in column `name`, with three digits unless `shown` makes other
    texts of rows.
    """
    return TextColumn(
        title,
        shown or (lambda row: figure(number(row, name))),
        lambda row: finite(row, name),
        **settings,
    )


def axis_columns(rows: Sequence[Row], names: Sequence[str] = AXES) -> list[TextColumn]:
    """Make columns of the axes in which the rows differ."""
    return [
        number_column("batch", name, lambda row: text(row["batch_size"]), is_name=True)
        if name == "batch_size"
        else text_column(name, folds=name == "variant", is_name=True)
        for name in find_varying(rows, names)
    ]


def is_known(rows: Iterable[Row], name: str) -> bool:
    """Say whether any row has a value in column `name`."""
    return any(row[name] is not None for row in rows)


def key(row: Row) -> str:
    """Name what a row of the summary holds fixed, e.g. `train, default, inductor`."""
    return ", ".join(text(row[name]) for name in KEY if text(row[name]))
