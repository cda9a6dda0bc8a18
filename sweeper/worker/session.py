"""One worker process from building to the last reading: `Job -> Outcome`.

Place in the flow: `python -m sweeper.worker` calls `run`. The order is fixed: build; eager, with nothing compiled yet;
compile; measure both in turn; then the readings that need the device for themselves.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import torch

from sweeper.codec import Json
from sweeper.messages import Job, Outcome, Phase
from sweeper.record import Diagnostics, PerArm, Process, Round
from sweeper.trial import Trial
from sweeper.worker import environment, memory
from sweeper.worker.compiler import compiled, require_available, uses_cuda_graphs
from sweeper.worker.diagnostics import Watch
from sweeper.worker.failures import EagerError, MismatchError, NotCompiledError, message_of, status_of
from sweeper.worker.models import Built, build
from sweeper.worker.step import (
    Numerics,
    inference_step,
    is_sound,
    make_optimizer,
    make_scaler,
    optimizer_settings,
    resolve,
    training_step,
)
from sweeper.worker.timing import SCATTER, Arm, Bench, measure_rounds, spread


@dataclass
class Notes:
    """What a process has found so far; a failure keeps what is there."""

    say: Callable[[Phase], None]
    process: Process
    phase: str = "starting"
    environment: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Json] = field(default_factory=dict)
    watch: Watch | None = None
    flags: set[str] = field(default_factory=set)

    @contextmanager
    def enter(self, phase: str) -> Iterator[None]:
        """Announce a phase and note how long it took, also when it fails."""
        self.phase = phase
        self.say(Phase(phase))
        start = time.perf_counter()
        try:
            yield
        finally:
            self.found(phases_s={**self.process.phases_s, phase: time.perf_counter() - start})

    def found(self, **values: Any) -> None:
        """Add to what is known of the process."""
        self.process = replace(self.process, **values)

    def outcome(self, status: str, phase: str | None = None, message: str | None = None) -> Outcome:
        diagnostics: Diagnostics | None = self.watch.report(self.settings) if self.watch else None
        return Outcome(
            status, phase, message, self.process, diagnostics, tuple(sorted(self.flags)), dict(self.environment)
        )


def run(job: Job, index: int, draw: int, cold: bool, say: Callable[[Phase], None]) -> Outcome:
    """Measure once. Always returns; what the model, the compiler or torch raises becomes a status."""
    notes = Notes(say, Process(index, draw, cold))
    try:
        _measure(job, notes)
    except Exception as error:  # noqa: BLE001  # the one place where anything at all becomes a status
        traceback.print_exc()
        return notes.outcome(status_of(error, notes.phase), notes.phase, message_of(error))
    return notes.outcome("ok")


def _measure(job: Job, notes: Notes) -> None:
    trial, measure = job.trial, job.measure
    device = torch.device(trial.device)
    notes.environment |= environment.describe(device)
    require_available(trial, device)
    with notes.enter("building"):
        before = memory.in_use_bytes(device)
        numerics = resolve(trial, device)
        built = build(trial, measure.seed, device)
        bench = Bench(built.batches, device)
        arms = Arms(trial, built, numerics, device)
        notes.settings |= _settings(trial, numerics) | arms.settings
    with notes.enter("eager"):
        eager = arms.eager()
        eager_s, flat = bench.warm_up(eager, measure.warmup_s)
        _require_sound(bench.run(eager, 1), trial, EagerError("the eager step gives NaN or infinity"))
        eager_memory, eager_peak = memory.of_arm(lambda steps: bench.run(eager, steps), device, before)
        notes.found(memory_bytes=PerArm(eager_memory), allocator_peak_bytes=PerArm(eager_peak))
    with notes.enter("compiling"):
        notes.watch = Watch()
        candidate = arms.compiled()
        notes.found(first_steps_s=tuple(bench.first_steps_s(candidate)))
        mismatch = MismatchError("the compiled step gives NaN or infinity, eager does not")
        _require_sound(bench.run(candidate, 1), trial, mismatch)
        _require_compiled(trial, notes.watch)
    with notes.enter("measuring"):
        compiled_s, compiled_flat = bench.warm_up(candidate, measure.warmup_s)
        faster, step_s = (candidate, compiled_s) if compiled_s < eager_s else (eager, eager_s)
        steps = bench.steps_per_block(faster, step_s, measure)
        notes.found(steps_per_block=steps)
        for measured in measure_rounds(bench, eager, candidate, steps, measure.rounds):
            notes.found(rounds=(*notes.process.rounds, measured))
        notes.flags |= _flags(notes.process.rounds, flat and compiled_flat, device)
        notes.found(compile_s=None if trial.mode == "eager" else compile_s(notes.process))
        _require_compiled(trial, notes.watch)
        _require_still_sound(bench, eager, candidate, trial)
    with notes.enter("memory"):
        arms.forget_eager()
        compiled_memory, compiled_peak = memory.of_arm(lambda steps: bench.run(candidate, steps), device, before)
        notes.found(
            memory_bytes=PerArm(eager_memory, compiled_memory), allocator_peak_bytes=PerArm(eager_peak, compiled_peak)
        )


class Arms:
    """Makes eager and compiled. Under scope=model both share one optimizer; under scope=step each has its own."""

    def __init__(self, trial: Trial, built: Built, numerics: Numerics, device: torch.device) -> None:
        self._trial, self._built, self._numerics, self._device = trial, built, numerics, device
        self._trains = trial.workload == "train"
        self._optimizer = make_optimizer(trial.optimizer, built.module, numerics.scaler) if self._trains else None
        self._scaler = make_scaler(numerics, device)
        self.settings = optimizer_settings(trial, self._optimizer)

    def eager(self) -> Arm:
        module = self._built.module
        if not self._trains:
            return Arm("eager", inference_step(module, self._context), eager=True)
        step = training_step(self._built, module, self._optimizer, self._scaler, self._context)
        return Arm("eager", step, eager=True)

    def compiled(self) -> Arm:
        """The arm that is compared with eager; with mode=eager it is eager as well. Nothing is compiled yet."""
        trial, built = self._trial, self._built
        if not self._trains:
            step: Callable[..., object] = inference_step(compiled(built.module, trial), self._context)
        elif trial.compile.scope == "step":
            own = make_optimizer(trial.optimizer, built.module, self._numerics.scaler)
            scaler = make_scaler(self._numerics, self._device)
            step = compiled(training_step(built, built.module, own, scaler, self._context), trial)
        else:
            module = compiled(built.module, trial)
            step = training_step(built, module, self._optimizer, self._scaler, self._context)
        return Arm("compiled", step, trial.mode == "eager", uses_cuda_graphs(trial, self._device))

    def forget_eager(self) -> None:
        """Free what only the eager arm keeps, so that it does not count as the compiled one's memory."""
        if self._trial.compile.scope == "step" and self._optimizer is not None:
            self._optimizer.state.clear()

    def _context(self) -> Any:
        return self._numerics.context(self._device)


def compile_s(process: Process) -> float | None:
    """What compiling cost: the first n compiled steps less n steady ones."""
    steady = [item.compiled_s for item in process.rounds if item.void is None and item.compiled_s is not None]
    if not steady or not process.steps_per_block:
        return None
    first = process.first_steps_s
    return max(sum(first) - len(first) * median(steady) / process.steps_per_block, 0.0)


def _settings(trial: Trial, numerics: Numerics) -> dict[str, Json]:
    """What was equal in both arms, as it came out."""
    return {
        "autocast": str(numerics.autocast).removeprefix("torch.") if numerics.autocast else None,
        "grad_scaler": numerics.scaler,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "cudnn_allow_tf32": _cudnn_allow_tf32(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "dropout": trial.model.dropout,
        "memory_format": "contiguous",
    }


def _cudnn_allow_tf32() -> bool | None:
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:  # a user's model set torch's newer `fp32_precision`, beside which the old switch has no value
        return None


def _flags(rounds: tuple[Round, ...], flat: bool, device: torch.device) -> set[str]:
    flags = {"accuracy_unverified"}  # results are only checked to be finite
    for arm in ("eager_s", "compiled_s"):
        if not flat or spread([getattr(item, arm) for item in rounds if item.void is None]) > SCATTER[device.type]:
            flags.add("unsteady")
    if any(item.void == "recompiled" for item in rounds):
        flags.add("recompiled")
    return flags


def _require_compiled(trial: Trial, watch: Watch) -> None:
    if trial.mode != "eager" and (reason := watch.why_not_compiled()):
        raise NotCompiledError(reason)


def _require_sound(output: object, trial: Trial, error: Exception) -> None:
    if not is_sound(output, trial.workload):
        raise error


def _require_still_sound(bench: Bench, eager: Arm, candidate: Arm, trial: Trial) -> None:
    """Training on random labels may diverge; that is the model's doing when eager has no finite loss either."""
    if is_sound(bench.run(candidate, 1), trial.workload):
        return
    _require_sound(bench.run(eager, 1), trial, EagerError("the loss became NaN or infinite while it was trained"))
    raise MismatchError("the compiled step gives NaN or infinity after the rounds, eager does not")
