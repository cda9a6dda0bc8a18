"""Records with known step times, sweeps of them, and the command that compares two."""

from __future__ import annotations

import contextlib
import io
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from records import make_process, make_record, write_sweep

from sweeper.compare.__main__ import main
from sweeper.compare.pairs import Pair, make_side
from sweeper.core.record import PerArm, Record

WOBBLE = (1.0, 1.001, 0.999, 1.0005, 0.9995)  # five processes
GIB = 2**30
NOISY = (0.9, 1.1, 1.0, 1.05, 0.95)
MODELS = ("alexnet", "densenet", "resnet50", "vgg16")


def measured(
    model: str = "resnet50",
    compiled: float = 1.0,
    eager: float = 1.0,
    *,
    wobble: Sequence[float] = WOBBLE,
    draws: Sequence[int] | None = None,
    code: str | None = "code",
    compile_s: float = 30.0,
    memory: float = GIB,
    **changes: object,
) -> Record:
    """A trial with a process for each of `wobble`: a step takes 20 ms in eager, 10 ms compiled,
    times these factors.
    """
    draws = draws or [0] * len(wobble)
    processes = []
    for index, (factor, draw) in enumerate(zip(wobble, draws, strict=True)):
        cold = draw not in draws[:index]
        process = make_process(
            2 * eager / compiled / factor, index=index, draw=draw, cold=cold, eager_s=0.02 * eager
        )
        processes.append(
            replace(
                process,
                compile_s=compile_s * factor if cold else 1.0,
                code_fingerprint=code,
                autotuning_fingerprint=code and "winners",
                memory_bytes=PerArm(GIB, memory),
            )
        )
    record = make_record(model, **changes)  # type: ignore[arg-type]
    return replace(record, processes=tuple(processes))


def pair(base: Record | None, head: Record | None) -> Pair:
    return Pair(*(make_side(record) if record else None for record in (base, head)))


def on_device(
    record: Record,
    compiled_s: float,
    eager_s: float = 0.019,
    *,
    scatter: float = 0.001,
) -> Record:
    """The record with device step times, of which the compiled one scatters over processes by this
    share.
    """
    processes = [
        replace(process, device_step_s=PerArm(eager_s, compiled_s * (1 + scatter * (index % 2))))
        for index, process in enumerate(record.processes)
    ]
    return replace(record, processes=tuple(processes))


def on(device: str, record: Record) -> Record:
    return replace(
        record, environment={**record.environment, "device": {"type": "cuda", "name": device}}
    )


def upgraded(record: Record, **device: object) -> Record:
    """The record of the next torch, and of a device with these properties."""
    versions = {"torch": "2.14.0", "triton": "3.8.0", "cuda": "13.2"}
    found = {"type": "cuda", "name": "NVIDIA H200", **device}
    return replace(record, environment={"versions": versions, "device": found})


def compare(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The same in this process, which takes a tenth of the time."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(arguments)
        except SystemExit as ended:
            code = int(ended.code or 0)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def two_sweeps(folder: Path, head: Sequence[Record]) -> None:
    """`old` with four models, and `new` with `head` in place of the first of them."""
    write_sweep(folder / "runs", [measured(model) for model in MODELS], "old")
    taken = {record.trial_id for record in head}
    rest = [record for model in MODELS if (record := measured(model)).trial_id not in taken]
    write_sweep(folder / "runs", [*head, *rest], "new")
