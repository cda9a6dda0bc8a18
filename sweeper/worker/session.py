"""One worker process from building to the last reading: `Job -> Outcome`.

The order is fixed: build; eager, with nothing compiled yet; compile; check that it is right; then,
with the device alone, warm up, measure both arms in turn, and take the readings that belong to no
round. Before that, other workers may compile on the host, and use the device whenever this process
has given its lease back.

A script's loop takes the measurements for which the device is alone, too: see `Subject`.
"""

import math
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from sweeper.core.protocol import ALONE, Job, Outcome, Phase
from sweeper.core.record import ARMS, Accuracy, Diagnostics, HostState, Latencies, PerArm, Process
from sweeper.core.serialization import Json
from sweeper.core.settings import Measure
from sweeper.core.trial import Trial
from sweeper.worker.accuracy.check import AccuracyCheck
from sweeper.worker.compilation.counters import CompileCounters
from sweeper.worker.measurement.bench import (
    Arm,
    Bench,
    Steps,
    Timed,
    complete,
    latency,
    measure_rounds,
)
from sweeper.worker.models.formats import count_parameters

from . import failures, models
from .compilation import artifacts, backends, compiler
from .failures import EagerError, MismatchError, Missing, try_reading, try_steps
from .lease import Lease
from .measurement import device_time, energy, host_time, memory
from .monitoring import environment, host_monitor, round_monitor
from .scripts.source_lines import describe_in_script
from .setup import TrialSetup

# of the compile time: after a longer wait, the compiler's own timings are wrong
MAX_AWAY_FRACTION = 0.01
SHARED_GPU_REASON = (
    # why a figure of the whole device cannot be attributed to this process
    "other processes on the GPU"
)
# before anything is compiled; the warm-up follows when this process has the device alone
EAGER_STEPS = 3


@dataclass(frozen=True)
class ProcessSlot:
    """Which process of a trial this is, and what earlier processes have found."""

    index: int = 0
    draw: int = 0
    cold: bool = True
    # the artifact that passed the check; a process that compiles it again skips the check
    checked: str | None = None
    steps_per_block: int | None = None


@dataclass
class ProcessLog:
    """What a process has measured so far; it is kept when the process fails."""

    say: Callable[[Phase], None]
    process: Process
    lease: Lease
    phase: str = "starting"
    environment: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Json] = field(default_factory=dict)
    parameters: dict[str, int] = field(default_factory=dict)  # how many numbers of each format
    counters: CompileCounters | None = None
    diagnostics: Diagnostics | None = None  # of another process, in place of what the counters say
    # in the accuracy check, which retries with less memory; not the trial's
    check_failed_allocations: int = 0

    @contextmanager
    def enter(self, phase: str) -> Iterator[None]:
        """Announce a phase and note how long it took, also when it fails; a phase may come several
        times.
        """
        self.announce(phase)
        start = self.lease.clock()
        try:
            yield
        finally:
            spent_s = self.process.phases_s.get(phase, 0.0) + self.lease.clock() - start
            self.add(phases_s={**self.process.phases_s, phase: spent_s})

    def announce(self, phase: str) -> None:
        self.phase = phase
        self.say(Phase(phase))

    def add(self, **values: Any) -> None:
        """Set fields of the process."""
        self.process = replace(self.process, **values)

    def outcome(self, status: str, phase: str | None = None, message: str | None = None) -> Outcome:
        if (failed := memory.failed_allocations()) is not None:
            failed -= self.check_failed_allocations
        self.add(waited_s=self.lease.away_s, failed_allocations=failed)
        diagnostics = self.diagnostics
        if self.counters:
            diagnostics = self.counters.report(self.settings, self.parameters)
        return Outcome(status, phase, message, self.process, diagnostics, dict(self.environment))


Task = Callable[[Job, ProcessSlot, ProcessLog], None]  # what a process does, phase by phase


class Subject(Protocol):
    """What is measured, and who runs its steps: a `ModelBench`, or the loop of a script."""

    trial: Trial
    measure: Measure
    eager: Arm
    compiled: Arm

    @property
    def bench(self) -> Bench: ...

    @property
    def monitor(self) -> round_monitor.RoundMonitor: ...


def run(
    job: Job,
    part: ProcessSlot,
    say: Callable[[Phase], None],
    lease: Lease,
    task: Task | None = None,
) -> Outcome:
    """Run the phases of a measurement, or of `task`. Always returns: any exception in them becomes
    a status.
    """
    notes = ProcessLog(say, Process(part.index, part.draw, part.cold), lease)
    try:
        (task or _measure)(job, part, notes)
    except Exception as error:  # noqa: BLE001  # the one place where anything at all becomes a status
        traceback.print_exc()
        status = failures.choose_status(error, notes.phase)
        return notes.outcome(status, notes.phase, describe_in_script(error))
    return notes.outcome("ok")


def begin(job: Job, notes: ProcessLog) -> None:
    """Import what the model needs, and wait for the device."""
    notes.environment |= environment.describe()
    models.builder(job.trial.model.library).load(job.trial.model)
    notes.lease.take()
    notes.environment["device"] = environment.describe_device(torch.device(job.trial.device))


def build(job: Job, notes: ProcessLog) -> TrialSetup:
    """Put the model on the device. Raises UnavailableError where the trial's backend or mode is not
    available.
    """
    device, lease = torch.device(job.trial.device), notes.lease
    # the model's module has been imported: it may register a backend of its own
    if job.trial.backend is not None:
        backends.require(job.trial.backend, job.trial.workload, device.type)
        backends.require_mode(job.trial.mode)
    monitor = round_monitor.RoundMonitor(device, lambda: lease.neighbours)
    setup = TrialSetup(job, device, monitor, lease.clock)
    lease.before_leaving = setup.meter.leave_device
    lease.after_returning = setup.meter.return_to_device
    notes.settings |= setup.settings()
    notes.parameters |= count_parameters(setup.built.module)
    return setup


def _measure(job: Job, part: ProcessSlot, notes: ProcessLog) -> None:
    begin(job, notes)
    with notes.enter("building"):
        setup = build(job, notes)
        notes.add(tokens_per_step=models.tokens_per_step(setup.built))
        check = AccuracyCheck(setup)
    with notes.enter("eager"):
        setup.bench.run(setup.eager, setup.bench.round_up(EAGER_STEPS))
        setup.require_finite(setup.eager, EagerError("the eager step gives NaN or infinity"))
        # which one an output decides shows in the first step
        notes.settings["loss"] = setup.loss_name
        _measure_memory(setup, notes, setup.eager)
    with notes.enter("compiling"):
        counters = _compile(setup, notes)
    is_known = part.checked is not None and part.checked == notes.process.artifact
    if not is_known:
        _require_accurate(job.trial, check, notes)
    checked = counters.programs
    compiler.end_compile_workers()
    notes.lease.take(ALONE)
    with notes.enter("warming"):
        complete(warm_up(setup, notes, part.steps_per_block))
    with notes.enter("measuring"):
        complete(time_rounds(setup, notes))
        _require_compiled(setup, counters)
        _require_no_divergence(setup, check, notes.process)
    if counters.programs != checked or (is_known and part.checked != notes.process.artifact):
        _require_accurate(job.trial, check, notes)  # what was timed is not what was checked
    with notes.enter("memory"):
        setup.forget_eager()
        _measure_memory(setup, notes, setup.compiled)
    complete(take_readings(setup, notes))


def _compile(setup: TrialSetup, notes: ProcessLog) -> CompileCounters:
    counters, lease = CompileCounters(keep_compiled=setup.eager.compiles_kernels), notes.lease
    notes.counters = counters
    lease.leave_while_compiling()
    host, compiled = host_monitor.HostMonitor(), setup.compile(counters)
    away_s, eager_s = lease.away_s, notes.process.phases_s.get("eager", 0.0)

    def note_first_step(times_s: list[float]) -> None:
        if len(times_s) == 1:
            notes.add(time_to_first_step_s=environment.process_age_s() - eager_s - lease.away_s)

    first_steps_s = setup.bench.first_steps_s(compiled, note_first_step)
    away_s = lease.away_s - away_s
    notes.add(first_steps_s=tuple(first_steps_s), host=HostState(host.share_busy_by_others(away_s)))
    counters.reset_run_counts()
    notes.add(**artifacts.read_fingerprints())
    # otherwise the compiler's timings include the wait
    if away_s <= MAX_AWAY_FRACTION * sum(first_steps_s):
        notes.add(compile_parts_s=artifacts.read_parts_s())
    setup.require_finite(
        compiled, MismatchError("the compiled step gives NaN or infinity, eager does not")
    )
    _require_compiled(setup, counters)
    return counters


def _require_compiled(setup: TrialSetup, counters: CompileCounters) -> None:
    if setup.trial.mode != "eager" and (reason := counters.explain_not_compiled()):
        raise failures.NotCompiledError(reason)


def _require_accurate(trial: Trial, check: AccuracyCheck, notes: ProcessLog) -> None:
    """Raise MismatchError unless the compiled step passes the check, or cannot be judged."""
    before = memory.failed_allocations() or 0
    try:
        accuracy = check.judge(notes.enter)
    finally:
        notes.check_failed_allocations += (memory.failed_allocations() or 0) - before
    notes.add(accuracy=accuracy)
    if accuracy.random_in_step and not trial.model.dropout:
        notes.settings["random_numbers"] = "drawn in a step, although dropout is off"
    if accuracy.passed is False:
        raise MismatchError(f"{describe_mismatch(accuracy)} ({accuracy.case})")


def describe_mismatch(accuracy: Accuracy) -> str:
    """What is wrong with the worst tensor of a step that failed the check."""
    if accuracy.randomness is not None:
        if (found := accuracy.statistic) is None:
            return f"{accuracy.worst} has NaN or infinity over seeds, and is finite in eager"
        both = f"{found.compiled:.3g}, eager's is {found.eager:.3g}"
        return (
            f"the {accuracy.worst} over seeds is {both}; chance and rounding do not explain the "
            "difference"
        )
    if accuracy.too_small:
        return f"{accuracy.worst} has less than a third of the size that it has in eager"
    error = math.inf if accuracy.compiled_error is None else accuracy.compiled_error
    if accuracy.bound is not None and not error <= accuracy.bound:
        return (
            f"{accuracy.worst} is off by {error:.3g} (root mean square against "
            f"{accuracy.reference}); "
            f"eager is off by {accuracy.eager_error:.3g}, and {accuracy.bound:.3g} is allowed"
        )
    projection, allowed = accuracy.projection or PerArm(), accuracy.margin or 0.0
    compiled = math.nan if projection.compiled is None else projection.compiled
    eager = math.nan if projection.eager is None else projection.eager
    return (
        f"{accuracy.worst} has {compiled:.3g} times the reference in it ({accuracy.reference}); "
        f"eager has {eager:.3g} times, and {allowed:.3g} more or less is allowed"
    )


def warm_up(setup: Subject, notes: ProcessLog, steps: int | None = None) -> Steps[None]:
    """Run each arm until its step time is flat, and choose K unless an earlier process has chosen
    it.
    """
    bench, measure = setup.bench, setup.measure
    eager_s, eager_flat = yield from bench.warm_up(setup.eager, measure.warmup_s)
    compiled_s, compiled_flat = yield from bench.warm_up(setup.compiled, measure.warmup_s)
    if not steps:
        faster = setup.compiled if compiled_s < eager_s else setup.eager
        steps = yield from bench.steps_per_block(faster, min(eager_s, compiled_s), measure)
    notes.add(warm_up_flat=eager_flat and compiled_flat, steps_per_block=steps)
    # now with the code that was compiled during the warm-up
    notes.add(**artifacts.read_fingerprints())


def time_rounds(setup: Subject, notes: ProcessLog) -> Steps[None]:
    """Time rounds of both arms; what is known after each round stays, should the steps end."""
    host, monitor = host_monitor.HostMonitor(), setup.monitor
    steps = notes.process.steps_per_block or 1
    steps_s: dict[str, list[float]] = {arm: [] for arm in ARMS}

    def note(timed: Timed) -> None:
        notes.add(rounds=(*notes.process.rounds, timed.round))
        if timed.round.void is not None:
            return
        for arm, times in timed.steps_s.items():
            steps_s[arm] += times
        if timed.steps_s:
            notes.add(latencies=Latencies(*map(latency, steps_s.values())))
        if setup.trial.mode != "eager":
            notes.add(compile_s=notes.process.beyond_steady_s)

    try:
        arms = setup.eager, setup.compiled
        yield from measure_rounds(setup.bench, arms, steps, setup.measure, monitor, note)
    finally:
        before = notes.process.host.busy_while_compiling if notes.process.host else None
        state = HostState(before, host.share_busy_by_others(), host.throttled_s())
        notes.add(gpu=monitor.gpu.state(), host=state, changed_settings=dict(monitor.changed_flags))


def _require_no_divergence(setup: TrialSetup, check: AccuracyCheck, process: Process) -> None:
    """Raise when the loss has become NaN or infinite: EagerError when eager alone diverges too,
    else MismatchError.

    Training on random labels may diverge. The arms share their parameters, so eager restarts from
    the initial state.
    """
    if setup.is_finite(setup.compiled):
        return
    check.restore()
    steps = (process.steps_per_block or 1) * 2 * len(process.rounds)
    setup.bench.run(setup.eager, steps)
    setup.require_finite(
        setup.eager, EagerError(f"the loss of eager alone is NaN or infinite after {steps} steps")
    )
    raise MismatchError(
        "the compiled step gives NaN or infinity after the rounds, eager alone does not"
    )


def _measure_memory(setup: TrialSetup, notes: ProcessLog, arm: Arm) -> None:
    """Measure the device memory of an arm; on a shared GPU the memory in use cannot be attributed
    to it.
    """
    setup.monitor.gpu.take_reading("before")
    shared = setup.monitor.gpu.is_shared()
    reading = try_reading(lambda: setup.measure_memory(arm))
    if isinstance(reading, Missing):
        notes.add(memory_missing=f"{arm.name}: {reading.reason}")
        return
    peaks = notes.process.allocator_peak_bytes or PerArm()
    notes.add(allocator_peak_bytes=replace(peaks, **{arm.name: reading.allocator_peak_bytes}))
    if shared:
        notes.add(memory_bytes=None, memory_missing=SHARED_GPU_REASON)
        return
    in_use = notes.process.memory_bytes or PerArm()
    notes.add(memory_bytes=replace(in_use, **{arm.name: reading.in_use_bytes}))


def take_readings(setup: Subject, notes: ProcessLog) -> Steps[None]:
    """Take the readings of both arms that belong to no round: joules, and seconds of host and
    device.
    """
    if setup.measure.energy:
        with notes.enter("energy"):
            yield from _measure_energy(setup, notes)
    # last, since launches take longer in a process that has profiled
    with notes.enter("profiling"):
        if setup.bench.device.type == "cuda":
            yield from profile(setup, notes)


def profile(setup: Subject, notes: ProcessLog) -> Steps[None]:
    """Measure the seconds per step of the host and of the device.

    The host comes first, since launches take longer in a process that has profiled. Whether its
    time counts comes last.
    """
    timed = host_time.time_arms(setup.bench, (setup.eager, setup.compiled), _read_step_s(notes))
    host_s = yield from try_steps(timed)
    yield from _measure_device_time(setup, notes)
    yield from _note_host_time(setup, notes, host_s)


def _read_step_s(notes: ProcessLog) -> dict[str, float]:
    return {arm: notes.process.step_s(arm) or 0.0 for arm in ARMS}


def _measure_device_time(setup: Subject, notes: ProcessLog) -> Steps[None]:
    """Note the device's seconds per step of each arm, or why they are not known."""
    step_s, num_sizes = _read_step_s(notes), setup.bench.num_sizes
    arms = setup.eager, setup.compiled
    profiled = yield from try_steps(device_time.profile_arms(setup.bench, arms, step_s))
    if isinstance(profiled, Missing):
        notes.add(device_time_missing=profiled.reason)
        return
    busy: dict[str, device_time.Busy] = {}
    own: dict[str, device_time.StepTime] = {}
    missing = []
    for arm, passes in profiled.items():
        try:
            busy[arm] = device_time.busy_per_step(passes, step_s[arm], num_sizes)
            own[arm] = device_time.step_time(passes, step_s[arm], num_sizes, _calibrate_gap_s)
        except device_time.UnknownError as error:
            missing.append(f"{arm}: {error}")
    notes.add(
        device_time_s=PerArm(**{arm: item.busy_s for arm, item in busy.items()}),
        device_kernels=PerArm(**{arm: item.kernels for arm, item in busy.items()}),
        device_step_s=PerArm(**{arm: item.step_s for arm, item in own.items()}),
        device_gap_s=PerArm(**{arm: item.gap_s for arm, item in own.items()}),
        device_gap_source={arm: item.source for arm, item in own.items()},
        device_time_missing="; ".join(missing) or None,
    )
    notes.settings |= {
        f"attention_ran_{arm}": " and ".join(sorted(item.attention)) for arm, item in busy.items()
    }


def _calibrate_gap_s() -> float:
    gap_s = try_reading(device_time.calibrate_gap_s)
    if isinstance(gap_s, Missing):
        raise device_time.UnknownError(
            f"few kernels were queued, and no gap could be calibrated: {gap_s.reason}"
        )
    return gap_s


def _note_host_time(
    setup: Subject, notes: ProcessLog, host_s: dict[str, float] | Missing
) -> Steps[None]:
    """Note the host's seconds per step of each arm where they contain no wait for the device, else
    the reason.
    """
    if isinstance(host_s, Missing):
        notes.add(host_time_missing=host_s.reason)
        return
    arms, process = (setup.eager, setup.compiled), notes.process
    known = {
        arm: host_time.ProfiledArm(
            process.read_arm("device_step_s", arm) or process.read_arm("device_time_s", arm),
            process.read_arm("device_kernels", arm),
        )
        for arm in ARMS
    }
    found = yield from try_steps(host_time.leave_out_unknown(setup.bench, arms, host_s, known))
    if isinstance(found, Missing):
        notes.add(host_time_missing=found.reason)
        return
    missing, known_s = [], dict[str, float]()
    for arm, item in found.items():
        if isinstance(item, Missing):
            missing.append(f"{arm}: {item.reason}")
        else:
            known_s[arm] = item
    notes.add(host_step_s=PerArm(**known_s), host_time_missing="; ".join(missing) or None)


def _measure_energy(setup: Subject, notes: ProcessLog) -> Steps[None]:
    """Measure the joules per step of each arm; on a shared GPU they cannot be attributed to this
    process.
    """
    if setup.monitor.gpu.is_shared():
        notes.add(energy_missing=SHARED_GPU_REASON)
        return
    step_s = {arm: notes.process.step_s(arm.name) or 0.0 for arm in (setup.eager, setup.compiled)}
    measured = energy.measure_energy(setup.bench, step_s, setup.monitor.gpu.energy_j)
    used = yield from try_steps(measured)
    if isinstance(used, Missing):
        notes.add(energy_missing=used.reason)
    else:
        notes.add(energy_j=used)
