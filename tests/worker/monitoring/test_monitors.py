from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from sweeper.worker.monitoring import gpu_monitor, host_monitor
from sweeper.worker.monitoring.host_monitor import HostMonitor, Spent, own_processes, spent_s
from sweeper.worker.monitoring.round_monitor import RoundMonitor


class Clocks:
    """What a host monitor reads: seconds on the clock, of all processors, of our own process."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *readings: tuple[float, float, float]
    ) -> None:
        taken = (
            host_monitor._Reading(now_s, busy_s, {7: Spent(1, own_s)})
            for now_s, busy_s, own_s in readings
        )
        monkeypatch.setattr(host_monitor, "_take_reading", taken.__next__)


@pytest.mark.parametrize(
    ("own_s", "share"),
    [(0.0, 0.75), (2.0, 0.25), (3.0, 0.0), (3.5, 0.0)],
    ids=["others alone", "both", "we alone", "clocks that disagree"],
)
def test_time_of_others_is_told_from_our_own(
    monkeypatch: pytest.MonkeyPatch, own_s: float, share: float
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3})
    Clocks(monkeypatch, (100.0, 50.0, 7.0), (101.0, 53.0, 7.0 + own_s), (101.0, 53.0, 7.0 + own_s))
    monitor = HostMonitor()
    assert monitor.share_busy_by_others() == pytest.approx(share)
    assert monitor.share_busy_by_others(away_s=0.75) == pytest.approx(4 * share), (
        "in a quarter of the time"
    )


@pytest.mark.parametrize(
    ("before", "now", "spent"),
    [
        ({1: Spent(0, 5.0)}, {1: Spent(0, 6.0)}, 1.0),
        ({1: Spent(0, 5.0)}, {1: Spent(0, 6.0), 2: Spent(1, 0.5)}, 1.5),
        ({1: Spent(0, 5.0), 2: Spent(1, 3.0)}, {1: Spent(0, 9.0)}, 1.0),
        ({1: Spent(0, 5.0), 2: Spent(1, 3.0), 3: Spent(2, 20.0)}, {1: Spent(0, 9.0)}, 1.0),
    ],
    ids=["worked", "started another", "collected a child", "a grandchild is gone with its time"],
)
def test_time_of_a_session_whose_processes_come_and_go(
    before: dict[int, Spent], now: dict[int, Spent], spent: float
) -> None:
    assert spent_s(before, now) == spent


def test_host_that_does_not_count_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    Clocks(monkeypatch, (100.0, 0.0, 7.0), (101.0, 0.0, 7.5))
    assert HostMonitor().share_busy_by_others() is None


def test_a_real_host_is_never_busier_than_its_cores() -> None:
    monitor = HostMonitor()
    time.sleep(0.2)
    found = monitor.share_busy_by_others()
    assert found is None or 0 <= found <= 1.5  # ticks of a hundredth of a second


def test_stopped_neighbours_are_not_others(monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
    )
    try:
        for pids, others in (
            ((OURS, process.pid), 0),
            ((OURS, process.pid, THEIRS), 1),
            ((OUR_NUMBER_OUTSIDE, 777_777_777, 666_666_666), 1),
        ):
            monkeypatch.setattr(
                gpu_monitor, "open_nvml", lambda _device, pids=pids: (Nvml(pids, pids), "a handle")
            )
            monitor = gpu_monitor.GpuMonitor(torch.device("cuda"), lambda: frozenset({process.pid}))
            state = monitor.state()
            assert state is not None
            assert state.other_processes == others
            assert monitor.used_by_others() is (THEIRS in pids)
    finally:
        process.kill()
        process.wait()


def test_own_processes_are_those_of_the_session() -> None:
    ours = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    other = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True
    )
    try:
        time.sleep(0.2)
        found = own_processes()
        assert os.getpid() in found
        assert ours.pid in found
        assert other.pid not in found
    finally:
        for process in (ours, other):
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("nr_periods 3\nthrottled_usec 1500000\n", 1.5), ("nr_periods 3\n", None), (None, None)],
)
def test_throttled_time_comes_from_the_cgroup(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None, seconds: float | None
) -> None:
    file = tmp_path / "cpu.stat"
    monkeypatch.setattr(host_monitor, "QUOTA_FILES", ((str(file), "throttled_usec", 1e-6),))
    if text is not None:
        file.write_text(text.replace("1500000", "500000"))
    monitor = HostMonitor()
    if text is not None:
        file.write_text(text.replace("1500000", "2000000"))
    assert monitor.throttled_s() == (None if seconds is None else pytest.approx(seconds))


class Nvml:
    """A driver that answers what it is told to; None is a question that it refuses."""

    class NVMLError(Exception):
        pass

    NVML_CLOCK_SM = NVML_TEMPERATURE_GPU = 0

    def __init__(
        self, pids: tuple[int, ...] | None, users: tuple[int, ...] = (), reasons: int | None = 0
    ) -> None:
        self._pids, self._users, self._reasons = pids, users, reasons

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802  # NVML's name
        return "580.1"

    def nvmlDeviceGetProcessUtilization(  # noqa: N802
        self, _handle: object, since_us: int
    ) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, smUtil=50, timeStamp=since_us + 1) for pid in self._users]

    def __getattr__(self, name: str) -> Callable[..., object]:
        answers: dict[str, object] = {
            "nvmlDeviceGetComputeRunningProcesses": None
            if self._pids is None
            else [SimpleNamespace(pid=pid) for pid in self._pids],
            "nvmlDeviceGetCurrentClocksThrottleReasons": self._reasons,  # of an old driver
            "nvmlDeviceGetClockInfo": 1980,
        }

        def answer(*_arguments: object) -> object:
            if answers.get(name) is None:
                raise self.NVMLError(name)
            return answers[name]

        return answer


def make_monitor(monkeypatch: pytest.MonkeyPatch, nvml: Nvml) -> gpu_monitor.GpuMonitor:
    monkeypatch.setattr(gpu_monitor, "open_nvml", lambda _device: (nvml, "a handle"))
    monitor = gpu_monitor.GpuMonitor(torch.device("cuda"))
    monitor.take_reading("eager")
    monitor.take_reading("compiled")
    return monitor


OURS, THEIRS, OUR_NUMBER_OUTSIDE = os.getpid(), 999_999_999, 888_888_888


@pytest.mark.parametrize(
    ("pids", "others"),
    [
        ((OURS,), 0),
        ((OURS, THEIRS), 1),
        ((OUR_NUMBER_OUTSIDE,), 0),
        ((OUR_NUMBER_OUTSIDE, THEIRS), 1),
        ((), 0),
        (None, None),
    ],
)
def test_other_processes_are_counted(
    monkeypatch: pytest.MonkeyPatch, pids: tuple[int, ...] | None, others: int | None
) -> None:
    state = make_monitor(monkeypatch, Nvml(pids)).state()
    assert state is not None
    assert state.other_processes == others


@pytest.mark.parametrize(
    ("users", "used"),
    [
        ((OURS,), False),
        ((OURS, THEIRS), True),
        ((OUR_NUMBER_OUTSIDE,), False),
        ((OUR_NUMBER_OUTSIDE, THEIRS), False),
    ],
    ids=["we", "we and another", "we by another number", "numbers that say nothing"],
)
def test_use_by_others_is_seen_where_numbers_of_processes_are_ours(
    monkeypatch: pytest.MonkeyPatch, users: tuple[int, ...], used: bool
) -> None:
    assert make_monitor(monkeypatch, Nvml((), users)).used_by_others() == used


@pytest.mark.parametrize(
    ("reasons", "slowdowns"), [(0x01, ()), (0x04 | 0x01, ("power_cap",)), (None, None)]
)
def test_slowdowns_are_named_or_unknown(
    monkeypatch: pytest.MonkeyPatch, reasons: int | None, slowdowns: tuple[str, ...] | None
) -> None:
    state = make_monitor(monkeypatch, Nvml((OURS,), reasons=reasons)).state()
    assert state is not None
    assert (state.slowdowns, state.clock_mhz.eager) == (slowdowns, 1980.0)


def test_a_cpu_has_no_state_of_a_gpu() -> None:
    monitor = RoundMonitor(torch.device("cpu"))
    monitor.start_round()
    monitor.read_after_block("eager")
    assert monitor.gpu.state() is None
    assert monitor.explain_void() is None
    assert monitor.changed_flags == {}
