"""One worker process from building to the last reading: `Job -> Outcome`.

Place in the flow: `python -m sweeper.worker` calls `run`. The order is fixed: build; eager and the reference, with
nothing compiled yet; compile and warm up; check that it is right; measure both in turn; then the readings that need the
device for themselves.
"""

from __future__ import annotations

import math
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
from sweeper.record import Accuracy, Diagnostics, HostState, PerArm, Process
from sweeper.trial import Trial
from sweeper.worker import artifact, device_time, environment, memory
from sweeper.worker.accuracy import PERTURBATION, TOLERANCE, Bounds, bounds, judge, perturbed_steps, tolerance
from sweeper.worker.compiler import end_compile_workers, require_available
from sweeper.worker.diagnostics import Watch
from sweeper.worker.failures import EagerError, MismatchError, NotCompiledError, message_of, status_of
from sweeper.worker.lab import Lab
from sweeper.worker.lookout import Lookout
from sweeper.worker.observation import Named, Observed, observe, on_host, reference
from sweeper.worker.state import Saved, perturb
from sweeper.worker.surroundings import HostWatch
from sweeper.worker.timing import Arm, measure_rounds


@dataclass
class Notes:
    """What a process has found so far; a failure keeps what is there."""

    say: Callable[[Phase], None]
    process: Process
    phase: str = "starting"
    environment: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Json] = field(default_factory=dict)
    watch: Watch | None = None

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
        return Outcome(status, phase, message, self.process, diagnostics, dict(self.environment))


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
    device = torch.device(job.trial.device)
    lookout = Lookout(device)
    notes.environment |= environment.describe(device)
    with notes.enter("building"):
        lab = Lab(job, device, lookout)
        require_available(job.trial, device)  # after the model: its module may register a backend of its own
        notes.settings |= lab.settings()
    check = Check(lab)
    with notes.enter("eager"):
        eager_s, eager_flat = lab.bench.warm_up(lab.eager, job.measure.warmup_s)
        lab.require_sound(lab.eager, EagerError("the eager step gives NaN or infinity"))
        eager_memory = lab.memory_of(lab.eager)
        _note_memory(notes, lookout, eager_memory)
    with notes.enter("reference"):
        check.take_reference()
    with notes.enter("compiling"):
        _compile(lab, notes)
    with notes.enter("warming"):
        compiled_s, compiled_flat = lab.bench.warm_up(lab.compiled, job.measure.warmup_s)
        faster, step_s = (lab.compiled, compiled_s) if compiled_s < eager_s else (lab.eager, eager_s)
        steps = lab.bench.steps_per_block(faster, step_s, job.measure)
        notes.found(warm_up_flat=eager_flat and compiled_flat, steps_per_block=steps, **artifact.found())
    with notes.enter("checking"):
        _check(check, notes)
        end_compile_workers()
    with notes.enter("measuring"):
        _rounds(lab, notes)
    with notes.enter("memory"):
        lab.arms.forget_eager()
        _note_memory(notes, lookout, eager_memory, lab.memory_of(lab.compiled))
    with notes.enter("profiling"):
        _device_time(lab, notes)


class Check:
    """Collects what the accuracy of the compiled step is judged by, in the order in which it can be had."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._saved = Saved(lab.built.module)
        self._reference: Observed | str = "not taken"
        self._bounds: Bounds | None = None

    def take_reference(self) -> None:
        """The step in fp64, and eager steps from the same state: two with different seeds, and some perturbed."""
        lab, seed = self._lab, self._lab.measure.seed
        self._restore(seed)
        allowed = tolerance(lab.trial, lab.built.module)
        keep = torch.float32 if allowed == TOLERANCE["reduced"] else torch.float64
        self._reference = reference(lab.built, lab.trial, seed, keep)
        if isinstance(self._reference, Observed):
            first = on_host(self._see(lab.eager, seed))
            perturbed = (self._see(lab.eager, seed + i, PERTURBATION) for i in range(perturbed_steps(allowed)))
            self._bounds = bounds(self._reference, first, self._see(lab.eager, seed + 1), allowed, perturbed)
        self._restore(seed)

    def judge(self) -> Accuracy:
        """The verdict on the compiled arm; parameters are afterwards as they were built.

        Raises MismatchError when it gives other tensors than the reference.
        """
        if not isinstance(self._reference, Observed) or self._bounds is None:
            return Accuracy(None, None, str(self._reference))
        try:
            return judge(self._see(self._lab.compiled, self._lab.measure.seed), self._reference, self._bounds)
        except ValueError as error:
            raise MismatchError(f"the compiled step gives other tensors: {error}") from error
        finally:
            self._restore(self._lab.measure.seed)

    def _see(self, arm: Arm, seed: int, perturbation: float = 0.0) -> Named:
        lab = self._lab
        self._restore(seed)
        batch = lab.built.unseen
        if perturbation:
            batch = perturb(lab.built.module, batch, perturbation)

        def run() -> object:
            return lab.bench.run_on(arm, batch)

        return observe(run, lab.tap, lab.built.module, lab.trial, lab.arms.left_in_gradients())

    def _restore(self, seed: int) -> None:
        self._saved.restore(self._lab.arms.optimizers, seed)


def _compile(lab: Lab, notes: Notes) -> None:
    notes.watch = Watch()
    host, candidate = HostWatch(), lab.compile(notes.watch)
    first = lab.bench.first_steps_s(candidate, lambda: notes.found(time_to_first_step_s=environment.process_age_s()))
    notes.found(first_steps_s=tuple(first), host=HostState(busy_while_compiling=host.busy_by_others()))
    lab.require_sound(candidate, MismatchError("the compiled step gives NaN or infinity, eager does not"))
    _require_compiled(lab.trial, notes.watch)


def _check(check: Check, notes: Notes) -> None:
    accuracy = check.judge()
    notes.found(accuracy=accuracy)
    if accuracy.passed is False:
        error = math.inf if accuracy.compiled_error is None else accuracy.compiled_error
        raise MismatchError(
            f"{accuracy.worst} is off by {error:.3g} (root mean square against {accuracy.reference}); "
            f"eager is by {accuracy.eager_error:.3g}, and {accuracy.bound:.3g} is allowed"
        )


def _rounds(lab: Lab, notes: Notes) -> None:
    host, steps = HostWatch(), notes.process.steps_per_block or 1
    lookout = lab.lookout
    try:
        for measured in measure_rounds(lab.bench, lab.eager, lab.compiled, steps, lab.measure.rounds, lookout):
            notes.found(rounds=(*notes.process.rounds, measured))
    finally:
        before = notes.process.host.busy_while_compiling if notes.process.host else None
        notes.found(
            gpu=lookout.gpu.state(),
            host=HostState(before, host.busy_by_others(), host.throttled_s()),
            changed_settings=dict(lookout.changed_switches),
        )
    notes.found(compile_s=None if lab.trial.mode == "eager" else compile_s(notes.process))
    _require_compiled(lab.trial, notes.watch)
    _require_still_sound(lab)


def _note_memory(notes: Notes, lookout: Lookout, eager: memory.Reading, compiled: memory.Reading | None = None) -> None:
    """Device memory of both arms; what the whole device has in use says nothing when others are on it."""
    lookout.gpu.look("before")
    state = lookout.gpu.state()
    alone = state is None or not state.other_processes
    both = eager, compiled or memory.Reading()
    notes.found(
        memory_bytes=PerArm(*(reading.in_use_bytes for reading in both)) if alone else None,
        allocator_peak_bytes=PerArm(*(reading.allocator_peak_bytes for reading in both)),
    )


def _device_time(lab: Lab, notes: Notes) -> None:
    if lab.device.type != "cuda":
        return
    step_s = {arm: _step_s(notes.process, arm) for arm in ("eager", "compiled")}
    found: dict[str, device_time.Busy] = {}
    try:
        profiled = device_time.passes(lab.bench, (lab.eager, lab.compiled), step_s)
    except RuntimeError as error:  # a profiler that does not work here must not cost what was measured
        notes.found(device_time_missing=message_of(error))
        return
    for arm, passes in profiled.items():
        try:
            found[arm] = device_time.a_step(passes, step_s[arm])
        except device_time.UnknownError as error:
            notes.found(device_time_missing=f"{arm}: {error}")
    notes.found(
        device_time_s=PerArm(**{arm: busy.busy_s for arm, busy in found.items()}),
        device_kernels=PerArm(**{arm: busy.kernels for arm, busy in found.items()}),
    )
    notes.settings |= {f"attention_ran_{arm}": " and ".join(sorted(busy.attention)) for arm, busy in found.items()}


def _step_s(process: Process, arm: str) -> float:
    blocks: list[float] = [getattr(item, f"{arm}_s") for item in process.rounds if item.void is None]
    return median(blocks) / (process.steps_per_block or 1)


def compile_s(process: Process) -> float | None:
    """What compiling cost: the first n compiled steps less n steady ones."""
    steady = [item.compiled_s for item in process.rounds if item.void is None and item.compiled_s is not None]
    if not steady or not process.steps_per_block:
        return None
    first = process.first_steps_s
    return max(sum(first) - len(first) * median(steady) / process.steps_per_block, 0.0)


def _require_compiled(trial: Trial, watch: Watch | None) -> None:
    if trial.mode != "eager" and watch is not None and (reason := watch.why_not_compiled()):
        raise NotCompiledError(reason)


def _require_still_sound(lab: Lab) -> None:
    """Training on random labels may diverge; that is the model's doing when eager has no finite loss either."""
    if lab.is_sound(lab.compiled):
        return
    lab.require_sound(lab.eager, EagerError("the loss became NaN or infinite while it was trained"))
    raise MismatchError("the compiled step gives NaN or infinity after the rounds, eager does not")
