from __future__ import annotations

import math
from pathlib import Path

import pytest

from sweeper.core.system import host

GIB = 2**30


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that stands for the root of the kernel's files."""
    monkeypatch.setattr(host, "ROOT", tmp_path)
    return tmp_path


def write_files(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_the_host_is_read_from_the_kernels_files(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "proc/cpuinfo": "processor : 0\nmodel name\t: A fine CPU\nflags\t\t: fpu avx512_bf16\n",
        "proc/loadavg": "1.50 0.70 0.30 2/100 4242\n",
        "sys/fs/cgroup/cpu.max": "150000 100000\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
    }
    write_files(root, files)
    read = host.read()
    assert (read.cpu, read.load, read.quota_cores, read.governor) == (
        "A fine CPU",
        1.5,
        1.5,
        "powersave",
    )
    assert read.bfloat16_native is True
    (root / "sys/fs/cgroup/cpu.max").write_text("max 100000\n")
    assert host.read().quota_cores is None
    monkeypatch.setattr(host, "ROOT", root / "nowhere")
    nothing = host.read()
    assert (nothing.load, nothing.governor, nothing.bfloat16_native) == (None, None, None)


@pytest.mark.parametrize(
    ("flags", "native"),
    [
        ("flags : fpu avx2", False),
        ("Features : fp bf16", True),
        ("flags : fpu amx_bf16", True),
        ("bugs : bf16", None),
    ],
)
def test_bfloat16_is_native_where_the_processor_says_so(
    root: Path, flags: str, native: bool | None
) -> None:
    write_files(root, {"proc/cpuinfo": f"{flags}\n"})
    assert host.read().bfloat16_native is native


MEMORY = "MemTotal: 9000000 kB\nMemAvailable:  4194304 kB\n"


@pytest.mark.parametrize(
    ("files", "free_bytes"),
    [
        ({}, math.inf),
        ({"proc/meminfo": MEMORY}, 4 * GIB),
        ({"proc/meminfo": MEMORY, "memory.max": "max", "memory.current": "7"}, 4 * GIB),
        ({"proc/meminfo": MEMORY, "memory.max": f"{3 * GIB}", "memory.current": f"{GIB}"}, 2 * GIB),
        # What the cgroup has cached it can give back.
        (
            {
                "memory.max": f"{3 * GIB}",
                "memory.current": f"{2 * GIB}",
                "memory.stat": f"anon 5\ninactive_file {GIB}",
            },
            2 * GIB,
        ),
        ({"proc/meminfo": MEMORY, "memory.max": f"{9 * GIB}", "memory.current": f"{GIB}"}, 4 * GIB),
    ],
    ids=["unknown", "machine", "no limit", "limit", "cached", "limit above what there is"],
)
def test_free_memory_is_the_machines_or_what_the_limit_leaves(
    root: Path, files: dict[str, str], free_bytes: float
) -> None:
    paths = {name if "/" in name else f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    write_files(root, paths)
    assert host.free_memory_bytes() == free_bytes


def test_cores_whose_siblings_are_unknown_stand_alone() -> None:
    assert host.physical_cores([2, 0]) == [(0,), (2,)]


def test_only_the_cores_asked_for_count(root: Path) -> None:
    lines = [
        "cpu 900 0 0 0 0 0 0 0 0 0",
        "cpu0 100 20 30 999 999 4 6 0 0 0",
        "cpu1 500 0 0 0 0 0 0 0 0 0",
        "intr 5",
    ]
    write_files(root, {"proc/stat": "\n".join(lines)})
    assert host.busy_s({0}) == 160 / host.TICKS_PER_SECOND


NAMES = ("own", "tar", "c) 3 (x", "kworker-idle")


def test_busy_cores_are_counted_over_a_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seconds of both clocks come from lists: two of four cores were busy for three seconds.

    A kernel's worker has another name than before, and was busy long ago.
    """

    def write_processes(*seconds: float, names: tuple[str, ...] = NAMES) -> None:
        for pid, (name, spent_s) in enumerate(zip(names, seconds, strict=True), 10):
            ticks = round(spent_s * host.TICKS_PER_SECOND)
            stat = (
                f"{pid} ({name}) R 1 1 1 0 -1 4194304 1 0 0 0 {ticks // 3} {ticks - ticks // 3} 0 0"
            )
            write_files(root, {f"proc/{pid}/stat": stat})

    clock, busy = iter([10.0, 13.0]), iter([100.0, 106.0])
    monkeypatch.setattr(host.time, "monotonic", lambda: next(clock))
    later = (*NAMES[:-1], "kworker-writeback")
    monkeypatch.setattr(
        host.time, "sleep", lambda _seconds: write_processes(4.0, 3.3, 9.0, 50.1, names=later)
    )
    monkeypatch.setattr(host, "busy_s", lambda _cores: next(busy))
    monkeypatch.setattr(host.os, "getpid", lambda: 10)  # which is not named
    write_processes(1.0, 1.8, 6.0, 50.0)
    machine = host.Host("a processor", 4, 4, load=2.5)
    watched = host.watch(machine, 3.0)
    assert watched.load == 2.0
    assert watched.busy_with == ("c) 3 (x (pid 12) 1.0", "tar (pid 11) 0.5")


def test_a_process_is_named_where_it_is_seen_to_use_the_gpu(root: Path) -> None:
    """In a container, NVML's number may be another program's here."""
    files = {"proc/7/comm": "python\n", "proc/7/maps": "7f00-7f01 rw-s 0 00:05 9 /dev/nvidiactl\n"}
    write_files(root, {**files, "proc/8/comm": "cron\n", "proc/8/maps": "/usr/lib/libc.so.6\n"})
    assert [host.name_on_gpu(pid) for pid in (7, 8, 9)] == ["python (pid 7)", None, None]
