"""What is measured while a script runs: generators that the loop resumes at the end of each of its steps.

`lead_steps` compares both arms in one process: blocks of K steps take turns, on recorded batches of the script's
loader, so the times have neither loading nor other shapes in them. `lead_loop` runs one arm throughout, loader and all,
as the script does by itself: batches that were fetched ahead in one arm's time must not be used up in the other's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from statistics import median

import torch

from sweeper.core.record import Accuracy, HostState, LoopRun, PerArm, Round
from sweeper.worker.compilation import artifacts
from sweeper.worker.failures import EagerError, UnsteadyError
from sweeper.worker.measurement.bench import (
    FIRST_STEPS,
    MAX_FIRST_STEPS_SPREAD,
    MAX_VOID_ROUNDS,
    MAX_WARM_UP_SPREAD,
    MIN_BLOCK_S,
    MIN_BLOCK_STEPS,
    STEPS_BEFORE_BLOCK,
    spread,
)
from sweeper.worker.measurement.memory import read_allocator
from sweeper.worker.monitoring import host_monitor
from sweeper.worker.scripts.check import check_modules
from sweeper.worker.scripts.loop import Lead, Loop, ScriptOverError, run_steps
from sweeper.worker.scripts.profiling import profile
from sweeper.worker.scripts.reading import EAGER_STEPS, Reading

MAX_CYCLE_BATCHES = 8  # recorded batches that blocks go through; each new shape may have to be compiled
LOOP_S = 10.0  # length of a loop's measurement, unless `measure.rounds_s` says less
MIN_LOOP_STEPS = 8
SETTLED_STEPS = 3  # in a row without a compilation, before a compiled loop is timed


def lead_steps(reading: Reading) -> Lead:
    """Lead a script through the phases of the comparison of steps; the script ends when the generator does."""
    notes, arms, loop = reading.notes, reading.arms, reading.loop
    modules = reading.begin()
    with notes.enter("eager"):
        before = loop.loader.num_batches
        yield from run_steps(EAGER_STEPS)
        per_step = (loop.loader.num_batches - before) / EAGER_STEPS
        cycle = _start_replay(loop, per_step)
    with notes.enter("compiling"):
        notes.counters = arms.counters
        arms.prepare(modules)
        arms.switch("compiled")
        host = host_monitor.HostMonitor()
        yield from _time_first_steps(reading, cycle)
        notes.add(host=HostState(host.share_busy_by_others()))
        arms.require_compiled()
        notes.add(**artifacts.read_fingerprints(), compile_parts_s=artifacts.read_parts_s())
    with notes.enter("warming"):
        steps = yield from _warm_up(reading, cycle)
    with notes.enter("measuring"):
        is_over = yield from _measure_rounds(reading, steps)
        arms.require_compiled()
    try:
        if not is_over:
            with notes.enter("profiling"):
                yield from profile(reading, cycle)
            yield from check_modules(reading.job, reading.device, arms.compiled_forms(), notes)
    except ScriptOverError:
        is_over = True
    if is_over:
        notes.add(accuracy=Accuracy(None, None, "the script ended before its modules could be judged"))


def _start_replay(loop: Loop, per_step: float) -> int:
    """Give recorded batches again from now on; the number of steps after which they begin again."""
    if not loop.loader.num_recorded or per_step <= 0:
        return 1
    size = max(round(per_step), 1)
    cycle = max(min(MAX_CYCLE_BATCHES, loop.loader.num_recorded) // size, 1)
    loop.loader.replay(cycle * size)
    return cycle


def _time_first_steps(reading: Reading, cycle: int) -> Lead:
    """Time the first compiled steps one by one, until they are steady."""
    least, most = max(FIRST_STEPS[0], cycle), max(FIRST_STEPS[1], 2 * cycle)
    times: list[float] = []
    while len(times) < most and (len(times) < least or spread(times[-3:]) > MAX_FIRST_STEPS_SPREAD):
        times.append((yield from reading.block_s(1)))
        reading.notes.add(first_steps_s=tuple(times))


def _warm_up(reading: Reading, cycle: int) -> Generator[None, None, int]:
    """Run each arm until its step time is flat; K, the number of steps of a block."""
    measure, kind = reading.job.measure, reading.device.type
    step_s: dict[str, float] = {}
    flat = True
    for arm in ("compiled", "eager"):
        reading.arms.switch(arm)
        yield from run_steps(STEPS_BEFORE_BLOCK)
        deadline, readings = time.perf_counter() + measure.warmup_s, list[float]()
        while len(readings) < 3 or (
            spread(readings[-3:]) > MAX_WARM_UP_SPREAD[kind] and time.perf_counter() < deadline
        ):
            readings.append((yield from reading.block_s(cycle)) / cycle)
        flat = flat and spread(readings[-3:]) <= MAX_WARM_UP_SPREAD[kind]
        step_s[arm] = median(readings[-3:])
    least_s = measure.block_s or MIN_BLOCK_S[kind]
    steps = max(measure.block_steps or MIN_BLOCK_STEPS[kind], least_s / min(step_s.values()))
    steps = math.ceil(steps / cycle) * cycle
    reading.notes.add(warm_up_flat=flat, steps_per_block=steps)
    return steps


def _measure_rounds(reading: Reading, steps: int) -> Generator[None, None, bool]:
    """Time rounds of both arms in turn; whether the script has ended meanwhile, which leaves the rounds that it had."""
    measure, notes, is_over = reading.job.measure, reading.notes, False
    host, before_s = host_monitor.HostMonitor(), notes.process.host
    begin, counted, void = time.perf_counter(), 0, list[str]()
    try:
        while counted < measure.rounds:
            late = measure.rounds_s is not None and time.perf_counter() - begin >= measure.rounds_s
            if late and counted and counted % 2 == 0:
                break
            measured = yield from _measure_round(reading, "AB" if counted % 2 == 0 else "BA", steps)
            notes.add(rounds=(*notes.process.rounds, measured))
            counted += measured.void is None
            void += [measured.void] if measured.void else []
            if len(void) >= MAX_VOID_ROUNDS:
                raise UnsteadyError(
                    f"{len(void)} of {len(void) + counted} rounds were void: {'; '.join(sorted(set(void)))}"
                )
    except ScriptOverError as error:
        if not counted:
            raise EagerError(f"{error}; it ended before its first round of {2 * steps} steps was complete") from error
        is_over = True
    finally:
        reading.arms.switch("eager")
        monitor, busy = reading.monitor, before_s.busy_while_compiling if before_s else None
        state = HostState(busy, host.share_busy_by_others(), host.throttled_s())
        notes.add(gpu=monitor.gpu.state(), host=state, changed_settings=dict(monitor.changed_flags))
    if reading.job.trial.mode != "eager":
        notes.add(compile_s=notes.process.beyond_steady_s)
    return is_over


def _measure_round(reading: Reading, order: str, steps: int) -> Generator[None, None, Round]:
    loop, counters = reading.loop, reading.arms.counters
    times: dict[str, float] = {}
    peaks: dict[str, float] = {}
    in_use: dict[str, float] = {}
    reason: str | None = None
    reading.monitor.start_round()
    for arm in ("eager", "compiled") if order == "AB" else ("compiled", "eager"):
        reading.arms.switch(arm)
        yield from run_steps(STEPS_BEFORE_BLOCK)
        before, programs = loop.count(), counters.programs
        with reading.without_collector():
            if reading.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            times[arm] = yield from reading.block_s(steps)
        if reading.device.type == "cuda":
            in_use[arm], peaks[arm] = read_allocator(graphs=arm == "compiled")
        seen = loop.count().since(before)
        happened = {
            "the script read another loader": seen.others,
            "the script saved a file": seen.saved,
            "the gradient scaler skipped a step": seen.skipped,
            "recompiled": counters.programs != programs,
        }
        reason = next((name for name, amount in happened.items() if amount), reason)
        reading.monitor.read_after_block(arm)
    reason = reason or reading.monitor.explain_void()
    if peaks and reason is None:
        reading.notes.add(allocator_peak_bytes=PerArm(**peaks), memory_bytes=PerArm(**in_use))
    return Round(order, times["eager"], times["compiled"], reason)


def lead_loop(reading: Reading, arm: str) -> Lead:
    """Time the loop as the script runs it, with one arm throughout once the loop is known."""
    notes, arms, loop = reading.notes, reading.arms, reading.loop
    modules = reading.begin()
    loop.loader.records = False
    with notes.enter("eager"):
        yield from run_steps(EAGER_STEPS)
    if arm == "compiled":
        with notes.enter("compiling"):
            arms.prepare(modules)
            arms.switch(arm)
            yield from _settle(reading)
            arms.require_compiled()
    with notes.enter("warming"):
        yield from run_steps(loop.loader.queued)  # what workers fetched ahead while nothing was asked for
    with notes.enter("measuring"):
        limit_s = min(LOOP_S, reading.job.measure.rounds_s or LOOP_S)
        before, programs = loop.count(), len(arms.counters.programs)
        reading.synchronize()
        start = time.perf_counter()
        end, seen = start, loop.count()
        try:
            while loop.num_steps - before.steps < MIN_LOOP_STEPS or end - start < limit_s:
                yield
                end, seen = time.perf_counter(), loop.count()
        except ScriptOverError:  # what it did after its last step is no part of that
            if loop.num_steps - before.steps < MIN_LOOP_STEPS:
                raise
        else:
            reading.synchronize()
            end = time.perf_counter()
        seen = seen.since(before)
        steps = seen.steps
        loader_s = seen.loader_s / steps if loop.loader.seen else None
        recompiled = len(arms.counters.programs) - programs
        reading.loops[arm] = LoopRun(steps, (end - start) / steps, loader_s, seen.batches / steps, recompiled)
        if arm == "compiled":
            arms.require_compiled()


def _settle(reading: Reading) -> Lead:
    """Run until nothing has been compiled for some steps."""
    quiet, steps = 0, 0
    while quiet < SETTLED_STEPS and steps < FIRST_STEPS[1]:
        programs = reading.arms.counters.programs
        yield
        steps += 1
        quiet = quiet + 1 if reading.arms.counters.programs == programs else 0
