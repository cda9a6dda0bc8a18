"""The host: its processor, its load and its memory.

Linux tells most; elsewhere fields stay None.
"""

import heapq
import math
import os
import platform
import re
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path("/")  # of the kernel's files
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
MAX_PROGRAMS = 2  # that are named
BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}  # in /proc/cpuinfo: x86, x86 with AMX, Arm


@dataclass(frozen=True)
class Host:
    """A machine at one moment."""

    cpu: str
    cores: int
    usable_cores: int  # cores that this process may run on
    # average number of running processes over the last minute, of the whole machine
    load: float | None = None
    quota_cores: float | None = None  # the cgroup's limit of processor time, in cores
    governor: str | None = None
    bfloat16_native: bool | None = None
    # what keeps cores busy, and how many, where that was watched: `ffmpeg (pid 12) 1.0`
    busy_with: tuple[str, ...] = ()


def read() -> Host:
    """Read what the kernel's files say now."""
    cpu = _find("proc/cpuinfo", r"model name\s*: *(.*\S)")
    flags = _find("proc/cpuinfo", r"(?:flags|Features)\s*:(.*)").split()
    load = _text("proc/loadavg").split()
    # `MICROSECONDS PERIOD` or `max PERIOD`, see cpu.max in the kernel's admin-guide/cgroup-v2
    quota, _, period = _text("sys/fs/cgroup/cpu.max").partition(" ")
    cores = os.cpu_count() or 1
    return Host(
        cpu=cpu or platform.processor() or platform.machine(),
        cores=cores,
        usable_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores,
        load=float(load[0]) if load else None,
        quota_cores=int(quota) / int(period) if quota.isdigit() and period.isdigit() else None,
        governor=_text("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or None,
        bfloat16_native=not BFLOAT16_FLAGS.isdisjoint(flags) if flags else None,
    )


def busy_s(cores: Collection[int]) -> float:
    """Processor seconds of everybody on these cores since the machine started: the lines `cpuN` of
    proc_stat(5).

    0 where the kernel does not tell.
    """
    names = {f"cpu{core}" for core in cores}
    ticks = 0
    for line in _text("proc/stat").splitlines():
        words = line.split()
        if words[0] in names:
            user, nice, system, _idle, _iowait, irq, softirq = map(int, words[1:8])
            ticks += user + nice + system + irq + softirq
    return ticks / TICKS_PER_SECOND


def watch(machine: Host, seconds: float) -> Host:
    """Watch for so many seconds how many cores are busy, and with what: a load above that has
    passed. Unchanged where the kernel does not tell.
    """
    cores = range(os.cpu_count() or 1)
    programs, start, before_s = _read_programs(), time.monotonic(), busy_s(cores)
    time.sleep(seconds)
    passed_s, spent_s = time.monotonic() - start, busy_s(cores) - before_s
    if not before_s:
        return machine
    busy = {}
    for number, (name, total_s) in _read_programs().items():
        _, earlier_s = programs.get(number, (name, 0.0))  # it may have had another name
        busy[name] = (total_s - earlier_s) / passed_s
    most = heapq.nlargest(MAX_PROGRAMS, busy, busy.__getitem__)
    shown = tuple(f"{name} {busy[name]:.1f}" for name in most if busy[name] > 0.1)
    return replace(machine, load=min(machine.load or 0.0, spent_s / passed_s), busy_with=shown)


def _read_programs() -> dict[str, tuple[str, float]]:
    """Read the name, `NAME (pid N)`, and the processor seconds of every other process, by its
    number: proc_pid_stat(5).
    """
    found = {}
    for folder in (ROOT / "proc").glob("[0-9]*"):
        # the name may have any character in it
        begin, _, rest = _text(f"proc/{folder.name}/stat").rpartition(") ")
        if rest and folder.name != str(os.getpid()):
            name = f"{begin.partition('(')[2]} (pid {folder.name})"
            seconds = sum(map(int, rest.split()[11:13])) / TICKS_PER_SECOND
            found[folder.name] = name, seconds
    return found


def name_on_gpu(pid: int) -> str | None:
    """Name a process that uses an NVIDIA GPU; None where it cannot be seen, or where another one
    has this number here, as in a container.
    """
    if "/dev/nvidia" not in _text(f"proc/{pid}/maps"):
        return None
    return f"{_text(f'proc/{pid}/comm')} (pid {pid})"


def physical_cores(numbers: Iterable[int]) -> list[tuple[int, ...]]:
    """Group cores that are threads of one physical core; each is alone where the kernel does not
    tell.
    """
    together: dict[str, list[int]] = {}
    for number in sorted(numbers):
        siblings = _text(f"sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list")
        together.setdefault(siblings or str(number), []).append(number)
    return [tuple(threads) for threads in together.values()]


def free_memory_bytes() -> float:
    """Memory available without swapping, or what the cgroup's limit leaves of it; infinite where
    neither is known.
    """
    found = []
    if available_kib := _find("proc/meminfo", r"MemAvailable: *(\d+)"):
        found.append(float(available_kib) * 1024)
    limit, used = _text("sys/fs/cgroup/memory.max"), _text("sys/fs/cgroup/memory.current")
    if used and limit.isdigit():
        cached = _find("sys/fs/cgroup/memory.stat", r"inactive_file (\d+)")
        found.append(float(limit) - float(used) + float(cached or 0))
    return min(found, default=math.inf)


def _find(name: str, pattern: str) -> str:
    """Find the group of a pattern that begins a line of a file of the kernel; empty where there is
    none.
    """
    found = re.search(f"^{pattern}", _text(name), re.MULTILINE)
    return found[1] if found else ""


def _text(name: str) -> str:
    """Read a file of the kernel; empty where there is none."""
    with suppress(OSError):
        return (ROOT / name).read_text(errors="replace").strip()
    return ""
