"""What would disturb a measurement now: other work on the host or the GPU, and a GPU that lowers
its clock.
"""

from collections.abc import Iterator, Sequence

from sweeper.core.system import gpus, host
from sweeper.core.system.gpus import Device, GpuReading
from sweeper.core.system.host import Host

UNRELIABLE = "measurements taken now would be unreliable:"  # begins the line of a disturbance


def find_on_host(machine: Host) -> Iterator[str]:
    """Describe what would disturb a measurement on the host now, one line each. A host that was
    busy is watched: its load is an average over a minute, and the last sweep may have ended.
    """
    if _is_busy(machine):
        machine = host.watch(machine, 0.5)
    if _is_busy(machine):
        by = f" ({', '.join(machine.busy_with)})" if machine.busy_with else ""
        yield (
            f"{machine.load:.1f} of {machine.cores} cores are busy{by}; stop the other processes, "
            "or wait"
        )


def find_on_gpu(gpu: GpuReading) -> Iterator[str]:
    """Describe what would disturb a measurement on the GPU now, one line each."""
    if gpu.pids:
        processes = "processes" if len(gpu.pids) > 1 else "process"
        names = [*filter(None, map(host.name_on_gpu, sorted(gpu.pids)))][: host.MAX_PROGRAMS]
        shown = f": {', '.join(names)}" if names else ""
        yield f"{len(gpu.pids)} other {processes} on the GPU{shown}; stop them, or take another"
    elif (gpu.memory_used_bytes or 0) > 2**30:  # an idle GPU has some hundred MiB in use
        yield "memory of the GPU is in use by processes that cannot be seen from here; take another"
    reasons = gpu.lowered_clocks or ()
    slow = [reason for reason in reasons if "thermal" in reason or "hardware" in reason]
    if slow:
        yield f"the GPU lowers its clock: {', '.join(slow)}"


def _is_busy(machine: Host) -> bool:
    return machine.load is not None and machine.load / machine.cores > 0.25


def read_disturbances(devices: Sequence[Device]) -> list[str]:
    """Read what would disturb measurements on the devices now; of several GPUs, the line names the
    one it is about.
    """
    if not devices:
        return []
    lines = list(find_on_host(host.read()))
    for device in devices:
        if device.gpu:
            name = f"GPU {device.gpu.selector}: " if len(devices) > 1 else ""
            lines += [name + line for line in find_on_gpu(gpus.read(device.gpu))]
    return lines
