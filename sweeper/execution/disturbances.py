"""What would disturb a measurement now: other work on the host or the GPU, and a GPU that lowers
its clock.
"""

from collections.abc import Iterator, Sequence

from sweeper.core.system import gpus, host
from sweeper.core.system.gpus import Device, GpuReading
from sweeper.core.system.host import Host

UNRELIABLE = "measurements taken now would be unreliable:"  # begins the line of a disturbance
MAX_LOAD_PER_CORE = 0.25
SAMPLE_S = 0.5  # of a host that was busy in the last minute
MAX_MEMORY_UNEXPLAINED_BYTES = 2**30  # an idle GPU has some hundred MiB in use


def find_disturbances(machine: Host, gpu: GpuReading | None) -> Iterator[str]:
    """Describe what would disturb a measurement now, one line each."""
    if _is_busy(machine):
        by = f" ({', '.join(machine.busy_with)})" if machine.busy_with else ""
        yield (
            f"{machine.load:.1f} of {machine.cores} cores are busy{by}; stop the other processes, "
            "or wait"
        )
    if gpu is not None:
        yield from _find_on_gpu(gpu)


def _find_on_gpu(gpu: GpuReading) -> Iterator[str]:
    if gpu.pids:
        processes = "processes" if len(gpu.pids) > 1 else "process"
        names = [*filter(None, map(host.name_on_gpu, sorted(gpu.pids)))][: host.MAX_PROGRAMS]
        shown = f": {', '.join(names)}" if names else ""
        yield f"{len(gpu.pids)} other {processes} on the GPU{shown}; stop them, or take another"
    elif (gpu.memory_used_bytes or 0) > MAX_MEMORY_UNEXPLAINED_BYTES:
        yield "memory of the GPU is in use by processes that cannot be seen from here; take another"
    reasons = gpu.lowered_clocks or ()
    slow = [reason for reason in reasons if "thermal" in reason or "hardware" in reason]
    if slow:
        yield f"the GPU lowers its clock: {', '.join(slow)}"


def _is_busy(machine: Host) -> bool:
    return machine.load is not None and machine.load / machine.cores > MAX_LOAD_PER_CORE


def discount_past_load(machine: Host) -> Host:
    """Lower the load, an average over a minute, to the cores that are busy now: the last sweep may
    have ended.
    """
    return host.watch(machine, SAMPLE_S) if _is_busy(machine) else machine


def read_disturbances(devices: Sequence[Device]) -> list[str]:
    """Read what would disturb measurements on the devices now; of several GPUs, the line names the
    one it is about.
    """
    if not devices:
        return []
    lines = list(find_disturbances(discount_past_load(host.read()), None))
    for device in devices:
        if device.gpu:
            name = f"GPU {device.gpu.selector}: " if len(devices) > 1 else ""
            lines += [f"{name}{line}" for line in _find_on_gpu(gpus.read(device.gpu))]
    return lines
