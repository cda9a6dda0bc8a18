"""The worker's side of turns, against a driver that answers in this process; compiles for real."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.compile

import torch  # noqa: E402
from torch._inductor.runtime.benchmarking import benchmarker  # noqa: E402

from sweeper.core.protocol import ALONE, DEVICE, NOTHING, LeaseGrant  # noqa: E402
from sweeper.worker import lease as module  # noqa: E402
from sweeper.worker.lease import Lease  # noqa: E402


class Driver:
    """Grants everything after `takes_s`, and remembers what it was asked."""

    def __init__(self, takes_s: float = 0.0, grant: LeaseGrant = LeaseGrant()) -> None:  # noqa: B008  # frozen
        self.heard: list[str] = []
        self._takes_s, self._grant = takes_s, grant

    def ask(self, wants: str) -> LeaseGrant | None:
        self.heard.append(wants)
        if wants == NOTHING:
            return None
        time.sleep(self._takes_s)
        return self._grant


@pytest.fixture
def driver() -> Driver:
    torch._dynamo.reset()
    return Driver()


def turn_of(driver: Driver) -> Lease:
    turn = Lease(driver.ask)
    turn.take()
    turn.rest_while_compiling()
    return turn


def eventually(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.01)
    return holds()


def compiled(seen: Callable[[], object]) -> object:
    """Compile and run a function; `seen` is called while the backend works."""

    def backend(graph: torch.fx.GraphModule, _inputs: object) -> object:
        seen()
        return graph.forward

    return torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))


def test_device_is_let_go_while_the_compiler_runs_and_taken_back(driver: Driver) -> None:
    turn_of(driver)
    at_compilation: list[list[str]] = []
    compiled(lambda: at_compilation.append(list(driver.heard)))
    assert at_compilation == [[DEVICE, NOTHING]]
    assert driver.heard == [DEVICE, NOTHING, DEVICE]


def test_whoever_had_it_alone_has_it_alone_after_a_recompilation(driver: Driver) -> None:
    turn = turn_of(driver)
    turn.take(ALONE)
    compiled(lambda: None)
    assert driver.heard == [DEVICE, ALONE, NOTHING, ALONE]


def test_a_race_while_compiling_takes_the_device_and_keeps_it_for_the_next(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BETWEEN_RACES_S", 0.2)
    turn = turn_of(driver)
    held: list[list[str]] = []

    def races() -> None:
        for _ in range(3):
            with turn._race():
                held.append(list(driver.heard))
        assert eventually(lambda: driver.heard[-1] == NOTHING), "let go when no other race follows"

    compiled(races)
    assert held == [[DEVICE, NOTHING, DEVICE]] * 3
    assert driver.heard == [DEVICE, NOTHING, DEVICE, NOTHING, DEVICE]


def test_a_race_in_a_step_changes_nothing(driver: Driver) -> None:
    turn = turn_of(driver)
    with turn._race():
        pass
    assert driver.heard == [DEVICE]


def test_inductors_timing_of_kernels_is_such_a_race(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    turn, inside = turn_of(driver), []
    monkeypatch.setattr(turn, "_stop_timer", lambda: inside.append("race"))
    with pytest.raises((AssertionError, RuntimeError, AttributeError, ImportError)):  # there is no GPU
        benchmarker.benchmark_gpu(lambda: None)
    assert inside == ["race"]


def test_clock_stands_still_while_it_waits_and_while_it_is_stopped() -> None:
    turn = Lease(Driver(takes_s=0.3, grant=LeaseGrant(stopped_s=100.0)).ask)
    before, begin = turn.clock(), time.perf_counter()
    turn.take()
    passed_s = time.perf_counter() - begin
    assert turn.away_s >= 100.3
    assert turn.clock() - before == pytest.approx(passed_s - turn.away_s, abs=0.05)


def test_whoever_keeps_books_is_told_before_leaving_and_after_coming(driver: Driver) -> None:
    turn = turn_of(driver)
    turn.before_leaving = lambda: driver.heard.append("leaves")
    turn.after_coming = lambda: driver.heard.append("is back")
    compiled(lambda: None)
    turn.take(ALONE)
    assert driver.heard == [DEVICE, "leaves", NOTHING, DEVICE, "is back", ALONE]


def test_without_a_driver_it_is_always_ours() -> None:
    turn = Lease()
    turn.take()
    turn.take(ALONE)
    turn.leave()
    turn.take()
    assert turn.neighbours == frozenset()
