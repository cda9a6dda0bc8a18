from __future__ import annotations

import dataclasses

import pytest

from sweeper.core.system import gpus, host
from sweeper.core.system.gpus import Device, GpuReading
from sweeper.core.system.host import Host
from sweeper.execution.disturbances import find_on_gpu, find_on_host, read_disturbances

CPU = Device("cpu")
QUIET = Host("a processor", cores=4, usable_cores=4, load=0.2)


def test_a_busy_host_or_gpu_disturbs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(find_on_host(QUIET)) == []
    assert list(find_on_gpu(GpuReading(pids=frozenset(), memory_used_bytes=2**29))) == []
    monkeypatch.setattr(host, "watch", lambda machine, _seconds: machine)
    assert list(find_on_host(dataclasses.replace(QUIET, load=1.2))) == [
        "1.2 of 4 cores are busy; stop the other processes, or wait"
    ]
    assert "2 other processes" in next(find_on_gpu(GpuReading(pids=frozenset({1, 2}))))
    assert "cannot be seen from here" in next(
        find_on_gpu(GpuReading(pids=frozenset(), memory_used_bytes=2**33))
    )
    assert "hardware_thermal" in next(
        find_on_gpu(GpuReading(lowered_clocks=("idle", "hardware_thermal")))
    )


def test_disturbances_of_several_gpus_name_the_gpu_and_those_of_the_host_come_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = (gpus.Gpu(str(index), f"GPU-{index}", "a GPU") for index in range(2))
    busy = GpuReading(pids=frozenset({1}))
    monkeypatch.setattr(host, "read", lambda: dataclasses.replace(QUIET, load=1.2))
    watched = ("make (pid 8) 1.0", "sh (pid 9) 0.2")
    monkeypatch.setattr(
        host, "watch", lambda machine, _s: dataclasses.replace(machine, busy_with=watched)
    )
    monkeypatch.setattr(host, "name_on_gpu", lambda pid: f"python (pid {pid})")
    monkeypatch.setattr(
        gpus, "read", lambda gpu: busy if gpu is second else GpuReading(pids=frozenset())
    )
    load = (
        "1.2 of 4 cores are busy (make (pid 8) 1.0, sh (pid 9) 0.2); stop the other processes, or "
        "wait"
    )
    other = "1 other process on the GPU: python (pid 1); "
    found = read_disturbances([Device("cuda", first), Device("cuda", second)])
    assert found == [load, f"GPU 1: {other}stop them, or take another"]
    assert read_disturbances([Device("cuda", second)]) == [
        load,
        f"{other}stop them, or take another",
    ]
    assert read_disturbances([CPU]) == [load]
    assert read_disturbances([]) == []


@pytest.mark.parametrize(
    ("reading", "lines"),
    [
        (GpuReading(), 0),
        (GpuReading(pids=frozenset(), memory_used_bytes=2**30), 0),
        (GpuReading(pids=frozenset(), memory_used_bytes=2**30 + 1), 1),
        (GpuReading(pids=frozenset({1}), memory_used_bytes=2**33), 1),  # which it has explained
        (GpuReading(pids=frozenset({1}), lowered_clocks=("thermal",)), 2),
        (GpuReading(lowered_clocks=("idle", "power_cap")), 0),
    ],
)
def test_what_a_gpu_says_and_what_it_hides(reading: GpuReading, lines: int) -> None:
    assert len(list(find_on_gpu(reading))) == lines


@pytest.mark.parametrize(
    ("load", "cores", "disturbs"),
    [(1.0, 4, False), (1.01, 4, True), (1.01, 8, False), (None, 1, False)],
)
def test_a_quarter_of_the_cores_may_be_busy(
    monkeypatch: pytest.MonkeyPatch, load: float | None, cores: int, disturbs: bool
) -> None:
    monkeypatch.setattr(host, "watch", lambda machine, _seconds: machine)
    machine = dataclasses.replace(QUIET, load=load, cores=cores)
    assert bool(list(find_on_host(machine))) is disturbs


@pytest.mark.parametrize(
    ("busy", "disturbs"), [(0.1, False), (1.1, True), (3.0, True), (None, True)]
)
def test_a_load_that_has_passed_disturbs_nothing(
    monkeypatch: pytest.MonkeyPatch, busy: float | None, disturbs: bool
) -> None:
    """The last sweep is in the average of the last minute, and ended seconds ago."""
    monkeypatch.setattr(host, "read", lambda: dataclasses.replace(QUIET, load=2.5))
    now = dataclasses.replace(QUIET, load=2.5 if busy is None else min(busy, 2.5))
    monkeypatch.setattr(host, "watch", lambda _machine, _seconds: now)
    assert bool(read_disturbances([CPU])) is disturbs


def test_a_quiet_host_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "read", lambda: QUIET)
    monkeypatch.setattr(host, "watch", lambda *_: pytest.fail("it takes time"))
    assert read_disturbances([CPU]) == []
