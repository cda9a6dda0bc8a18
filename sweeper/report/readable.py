"""Rows of the CSV tables as text for people: rounded figures, pretty units, only the columns that say something.

`markdown` and `terminal` render what is declared here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from sweeper.report.table import Column, Row, Value, plain
from sweeper.stats import AMP_SHARE, FP32_SHARE
from sweeper.trial import MODES

WEIGHTING = f"weighted {AMP_SHARE:g} AMP + {FP32_SHARE:g} fp32"
KEY = ("workload", "mode", "backend", "variant")
# Shown in a table only where rows differ; what all have in common stands above it.
AXES = ("workload", "backend", "batch_size", "variant")


def printable(text: str) -> str:
    """On one line, without control characters and what UTF-8 cannot carry."""
    return "".join(character if character.isprintable() else " " for character in text).strip()


def number(row: Row, name: str) -> float | None:
    value = row[name]
    return float(value) if isinstance(value, (int, float)) else None


def text(value: Value) -> str:
    return printable(plain(value))


def figure(value: float | None) -> str:
    """Three significant digits, never an exponent for what is large."""
    if value is None:
        return ""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 1 else f"{value:.3g}"


def ratio(value: float | None) -> str:
    """Two decimals, more for what is below 0.1."""
    return "" if value is None else f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def interval(row: Row, name: str) -> str:
    """`[1.55, 1.61]`, or nothing."""
    low, high = number(row, f"{name}_low"), number(row, f"{name}_high")
    return "" if low is None or high is None else f"[{ratio(low)}, {ratio(high)}]"


def estimate(row: Row, name: str) -> str:
    """`1.58 [1.55, 1.61]`, or as much of it as there is."""
    return f"{ratio(number(row, name))} {interval(row, name)}".strip()


def break_even(row: Row) -> str:
    """Steps until compiling has paid, rounded up; `never` when the compiled step is not faster."""
    eager, compiled, steps = (number(row, name) for name in ("eager_step_ms", "compiled_step_ms", "break_even_steps"))
    if steps is not None:
        return f"{math.ceil(steps):,}"
    return "never" if eager is not None and compiled is not None and compiled >= eager else ""


def memory_ratio(row: Row) -> str:
    eager, compiled = number(row, "eager_peak_memory_mib"), number(row, "compiled_peak_memory_mib")
    return ratio(eager / compiled) if eager and compiled and row["status"] == "ok" else ""


def speedup_or_status(row: Row) -> str:
    return estimate(row, "speedup") if row["status"] == "ok" else text(row["status"])


def flags(row: Row) -> tuple[str, ...]:
    return tuple(map(text, row["flags"])) if isinstance(row["flags"], tuple) else ()


def trial_name(row: Row, axes: Iterable[str]) -> str:
    """`resnet50 amp default`, followed by the values of `axes`."""
    return " ".join(text(row[name]) for name in ("model", "precision", "mode", *axes) if text(row[name]))


def flagged(rows: Sequence[Row]) -> list[str]:
    """A line for each flag with the first few trials that have it."""
    names: dict[str, list[str]] = {}
    axes = varying(rows, AXES)
    for row in rows:
        for flag in flags(row):
            names.setdefault(flag, []).append(trial_name(row, axes))
    return [
        f"{flag}: {'every trial' if len(found) == len(rows) > 1 else shortened(found)}"
        for flag, found in sorted(names.items())
    ]


def shortened(names: Sequence[str], most: int = 3) -> str:
    """The first few of some names and how many more there are."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{rest}"


def in_order(rows: Iterable[Row]) -> list[Row]:
    """Rows of one model together, modes from mild to aggressive."""

    def order(row: Row) -> tuple[str, ...]:
        mode = f"{MODES.index(row['mode'])}" if row["mode"] in MODES else text(row["mode"])
        batch = f"{number(row, 'batch_size') or 0:012.0f}"
        return (text(row["model"]), text(row["workload"]), batch, text(row["variant"]), text(row["precision"]), mode)

    return sorted(rows, key=lambda row: (order(row), text(row["backend"])))


def varying(rows: Sequence[Row], names: Iterable[str]) -> list[str]:
    """Those of `names` in which the rows differ."""
    return [name for name in names if len({row[name] for row in rows}) > 1]


def in_common(rows: Sequence[Row]) -> str:
    """What all rows have in common, e.g. `train, inductor, batch 32`."""
    fixed = [name for name in AXES if rows and name not in varying(rows, AXES) and text(rows[0][name])]
    return ", ".join(f"batch {text(rows[0][name])}" if name == "batch_size" else text(rows[0][name]) for name in fixed)


def _plain(name: str, title: str | None = None) -> Column[Row]:
    return Column(title or name, lambda row: text(row[name]))


def speedup_columns(rows: Sequence[Row]) -> tuple[Column[Row], ...]:
    """Columns of text over rows of speedups.csv."""
    axes = [_plain(name, "batch" if name == "batch_size" else None) for name in varying(rows, AXES)]
    columns = (
        _plain("model"),
        *axes,
        _plain("precision"),
        _plain("mode"),
        Column[Row]("speedup", speedup_or_status),
        Column[Row]("eager ms", lambda row: figure(number(row, "eager_step_ms"))),
        Column[Row]("compiled ms", lambda row: figure(number(row, "compiled_step_ms"))),
        Column[Row]("compile s", lambda row: figure(number(row, "compile_cold_s"))),
        Column[Row]("break-even steps", break_even),
        Column[Row]("memory ratio", memory_ratio),
    )
    columns = tuple(column for column in columns if column.name != "memory ratio" or any(map(memory_ratio, rows)))
    return (*columns, Column[Row]("flags", flags)) if any(map(flags, rows)) else columns


def summary_columns(rows: Sequence[Row]) -> tuple[Column[Row], ...]:
    """Columns of text over rows of summary.csv."""
    return (
        _plain("family"),
        *(_plain(name) for name in varying(rows, KEY)),
        Column("passed", lambda row: f"{row['passed']} of {row['models']}"),
        Column("AMP", lambda row: _counted(row, "geomean_amp", "models_amp")),
        Column("fp32", lambda row: _counted(row, "geomean_fp32", "models_fp32")),
        Column("weighted", lambda row: _counted(row, "weighted", "models_weighted")),
    )


def failure_columns(rows: Sequence[Row]) -> tuple[Column[Row], ...]:
    """Columns of text over rows of failures.csv."""
    return (
        _plain("model"),
        *(_plain(name, "batch" if name == "batch_size" else None) for name in varying(rows, AXES)),
        _plain("precision"),
        _plain("mode"),
        _plain("status"),
        _plain("phase"),
        _plain("message"),
        _plain("log"),
    )


def _counted(row: Row, name: str, count: str) -> str:
    found = estimate(row, name)
    return f"{found} ({row[count]})" if found else ""


def headline(row: Row) -> str:
    """The weighted mean of a row, e.g. `weighted 0.75 AMP + 0.25 fp32: 1.43 (3 models), these models [1.40, 1.46]`."""
    if row["weighted"] is None:
        return f"{WEIGHTING}: none, {_why_not_weighted(row)}"
    line = f"{WEIGHTING}: {ratio(number(row, 'weighted'))} ({models(row['models_weighted'])})"
    named = {"these models": interval(row, "weighted"), "models as a sample": interval(row, "weighted_new_model")}
    return ", ".join([line, *(f"{name} {found}" for name, found in named.items() if found)])


def models(count: Value) -> str:
    return f"{count} model{'' if count == 1 else 's'}"


def _why_not_weighted(row: Row) -> str:
    lacking = [weight for weight in ("amp", "fp32") if not row[f"models_{weight}"]]
    if lacking:
        return f"no model is ok in a precision of weight {' or '.join(lacking)}"
    return "no model is ok in both precisions"


def key(row: Row) -> str:
    """What a row of the summary holds fixed, e.g. `train, default, inductor`."""
    return ", ".join(text(row[name]) for name in KEY if text(row[name]))


def what_intervals_mean(rows: Sequence[Row]) -> str:
    """One line on the brackets that the speedups show."""
    kinds = {row["interval"] for row in rows if row["speedup"] is not None}
    meanings = {
        "processes": "over processes that share one compiled artifact, and speak of that artifact alone",
        "draws": "over compile caches of their own (draws), so that the luck of autotuning is in them",
    }
    parts = [f"95 % intervals are {meaning}" for kind, meaning in meanings.items() if kind in kinds]
    if "none" in kinds:
        parts.append("a speedup without an interval comes from a single process and may move from run to run")
    return "; ".join(parts) + "." if parts else ""
