"""One worker process from building to the last reading: `Job -> Outcome`.

Place in the flow: `python -m sweeper.worker` calls `run`. The order is fixed: build; eager, with nothing compiled yet;
compile; measure both in turn; then the readings that need the device for themselves.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

from sweeper.codec import Json
from sweeper.messages import Job, Outcome, Phase
from sweeper.record import EAGER_PHASES, Diagnostics, PerArm, Process, Round
from sweeper.trial import Trial
from sweeper.worker import environment, memory
from sweeper.worker.compiler import UnavailableError, compiled, require_available, uses_cuda_graphs
from sweeper.worker.diagnostics import Watch
from sweeper.worker.models import Built, build
from sweeper.worker.step import (
    Numerics,
    inference_step,
    is_finite,
    make_optimizer,
    make_scaler,
    optimizer_settings,
    resolve,
    training_step,
)
from sweeper.worker.timing import Arm, Bench, measure_rounds, spread

STEADY = 0.05  # the slowest block of an arm may take so much longer than its fastest
MESSAGE_LINES = 8
MESSAGE_LENGTH = 2000


class EagerError(Exception):
    """The model itself goes wrong, before any compiler."""


class MismatchError(Exception):
    """The compiled step gives something else than the eager one."""


class NotCompiledError(Exception):
    """What would be timed is not the compiled model."""


@dataclass
class Notes:
    """What a process has found so far; a failure keeps what is there."""

    say: Callable[[Phase], None]
    phase: str = "starting"
    phases_s: dict[str, float] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Json] = field(default_factory=dict)
    watch: Watch | None = None
    flags: set[str] = field(default_factory=set)

    @contextmanager
    def enter(self, phase: str) -> Iterator[None]:
        self.phase = phase
        self.say(Phase(phase))
        start = time.perf_counter()
        yield
        self.phases_s[phase] = time.perf_counter() - start

    def diagnostics(self) -> Diagnostics | None:
        return self.watch.report(self.settings) if self.watch else None


def run(job: Job, index: int, draw: int, cold: bool, say: Callable[[Phase], None]) -> Outcome:
    """Measure once. Always returns; what the model, the compiler or torch raises becomes a status."""
    notes = Notes(say)
    try:
        process = _measure(job, index, draw, cold, notes)
    except Exception as error:  # noqa: BLE001  # the one place where anything at all becomes a status
        traceback.print_exc()
        return Outcome(
            status=status_of(error, notes.phase),
            phase=notes.phase,
            message=_message(error),
            process=Process(index, draw, cold, phases_s=notes.phases_s),
            diagnostics=notes.diagnostics(),
            flags=tuple(sorted(notes.flags)),
            environment=notes.environment,
        )
    return Outcome("ok", None, None, process, notes.diagnostics(), tuple(sorted(notes.flags)), notes.environment)


def status_of(error: Exception, phase: str) -> str:
    """The status that an exception in a phase means."""
    if isinstance(error, UnavailableError):
        return "unavailable"
    if isinstance(error, EagerError):
        return "eager_error"
    if isinstance(error, MismatchError):
        return "accuracy_mismatch"
    if isinstance(error, NotCompiledError):
        return "not_compiled"
    if _is_out_of_memory(error):
        return "oom"
    if phase in EAGER_PHASES:
        return "eager_error"
    return "compile_error" if phase == "compiling" else "runtime_error"


def _measure(job: Job, index: int, draw: int, cold: bool, notes: Notes) -> Process:
    trial, measure = job.trial, job.measure
    device = torch.device(trial.device)
    notes.environment = environment.describe(device)
    require_available(trial, device)
    with notes.enter("building"):
        before = memory.in_use_bytes(device)
        numerics = resolve(trial.precision, device)
        built = build(trial, measure.seed, device)
        bench = Bench(built.batches, device)
        notes.settings |= _settings(trial, numerics)
    eager, candidate = _arms(trial, built, numerics, device, notes)
    with notes.enter("eager"), torch.compiler.set_stance("force_eager"):
        eager_s, flat = bench.warm_up(eager, measure.warmup_s)
        _require_finite(bench.run(eager, 1), EagerError, "the eager step gives NaN or infinity")
        eager_memory, eager_peak = memory.of_arm(lambda steps: bench.run(eager, steps), device, before)
    with notes.enter("compiling"):
        notes.watch = Watch()
        first_steps_s = bench.first_steps_s(candidate)
        _require_finite(
            bench.run(candidate, 1), MismatchError, "the compiled step gives NaN or infinity, eager does not"
        )
        _require_compiled(trial, notes.watch)
    with notes.enter("measuring"):
        compiled_s, compiled_flat = bench.warm_up(candidate, measure.warmup_s)
        faster, step_s = (candidate, compiled_s) if compiled_s < eager_s else (eager, eager_s)
        with torch.compiler.set_stance(faster.stance):
            steps = bench.steps_per_block(faster, step_s, measure)
        rounds = measure_rounds(bench, eager, candidate, steps, measure.rounds)
        _require_compiled(trial, notes.watch)
        _require_still_finite(bench, eager, candidate)
    with notes.enter("memory"):
        compiled_memory, compiled_peak = memory.of_arm(lambda steps: bench.run(candidate, steps), device, before)
    notes.flags |= _flags(rounds, flat and compiled_flat)
    return Process(
        index=index,
        draw=draw,
        cold=cold,
        compile_s=compile_s(first_steps_s, rounds, steps) if trial.mode != "eager" else None,
        first_steps_s=tuple(first_steps_s),
        steps_per_block=steps,
        rounds=rounds,
        memory_bytes=PerArm(eager_memory, compiled_memory),
        allocator_peak_bytes=PerArm(eager_peak, compiled_peak),
        phases_s=notes.phases_s,
    )


def _arms(trial: Trial, built: Built, numerics: Numerics, device: torch.device, notes: Notes) -> tuple[Arm, Arm]:
    """Eager and compiled. Under scope=model both share one optimizer; under scope=step each has its own."""

    def context() -> Any:
        return numerics.context(device)

    marks = uses_cuda_graphs(trial, device)
    compiled_stance = "force_eager" if trial.mode == "eager" else "fail_on_recompile"
    if trial.workload == "inference":
        eager_inference = inference_step(built.module, context)
        compiled_inference = inference_step(compiled(built.module, trial), context)
        return Arm("eager", eager_inference, "force_eager"), Arm("compiled", compiled_inference, compiled_stance, marks)

    optimizer = make_optimizer(trial.optimizer, built.module, numerics.scaler)
    scaler = make_scaler(numerics, device)
    notes.settings |= optimizer_settings(trial, optimizer)
    eager = training_step(built, built.module, optimizer, scaler, context)
    if trial.compile.scope == "step":
        own = make_optimizer(trial.optimizer, built.module, numerics.scaler)
        candidate = compiled(training_step(built, built.module, own, make_scaler(numerics, device), context), trial)
    else:
        candidate = training_step(built, compiled(built.module, trial), optimizer, scaler, context)
    return Arm("eager", eager, "force_eager"), Arm("compiled", candidate, compiled_stance, marks)


def compile_s(first_steps_s: list[float], rounds: tuple[Round, ...], steps: int) -> float | None:
    """What compiling cost: the first n compiled steps less n steady ones."""
    steady = [item.compiled_s for item in rounds if item.void is None and item.compiled_s is not None]
    if not steady:
        return None
    return max(sum(first_steps_s) - len(first_steps_s) * median(steady) / steps, 0.0)


def _settings(trial: Trial, numerics: Numerics) -> dict[str, Json]:
    """What was equal in both arms, as it came out."""
    return {
        "autocast": str(numerics.autocast).removeprefix("torch.") if numerics.autocast else None,
        "grad_scaler": numerics.scaler,
        "matmul_allow_tf32": torch.backends.cuda.matmul.allow_tf32,
        "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "dropout": trial.model.dropout,
        "memory_format": "contiguous",
    }


def _flags(rounds: tuple[Round, ...], flat: bool) -> set[str]:
    flags = {"accuracy_unverified"}  # results are only checked to be finite
    counted = [item for item in rounds if item.void is None]
    if not flat or any(
        spread([getattr(item, f"{arm}_s") for item in counted]) > STEADY for arm in ("eager", "compiled")
    ):
        flags.add("unsteady")
    if any(item.void == "recompiled" for item in rounds):
        flags.add("recompiled")
    return flags


def _require_compiled(trial: Trial, watch: Watch) -> None:
    if trial.mode != "eager" and (reason := watch.why_not_compiled()):
        raise NotCompiledError(reason)


def _require_finite(output: object, error: type[Exception], message: str) -> None:
    if not is_finite(output):
        raise error(message)


def _require_still_finite(bench: Bench, eager: Arm, candidate: Arm) -> None:
    """Training on random labels may diverge; that is the model's doing when eager has no finite loss either."""
    if is_finite(bench.run(candidate, 1)):
        return
    with torch.compiler.set_stance("force_eager"):
        _require_finite(bench.run(eager, 1), EagerError, "the loss became NaN or infinite while it was trained")
    raise MismatchError("the compiled step gives NaN or infinity after the rounds, eager does not")


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and ("out of memory" in str(error) or "can't allocate memory" in str(error))


def _message(error: Exception) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return f"{type(error).__name__}: {chr(10).join(lines[:MESSAGE_LINES])}"[:MESSAGE_LENGTH]
