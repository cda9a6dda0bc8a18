"""ablation.csv: what each feature of the compiler does to a model. A row per trial of an ablation,
after a row of the one that the others are compared with.

| column | meaning |
|---|---|
| `model family batch_size workload precision sweep` | what all of an ablation have in common |
| `feature` | what is left out, or added where it is off by default; empty: nothing |
| `by_default` | whether it is `on` or `off` in torch |
| `verdict` | `pays`: steps with it are faster; `hurts`: they are slower; `breaks`: the trial with \
it fails or is wrong; `needed`: the trial without it does; `no difference`: as fast as draws of \
one program; `no effect`: the same generated code, which is not timed; `not sure`: the interval \
reaches several of these |
| `step_without_over_with` | step time without the feature over that with it; of the device \
where that is known of both; of wall time for CUDA graphs and scripts. `_low _high` are of the \
processes of one session |
| `error` | error of the compiled step over that of eager, both against the reference |
| `compile_cold_s compiled_peak_memory_mib trial_id status flags` | of its trial |

Trials are compared as modes are. Of a script the verdict is about its loop.
"""

from collections.abc import Sequence
from dataclasses import replace

from sweeper.report.answers.ablations import FeatureAnswer, conclude
from sweeper.report.answers.findings import Findings
from sweeper.report.columns.column import Column, estimate_columns
from sweeper.report.columns.formats import estimated, sentence

from .spec import TrialTable
from .trials import file_columns, trial_columns

COSTS: list[Column[FeatureAnswer]] = trial_columns("compile_cold_s", "compiled_peak_memory_mib")


class AblationTable(TrialTable[FeatureAnswer]):
    name = "ablation"
    title = "Which features of the compiler pay"
    word = "Ablation"
    place = 75
    columns: Sequence[Column[FeatureAnswer]] = (
        *trial_columns("model", "workload", "batch_size", "sweep", "precision"),
        Column(
            "feature",
            lambda one: one.feature.title,
            title="feature",
            text=lambda one: one.feature.title or "(the default)",
            is_name=True,
        ),
        Column("by_default", lambda one: one.feature.usual, title="by default"),
        Column("verdict", lambda one: one.verdict, title="verdict", is_filter=True),
        *estimate_columns(
            "step_without_over_with",
            lambda one: one.speedup,
            title="step without / with",
            text=lambda one: one.failure or estimated(one.speedup),
            meaning="above 1 a step with the feature is faster",
        ),
        Column("error", lambda one: one.error, float, title="error / eager's", align_right=True),
        replace(COSTS[0], title="compile s", align_right=True),
        replace(COSTS[1], title="peak MiB", align_right=True),
        *file_columns("family", "trial_id", "status", "flags"),
    )

    def items(self, findings: Findings) -> Sequence[FeatureAnswer]:
        return [one for answer in findings.ablations for one in answer.features]

    def explain(self, findings: Findings) -> str:
        said = ("the row without a feature is the default", *conclude(findings.ablations))
        return " ".join(map(sentence, said))
