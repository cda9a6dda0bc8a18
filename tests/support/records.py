"""Records made by hand for tests: what a trial would have left, with figures that a test can
compute in its head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sweeper.core.files import write_text
from sweeper.core.paths import SweepPaths
from sweeper.core.record import (
    Diagnostics,
    GraphBreak,
    Process,
    Record,
    Round,
    ScriptRun,
    SizeCount,
)
from sweeper.core.trial import Labels, Model, Precision, Trial

STEPS = 10  # of a block
PRECISIONS = {
    "amp": Precision(autocast="auto", grad_scaler=True),
    "bf16": Precision(parameters="bfloat16"),
}
GIB = 2**30


def make_trial(
    model: str = "resnet50",
    precision: str = "amp",
    *,
    family: str = "cnn",
    batch_size: int = 32,
    weight: str | None = None,
    **axes: object,
) -> Trial:
    """`weight` None: the precision's own, amp and fp32 have one."""
    own = precision if precision in ("amp", "fp32") else None
    labels = Labels(model=model, precision=precision, family=family, weight=weight or own)
    numbers = PRECISIONS.get(precision, Precision())
    return Trial(Model("torchvision", model), batch_size, labels, precision=numbers, **axes)  # type: ignore[arg-type]


def make_process(
    speedup: float = 2.0,
    *,
    index: int = 0,
    draw: int = 0,
    cold: bool | None = None,
    eager_s: float = 0.02,
) -> Process:
    """Two rounds that agree; a step takes `eager_s` seconds in eager."""
    block_s = eager_s * STEPS
    rounds = tuple(Round(order, block_s, block_s / speedup) for order in ("AB", "BA"))
    cold = index == 0 if cold is None else cold
    return Process(
        index, draw, cold, compile_s=3.0 if cold else 0.5, steps_per_block=STEPS, rounds=rounds
    )


def make_record(
    model: str = "resnet50",
    precision: str = "amp",
    speedups: Sequence[float] = (2.0,),
    *,
    status: str = "ok",
    trial: Trial | None = None,
    sweep: str = "night",
    flags: tuple[str, ...] = (),
    message: str | None = None,
    **axes: object,
) -> Record:
    """A record with a process for each of `speedups`; a status other than ok has none."""
    trial = trial or make_trial(model, precision, **axes)  # type: ignore[arg-type]
    ok = status == "ok"
    return Record(
        trial_id=trial.id,
        sweep=sweep,
        label=trial.label,
        status=status,
        trial=trial,
        flags=flags,
        phase=None if ok else "compiling",
        message=message,
        log=None if ok else "worker-0.log",
        environment={
            "versions": {"torch": "2.13.0"},
            "device": {"type": "cuda", "name": "NVIDIA H200"},
        },
        processes=tuple(make_process(speedup, index=i) for i, speedup in enumerate(speedups))
        if ok
        else (),
        diagnostics=Diagnostics(
            graphs=1, graph_breaks=(GraphBreak("print", count=2),), recompiles=0
        )
        if ok
        else None,
    )


def make_script(name: str, sizes: Mapping[int, int], **seen: object) -> Record:
    """A record of a script whose loop saw each of some sizes so many times."""
    counts = tuple(SizeCount(size, count) for size, count in sizes.items())
    script = ScriptRun(sizes=counts, num_shapes=len(sizes), **seen)  # type: ignore[arg-type]
    return replace(
        make_record(name, "own", workload="script"),
        processes=(replace(make_process(), script=script),),
    )


def write_sweep(runs: Path, records: Sequence[Record], name: str = "night") -> Path:
    """The folder of a sweep that left `records`."""
    paths = SweepPaths.of(name, runs)
    for record in records:
        trial = paths.trial(record.label, record.trial_id)
        write_text(trial.trial, "{}")
        write_text(trial.record, record.dumps())
    return paths.folder
