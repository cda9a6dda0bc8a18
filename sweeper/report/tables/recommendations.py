"""recommendations.csv: which mode for which model, a row for each model, batch size, workload,
precision and variant.

| column | meaning |
|---|---|
| `model family suite batch_size variant workload precision` | what is run; `batch_size` as in \
speedups.csv |
| `recommended` | the mode, or the backend where that has no modes, or `stay eager`, or `not \
known`, or which mode does not pay and which was not tried, or `nothing fits`; empty: nothing \
could be compared |
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
N, and wall seconds of so long a job, compiling included |
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

from collections import defaultdict
from collections.abc import Sequence

from sweeper.analysis.flags import DOUBTS, UNVERIFIED
from sweeper.loading.entries import Entry
from sweeper.report.answers.candidates import HOST_NOISE, NOISE, Candidate
from sweeper.report.answers.decision import EAGER_MOVED, Choice
from sweeper.report.answers.findings import Findings
from sweeper.report.answers.speedups import peak_ratio
from sweeper.report.answers.trials import name_sweep
from sweeper.report.columns.column import MARKDOWN, PAGE, Column, lift
from sweeper.report.columns.formats import interval, percent, ratio, shorten_names

from .spec import TableSpec
from .trials import file_columns, trial_columns

MARGINS = (
    f"{percent(NOISE)} count as a difference, {percent(HOST_NOISE)} where a step waits for the host"
)
CERTAINTY = {
    "tested": "modes differ where their step times do by more than chance (Welch's t over "
    "processes, Holm's rule)",
    "single_process": f"modes with a single process cannot be tested: {MARGINS}",
    "untested": f"where host noise allows no interval, {MARGINS}",
}


TITLES = {
    UNVERIFIED: f"recommended without a verdict on the result ({UNVERIFIED})",
    EAGER_MOVED: EAGER_MOVED,
}


def _get_entry(choice: Choice) -> Entry:
    return choice.entries[0]


def _of_chosen(column: Column[Candidate]) -> Column[Choice]:
    return lift(column, lambda choice: choice.chosen)


def _name_sweeps(choice: Choice) -> str:
    """Name the sweep of the trial that the answer rests on, or all that were compared."""
    if choice.rests_on:
        return name_sweep(choice.rests_on)
    return ", ".join(dict.fromkeys(map(name_sweep, choice.entries)))


def _show_speedup(chosen: Candidate) -> str:
    bounds = interval(chosen.times.low, chosen.times.high)
    return f"{ratio(chosen.own_speedup)} {bounds}".strip()


def _total_s(choice: Choice) -> float | None:
    """Return the seconds of the job, compiling included; of eager where that is recommended."""
    if choice.total_compiled_s is not None:
        return choice.total_compiled_s
    return choice.total_eager_s


CHOSEN = (
    "mode",
    "backend",
    "compile_cold_s",
    "compile_warm_s",
    "break_even_steps",
    "break_even_warm_steps",
)
COLUMNS: tuple[Column[Choice], ...] = (
    *trial_columns(("model", "workload"), _get_entry),
    *file_columns(("family", "suite"), _get_entry),
    Column(
        "batch_size",
        lambda choice: choice.batch_size,
        int,
        title="batch",
        is_axis=True,
        is_name=True,
    ),
    *trial_columns(("variant",), _get_entry),
    Column("sweep", _name_sweeps, title="sweep", is_axis=True, is_name=True, is_filter=True),
    *trial_columns(("precision",), _get_entry),
    Column("", lambda choice: choice.answer, title="recommended", folds=True),
    Column("recommended", lambda choice: choice.recommended),
    *map(_of_chosen, file_columns(CHOSEN)),
    Column("certainty", lambda choice: choice.certainty),
    _of_chosen(
        Column("speedup", lambda one: one.own_speedup, float, title="speedup", text=_show_speedup)
    ),
    _of_chosen(Column("speedup_low", lambda one: one.times.low, float)),
    _of_chosen(Column("speedup_high", lambda one: one.times.high, float)),
    Column("", _total_s, float, title="total s", align_right=True),
    Column(
        "tied",
        lambda choice: choice.tied,
        tuple,
        title="tied",
        text=lambda choice: shorten_names(choice.tied),
        folds=True,
    ),
    _of_chosen(Column("memory_ratio", lambda one: peak_ratio(one.entry), float)),
    Column("max_memory_gib", lambda choice: choice.limits.memory_gib, float),
    Column("steps", lambda choice: choice.limits.steps, int),
    Column("total_eager_s", lambda choice: choice.total_eager_s, float),
    Column("total_compiled_s", lambda choice: choice.total_compiled_s, float),
    Column(
        "ruled_out",
        lambda choice: choice.ruled_out,
        tuple,
        title="ruled out",
        text=lambda choice: shorten_names(choice.ruled_out),
        folds=True,
    ),
    Column("reason", lambda choice: choice.reason, title="reason", media=(PAGE, MARKDOWN)),
    Column("not_tried", lambda choice: choice.not_tried, tuple),
    Column("unknown", lambda choice: tuple(one.name for one in choice.unknown), tuple),
    Column("doubts", lambda choice: choice.doubts, tuple),
    *file_columns(("trial_id",), lambda choice: choice.rests_on),
)


class RecommendationsTable(TableSpec[Choice]):
    name = "recommendations"
    title = "Recommendations"
    place = 20
    max_terminal_rows = 20
    columns = COLUMNS

    def items(self, findings: Findings) -> Sequence[Choice]:
        return findings.choices

    def notes(self, items: Sequence[Choice]) -> Sequence[str]:
        """Say what stands behind the recommendations, and name those that rest on something
        doubtful.
        """
        kinds = set()
        doubted: dict[str, list[str]] = defaultdict(list)  # models by what is doubtful
        for choice in items:
            kinds.add(choice.certainty)
            labels = choice.trial.labels
            name = f"{labels.model} ({labels.precision})"
            for doubt in choice.doubts:
                doubted[doubt].append(name)
            if choice.doubts_eager:
                doubted[EAGER_MOVED].append(name)
        lines = ["; ".join(CERTAINTY[kind] for kind in CERTAINTY if kind in kinds)]
        for doubt in (*DOUBTS, EAGER_MOVED):
            if doubt in doubted:
                title = TITLES.get(doubt, f"from figures flagged {doubt}")
                lines.append(f"{title}: {shorten_names(doubted[doubt])}")
        return lines
