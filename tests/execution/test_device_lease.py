"""DeviceLease against real processes: the kernel says whether they are stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from clock import Clock

from sweeper.core.protocol import (
    ALONE,
    DEVICE,
    NOTHING,
    RESUME,
    SHARED,
    SOLE,
    LeaseGrant,
    LeaseNews,
)
from sweeper.execution import device_lease
from sweeper.execution.device_lease import DeviceLease, Tenant
from sweeper.execution.memory_budget import MemoryBudget, Need

SLEEPER = "import time\nwhile True: time.sleep(0.01)"


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def eventually(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.01)
    return holds()


@pytest.fixture
def sleepers() -> Iterator[Callable[[], int]]:
    """Starts processes in groups of their own."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> int:
        started.append(subprocess.Popen([sys.executable, "-c", SLEEPER], start_new_session=True))
        return started[-1].pid

    yield start
    for process in started:
        process.kill()
        process.wait()


class Worker:
    """A tenant and what it was granted."""

    def __init__(self, lease: DeviceLease, group: int) -> None:
        self.news: list[LeaseNews] = []
        self._context = lease.register(group, self._receive)
        self.tenant: Tenant = self._context.__enter__()
        self.lease, self.group = lease, group

    def _receive(self, news: LeaseNews) -> bool:
        self.news.append(news)
        return True

    @property
    def grants(self) -> list[LeaseGrant]:
        """Without their times."""
        return [replace(news.grant, granted_s=None) for news in self.news if news.grant]

    def ask(self, wants: str) -> None:
        self.lease.request(self.tenant, wants)

    def end(self) -> None:
        self._context.__exit__(None, None, None)


@pytest.fixture
def register() -> Iterator[Callable[[DeviceLease, int], Worker]]:
    """Workers that are not ended would be when memory is collected, with signals in the middle of
    another test.
    """
    workers: list[Worker] = []

    def start(lease: DeviceLease, group: int) -> Worker:
        workers.append(Worker(lease, group))
        return workers[-1]

    yield start
    for worker in workers:
        worker.end()


@pytest.fixture
def three(
    sleepers: Callable[[], int], register: Callable[[DeviceLease, int], Worker]
) -> list[Worker]:
    lease = DeviceLease()
    return [register(lease, sleepers()) for _ in range(3)]


def test_the_device_is_given_in_the_order_of_asking(three: list[Worker]) -> None:
    first, second, third = three
    for worker in three:
        worker.ask(DEVICE)
    assert [len(worker.grants) for worker in three] == [1, 0, 0]
    first.ask(NOTHING)
    assert [len(worker.grants) for worker in three] == [1, 1, 0]
    second.end()
    assert third.grants == [LeaseGrant(neighbours=(first.group,))], (
        "the one that has ended has nothing on the device any more"
    )


def test_who_resumes_comes_first_then_later_processes_and_sharers_last(three: list[Worker]) -> None:
    first, second, third = three
    third.tenant.index = 1
    first.ask(DEVICE)
    for worker, wants in ((second, DEVICE), (third, DEVICE), (first, SHARED)):
        worker.ask(wants)
    assert [len(worker.grants) for worker in three] == [1, 0, 1]
    third.ask(RESUME)
    assert [len(worker.grants) for worker in three] == [1, 0, 2]
    third.ask(NOTHING)
    assert [len(worker.grants) for worker in three] == [1, 1, 2]
    second.ask(NOTHING)
    assert [len(worker.grants) for worker in three] == [2, 1, 2]


def test_some_share_the_device_and_stop_for_whoever_has_it_for_itself(
    sleepers: Callable[[], int], register: Callable[[DeviceLease, int], Worker]
) -> None:
    lease = DeviceLease(max_sharers=2)
    first, second, third, compiles = (register(lease, sleepers()) for _ in range(4))
    for worker in (first, second, third):
        worker.ask(SHARED)
    assert [len(worker.grants) for worker in (first, second, third)] == [1, 1, 0]
    first.ask(RESUME)
    assert eventually(lambda: state(second.group) == "T")
    assert "T" not in (state(first.group), state(third.group), state(compiles.group))
    assert first.grants[1].has_stopped_sharers
    time.sleep(0.2)
    first.ask(SHARED)
    assert len(first.grants) == 3, "it has kept its place"
    assert eventually(lambda: state(second.group) != "T")
    assert second.news[-1].grant is None
    assert second.news[-1].stopped_s >= 0.2, "its clock runs"
    assert third.news == []
    first.ask(NOTHING)
    assert len(third.grants) == 1
    compiles.ask(DEVICE)
    assert eventually(lambda: state(second.group) == state(third.group) == "T")
    assert state(first.group) != "T"
    second.end()
    compiles.end()
    assert eventually(lambda: state(third.group) != "T")
    first.ask(ALONE)
    assert eventually(lambda: state(third.group) == "T")
    third.end()
    first.ask(NOTHING)
    first.ask(ALONE)
    assert [grant.has_stopped_sharers for grant in first.grants[-2:]] == [True, False]


def test_as_many_share_the_device_as_there_is_memory_for(
    register: Callable[[DeviceLease, int], Worker],
) -> None:
    memory = MemoryBudget(100)
    lease = DeviceLease(max_sharers=3, memory=memory)
    workers = [register(lease, 10**9) for _ in range(3)]  # no process group
    never = threading.Event()
    with ExitStack() as reserved:
        for worker, need in zip(workers, (Need(5, 45), Need(5, 25), Need(5, 25)), strict=True):
            reservation = memory.reserve(need, never)
            worker.tenant.reservation = reserved.enter_context(reservation)
        reserved.enter_context(memory.reserve(Need(0, 35), never))
        for worker in workers:
            worker.ask(SHARED)
        assert [len(worker.grants) for worker in workers] == [1, 0, 0], "15 + 40 + 20 + 35 of 90"
        workers[0].end()
        assert [len(worker.grants) for worker in workers] == [1, 1, 0], "15 + 20 + 20 + 40 of 90"
    lease.settle()
    assert [len(worker.grants) for worker in workers] == [1, 1, 1], "memory was given back"


def test_the_sole_share_waits_for_sharers_to_end_and_others_for_it(
    sleepers: Callable[[], int], register: Callable[[DeviceLease, int], Worker]
) -> None:
    lease = DeviceLease(max_sharers=2)
    one, other, late, full, builds = workers = [register(lease, sleepers()) for _ in range(5)]

    def count_grants() -> list[int]:
        return [len(worker.grants) for worker in workers]

    late.tenant.index = 1
    for worker, wants in ((one, SHARED), (other, SHARED), (late, SHARED), (full, SOLE)):
        worker.ask(wants)
    builds.ask(DEVICE)
    assert count_grants() == [1, 1, 0, 0, 1], "the device itself is free for those that stop them"
    builds.ask(NOTHING)
    one.ask(NOTHING)
    assert count_grants() == [1, 1, 0, 0, 1], "it comes before a later process with a share"
    other.ask(NOTHING)
    assert count_grants() == [1, 1, 0, 1, 1]
    for wants in (RESUME, SOLE):
        full.ask(wants)
    assert count_grants() == [1, 1, 0, 3, 1], "it has kept its place, and has it alone"
    full.ask(NOTHING)
    assert count_grants() == [1, 1, 1, 3, 1]


def test_whoever_measures_has_the_others_stopped_until_it_lets_go(three: list[Worker]) -> None:
    first, second, third = three
    first.ask(ALONE)
    assert eventually(lambda: state(second.group) == state(third.group) == "T")
    assert state(first.group) != "T"
    second.ask(DEVICE)
    first.ask(NOTHING)
    assert eventually(lambda: "T" not in (state(second.group), state(third.group)))
    assert len(second.grants) == 1


def test_the_end_of_whoever_measures_is_the_end_of_its_lease(three: list[Worker]) -> None:
    first, second, _ = three
    first.ask(ALONE)
    assert eventually(lambda: state(second.group) == "T")
    first.end()
    assert eventually(lambda: state(second.group) != "T")


def test_worker_that_starts_while_another_measures_is_stopped_at_once(
    three: list[Worker], sleepers: Callable[[], int], register: Callable[[DeviceLease, int], Worker]
) -> None:
    three[0].ask(ALONE)
    late = register(three[0].lease, sleepers())
    assert eventually(lambda: state(late.group) == "T")


def test_alone_is_waited_for_and_stops_nobody_before(three: list[Worker]) -> None:
    first, second, third = three
    first.ask(DEVICE)
    second.ask(ALONE)
    assert state(first.group) != "T"
    assert state(third.group) != "T"
    first.ask(NOTHING)
    assert len(second.grants) == 1
    assert eventually(lambda: state(first.group) == state(third.group) == "T")


def test_stopped_and_waited_seconds_are_told_apart_and_count_in_no_limit(
    three: list[Worker],
) -> None:
    first, computes, waits = three
    first.ask(ALONE)
    waits.ask(DEVICE)
    time.sleep(0.3)
    first.ask(NOTHING)
    waits.ask(NOTHING)
    computes.ask(DEVICE)
    assert waits.news[0].stopped_s == 0.0, "it waited, which it knows itself"
    assert computes.news[0].stopped_s >= 0.3
    assert waits.lease.idle_s(waits.tenant) >= 0.3
    assert computes.lease.idle_s(computes.tenant) >= 0.3
    assert first.lease.idle_s(first.tenant) < 0.3


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the lease, which begins at 100 s."""
    clock = Clock()
    clock.now = 100.0
    monkeypatch.setattr(device_lease, "time", clock)
    return clock


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The signals that the lease gives, to no process."""
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(device_lease.os, "killpg", lambda *signal: given.append(signal))
    return given


@pytest.mark.usefixtures("signals")
def test_one_that_was_started_ahead_has_asked_before_anybody_heard_it(
    clock: Clock, register: Callable[[DeviceLease, int], Worker]
) -> None:
    """It is stopped for 3 s, asks 1 s later, and is stopped for 4 of the 6 s until it is heard."""
    lease = DeviceLease()
    measures, ahead = register(lease, 1), register(lease, 2)
    for stopped_s, goes_on_s in ((3, 2), (4, 1)):
        measures.ask(ALONE)
        clock.now += stopped_s
        measures.ask(NOTHING)
        clock.now += goes_on_s
    lease.request(ahead.tenant, DEVICE, asked_s=104.0)
    assert ahead.news == [LeaseNews(3.0, LeaseGrant(110.0, (1,)))]
    assert lease.idle_s(ahead.tenant) == 7.0


@pytest.mark.usefixtures("signals")
def test_one_that_asked_before_it_was_stopped_is_heard_while_it_is(
    clock: Clock, register: Callable[[DeviceLease, int], Worker]
) -> None:
    """It has asked at 100 s, is stopped from 101 to 111 s, and heard at 105 s."""
    clock.now = 101.0
    lease = DeviceLease()
    measures, ahead = register(lease, 1), register(lease, 2)
    measures.ask(ALONE)
    clock.now = 105.0
    assert lease.idle_s(ahead.tenant) == 4.0
    lease.request(ahead.tenant, DEVICE, asked_s=100.0)
    assert lease.idle_s(ahead.tenant) == 4.0, "limits began meanwhile"
    clock.now = 111.0
    measures.ask(NOTHING)
    assert ahead.news == [LeaseNews(0.0, LeaseGrant(111.0, (1,)))]
    assert lease.idle_s(ahead.tenant) == 10.0


def test_whoever_shares_goes_on_waiting_after_a_benchmark_while_another_benchmarks(
    sleepers: Callable[[], int], register: Callable[[DeviceLease, int], Worker]
) -> None:
    """It is not granted what it would be stopped in, and no other takes its place."""
    lease = DeviceLease(max_sharers=1)
    first, second, third = (register(lease, sleepers()) for _ in range(3))
    first.ask(SHARED)
    third.ask(SHARED)
    for worker in (first, second):
        worker.ask(RESUME)
    first.ask(SHARED)
    assert [len(worker.grants) for worker in (first, second, third)] == [2, 1, 0]
    assert eventually(lambda: state(first.group) == "T")
    second.ask(NOTHING)
    assert [len(worker.grants) for worker in (first, second, third)] == [3, 1, 0]
    assert eventually(lambda: state(first.group) != "T")
    assert first.news[-1].stopped_s == 0.0, "it waited"


def test_one_that_is_stopped_for_many_turns_is_told_once(
    sleepers: Callable[[], int], register: Callable[[DeviceLease, int], Worker]
) -> None:
    lease = DeviceLease()
    shares, one, other = (register(lease, sleepers()) for _ in range(3))
    shares.ask(SHARED)
    one.ask(RESUME)
    for _ in range(5):
        other.ask(RESUME)
        one.ask(NOTHING)
        one.ask(RESUME)
        other.ask(NOTHING)
    assert len(shares.news) == 1
    one.ask(NOTHING)
    assert [bool(news.grant) for news in shares.news] == [True, False]


def test_seconds_are_counted_by_the_clock(
    clock: Clock,
    signals: list[tuple[int, int]],
    register: Callable[[DeviceLease, int], Worker],
) -> None:
    """One is stopped for 7 s, then waits for 5, stopped as well."""
    lease = DeviceLease()
    measures, other = register(lease, 1), register(lease, 2)
    measures.ask(ALONE)
    clock.now += 4
    assert (lease.idle_s(other.tenant), lease.idle_s(measures.tenant)) == (4.0, 0.0)
    clock.now += 3
    measures.ask(NOTHING)
    assert (lease.idle_s(other.tenant), other.tenant.stopped_s) == (7.0, 7.0)
    assert signals == [(2, signal.SIGSTOP), (2, signal.SIGCONT)]
    measures.ask(ALONE)
    other.ask(DEVICE)
    clock.now += 5
    assert lease.idle_s(other.tenant) == 12.0
    measures.end()
    assert other.news == [LeaseNews(7.0, LeaseGrant(112.0))]
    assert (lease.idle_s(other.tenant), other.tenant.is_deaf) == (12.0, False)
    assert signals[2:] == [(2, signal.SIGSTOP), (2, signal.SIGCONT)]
    clock.now += 1
    assert lease.idle_s(other.tenant) == 12.0


def test_worker_that_does_not_read_is_deaf_and_one_that_leaves_is_waited_for_no_more() -> None:
    lease = DeviceLease()
    with (
        lease.register(1, lambda _grant: False) as tenant,
        lease.register(2, lambda _grant: True) as waiting,
    ):
        lease.request(tenant, DEVICE)
        assert tenant.is_deaf
        lease.request(waiting, DEVICE)
    with lease.register(3, lambda _grant: True) as later:
        lease.request(later, DEVICE)
        assert later.has_used_device
        assert not later.is_deaf


def test_two_workers_are_two_whatever_they_want() -> None:
    def send(_news: LeaseNews) -> bool:
        return True

    assert Tenant(1, send) != Tenant(1, send)


def test_reaper_hears_of_workers_while_they_run() -> None:
    heard: list[str] = []
    reaper = SimpleNamespace(
        watch=lambda group: heard.append(f"+{group}"),
        forget=lambda group: heard.append(f"-{group}"),
    )
    with DeviceLease(reaper).register(7, lambda _grant: True):  # type: ignore[arg-type]
        assert heard == ["+7"]
    assert heard == ["+7", "-7"]


def test_who_leaves_while_waiting_and_who_asks_twice() -> None:
    """The device goes on to the next that still waits."""
    lease, grants = DeviceLease(), []
    with lease.register(1, lambda _grant: grants.append(1) or True) as first:
        lease.request(first, DEVICE)
        with lease.register(2, lambda _grant: grants.append(2) or True) as second:
            lease.request(second, DEVICE)
            lease.request(first, DEVICE)
            assert grants == [1, 2], "who asks again lets go of the device first"
        assert grants == [1, 2, 1]
