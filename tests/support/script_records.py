"""Records of trainings of a user's own script, with loops that a test can compute in its head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from records import make_process, make_record

from sweeper.core.libraries import SCRIPT
from sweeper.core.record import ARMS, LoopRun, Process, Record, ScriptRun
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


def make_loop(
    eager_s: Sequence[float],
    compiled_s: Sequence[float],
    loader_s: Sequence[float] = (0.0, 0.0),
    **seen: object,
) -> Process:
    """A process whose eager step and loop take so long, and compiled ones; the loops wait for their
    loader for `loader_s` of it.
    """
    loops = {}
    for arm, (_, step_s), wait_s in zip(ARMS, (eager_s, compiled_s), loader_s, strict=True):
        loops[f"loop_{arm}"] = LoopRun(89, step_s, wait_s, 1.0)
    script = ScriptRun(**{"num_shapes": 1, **loops, **seen})  # type: ignore[arg-type]
    process = make_process(eager_s[0] / compiled_s[0], eager_s=eager_s[0])
    return replace(process, compile_s=COMPILE_S, script=script)


# PyTorch's ImageNet example with ResNet-50 on an H100, whose loader has twelve workers: seconds of
# a step, and of a step of the loop.
IMAGENET = make_loop((0.04197, 0.04522), (0.03188, 0.04058), (0.00013, 0.00012))


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
