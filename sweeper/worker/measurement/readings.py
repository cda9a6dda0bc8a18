"""Readings of both arms that belong to no round: bytes, joules, and seconds of host and device. One
that cannot be taken leaves its reason.
"""

from collections.abc import Mapping
from dataclasses import replace

from sweeper.core.record import ARMS, PerArm, of_arm
from sweeper.worker.failures import Missing, try_reading, try_steps
from sweeper.worker.monitoring.gpu_monitor import GpuMonitor
from sweeper.worker.process_log import ProcessLog

from . import device_time, energy, host_time, memory
from .bench import Arms, Bench, Steps

SHARED_GPU_REASON = (
    # why a figure of the whole device cannot be attributed to this process
    "other processes on the GPU"
)


def note_memory(
    log: ProcessLog, arm: str, reading: memory.Reading | Missing, is_shared: bool
) -> None:
    """Note the device memory of an arm; on a shared GPU the memory in use cannot be attributed to
    it.
    """
    if isinstance(reading, Missing):
        log.add(memory_missing=f"{arm}: {reading.reason}")
        return
    _note_arm(log, arm, allocator_peak_bytes=reading.allocator_peak_bytes)
    if is_shared:
        log.add(memory_bytes=None, memory_missing=SHARED_GPU_REASON)
        return
    _note_arm(log, arm, memory_bytes=reading.in_use_bytes)


def _note_arm(log: ProcessLog, arm: str, **figures: float | None) -> None:
    """Note figures of one arm, by the field of the process."""
    for name, figure in figures.items():
        known = getattr(log.process, name) or PerArm()
        log.add(**{name: replace(known, **{arm: figure})})


def measure_energy(bench: Bench, arms: Arms, gpu: GpuMonitor, log: ProcessLog) -> Steps[None]:
    """Measure the joules per step of each arm; on a shared GPU they cannot be attributed to this
    process.
    """
    if gpu.is_shared():
        log.add(energy_missing=SHARED_GPU_REASON)
        return
    step_s = {arm: log.process.step_s(arm.name) or 0.0 for arm in arms}
    used = yield from try_steps(energy.measure_energy(bench, step_s, gpu.energy_j))
    if isinstance(used, Missing):
        log.add(energy_missing=used.reason)
    else:
        log.add(energy_j=used)


def profile(bench: Bench, arms: Arms, log: ProcessLog) -> Steps[None]:
    """Measure the seconds per step of the device, and of the host where no earlier process has.

    The host comes first, since launches take longer in a process that has profiled. Whether its
    time counts comes last.
    """
    step_s = {arm: log.process.step_s(arm) or 0.0 for arm in ARMS}
    if log.known.is_repeated:
        yield from measure_device_time(bench, arms, log)
        return
    host_s = yield from try_steps(host_time.time_arms(bench, arms, step_s))
    yield from measure_device_time(bench, arms, log)
    noted: Missing | None
    if isinstance(host_s, Missing):
        noted = host_s
    else:
        noted = yield from try_steps(_note_host_time(bench, arms, host_s, log))
    if noted:
        log.add(host_time_missing=noted.reason)


def measure_device_time(bench: Bench, arms: Arms, log: ProcessLog) -> Steps[None]:
    """Note the device's seconds per step of each arm, or why they are not known."""
    step_s = {arm: log.process.step_s(arm) or 0.0 for arm in ARMS}
    profiled = yield from try_steps(device_time.profile_arms(bench, arms, step_s))
    if isinstance(profiled, Missing):
        log.add(device_time_missing=profiled.reason)
        return
    for name in ("device_time_s", "device_kernels", "device_step_s", "device_gap_s"):
        log.add(**{name: PerArm()})
    sources, missing = {}, []
    for arm, passes in profiled.items():
        try:
            busy = device_time.busy_per_step(passes, step_s[arm], bench.num_sizes)
            _note_arm(log, arm, device_time_s=busy.busy_s, device_kernels=busy.kernels)
            if busy.exposed_s is not None:
                _note_arm(log, arm, exposed_s=busy.exposed_s)
            log.settings[f"attention_ran_{arm}"] = " and ".join(sorted(busy.attention))
            own = device_time.step_time(passes, step_s[arm], bench.num_sizes, _calibrate_gap_s)
            _note_arm(log, arm, device_step_s=own.step_s, device_gap_s=own.gap_s)
            sources[arm] = own.source
        except device_time.UnknownError as error:
            missing.append(f"{arm}: {error}")
    log.add(device_gap_source=sources, device_time_missing="; ".join(missing) or None)


def _calibrate_gap_s() -> float:
    gap_s = try_reading(device_time.calibrate_gap_s)
    if isinstance(gap_s, Missing):
        raise device_time.UnknownError(
            f"few kernels were queued, and no gap could be calibrated: {gap_s.reason}"
        )
    return gap_s


def _note_host_time(
    bench: Bench, arms: Arms, host_s: Mapping[str, float], log: ProcessLog
) -> Steps[None]:
    """Note the host's seconds per step of each arm where they contain no wait for the device, else
    the reason.
    """
    process, known, missing = log.process, {}, []
    for arm in arms:
        name = arm.name
        device_s = of_arm(process.device_step_s, name) or of_arm(process.device_time_s, name)
        kernels = of_arm(process.device_kernels, name)
        reason = yield from host_time.explain_unknown(bench, arm, host_s[name], device_s, kernels)
        if reason:
            missing.append(f"{name}: {reason}")
        else:
            known[name] = host_s[name]
    log.add(host_step_s=PerArm(**known), host_time_missing="; ".join(missing) or None)
