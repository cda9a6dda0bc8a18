"""scripts.csv: a row per trial of a user's own script, with what its loop gains and what was seen
of it.

| column | meaning |
|---|---|
| `trial_id model variant mode backend status flags sweep` | the trial; `model` is the script's \
name |
| `speedup` | of a step, both arms in one process on the same batches, with `_low _high` |
| `loop_speedup` | of the whole loop, each arm in runs of its own, with `_low _high` |
| `eager_loop_step_ms compiled_loop_step_ms` | wall time per step of these loops |
| `eager_loader_share compiled_loader_share` | share of that time in which the loop waits for its \
loader |
| `ceiling` | the largest possible loop speedup, if everything but that wait took no time |
| `break_even_steps` | of the loop: steps after which compiling with an empty cache has paid |
| `total_steps` | of the training: as the command named it, else as the script ended by itself |
| `saved_s` | seconds that compiling with an empty cache saves over these steps, with `_low \
_high`; below 0 it loses |
| `modules optimizers` | classes of the outermost modules that train, and of the optimizers |
| `dropout autocast` | whether a module has dropout in training mode; the number format of \
autocast in a step, e.g. `bfloat16`, or `off` |
| `batches_per_step` | of the loader; more than one where gradients are accumulated |
| `num_shapes recompiles` | different shapes of inputs in the compiled loop; compilations while it \
was timed |
| `compile_calls` | the script's own calls of `torch.compile` |
| `trajectory` | with `model.trajectory`, whether it trains as in eager: `same`, `differs` or \
`unknown` |
| `findings` | what to know and to do, in words |
"""

from collections.abc import Sequence

from sweeper.core.record import LoopRun
from sweeper.report.answers import trajectories
from sweeper.report.answers.findings import Findings
from sweeper.report.answers.scripts import Saving, ScriptAnswer, describe_call
from sweeper.report.answers.trials import find_varying, name_by
from sweeper.report.columns.column import MARKDOWN, PAGE, Column, estimate_column, lift
from sweeper.report.columns.formats import estimated, percent

from .spec import TrialTable
from .trials import file_columns, trial_columns


def _of_saving(column: Column[Saving]) -> Column[ScriptAnswer]:
    return lift(column, lambda script: script.saving)


class ScriptsTable(TrialTable[ScriptAnswer]):
    name = "scripts"
    title = "Your own scripts"
    place = 75
    columns: Sequence[Column[ScriptAnswer]] = (
        *trial_columns("model", "variant", "sweep", "mode"),
        *file_columns(
            "trial_id",
            "backend",
            "status",
            "flags",
            "speedup",
            "speedup_low",
            "speedup_high",
            "loop_speedup",
            "loop_speedup_low",
            "loop_speedup_high",
            "eager_loop_step_ms",
            "compiled_loop_step_ms",
            "eager_loader_share",
            "compiled_loader_share",
            "break_even_steps",
        ),
        estimate_column("", lambda script: script.entry.result.loop_speedup, title="loop"),
        estimate_column(
            "",
            lambda script: script.entry.result.speedup,
            title="step",
            text=lambda script: (
                estimated(script.entry.result.speedup) or script.entry.record.status
            ),
        ),
        lift(
            Column[float]("", float, float, title="loader", text=percent),
            lambda script: script.loader_share.eager,
        ),
        Column("ceiling", lambda script: script.ceiling, float),
        Column("total_steps", lambda script: script.total_steps, int),
        _of_saving(
            Column(
                "saved_s", lambda saving: saving.value_s, float, title="saved", text=Saving.describe
            )
        ),
        _of_saving(Column("saved_s_low", lambda saving: saving.low_s, float)),
        _of_saving(Column("saved_s_high", lambda saving: saving.high_s, float)),
        Column("modules", lambda script: script.seen.modules, tuple),
        Column("optimizers", lambda script: script.seen.optimizers, tuple, title="optimizer"),
        lift(
            Column[LoopRun]("batches_per_step", lambda loop: loop.batches, float),
            lambda script: script.seen.loop_eager,
        ),
        Column("num_shapes", lambda script: script.seen.num_shapes or None, int),
        lift(
            Column[LoopRun]("recompiles", lambda loop: loop.recompiles, int),
            lambda script: script.seen.loop_compiled,
        ),
        Column(
            "compile_calls",
            lambda script: tuple(map(describe_call, script.seen.compile_calls)),
            tuple,
        ),
        Column(
            "trajectory",
            lambda script: trajectories.name_verdict(script.seen.trajectory),
            title="trains alike",
        ),
        Column("dropout", lambda script: script.seen.dropout, bool, title="dropout"),
        Column("autocast", lambda script: script.seen.autocast, title="autocast"),
        Column(
            "findings",
            lambda script: script.findings,
            tuple,
            title="findings",
            text=lambda script: "; ".join(script.findings),
            media=(PAGE, MARKDOWN),
        ),
    )

    def items(self, findings: Findings) -> Sequence[ScriptAnswer]:
        return findings.scripts

    def notes(self, findings: Findings) -> Sequence[str]:
        axes = find_varying(
            [script.entry for script in findings.scripts], ("mode", "backend", "variant", "sweep")
        )
        lines = []
        for script in findings.scripts:
            name = name_by(script.entry, axes)
            lines += [f"on {name}: {finding}" for finding in script.findings]
        return lines
