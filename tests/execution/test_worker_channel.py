"""What the driver writes to a worker; what it reads is in test_trial_runner.py, with real
workers.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from clock import Clock

from sweeper.core.protocol import DEVICE, LeaseGrant, LeaseRequest, Outcome, Phase, encode
from sweeper.core.settings import Measure
from sweeper.execution import worker_channel
from sweeper.execution.device_lease import DeviceLease, Tenant
from sweeper.execution.worker_channel import ProtocolError, WorkerChannel, send_grant


def test_a_grant_is_one_line_and_waits_for_nobody() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    grant = LeaseGrant(1.5, (7,))
    assert send_grant(write, grant)
    assert LeaseGrant.loads(os.read(read, 1000).decode()) == grant
    assert not all(send_grant(write, grant) for _ in range(100_000)), "a full pipe is told"
    os.close(read)
    assert send_grant(write, grant), (
        "a worker that has ended is for the reader of its channel to notice"
    )
    os.close(write)


class Channel:
    """A channel whose worker is the test: `say` writes to it, and a selector that waits for nobody
    moves the clock.
    """

    def __init__(self, clock: Clock, measure: Measure) -> None:
        self.phases: list[str] = []
        self.code: int | None = None
        self.stop = threading.Event()
        self.stop.wait = clock.sleep  # type: ignore[method-assign, assignment]
        self.pipe, self._write = os.pipe()
        self.lease = DeviceLease()
        self.tenant = Tenant(1, lambda _grant: True)
        self.channel = WorkerChannel(self.pipe, measure, self.lease, self.tenant, self.note_phase)
        self.polls = 0

    def note_phase(self, phase: Phase) -> None:
        self.phases.append(phase.name)

    def say(self, text: str) -> None:
        os.write(self._write, text.encode())

    def close(self) -> None:
        os.close(self._write)

    def poll(self) -> int | None:
        self.polls += 1
        assert self.polls < 1000, "it asks for ever"
        return self.code

    def read(self) -> str | None:
        return self.channel.read(self, self.stop)  # type: ignore[arg-type]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(worker_channel, "time", clock)
    return clock


@pytest.fixture
def open_channel(clock: Clock) -> Iterator[Callable[..., Channel]]:
    opened: list[Channel] = []

    def make(**measure: object) -> Channel:
        opened.append(Channel(clock, Measure(**measure)))  # type: ignore[arg-type]
        return opened[-1]

    yield make
    for channel in opened:
        os.close(channel.pipe)
        with suppress(OSError):  # it was closed by the test
            channel.close()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> list[float]:
    """How long the channel would wait for a worker that says nothing; its clock moves on by as
    much.
    """
    found: list[float] = []

    class Selector:
        def __enter__(self) -> Selector:
            return self

        def __exit__(self, *_error: object) -> None:
            pass

        def register(self, _pipe: int, _events: int) -> None:
            pass

        def select(self, seconds: float) -> list[object]:
            found.append(seconds)
            assert len(found) < 1000, "it waits for ever"
            clock.sleep(seconds)
            return []

    monkeypatch.setattr(worker_channel.selectors, "DefaultSelector", Selector)
    return found


OK = encode(Outcome("ok"))


def test_nobody_waits_longer_than_the_limit_or_half_a_second(
    open_channel: Callable[..., Channel], clock: Clock, waits: list[float]
) -> None:
    assert open_channel(timeout_s=1.25).read() == "measure.timeout_s=1.25"
    assert waits == [0.5, 0.5, 0.25, 0.0]
    late = open_channel(timeout_s=1.25)
    clock.now += 3
    waits.clear()
    assert late.read() == "measure.timeout_s=1.25"
    assert waits == [0.0]


def test_worker_that_has_ended_is_waited_for_no_more(
    open_channel: Callable[..., Channel], waits: list[float]
) -> None:
    channel = open_channel()
    channel.code = 7
    assert channel.read() is None
    assert waits == [0]


def test_the_nearest_limit_counts_and_a_phase_begins_once(
    open_channel: Callable[..., Channel], clock: Clock, waits: list[float]
) -> None:
    channel = open_channel(timeout_s=100.0, phase_timeouts_s={"building": 10.0, "compiling": 90.0})
    building, compiling = (encode(Phase(name)).encode() for name in ("building", "compiling"))
    feed = channel.channel._feed
    clock.now = 20.0
    feed(building)
    clock.now = 29.0
    feed(building)
    assert channel.read() == "measure.phase_timeouts_s.building=10"
    assert clock.now == 30.0
    feed(compiling)
    assert channel.read() == "measure.timeout_s=100"
    assert clock.now == 100.0
    assert channel.phases == ["building", "building", "compiling"]


def test_message_may_come_in_parts_and_ends_with_the_outcome(
    open_channel: Callable[..., Channel],
) -> None:
    channel = open_channel()
    feed = channel.channel._feed
    text = encode(Phase("building")) + encode(LeaseRequest(DEVICE)) + OK
    assert text.count("\n") == 3
    for start in range(0, len(text), 7):
        assert channel.channel.outcome is None
        feed(text[start : start + 7].encode())
    assert (channel.phases, channel.channel.outcome) == (["building"], Outcome("ok"))
    assert channel.tenant.has_used_device


def test_answer_may_be_as_long_as_is_allowed(
    open_channel: Callable[..., Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_channel, "MAX_ANSWER_BYTES", len(OK))
    allowed, longer = open_channel(), open_channel()
    allowed.say(OK)
    assert allowed.read() is None
    assert allowed.channel.outcome == Outcome("ok")
    longer.say(" " + OK)
    with pytest.raises(ProtocolError, match="it has more than 0 MiB"):
        longer.read()


def test_worker_that_closes_its_pipe_has_five_seconds_to_end(
    open_channel: Callable[..., Channel], clock: Clock
) -> None:
    stays, ends = open_channel(timeout_s=600.0), open_channel(timeout_s=600.0)
    stays.close()
    with pytest.raises(ProtocolError, match="the worker closed its pipe and went on for 5 s"):
        stays.read()
    assert clock.pauses == [0.05] * 101
    ends.close()
    ends.code = 0
    assert ends.read() is None
    assert len(clock.pauses) == 101
