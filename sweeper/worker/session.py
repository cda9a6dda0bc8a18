"""One worker process from building to the last reading: `Job -> Outcome`.

Place in the flow: `python -m sweeper.worker` calls `run`. The order is fixed: build; eager, with nothing compiled yet;
compile; check that it is right; then, with the device alone, warm up, measure both in turn, and take the readings that
are beside the rounds. Before that others may compile on the host, but nobody else uses the device.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from sweeper.core.protocol import ALONE, Job, Outcome, Phase
from sweeper.core.record import ARMS, Diagnostics, HostState, Latencies, PerArm, Process
from sweeper.core.serialization import Json
from sweeper.core.trial import Trial
from sweeper.worker import models
from sweeper.worker.accuracy.check import Verification
from sweeper.worker.compilation import artifacts, backends
from sweeper.worker.compilation.compiler import end_compile_workers
from sweeper.worker.compilation.counters import Watch
from sweeper.worker.failures import (
    EagerError,
    MismatchError,
    Missing,
    NotCompiledError,
    beside,
    message_of,
    status_of,
)
from sweeper.worker.lease import Lease
from sweeper.worker.measurement import device_time, energy, memory
from sweeper.worker.measurement.bench import Arm, latency, measure_rounds
from sweeper.worker.monitoring import environment
from sweeper.worker.monitoring.host_monitor import HostMonitor
from sweeper.worker.monitoring.round_monitor import RoundMonitor
from sweeper.worker.setup import TrialSetup

AWAY = 0.01  # of the time of compiling: so much waiting leaves the compiler's own clocks right
SHARED = "other processes on the GPU"  # why a figure of the whole device is nobody's
EAGER_STEPS = 3  # before anything is compiled; the warm-up comes when the device is ours alone


@dataclass(frozen=True)
class Part:
    """Which process of a trial this is, and what earlier ones have found."""

    index: int = 0
    draw: int = 0
    cold: bool = True
    checked: str | None = None  # the artifact that was found right; the same code needs no other check
    steps_per_block: int | None = None


@dataclass
class Notes:
    """What a process has found so far; a failure keeps what is there."""

    say: Callable[[Phase], None]
    process: Process
    turn: Lease
    phase: str = "starting"
    environment: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Json] = field(default_factory=dict)
    watch: Watch | None = None
    mended_allocations: int = 0  # in the check, which then makes do with less memory: none of the trial's business

    @contextmanager
    def enter(self, phase: str) -> Iterator[None]:
        """Announce a phase and note how long it took, also when it fails."""
        self.phase = phase
        self.say(Phase(phase))
        start = self.turn.clock()
        try:
            yield
        finally:
            self.found(phases_s={**self.process.phases_s, phase: self.turn.clock() - start})

    def found(self, **values: Any) -> None:
        """Add to what is known of the process."""
        self.process = replace(self.process, **values)

    def outcome(self, status: str, phase: str | None = None, message: str | None = None) -> Outcome:
        failed = memory.failed_allocations()
        self.found(
            waited_s=self.turn.away_s,
            failed_allocations=None if failed is None else failed - self.mended_allocations,
        )
        diagnostics: Diagnostics | None = self.watch.report(self.settings) if self.watch else None
        return Outcome(status, phase, message, self.process, diagnostics, dict(self.environment))


Lead = Callable[[Job, Part, Notes], None]  # leads a process through its phases


def run(job: Job, part: Part, say: Callable[[Phase], None], turn: Lease, lead: Lead | None = None) -> Outcome:
    """Measure once, or do what `lead` does. Always returns; what a model, compiler or torch raises becomes a status."""
    notes = Notes(say, Process(part.index, part.draw, part.cold), turn)
    try:
        (lead or _measure)(job, part, notes)
    except Exception as error:  # noqa: BLE001  # the one place where anything at all becomes a status
        traceback.print_exc()
        return notes.outcome(status_of(error, notes.phase), notes.phase, message_of(error))
    return notes.outcome("ok")


def begin(job: Job, notes: Notes) -> None:
    """Import what the model needs, and wait for the device."""
    notes.environment |= environment.describe()
    models.builder(job.trial.model.library).load(job.trial.model)
    notes.turn.take()
    notes.environment["device"] = environment.describe_device(torch.device(job.trial.device))


def build(job: Job, notes: Notes) -> TrialSetup:
    """The model with both arms on the device. Raises UnavailableError where its backend is not to be had."""
    device, turn = torch.device(job.trial.device), notes.turn
    if job.trial.backend is not None:  # the model's module has been imported: it may register a backend of its own
        backends.require(job.trial.backend, job.trial.workload, device.type)
    lab = TrialSetup(job, device, RoundMonitor(device, lambda: turn.neighbours), turn.clock)
    turn.before_leaving, turn.after_coming = lab.meter.leave, lab.meter.come_back
    notes.settings |= lab.settings()
    return lab


def _measure(job: Job, part: Part, notes: Notes) -> None:
    turn = notes.turn
    begin(job, notes)
    with notes.enter("building"):
        lab = build(job, notes)
        notes.found(tokens_per_step=models.tokens_per_step(lab.built))
        verification = Verification(lab)
    with notes.enter("eager"):
        lab.bench.run(lab.eager, lab.bench.whole(EAGER_STEPS))
        lab.require_sound(lab.eager, EagerError("the eager step gives NaN or infinity"))
        _note_memory(notes, lab, lab.eager)
    with notes.enter("compiling"):
        _compile(lab, notes)
    if part.checked is None or part.checked != notes.process.artifact:
        before = memory.failed_allocations() or 0
        with notes.enter("reference"):
            verification.take_reference()
        with notes.enter("checking"):
            _check(verification, notes)
        notes.mended_allocations = (memory.failed_allocations() or 0) - before
    end_compile_workers()
    turn.take(ALONE)
    with notes.enter("warming"):
        _warm_up(lab, notes, part.steps_per_block)
    with notes.enter("measuring"):
        _rounds(lab, notes)
        _require_still_sound(lab, verification, notes.process)
    with notes.enter("memory"):
        lab.arms.forget_eager()
        _note_memory(notes, lab, lab.compiled)
    with notes.enter("profiling"):
        _device_time(lab, notes)
    if lab.measure.energy:
        with notes.enter("energy"):
            _energy(lab, notes)


def _warm_up(lab: TrialSetup, notes: Notes, steps: int | None) -> None:
    """Both arms until they are flat, and K, unless an earlier process has found it."""
    bench, measure = lab.bench, lab.measure
    eager_s, eager_flat = bench.warm_up(lab.eager, measure.warmup_s)
    compiled_s, compiled_flat = bench.warm_up(lab.compiled, measure.warmup_s)
    faster, step_s = (lab.compiled, compiled_s) if compiled_s < eager_s else (lab.eager, eager_s)
    steps = steps or bench.steps_per_block(faster, step_s, measure)
    notes.found(warm_up_flat=eager_flat and compiled_flat, steps_per_block=steps)
    notes.found(**artifacts.found())  # with what compiled since


def _compile(lab: TrialSetup, notes: Notes) -> None:
    notes.watch, turn = Watch(), notes.turn
    turn.rest_while_compiling()
    host, candidate = HostMonitor(), lab.compile(notes.watch)
    away_s, ours_s = turn.away_s, notes.process.phases_s.get("eager", 0.0)

    def first_is_done() -> None:
        notes.found(time_to_first_step_s=environment.process_age_s() - ours_s - turn.away_s)

    first = lab.bench.first_steps_s(candidate, first_is_done)
    notes.found(
        first_steps_s=tuple(first), host=HostState(busy_while_compiling=host.share_busy_by_others(turn.away_s - away_s))
    )
    notes.watch.settle()
    notes.found(**artifacts.found())
    if turn.away_s - away_s <= AWAY * sum(first):  # else the compiler's own clocks went on while it waited
        notes.found(compile_parts_s=artifacts.parts_s())
    lab.require_sound(candidate, MismatchError("the compiled step gives NaN or infinity, eager does not"))
    _require_compiled(lab.trial, notes.watch)


def _check(verification: Verification, notes: Notes) -> None:
    accuracy = verification.judge()
    notes.found(accuracy=accuracy)
    if accuracy.passed is False and accuracy.too_small:
        raise MismatchError(f"{accuracy.worst} has less than a third of the size that it has in eager")
    if accuracy.passed is False:
        error = math.inf if accuracy.compiled_error is None else accuracy.compiled_error
        raise MismatchError(
            f"{accuracy.worst} is off by {error:.3g} (root mean square against {accuracy.reference}); "
            f"eager is by {accuracy.eager_error:.3g}, and {accuracy.bound:.3g} is allowed"
        )


def _rounds(lab: TrialSetup, notes: Notes) -> None:
    host, steps = HostMonitor(), notes.process.steps_per_block or 1
    lookout = lab.lookout
    steps_s: dict[str, list[float]] = {arm: [] for arm in ARMS}
    try:
        for timed in measure_rounds(lab.bench, lab.eager, lab.compiled, steps, lab.measure, lookout):
            notes.found(rounds=(*notes.process.rounds, timed.round))
            for arm, times in timed.steps_s.items() if timed.round.void is None else ():
                steps_s[arm] += times
    finally:
        before = notes.process.host.busy_while_compiling if notes.process.host else None
        notes.found(
            gpu=lookout.gpu.state(),
            host=HostState(before, host.share_busy_by_others(), host.throttled_s()),
            changed_settings=dict(lookout.changed_switches),
        )
    if lab.measure.clock == "step":
        notes.found(latencies=Latencies(**{arm: latency(times) for arm, times in steps_s.items()}))
    notes.found(compile_s=None if lab.trial.mode == "eager" else compile_s(notes.process))
    _require_compiled(lab.trial, notes.watch)


def _note_memory(notes: Notes, lab: TrialSetup, arm: Arm) -> None:
    """Device memory of an arm; what the whole device has in use says nothing when others are on it."""
    lab.lookout.gpu.look("before")
    shared = _is_shared(lab)
    reading = beside(lambda: lab.memory_of(arm))
    if isinstance(reading, Missing):
        notes.found(memory_missing=f"{arm.name}: {reading.reason}")
        return
    peaks = notes.process.allocator_peak_bytes or PerArm()
    notes.found(allocator_peak_bytes=replace(peaks, **{arm.name: reading.allocator_peak_bytes}))
    if shared:
        notes.found(memory_bytes=None, memory_missing=SHARED)
    else:
        known = notes.process.memory_bytes or PerArm()
        notes.found(memory_bytes=replace(known, **{arm.name: reading.in_use_bytes}))


def _is_shared(lab: TrialSetup) -> bool:
    """Whether others were seen on the GPU so far."""
    state = lab.lookout.gpu.state()
    return state is not None and bool(state.other_processes)


def _device_time(lab: TrialSetup, notes: Notes) -> None:
    if lab.device.type != "cuda":
        return
    step_s = {arm: notes.process.step_s(arm) or 0.0 for arm in ("eager", "compiled")}
    profiled = beside(lambda: device_time.passes(lab.bench, (lab.eager, lab.compiled), step_s))
    if isinstance(profiled, Missing):
        notes.found(device_time_missing=profiled.reason)
        return
    found: dict[str, device_time.Busy] = {}
    for arm, passes in profiled.items():
        try:
            found[arm] = device_time.a_step(passes, step_s[arm], lab.bench.num_sizes)
        except device_time.UnknownError as error:
            notes.found(device_time_missing=f"{arm}: {error}")
    notes.found(
        device_time_s=PerArm(**{arm: busy.busy_s for arm, busy in found.items()}),
        device_kernels=PerArm(**{arm: busy.kernels for arm, busy in found.items()}),
    )
    notes.settings |= {f"attention_ran_{arm}": " and ".join(sorted(busy.attention)) for arm, busy in found.items()}


def _energy(lab: TrialSetup, notes: Notes) -> None:
    """Joules a step; those of a GPU that others use as well are nobody's."""
    if _is_shared(lab):
        notes.found(energy_missing=SHARED)
        return
    arms = {arm: notes.process.step_s(arm.name) or 0.0 for arm in (lab.eager, lab.compiled)}
    used = beside(lambda: energy.of_arms(lab.bench, arms, lab.lookout.gpu.energy_j))
    notes.found(**{"energy_missing": used.reason} if isinstance(used, Missing) else {"energy_j": used})


def compile_s(process: Process) -> float | None:
    """What compiling cost: the first n compiled steps less n steady ones."""
    steady_s, first = process.step_s("compiled"), process.first_steps_s
    return None if steady_s is None else max(sum(first) - len(first) * steady_s, 0.0)


def _require_compiled(trial: Trial, watch: Watch | None) -> None:
    if trial.mode != "eager" and watch is not None and (reason := watch.why_not_compiled()):
        raise NotCompiledError(reason)


def _require_still_sound(lab: TrialSetup, verification: Verification, process: Process) -> None:
    """Training on random labels may diverge; that is the model's doing when eager alone does it as well.

    The arms share their parameters, so eager has to begin anew.
    """
    if lab.is_sound(lab.compiled):
        return
    verification.restore()
    steps = (process.steps_per_block or 1) * 2 * len(process.rounds)
    lab.bench.run(lab.eager, steps)
    lab.require_sound(lab.eager, EagerError(f"the loss of eager alone is NaN or infinite after {steps} steps"))
    raise MismatchError("the compiled step gives NaN or infinity after the rounds, eager alone does not")
