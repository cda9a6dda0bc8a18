"""recommendations.csv: the answer for each model, batch size, workload, precision and variant.

| column | meaning |
|---|---|
| `model family suite batch_size variant workload precision` | what is run; `batch_size` as in \
speedups.csv |
| `recommended` | the mode to take, or the backend where that has no modes; `stay eager`; `open` |
| `mode backend` | its config options; empty where no mode is to be taken |
| `sure` | whether the answer is sure |
| `why_unsure` | what keeps it from being sure: `one process`, `unverified`, `the interval reaches \
both answers`, `disturbed: ...`, `its compile time is an upper bound` |
| `speedup speedup_low speedup_high` | of its trial, as in speedups.csv; of a script its \
`loop_speedup` there |
| `ends` | what the ends come from: `processes`, or the `margin` of a single process |
| `device_speedup` | as in speedups.csv |
| `tied` | other modes that cannot be told apart from it |
| `compile_cold_s compile_warm_s` | as in speedups.csv |
| `break_even_steps break_even_warm_steps` | as in speedups.csv |
| `memory_ratio` | eager / compiled peak: above 1, compiling saves |
| `max_memory_gib` | with `--max-memory-gib X`: X |
| `steps total_eager_s total_compiled_s` | with `--steps N`, or a script's `model.total_steps=N`, \
or of a script that ended by itself: N, or its own number of steps, and wall seconds of so long a \
job, compiling included |
| `ruled_out` | `mode: why` of what failed or is beyond the limits given |
| `reason` | the answer in one sentence |
| `not_tried` | modes that could help where no mode that was tried does |
| `sweep trial_id` | of the trial that the answer rests on: it is taken, or came nearest; without \
one, the sweeps of all trials |
"""

from collections.abc import Sequence

from sweeper.analysis.gains import MIN_GAIN
from sweeper.loading.entries import Entry
from sweeper.report.answers.candidates import Candidate
from sweeper.report.answers.decision import OPEN, Answer
from sweeper.report.answers.findings import Findings
from sweeper.report.answers.speedups import peak_ratio
from sweeper.report.answers.trials import name_sweep
from sweeper.report.columns.column import MARKDOWN, PAGE, Column, lift
from sweeper.report.columns.formats import ratio, shorten_names

from .spec import TableSpec
from .trials import file_columns, trial_columns


def _of_best(column: Column[Candidate]) -> Column[Answer]:
    return lift(column, lambda answer: answer.best)


def _find_trial(answer: Answer) -> Entry | None:
    return answer.best.entry if answer.best else None


def _name_sweeps(answer: Answer) -> str:
    """Name the sweep of the trial that the answer rests on, or all that were compared."""
    entries = (answer.best.entry,) if answer.best else answer.entries
    return ", ".join(dict.fromkeys(map(name_sweep, entries)))


def _show_answer(answer: Answer) -> str:
    unsure = "" if answer.is_sure or answer.verdict == OPEN else ", unsure"
    return f"{answer.recommended}{unsure}"


def _total_s(answer: Answer) -> float | None:
    """Return the seconds of the job in what is recommended, compiling included."""
    if answer.verdict == OPEN:
        return None
    return answer.total_compiled_s if answer.chosen else answer.total_eager_s


class RecommendationsTable(TableSpec[Answer]):
    name = "recommendations"
    title = "Recommendations"
    place = 20
    max_terminal_rows = 20
    columns: Sequence[Column[Answer]] = (
        *trial_columns("model", "workload"),
        *file_columns("family", "suite"),
        Column(
            "batch_size",
            lambda answer: answer.batch_size,
            int,
            title="batch",
            is_axis=True,
            is_name=True,
        ),
        *trial_columns("variant"),
        Column("sweep", _name_sweeps, title="sweep", is_axis=True, is_name=True, is_filter=True),
        *trial_columns("precision"),
        Column("", _show_answer, title="answer", folds=True),
        Column("recommended", lambda answer: answer.recommended),
        *file_columns(
            "mode",
            "backend",
            get_entry=lambda answer: answer.chosen.entry if answer.chosen else None,
        ),
        Column("sure", lambda answer: answer.is_sure, bool),
        Column("why_unsure", lambda answer: answer.why_unsure, tuple),
        _of_best(
            Column(
                "speedup",
                lambda one: one.gain.value,
                float,
                title="speedup",
                text=lambda one: f"{one.shown} {one.bounds}",
            )
        ),
        _of_best(Column("speedup_low", lambda one: one.gain.low, float)),
        _of_best(Column("speedup_high", lambda one: one.gain.high, float)),
        _of_best(Column("ends", lambda one: "margin" if one.gain.by_margin else "processes")),
        *file_columns(
            "device_speedup",
            "compile_cold_s",
            "compile_warm_s",
            "break_even_steps",
            "break_even_warm_steps",
            get_entry=_find_trial,
        ),
        Column("", _total_s, float, title="total s", align_right=True),
        Column(
            "tied",
            lambda answer: answer.tied,
            tuple,
            title="tied",
            text=lambda answer: shorten_names(answer.tied),
            folds=True,
        ),
        _of_best(Column("memory_ratio", lambda one: peak_ratio(one.entry), float)),
        Column("max_memory_gib", lambda answer: answer.limits.memory_gib, float),
        Column("steps", lambda answer: answer.limits.steps, int),
        Column("total_eager_s", lambda answer: answer.total_eager_s, float),
        Column("total_compiled_s", lambda answer: answer.total_compiled_s, float),
        Column(
            "ruled_out",
            lambda answer: answer.ruled_out,
            tuple,
            title="ruled out",
            text=lambda answer: shorten_names(answer.ruled_out),
            folds=True,
        ),
        Column("reason", str, title="why", media=(PAGE, MARKDOWN)),
        Column("not_tried", lambda answer: answer.not_tried, tuple),
        *file_columns("trial_id", get_entry=_find_trial),
    )

    def items(self, findings: Findings) -> Sequence[Answer]:
        return findings.answers

    def notes(self, findings: Findings) -> Sequence[str]:
        """Say when an answer is `compile` and sure, and what the speedup of a rung is over."""
        if not findings.answers:
            return []
        lines = []
        if any(answer.trial.labels.rung for answer in findings.answers):
            lines.append("the speedup of a rung is over eager with the same options")
        lines.append(
            f"the answer is compile from {ratio(1 + MIN_GAIN)}x on, in a job of `--steps N` only "
            "where it pays there too; it is sure where the whole interval over several processes "
            "gives it, the result is verified, and no disturbance is larger than the distance to "
            "that point; brackets hold the interval, and parentheses the range of processes where "
            "there is none, or the margin of one process"
        )
        return lines
