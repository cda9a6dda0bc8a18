"""Waiting for the work of other processes, on a device whose launches take what the test says."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, repeat
from types import SimpleNamespace

import pytest

from sweeper.worker.measurement import idle

BUSY_S, FAST_S = 0.0024, 0.00001


class Device:
    """Its clock goes on by the times of `launches`, and then by that of an idle device."""

    def __init__(self, launches: Iterable[float]) -> None:
        self.now_s, self.count = 0.0, 0
        self._launches = chain(launches, repeat(FAST_S))

    def synchronize(self, _device: object) -> None:
        self.now_s += next(self._launches)
        self.count += 1


@pytest.fixture
def start_wait(monkeypatch: pytest.MonkeyPatch):
    def start(launches: Iterable[float]) -> tuple[Device, idle.IdleWait]:
        device = Device(launches)
        zeros = SimpleNamespace(zero_=lambda: None)
        torch = SimpleNamespace(cuda=device, zeros=lambda *_, **__: zeros)
        monkeypatch.setattr(idle, "torch", torch)
        monkeypatch.setattr(idle, "perf_counter", lambda: device.now_s)
        return device, idle.IdleWait("cuda")  # type: ignore[arg-type]

    return start


@pytest.mark.parametrize(
    ("launches", "expected"),
    [([], 20), ([BUSY_S] * 7, 27), ([FAST_S] * 19 + [BUSY_S], 40)],
)
def test_an_idle_device_has_twenty_fast_launches_in_a_row(
    start_wait, launches: list[float], expected: int
) -> None:
    device, idle_wait = start_wait(launches)
    idle_wait.wait()
    assert device.count == expected
    idle_wait.wait()
    assert device.count == expected + 20


def test_work_that_does_not_end_is_waited_for_once(start_wait) -> None:
    device, idle_wait = start_wait(repeat(BUSY_S))
    idle_wait.wait()
    assert device.now_s == pytest.approx(60.0, abs=0.01)
    count = device.count
    idle_wait.wait()
    assert device.count <= count + 1
