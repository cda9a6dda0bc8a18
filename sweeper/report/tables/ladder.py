"""ladder.csv: how much of the speedup comes from torch.compile. A row per rung of each model run
in several ways.

A rung has the free one-liners of the rungs before it, as far as they apply; compiled rungs do
without the CUDA graph that is recorded by hand. A ladder needs eager as built and one other way to
run eager. A trial that ran with a smaller batch has no figures, and its status is `oom with batch
N`.

| column | meaning |
|---|---|
| `model family batch_size workload precision sweep` | what all rungs of a ladder have in common |
| `variant` | every other axis that is not at its default, and the device where a sweep has \
several |
| `rung` | `eager`, `eager + channels_last`, ..., `compile max-autotune` |
| `mode backend trial_id status flags` | of its trial, or of the first one whose eager arm stands \
for it |
| `step_ms` | wall time per step: of both arms where eager is timed against eager, of the compiled \
arm where it is not |
| `speedup speedup_low speedup_high` | over eager as built |
| `before` | the last rung above that worked |
| `speedup_over_before` | over that rung, with `_low _high` |
| `device_step_ms` | device step time, where known |
| `strongest_eager` | the fastest rung without torch.compile, where all that apply were tried |
| `speedup_over_strongest_eager` | of a compiled rung, with `_low _high` |

Trials are compared unpaired, by Welch's t over processes (over draws where there are three).
"""

from collections.abc import Sequence

from sweeper.analysis.stats import Estimate
from sweeper.loading.ladder import Step
from sweeper.report.answers.findings import Findings
from sweeper.report.answers.ladders import Rung, find_ladder_axes
from sweeper.report.columns.column import MARKDOWN, PAGE, Column, estimate_columns, lift
from sweeper.report.columns.formats import estimated, shorten_names

from .spec import TrialTable
from .trials import file_columns, trial_columns


def show_speedup_or_status(rung: Rung) -> str:
    if rung.step.status == "ok":
        return estimated(rung.speedup)
    return rung.step.status


class LadderTable(TrialTable[Rung]):
    name = "ladder"
    title = "How much of the speedup comes from torch.compile"
    word = "Ladder"
    place = 70
    columns: Sequence[Column[Rung]] = (
        *trial_columns("model", "workload", "batch_size"),
        Column(
            "variant",
            lambda rung: rung.variant,
            title="variant",
            folds=True,
            is_name=True,
            is_axis=True,
        ),
        *trial_columns("sweep", "precision"),
        Column("rung", lambda rung: rung.title, title="rung", is_name=True),
        lift(
            Column[Estimate](
                "step_ms", lambda time: time.ratio * 1e3, float, title="step ms", align_right=True
            ),
            lambda rung: rung.step.time,
        ),
        lift(
            Column[float](
                "device_step_ms",
                lambda step_s: step_s * 1e3,
                float,
                title="device ms",
                align_right=True,
            ),
            lambda rung: rung.device_step_s,
        ),
        *estimate_columns(
            "speedup",
            lambda rung: rung.speedup,
            title="over eager as built",
            text=show_speedup_or_status,
            meaning="speedups are ratios of step times of different trials",
        ),
        *estimate_columns(
            "speedup_over_before",
            lambda rung: rung.over_before,
            title="over the rung before",
            meaning="the rung before is the last one above that worked",
        ),
        *estimate_columns(
            "speedup_over_strongest_eager",
            lambda rung: rung.over_strongest,
            title="over strongest eager",
        ),
        Column(
            "flags", lambda rung: rung.entry.flags, tuple, title="flags", media=(PAGE, MARKDOWN)
        ),
        lift(Column[Step]("before", lambda step: step.title), lambda rung: rung.before),
        lift(
            Column[Step]("strongest_eager", lambda step: step.title),
            lambda rung: rung.ladder.strongest,
        ),
        Column("status", lambda rung: rung.step.status, is_filter=True),
        *file_columns("family", "mode", "backend", "trial_id"),
    )

    def items(self, findings: Findings) -> Sequence[Rung]:
        return [rung for answer in findings.ladders for rung in answer.rungs]

    def notes(self, findings: Findings) -> Sequence[str]:
        """Make a line per ladder that says how much of the best speedup torch.compile gives."""
        answers = findings.ladders
        axes = find_ladder_axes(answers)
        return [f"on {answer.name(axes)}: {answer.explain()}" for answer in answers]

    def explain(self, findings: Findings) -> str:
        spread = dict.fromkeys(answer.model for answer in findings.ladders if answer.num_gpus > 1)
        moved = ""
        if spread:
            moved = f" The rungs of {shorten_names(spread)} ran on several GPUs."
        return (
            "Each rung has the one-liners of those before it, as far as they apply to the model; "
            "the compiled ones have all of them and do without the CUDA graph by hand. The "
            f"strongest eager is the fastest rung without torch.compile.{moved}"
        )
