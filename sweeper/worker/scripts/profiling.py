"""The clocks of the device and of the host, of a script's recorded steps: `session.profile` for a loop of one's own.

A step of a script has all that the script does in it, so it may wait for the device by itself, as `loss.item()` does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Mapping

from sweeper.core.record import ARMS
from sweeper.worker.failures import Failure, Missing, describe_error
from sweeper.worker.measurement import device_time, host_time
from sweeper.worker.measurement.bench import STEPS_BEFORE_BLOCK
from sweeper.worker.scripts.loop import Lead, run_steps
from sweeper.worker.scripts.reading import Reading
from sweeper.worker.session import note_device_time, note_host_time, read_known


def profile(reading: Reading, cycle: int) -> Lead:
    """Measure seconds per step of the host, then of the device, as the order in `session.profile` has it."""
    notes = reading.notes
    if reading.device.type != "cuda":
        return
    step_s = {arm: notes.process.step_s(arm) or math.inf for arm in ARMS}
    try:
        host_s = yield from _time_host(reading, step_s, cycle)
        note_device_time(notes, (yield from _profile_arms(reading, step_s, cycle)), cycle)
        found: dict[str, float | Missing] = {}
        for arm, host_step_s in host_s.items():
            wait = yield from _find_wait(reading, arm, cycle)
            reason = host_time.explain_wait(wait, host_step_s, read_known(notes)[arm], lambda: None)
            found[arm] = Missing(reason) if reason else host_step_s
        note_host_time(notes, found)
    except Failure:
        raise
    except Exception as error:
        if error is reading.loop.thrown:
            raise
        notes.add(device_time_missing=describe_error(error))
    finally:
        reading.arms.switch("eager")


def _time_host(reading: Reading, step_s: Mapping[str, float], cycle: int) -> Generator[None, None, dict[str, float]]:
    """Time each step of both arms from an idle device until its last call has returned."""
    times_s: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for arm in (*ARMS, *reversed(ARMS)):
        reading.arms.switch(arm)
        yield from run_steps(math.ceil(STEPS_BEFORE_BLOCK / cycle) * cycle)
        with reading.without_collector():
            for _ in range(host_time.count_steps(step_s[arm], cycle)):
                reading.synchronize()
                start = time.perf_counter()
                yield
                times_s[arm].append(time.perf_counter() - start)
    return {arm: host_time.host_per_step(times, cycle) for arm, times in times_s.items()}


def _profile_arms(
    reading: Reading, step_s: Mapping[str, float], cycle: int
) -> Generator[None, None, dict[str, list[device_time.Pass]]]:
    passes: dict[str, list[device_time.Pass]] = {arm: [] for arm in ARMS}
    steps = device_time.count_steps(cycle)
    for index in range(device_time.count_passes(step_s, steps)):
        for arm in ARMS if index % 2 == 0 else reversed(ARMS):
            reading.arms.switch(arm)
            before = max(device_time.STEPS_BEFORE, device_time.BEFORE_S / step_s[arm])
            yield from run_steps(math.ceil(before / cycle) * cycle)
            with device_time.recording() as read:
                yield from run_steps(steps)
            passes[arm].append(device_time.read_pass(read()))
    return passes


def _find_wait(reading: Reading, arm: str, cycle: int) -> Generator[None, None, str | None]:
    reading.arms.switch(arm)
    with host_time.noting_waits() as waits:
        yield from run_steps(math.ceil(2 / cycle) * cycle)
    return next(iter(waits), None)
