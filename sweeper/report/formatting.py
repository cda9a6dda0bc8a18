"""Rows of the CSV tables as text for people: rounded figures, pretty units, only the columns that say something.

`markdown` and `terminal` render what is declared here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from sweeper.analysis.metrics import PROCESSES_IF_HOST_BOUND
from sweeper.analysis.stats import AMP_SHARE, FP32_SHARE
from sweeper.core.record import ARMS
from sweeper.core.trial import MODES
from sweeper.report.table import Column, Row, Value, plain

WEIGHTING = f"weighted {AMP_SHARE:g} AMP + {FP32_SHARE:g} fp32"
MODELS_TO_PREDICT = 6  # a new one: of four, the interval reaches from a fifth to sixteen
MOST_NAMES = 3  # in a line
EAGER_MOVED = "eager step times of these trials do not agree"  # a reason to look twice at a recommendation
CLIPPED = "preset=pt2"  # its figures were made so
KEY = ("workload", "mode", "backend", "variant")
# Shown in a table only where rows differ; what all have in common stands above it.
AXES = ("workload", "backend", "batch_size", "variant")


def printable(text: str) -> str:
    """On one line, without control characters and what UTF-8 cannot carry."""
    if not text.isprintable():
        text = "".join(character if character.isprintable() else " " for character in text)
    return text.strip()


def number(row: Row, name: str) -> float | None:
    value = row[name]
    return float(value) if isinstance(value, (int, float)) else None


def text(value: Value) -> str:
    if isinstance(value, str):
        return value.strip() if value.isprintable() else printable(plain(value))
    return printable(plain(value)) if isinstance(value, tuple) else plain(value)


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
    """Steps until compiling has paid, e.g. `1,272 [1,250, 1,310]` or `never`; `≤` as in `compile_time`."""
    speedup, steps = number(row, "speedup"), number(row, "break_even_steps")
    if speedup is None or number(row, "compile_cold_s") is None:
        return ""
    low, high = number(row, "break_even_steps_low"), number(row, "break_even_steps_high")
    bounds = f" [{_steps(low)}, {_steps(high)}]" if low is not None else ""
    return f"{at_most(row) if steps is not None else ''}{_steps(steps)}{bounds}"


def _steps(steps: float | None) -> str:
    return "never" if steps is None else f"{math.ceil(steps):,}"


def compile_time(row: Row) -> str:
    """Seconds of compiling cold; `≤24.6` where others kept the processor busy meanwhile."""
    found = figure(number(row, "compile_cold_s"))
    return f"{at_most(row)}{found}" if found else ""


def at_most(row: Row) -> str:
    """`≤` before a compile time that others made longer, and before what follows from it."""
    found = row["flags"]
    return "≤" if isinstance(found, tuple) and "compile_contended" in found else ""


def memory_ratio(row: Row) -> str:
    return ratio(peak_ratio(row))


def peak_ratio(row: Row) -> float | None:
    """Eager / compiled peak memory of a trial that is ok; above 1, compiling saves."""
    eager, compiled = number(row, "eager_peak_memory_mib"), number(row, "compiled_peak_memory_mib")
    return eager / compiled if eager and compiled and row["status"] == "ok" else None


def speedup_or_status(row: Row) -> str:
    """`1.58 [1.55, 1.61]`, or the range of processes, `2.01 (1.89 to 2.12)`, where host noise allows no interval."""
    if row["status"] != "ok":
        return text(row["status"])
    if shows_range(row):
        low, high = (ratio(number(row, name)) for name in ("speedup_min", "speedup_max"))
        return f"{ratio(number(row, 'speedup'))} ({low} to {high})"
    return estimate(row, "speedup")


def shows_range(row: Row) -> bool:
    """Whether few processes and a host that holds the device up leave only their range to be shown."""
    return bool(row["host_bound_arms"]) and row["interval"] == "none" and row["speedup_min"] is not None


def percentiles(arm: str) -> Callable[[Row], str]:
    """`2.31 / 2.35 / 2.90`: wall milliseconds of single steps, each waited for."""
    names = [f"{arm}_{share}_ms" for share in ("p50", "p90", "p99")]
    return lambda row: " / ".join(figure(number(row, name)) for name in names if row[name] is not None)


def joules(arm: str) -> Callable[[Row], str]:
    return lambda row: figure(number(row, f"{arm}_energy_j"))


def host_bound_share(row: Row) -> str:
    """Share of wall time, of the arm where it is larger."""
    share = number(row, "host_bound_fraction")
    return "" if share is None else f"{100 * share:.0f} %"


def flags(row: Row) -> tuple[str, ...]:
    return listed(row, "flags")


def listed(row: Row, name: str) -> tuple[str, ...]:
    """The texts of a column of lists."""
    found = row[name]
    return tuple(map(text, found)) if isinstance(found, tuple) else ()


def trial_name(row: Row, axes: Iterable[str]) -> str:
    """`resnet50 amp default`, followed by the values of `axes`."""
    return " ".join(part for name in ("model", "precision", "mode", *axes) if (part := text(row[name])))


def flagged(rows: Sequence[Row]) -> list[str]:
    """A line for each flag with the first few trials that have it, and for host_bound the arms that are."""
    axes = varying(rows, AXES)
    having: dict[str, list[Row]] = {}
    for row in rows:
        for flag in flags(row):
            having.setdefault(flag, []).append(row)
    lines = []
    for flag, found in sorted(having.items()):
        details = [_detail(flag, row) for row in found]
        if len(found) == len(rows) > 1 and len(set(details)) == 1:
            lines.append(f"{flag}: every trial{details[0]}")
        else:
            names = [trial_name(row, axes) + detail for row, detail in zip(found[:MOST_NAMES], details, strict=False)]
            lines.append(f"{flag}: {shortened(names, len(found))}")
    return lines


def _detail(flag: str, row: Row) -> str:
    return f" ({text(row['host_bound_arms'])})" if flag == "host_bound" and row["host_bound_arms"] else ""


def shortened(names: Sequence[str], count: int | None = None, between: str = ", ") -> str:
    """The first few of some names and how many more there are; `count` of them where not all are given."""
    more = (len(names) if count is None else count) - MOST_NAMES
    return f"{between.join(names[:MOST_NAMES])}{f' and {more} more' if more > 0 else ''}"


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


def as_text(name: str) -> Column[Row]:
    """A column of what stands there; a batch size is a batch to people."""
    return Column("batch" if name == "batch_size" else name, lambda row: text(row[name]))


def _known(rows: Iterable[Row], name: str) -> bool:
    return any(row[name] is not None for row in rows)


def speedup_columns(rows: Sequence[Row]) -> tuple[Column[Row], ...]:
    """Columns of text over rows of speedups.csv."""
    axes = [as_text(name) for name in varying(rows, AXES)]
    servers, texts = _known(rows, "eager_p50_ms"), _known(rows, "tokens_per_s")
    columns = (
        as_text("model"),
        *axes,
        as_text("precision"),
        as_text("mode"),
        Column[Row]("speedup", speedup_or_status),
        *(
            [Column[Row]("device", lambda row: estimate(row, "device_speedup"))]
            if _known(rows, "device_speedup")
            else []
        ),
        *([Column[Row]("host-bound", host_bound_share)] if any("host_bound" in flags(row) for row in rows) else []),
        Column[Row]("eager ms", lambda row: figure(number(row, "eager_step_ms"))),
        Column[Row]("compiled ms", lambda row: figure(number(row, "compiled_step_ms"))),
        *([Column[Row](f"{arm} p50 / p90 / p99 ms", percentiles(arm)) for arm in ARMS] if servers else []),
        *([Column[Row]("tokens/s", lambda row: figure(number(row, "tokens_per_s")))] if servers and texts else []),
        *([Column[Row](f"{arm} J", joules(arm)) for arm in ARMS] if _known(rows, "eager_energy_j") else []),
        Column[Row]("compile s", compile_time),
        Column[Row]("break-even steps", break_even),
        Column[Row]("memory ratio", memory_ratio),
    )
    columns = tuple(column for column in columns if column.name != "memory ratio" or any(map(memory_ratio, rows)))
    return (*columns, Column[Row]("flags", flags)) if any(map(flags, rows)) else columns


def what_columns_mean(columns: Iterable[Column[Row]]) -> str:
    """A line on the columns of speedups that their names do not explain."""
    meanings = {
        "speedup": "speedup is eager / compiled step time",
        "device": "device is the same ratio of the time in which the GPU was busy, which the host cannot disturb",
        "host-bound": "host-bound is the share of wall time in which the GPU waits for the host, in the worse arm",
        "eager J": "J is what the whole GPU uses in a step",
        "break-even steps": "after break-even steps, compiling has paid",
        "memory ratio": "memory ratio is eager / compiled peak: above 1, compiling saves",
    }
    line = "; ".join(meanings[column.name] for column in columns if column.name in meanings)
    return f"{line[:1].upper()}{line[1:]}."


def summary_columns(rows: Sequence[Row]) -> tuple[Column[Row], ...]:
    """Columns of text over rows of summary.csv."""
    return (
        as_text("family"),
        *(as_text(name) for name in varying(rows, KEY)),
        Column("passed", lambda row: f"{row['passed']} of {row['models']}"),
        Column("AMP", lambda row: _counted(row, "geomean_amp", "models_amp")),
        Column("fp32", lambda row: _counted(row, "geomean_fp32", "models_fp32")),
        Column("weighted", lambda row: _counted(row, "weighted", "models_weighted")),
    )


def recommendation_columns(rows: Sequence[Row]) -> tuple[Column[Row], ...]:
    """Columns of text over rows of recommendations.csv."""
    axes = [as_text(name) for name in varying(rows, ("workload", "batch_size", "variant"))]
    return (
        as_text("model"),
        *axes,
        as_text("precision"),
        as_text("recommended"),
        Column[Row]("speedup", lambda row: estimate(row, "speedup")),
        *([Column[Row]("total s", total)] if _known(rows, "steps") else []),
        *(_listed(name) for name in ("tied", "ruled_out") if any(listed(row, name) for row in rows)),
        as_text("reason"),
    )


def _listed(name: str) -> Column[Row]:
    return Column(name.replace("_", " "), lambda row: shortened(listed(row, name)))


def total(row: Row) -> str:
    """Seconds of the job, compiling included; of eager where that is recommended."""
    compiled = number(row, "total_compiled_s")
    return figure(compiled if compiled is not None else number(row, "total_eager_s"))


def what_certainty_means(rows: Iterable[Row]) -> str:
    """A line on what stands behind the rows of recommendations."""
    found = {text(row["certainty"]) for row in rows}
    return "; ".join(meaning for kind, meaning in _CERTAINTY.items() if kind in found)


def where_eager_moved(rows: Iterable[Row]) -> str:
    """A line on recommendations that rest on eager step times which do not agree; empty when there are none."""
    found = [f"{text(row['model'])} ({text(row['precision'])})" for row in rows if EAGER_MOVED in text(row["reason"])]
    return f"{EAGER_MOVED}: {shortened(found)}" if found else ""


_CERTAINTY = {
    "tested": "modes differ where their step times do by more than chance (Welch's t over processes, Holm's rule)",
    "single_process": "modes with a single process cannot be tested: 5 % count as a difference",
    "untested": "where host noise allows no interval, 5 % count as a difference",
}


def cause(row: Row) -> str:
    """`host_bound, 10.3 ms of a step (43 %): the device waits for the host`."""
    lost_ms, share = number(row, "lost_ms_per_step"), number(row, "lost_fraction")
    cost = f", {figure(lost_ms)} ms of a step ({100 * (share or 0):.0f} %)" if lost_ms is not None else ""
    times = f", {text(row['count'])} times" if row["count"] is not None else ""
    return f"{text(row['cause'])}{cost}{times}: {text(row['detail'])}"


def cause_columns(rows: Sequence[Row], trials: Sequence[Row] = ()) -> tuple[Column[Row], ...]:
    """Columns of text over rows of causes.csv; the axes are those in which `trials` differ, if given, else the rows."""
    return (
        as_text("model"),
        *(as_text(name) for name in varying(trials or rows, AXES)),
        as_text("precision"),
        as_text("mode"),
        as_text("cause"),
        as_text("count"),
        Column[Row]("lost ms a step", lambda row: figure(number(row, "lost_ms_per_step"))),
        as_text("detail"),
    )


def failure_columns(rows: Sequence[Row]) -> tuple[Column[Row], ...]:
    """Columns of text over rows of failures.csv."""
    return (
        as_text("model"),
        *(as_text(name) for name in varying(rows, AXES)),
        as_text("precision"),
        as_text("mode"),
        as_text("status"),
        as_text("phase"),
        as_text("message"),
        as_text("log"),
    )


def _counted(row: Row, name: str, count: str) -> str:
    found = estimate(row, name)
    return f"{found} ({row[count]})" if found else ""


def judged_groups(rows: Sequence[Row], overall: str) -> list[Row]:
    """Rows of the summary that say something: some model was judged, and `overall` is more than one family."""
    judged = [row for row in rows if row["models"]]
    families = Counter(key(row) for row in judged if row["family"] != overall)
    return [row for row in judged if row["family"] != overall or families[key(row)] != 1]


def headlines(rows: Iterable[Row]) -> list[tuple[str, str, bool]]:
    """What a row holds fixed, its weighted mean and whether it has one; rows without one share a line by reason."""
    judged = [row for row in rows if row["models"]]
    found = [(key(row), headline(row), True) for row in judged if row["weighted"] is not None]
    without: dict[str, list[str]] = {}
    for row in judged:
        if row["weighted"] is None:
            without.setdefault(headline(row), []).append(key(row))
    return found + [(shortened(keys, between="; "), line, False) for line, keys in without.items()]


def not_judged(rows: Iterable[Row]) -> str:
    """A line on the groups in which nothing but what is not the compiler's fault came out."""
    keys = [key(row) for row in rows if not row["models"]]
    return f"no model was judged, see the failures: {'; '.join(keys)}" if keys else ""


def headline(row: Row) -> str:
    """The weighted mean of a row, e.g. `weighted 0.75 AMP + 0.25 fp32: 1.43 (3 models), these models [1.40, 1.46]`."""
    if row["weighted"] is None:
        return f"{WEIGHTING}: none, {_why_not_weighted(row)}"
    line = f"{WEIGHTING}: {ratio(number(row, 'weighted'))} ({models(row['models_weighted'])})"
    named = {
        "these models": interval(row, "weighted"),
        "a new model": of_a_new_model(row),
        "by device time": by_device_time(row),
    }
    if CLIPPED in text(row["variant"]):
        named["as in 2022, slowdowns raised to 1.0,"] = ratio(number(row, "weighted_clipped"))
    return ", ".join([line, *(f"{name} {found}" for name, found in named.items() if found)])


def of_a_new_model(row: Row) -> str:
    """The prediction for one more model; of few it is so wide that it says nothing, and stays in summary.csv."""
    known = (number(row, "models_weighted") or 0) >= MODELS_TO_PREDICT
    return interval(row, "weighted_new_model") if known else ""


def by_device_time(row: Row) -> str:
    """The weighted mean of device speedups, `1.52 [1.51, 1.52]`, with its models where those are others."""
    found, count = estimate(row, "weighted_device"), row["models_device"]
    return found if count == row["models_weighted"] or not found else f"{found} ({models(count)})"


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
    """One line on the brackets and parentheses that the speedups show."""
    parts = [f"95 % intervals are {meaning}" for kind, meaning in _MEANINGS.items() if kind in map(_kind, rows)]
    parts += [meaning for kind, meaning in _WITHOUT.items() if kind in map(_kind, rows)]
    return "; ".join(parts) + "." if parts else ""


_MEANINGS = {
    "processes": "over processes that share one compiled artifact, and speak of that artifact alone",
    "processes of several draws": "over processes within their draws, and speak of these compiled artifacts alone",
    "draws": "over compile caches of their own (draws), so that the luck of autotuning is in them",
}
_WITHOUT = {
    "range": "(low to high) is the range of the processes of a host-bound trial: host noise may have two humps, which "
    f"an interval over fewer than {PROCESSES_IF_HOST_BOUND} processes often misses",
    "none": "a speedup without an interval comes from a single process and may move from run to run",
}


def _kind(row: Row) -> str | None:
    """What stands beside the speedup of a row: a key of the meanings above, None without a speedup."""
    if row["speedup"] is None:
        return None
    if row["interval"] == "processes" and (number(row, "draws") or 0) > 1:
        return "processes of several draws"
    return "range" if shows_range(row) else text(row["interval"])
