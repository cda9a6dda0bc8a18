"""recommendations.csv: which mode for which model, a row for each model, batch size, workload,
precision and variant.

| column | meaning |
|---|---|
| `model family suite batch_size variant workload precision` | what is run; `batch_size` as in \
speedups.csv |
| `recommended` | the mode, or the backend where that has no modes, or `stay eager`, or `not \
known`, or which mode \
does not pay and which was not tried, or `nothing fits`; empty: nothing could be compared |
| `mode backend` | its config options; empty where no mode is recommended |
| `certainty` | `tested`; `single_process` and, because of host noise, `untested`: 5 % counts, or \
36 % (`HOST_NOISE`) |
| `speedup speedup_low speedup_high` | of its trial, as in speedups.csv; of a script its \
`loop_speedup` there |
| `tied` | other modes that cannot be told apart from it |
| `compile_cold_s compile_warm_s` | as in speedups.csv |
| `break_even_steps break_even_warm_steps` | as in speedups.csv |
| `memory_ratio` | eager / compiled peak: above 1, compiling saves |
| `max_memory_gib` | with `--max-memory-gib X`: X |
| `steps total_eager_s total_compiled_s` | with `--steps N`, or a script's `model.total_steps=N`: \
N, and wall seconds \
of so long a job, compiling included |
| `ruled_out` | `mode: why` of what failed or is beyond the limits given |
| `reason` | one sentence |
| `not_tried` | modes that could help where no mode that was tried does |
| `sweep` | of the trial that the answer rests on; without one, of all trials |
| `unknown` | with `not known`: the modes it is about, with the backend where it is not Inductor |
| `doubts` | doubt flags of the trial that is recommended, or that came nearest to eager where \
none is |
| `trial_id` | of the trial that the answer rests on: it is recommended, or not known, or came \
nearest to eager |
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

from sweeper.analysis.flags import DOUBTS, UNVERIFIED
from sweeper.core.record import ARMS
from sweeper.loading.entries import Entry
from sweeper.report import formatting
from sweeper.report.formatting import (
    estimate,
    figure,
    finite,
    number_column,
    shorten_names,
    text,
    text_column,
)
from sweeper.report.spec import TableSpec
from sweeper.report.table import MARKDOWN, PAGE, Column, Row, Table, TextColumn, Value
from sweeper.report.tables.candidates import HOST_NOISE, NOISE, Candidate
from sweeper.report.tables.decision import EAGER_MOVED, NO_LIMITS, Choice, Limits, choose
from sweeper.report.tables.speedups import name_sweep, select_columns
from sweeper.report.tables.units import backend


def _chosen_column(
    name: str, value: Callable[[Candidate], Value], kind: type = str
) -> Column[Choice]:
    return Column(name, lambda choice: value(choice.chosen) if choice.chosen else None, kind)


def _memory_ratio(one: Candidate) -> float | None:
    eager, compiled = (one.entry.result.readings.get(f"{arm}_peak_memory_bytes") for arm in ARMS)
    return eager / compiled if eager and compiled else None


def _total_eager_s(choice: Choice) -> float | None:
    return (
        choice.limits.steps * choice.eager_s
        if choice.limits.steps and choice.eager_s is not None
        else None
    )


def _total_compiled_s(choice: Choice) -> float | None:
    return choice.chosen.total_s(choice.limits.steps) if choice.chosen else None


COLUMNS: tuple[Column[Choice], ...] = (
    *select_columns(("model", "family", "suite"), lambda choice: choice.entries[0]),
    Column("batch_size", lambda choice: choice.batch_size, int),
    *select_columns(("variant", "workload", "precision"), lambda choice: choice.entries[0]),
    Column("recommended", lambda choice: choice.recommended),
    _chosen_column("mode", lambda one: one.entry.record.trial.mode),
    _chosen_column("backend", lambda one: backend(one.entry)),
    Column("certainty", lambda choice: choice.certainty),
    _chosen_column("speedup", lambda one: one.own_speedup, float),
    _chosen_column("speedup_low", lambda one: one.times.low, float),
    _chosen_column("speedup_high", lambda one: one.times.high, float),
    Column("tied", lambda choice: choice.tied, tuple),
    _chosen_column("compile_cold_s", lambda one: one.compile_s, float),
    _chosen_column("compile_warm_s", lambda one: one.compile_warm_s, float),
    _chosen_column("break_even_steps", lambda one: one.entry.result.break_even_steps, float),
    _chosen_column(
        "break_even_warm_steps", lambda one: one.entry.result.break_even_warm_steps, float
    ),
    _chosen_column("memory_ratio", _memory_ratio, float),
    Column("max_memory_gib", lambda choice: choice.limits.memory_gib, float),
    Column("steps", lambda choice: choice.limits.steps, int),
    Column("total_eager_s", _total_eager_s, float),
    Column("total_compiled_s", _total_compiled_s, float),
    Column("ruled_out", lambda choice: choice.ruled_out, tuple),
    Column("reason", lambda choice: choice.reason),
    Column("not_tried", lambda choice: choice.not_tried, tuple),
    Column("sweep", lambda choice: _name_sweeps(choice)),
    Column("unknown", lambda choice: choice.unknown, tuple),
    Column("doubts", lambda choice: choice.doubts, tuple),
    Column("trial_id", lambda choice: choice.rests_on.record.trial_id if choice.rests_on else None),
)


def _name_sweeps(choice: Choice) -> str:
    """Name the sweep of the trial that the answer rests on, or all that were compared."""
    entries = (choice.rests_on,) if choice.rests_on else choice.entries
    return ", ".join(dict.fromkeys(name_sweep(entry.folder.parent) for entry in entries))


def choices(entries: Iterable[Entry], limits: Limits = NO_LIMITS) -> list[Choice]:
    """Choose for each model, batch size, workload, precision and variant, in alphabetical order of
    the models.

    Of two records of one mode and backend one that is ok counts, then the later one. mode=eager has
    no say.
    """
    groups: dict[Hashable, dict[tuple[str, str | None], Entry]] = {}
    for entry in entries:
        trial = entry.record.trial
        if trial.mode != "eager":
            axes = trial.model.key, trial.batch_size, trial.workload, entry.variant
            group = groups.setdefault((*axes, trial.labels.precision, trial.precision), {})
            other = group.get((trial.mode, trial.backend))
            if other is None or other.record.status != "ok" or entry.record.status == "ok":
                group[trial.mode, trial.backend] = entry
    return sorted((choose(list(group.values()), limits) for group in groups.values()), key=_order)


def _order(choice: Choice) -> tuple[str, str, int, str, str]:
    trial, variant = choice.entries[0].record.trial, choice.entries[0].variant
    return (
        trial.labels.model,
        trial.workload,
        choice.batch_size or 0,
        variant,
        trial.labels.precision,
    )


def classify(row: Row) -> str:
    """Name the answer of a row: a mode, `stay eager`, `not known`, or `try MODE`."""
    not_tried = formatting.read_texts(row, "not_tried")
    return f"try {' and '.join(not_tried)}" if not_tried else text(row["recommended"])


def recommendations(found: Iterable[Choice]) -> Table:
    return Table.make(COLUMNS, found)


def text_columns(rows: Sequence[Row], _trials: Sequence[Row]) -> list[TextColumn]:
    return [
        text_column("model", folds=True),
        *formatting.axis_columns(rows, ("workload", "batch_size", "variant", "sweep")),
        text_column("precision", is_name=True),
        TextColumn("recommended", classify, folds=True),
        number_column("speedup", "speedup", lambda row: estimate(row, "speedup")),
        TextColumn(
            "total s", lambda row: figure(_total_s(row)), _total_s, align_right=True, needs="steps"
        ),
        *(_list_column(name) for name in ("tied", "ruled_out") if any(row[name] for row in rows)),
        text_column("reason", media=(PAGE, MARKDOWN)),
    ]


def _total_s(row: Row) -> float | None:
    """Return the seconds of the job, compiling included; of eager where that is recommended."""
    compiled_s = finite(row, "total_compiled_s")
    return compiled_s if compiled_s is not None else finite(row, "total_eager_s")


def _list_column(name: str) -> TextColumn:
    return TextColumn(
        name.replace("_", " "),
        lambda row: shorten_names(formatting.read_texts(row, name)),
        folds=True,
    )


def _notes(rows: Sequence[Row]) -> list[str]:
    """Say what stands behind the recommendations, and name those that rest on something
    doubtful.
    """
    kinds = {row["certainty"] for row in rows}
    titles = {
        **{flag: f"from figures flagged {flag}" for flag in DOUBTS},
        UNVERIFIED: f"recommended without a verdict on the result ({UNVERIFIED})",
    }
    named = [
        (title, [row for row in rows if doubt in formatting.read_texts(row, "doubts")])
        for doubt, title in titles.items()
    ]
    named.append((EAGER_MOVED, [row for row in rows if EAGER_MOVED in text(row["reason"])]))
    return [
        "; ".join(meaning for kind, meaning in _CERTAINTY.items() if kind in kinds),
        *(f"{title}: {shorten_names(list(map(_name, found)))}" for title, found in named if found),
    ]


def _name(row: Row) -> str:
    return f"{text(row['model'])} ({text(row['precision'])})"


_MARGINS = (
    f"{100 * NOISE:.0f} % count as a difference, {100 * HOST_NOISE:.0f} % where a step "
    "waits for the host"
)
_CERTAINTY = {
    "tested": "modes differ where their step times do by more than chance (Welch's t over "
    "processes, Holm's rule)",
    "single_process": f"modes with a single process cannot be tested: {_MARGINS}",
    "untested": f"where host noise allows no interval, {_MARGINS}",
}
SPEC = TableSpec(
    "recommendations",
    "Recommendations",
    lambda findings: recommendations(choices(findings.entries, findings.limits)),
    text_columns,
    notes=_notes,
    runs_apart=True,
    max_terminal_rows=20,
)
