"""Records of trainings of a user's own script, with loops that a test can compute in its head."""

from __future__ import annotations

from dataclasses import replace

from records import make_process, make_record

from sweeper.core.libraries import SCRIPT
from sweeper.core.record import LoopRun, Process, Record, ScriptRun
from sweeper.core.trial import Labels, Model, Trial

COMPILE_S = 40.0


def make_run(compiled_s: float, index: int = 0) -> Process:
    """A process whose eager loop takes 0.1 s per step."""
    script = ScriptRun(
        modules=("Net",),
        loop_eager=LoopRun(100, 0.1, None, 0.0),
        loop_compiled=LoopRun(100, compiled_s, None, 0.0),
    )
    return replace(
        make_process(index=index), compile_s=COMPILE_S if index == 0 else 1.0, script=script
    )


def make_trained(
    total_steps: int | None,
    *compiled_s: float,
    mode: str = "default",
    device: str = "cpu",
    path: str = "train.py",
    **changes: object,
) -> Record:
    labels = Labels("train.py", "own", total_steps=total_steps)
    trial = Trial(
        Model(SCRIPT, path), 1, labels, mode=mode, workload=SCRIPT, device=device, optimizer="none"
    )
    processes = tuple(make_run(step_s, index) for index, step_s in enumerate(compiled_s))
    return replace(make_record(trial=trial), processes=processes, **changes)  # type: ignore[arg-type]
