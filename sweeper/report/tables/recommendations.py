"""recommendations.csv: which mode for which model, a row for each model, batch size, workload, precision and variant.

| column | meaning |
|---|---|
| `model family suite batch_size variant workload precision` | what is run; `batch_size` the one used |
| `recommended` | the mode, or the backend where that has no modes, or `stay eager`; empty: nothing could be compared |
| `mode backend` | its config options; empty with `stay eager` |
| `certainty` | `tested`; `single_process`: no test, 5 % counts; `untested`: the same because of host noise |
| `speedup speedup_low speedup_high` | eager step time of all trials of the row / its own, 95 % interval (Welch) |
| `tied` | other modes that cannot be told apart from it |
| `compile_cold_s compile_warm_s` | as in speedups.csv |
| `break_even_steps break_even_warm_steps` | with the eager step time of all trials of the row |
| `memory_ratio` | eager / compiled peak: above 1, compiling saves |
| `max_memory_gib` | with `--max-memory-gib X`: X |
| `steps total_eager_s total_compiled_s` | with `--steps N`: N, and wall seconds of so long a job, compiling included |
| `ruled_out` | `mode: why` of what failed or is beyond the limits given |
| `reason` | one sentence |
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

from sweeper.analysis.metrics import break_even_steps
from sweeper.analysis.stats import Interval
from sweeper.loading.entries import Entry
from sweeper.report.formatting import _known, as_text, estimate, figure, listed, number, shortened, text, varying
from sweeper.report.table import Column, Row, Table, Value
from sweeper.report.tables.decision import EAGER_MOVED, Candidate, Choice, Limits, choose
from sweeper.report.tables.speedups import backend

NO_LIMITS = Limits()


def _of_first(name: str, value: Callable[[Entry], Value]) -> Column[Choice]:
    return Column(name, lambda choice: value(choice.entries[0]))


def _of_chosen(name: str, value: Callable[[Candidate], Value]) -> Column[Choice]:
    return Column(name, lambda choice: value(choice.chosen) if choice.chosen else None)


def _break_even(name: str, compile_s: Callable[[Entry], float | None]) -> Column[Choice]:
    def steps(choice: Choice) -> float | None:
        if choice.chosen is None:
            return None
        return break_even_steps(compile_s(choice.chosen.entry), choice.eager_s, choice.chosen.step.ratio)

    return Column(name, steps)


def _interval(one: Candidate) -> Interval | None:
    return one.speedup.interval()


def _memory_ratio(one: Candidate) -> float | None:
    eager, compiled = one.entry.result.eager_peak_memory_bytes, one.entry.result.compiled_peak_memory_bytes
    return eager / compiled if eager and compiled else None


def _total_eager_s(choice: Choice) -> float | None:
    steps = choice.limits.steps
    return steps * choice.eager_s if steps is not None and choice.eager_s is not None else None


COLUMNS: tuple[Column[Choice], ...] = (
    _of_first("model", lambda entry: entry.record.trial.labels.model),
    _of_first("family", lambda entry: entry.record.trial.labels.family),
    _of_first("suite", lambda entry: entry.record.trial.labels.suite),
    Column("batch_size", lambda choice: choice.batch_size),
    _of_first("variant", lambda entry: entry.variant),
    _of_first("workload", lambda entry: entry.record.trial.workload),
    _of_first("precision", lambda entry: entry.record.trial.labels.precision),
    Column("recommended", lambda choice: choice.recommended),
    _of_chosen("mode", lambda one: one.entry.record.trial.mode),
    _of_chosen("backend", lambda one: backend(one.entry)),
    Column("certainty", lambda choice: choice.certainty),
    _of_chosen("speedup", lambda one: one.speedup.ratio),
    _of_chosen("speedup_low", lambda one: bounds.low if (bounds := _interval(one)) else None),
    _of_chosen("speedup_high", lambda one: bounds.high if (bounds := _interval(one)) else None),
    Column("tied", lambda choice: choice.tied),
    _of_chosen("compile_cold_s", lambda one: one.compile_s),
    _of_chosen("compile_warm_s", lambda one: one.entry.result.compile_warm_s),
    _break_even("break_even_steps", lambda entry: entry.result.compile_cold_s),
    _break_even("break_even_warm_steps", lambda entry: entry.result.compile_warm_s),
    _of_chosen("memory_ratio", _memory_ratio),
    Column("max_memory_gib", lambda choice: choice.limits.memory_gib),
    Column("steps", lambda choice: choice.limits.steps),
    Column("total_eager_s", _total_eager_s),
    Column("total_compiled_s", lambda choice: choice.chosen.total_s(choice.limits.steps) if choice.chosen else None),
    Column("ruled_out", lambda choice: choice.ruled_out),
    Column("reason", lambda choice: choice.reason),
)


def choices(entries: Iterable[Entry], limits: Limits = NO_LIMITS) -> list[Choice]:
    """One for each model, batch size, workload, precision and variant, in alphabetical order of the models.

    Of two records of one mode and backend one that is ok counts, then the later one. mode=eager has no say.
    """
    groups: dict[Hashable, dict[tuple[str, str | None], Entry]] = {}
    for entry in entries:
        trial = entry.record.trial
        if trial.mode != "eager":
            group, place = groups.setdefault(_what_is_run(entry), {}), (trial.mode, trial.backend)
            held = group.get(place)
            if held is None or held.record.status != "ok" or entry.record.status == "ok":
                group[place] = entry
    found = [choose(list(group.values()), limits) for group in groups.values()]
    return sorted(found, key=_order)


def recommendations(found: Iterable[Choice]) -> Table:
    return Table.of(COLUMNS, found)


def _what_is_run(entry: Entry) -> Hashable:
    trial = entry.record.trial
    axes = trial.model.key, trial.batch_size, trial.workload, entry.variant
    return *axes, trial.labels.precision, trial.precision


def _order(choice: Choice) -> tuple[str, str, int, str, str]:
    trial = choice.entries[0].record.trial
    return (
        trial.labels.model,
        trial.workload,
        choice.batch_size,
        choice.entries[0].variant,
        trial.labels.precision,
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
