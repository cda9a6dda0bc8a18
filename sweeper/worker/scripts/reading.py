"""What the leads of a script share: what each run needs, and what has been read of the script so far."""

from __future__ import annotations

import gc
import math
import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import torch

from sweeper.core.protocol import Job
from sweeper.core.record import LoopRun, ScriptRun, Shapes, SizeCount, Trajectory
from sweeper.worker.monitoring import round_monitor
from sweeper.worker.scripts.arms import Arms
from sweeper.worker.scripts.compile_calls import CompileCalls
from sweeper.worker.scripts.loop import Loop, run_steps
from sweeper.worker.session import Notes

EAGER_STEPS = 4  # before anything is compiled; they show how many batches a step takes
MAX_SHAPES = 12  # that a record keeps
MAX_SIZES = 500  # the same, of the dimension that varies
Steps = Generator[None, None, float]


class Reading:
    """What the generators share. `sha256` is of the script's file, before it ran."""

    # Once the loop is known: the device of the parameters that the optimizers train, and what is read between blocks.
    device: torch.device
    monitor: round_monitor.RoundMonitor

    def __init__(self, job: Job, notes: Notes, loop: Loop, calls: CompileCalls, arms: Arms, sha256: str | None) -> None:
        self.job, self.notes, self.loop, self.calls, self.arms, self.sha256 = job, notes, loop, calls, arms, sha256
        self.loops: dict[str, LoopRun] = {}  # by arm
        self.trajectory: Trajectory | None = None
        self.has_begun = False

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def begin(self) -> list[torch.nn.Module]:
        """The modules to compile, of which the device is read."""
        parameters = (
            item for group in next(iter(self.loop.optimizers.values())).param_groups for item in group["params"]
        )
        self.device = next(parameters).device
        self.monitor = round_monitor.RoundMonitor(self.device)
        self.monitor.set_baseline()
        self.has_begun = True
        return list(self.loop.modules.modules)

    @contextmanager
    def without_collector(self) -> Iterator[None]:
        """Collect garbage, and none meanwhile."""
        gc.collect()
        collects = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if collects:
                gc.enable()

    def name_module(self, module: torch.nn.Module) -> str:
        """Name a module by its class, and the line of the script that calls it."""
        line = self.loop.modules.modules.get(module)
        return f"{type(module).__name__} ({line})" if line else type(module).__name__

    def block_s(self, steps: int) -> Steps:
        """Wall seconds of some steps, from one synchronisation to the next."""
        self.synchronize()
        start = time.perf_counter()
        yield from run_steps(steps)
        self.synchronize()
        return time.perf_counter() - start


def describe(reading: Reading) -> ScriptRun:
    """What has been seen of the script so far."""
    loop = reading.loop
    # Of the module that gets the most different ones: shapes of several modules have nothing to do with each other.
    shapes: Counter[tuple[object, ...]] = max((form.shapes for form in reading.arms.forms), key=len, default=Counter())
    sizes = count_sizes(shapes)
    return ScriptRun(
        sha256=reading.sha256,
        modules=tuple(type(getattr(module, "_orig_mod", module)).__name__ for module in loop.modules.modules),
        called_at=tuple(loop.modules.modules.values()),
        optimizers=tuple(loop.order),
        loader=", ".join(sorted(loop.loader.seen)) or None,
        recorded=loop.loader.num_replayed,
        compile_calls=tuple(reading.calls.calls),
        shapes=tuple(Shapes(", ".join(map(_show, key)), count) for key, count in shapes.most_common(MAX_SHAPES)),
        num_shapes=len(shapes),
        sizes=group_sizes(sizes),
        pad_to=choose_sizes(sizes),
        skipped_steps=loop.num_skipped,
        loop_eager=reading.loops.get("eager"),
        loop_compiled=reading.loops.get("compiled"),
        trajectory=reading.trajectory,
    )


def count_sizes(shapes: Counter[tuple[object, ...]]) -> Counter[int]:
    """The sizes of the dimension that varies, where one of the first tensor does; else empty."""
    found: Counter[int] = Counter()
    first = [(key[0], count) for key, count in shapes.items() if key and isinstance(key[0], torch.Size)]
    if len({len(shape) for shape, _ in first}) != 1:
        return found
    varying = [place for place in range(len(first[0][0])) if len({shape[place] for shape, _ in first}) > 1]
    if len(varying) == 1:
        for shape, count in first:
            found[shape[varying[0]]] += count
    return found


def group_sizes(sizes: Counter[int]) -> tuple[SizeCount, ...]:
    """Each size with its count; of very many, neighbours count as the largest of them."""
    per_group = max(math.ceil(len(sizes) / MAX_SIZES), 1)
    ordered = sorted(sizes)
    groups = [ordered[start : start + per_group] for start in range(0, len(ordered), per_group)]
    return tuple(SizeCount(group[-1], sum(sizes[size] for size in group)) for group in groups)


def choose_sizes(counts: Counter[int]) -> tuple[int, ...]:
    """The quartiles and the largest of some sizes."""
    sizes, shares = sorted(counts.elements()), (0.25, 0.5, 0.75, 1.0) if counts else ()
    return tuple(sorted({sizes[math.ceil(share * len(sizes)) - 1] for share in shares}))


def _show(shape: object) -> str:
    return str(list(shape)) if isinstance(shape, tuple) else str(shape)
