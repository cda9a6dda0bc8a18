"""How a worker is started, what it and the driver say to each other, and what ends it: first with a
test in place of the worker, then with real processes that stand in for it.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from clock import Clock
from processes import assert_gone
from stand_in_worker import GOOD, set_when_there, wait_for

from sweeper.core.protocol import (
    DEVICE,
    NOTHING,
    LeaseGrant,
    LeaseNews,
    LeaseRequest,
    Outcome,
    Phase,
    encode,
)
from sweeper.core.record import Record
from sweeper.core.settings import Measure
from sweeper.core.system.gpus import Device
from sweeper.core.trial import Trial
from sweeper.execution import processes, worker_channel
from sweeper.execution.device_lease import DeviceLease, Tenant
from sweeper.execution.placement import DeviceSlot
from sweeper.execution.scheduler import PhaseBegan
from sweeper.execution.worker_channel import ProtocolError, WorkerChannel, send_news


def test_news_is_one_line_and_waits_for_nobody() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    news = LeaseNews(1.5, LeaseGrant(2.5, (7,)))
    assert send_news(write, news)
    assert LeaseNews.loads(os.read(read, 1000).decode()) == news
    assert not all(send_news(write, news) for _ in range(100_000)), "a full pipe is told"
    os.close(read)
    assert send_news(write, news), (
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


ROOT = Path(__file__).parents[2]
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


def test_worker_is_told_its_cores(run) -> None:
    record = run(
        "say(Outcome('ok', process=process(), environment={'cores': a.cores}))", cores=(2, 3, 5)
    )
    assert record.environment["cores"] == [2, 3, 5]


def test_worker_that_cannot_be_started_leaves_no_pipe_open(
    run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    run(GOOD)
    monkeypatch.setattr(processes, "start_group", refuse)
    before = len(list(Path("/proc/self/fd").iterdir()))
    record = run(GOOD)
    assert (record.status, record.phase) == ("crashed", "starting")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("say(Phase('compiling')); os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL"),
        ("say(Phase('compiling')); os.kill(os.getpid(), signal.SIGSEGV)", "killed by SIGSEGV"),
        ("say(Phase('compiling')); os._exit(0)", "exited with code 0 without a result"),
        ("say(Phase('compiling')); raise SystemExit(7)", "exited with code 7 without a result"),
    ],
)
def test_worker_that_dies_is_a_crashed_record(run, body: str, says: str) -> None:
    record = run(body)
    assert (record.status, record.phase, record.log) == ("crashed", "compiling", "worker-0.log")
    assert says in str(record.message)


def test_signal_of_the_smallest_number_is_no_exit_code(run) -> None:
    assert run("os.kill(os.getpid(), signal.SIGHUP)").message == "the worker was killed by SIGHUP"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("timed['eager_s'] = float('nan')", "NaN"),
        ("timed['eager_s'] = float('-inf')", "-Infinity"),
        ("timed['eager_s'] = 0.0", ""),
        ("timed['compiled_s'] = -1.0", ""),
        ("timed['compiled_s'] = 1e300", ""),
        ("timed['compiled_s'] = 'fast'", "'fast' has the wrong type"),
        ("measured['steps_per_block'] = 0", ""),
        ("measured['index'] = 10**400", ""),
        ("measured['index'] = 7", "process 7 of draw 0"),
        ("measured['device_step_s'] = {'eager': -1.0, 'compiled': 1.0}", ""),
        ("measured['rounds'] = {}", "has the wrong type"),
        ("timed['order'] = 'XX'", "'XX' is not one of: AB, BA"),
        ("measured['faster'] = True", "unknown key faster"),
        ("said['status'] = '[/x]'", "status: '[/x]' is not one of"),
        ("said['phase'] = '[/x]'", "'[/x]' is not one of"),
        ("said['kind'] = 'Phase'", "unknown key"),
        ("for _ in range(400): said['environment'] = {'more': said['environment']}", "nested"),
        ("said = [said]", "unknown message ''"),
        ("answer.write('[' * 100_000)", "nested"),
        ("answer.write('{')", ""),
        (r"answer.buffer.write(b'\xff')", ""),
        ("answer.write(' ' * 2**26)", "more than 4 MiB"),
        ("say(Phase('[/x]'))", "'[/x]' is not one of"),
        ("say(LeaseRequest('two devices'))", "wants: 'two devices' is not one of"),
    ],
)
def test_answer_that_cannot_be_understood_is_a_crashed_record(run, change: str, why: str) -> None:
    record = run(
        f"""
        said = json.loads(encode(Outcome("ok", process=process())))
        measured = said["process"]; timed = measured["rounds"][0]
        say(Phase("measuring"))
        {change}
        answer.write(json.dumps(said) + "\\n"); answer.flush(); time.sleep(60)
        """
    )
    assert (record.status, record.phase, record.processes) == ("crashed", "measuring", ())
    assert str(record.message).startswith("the worker's answer cannot be understood: ")
    assert why in str(record.message)
    assert Record.loads(record.dumps()) == record


def test_text_of_a_worker_is_cleaned_where_it_enters(run) -> None:
    """An exception may have any text: surrogates are no characters, and a terminal obeys control
    characters.
    """
    record = run(
        r"say(Outcome('runtime_error', 'eager', 'no \ud800 \x1b]0;x\x07', environment={'a': "
        r"'\udcff\x00'}))"
    )
    assert (record.status, record.message) == ("runtime_error", "no \ufffd \ufffd]0;x\ufffd")
    assert record.environment == {"a": "\ufffd\ufffd"}
    record = run(
        "say(Phase('eager')); answer.write('\"\\x1b[2J\\ud800\"' + chr(10)); answer.flush(); "
        "time.sleep(60)"
    )
    assert record.status == "crashed"
    str(record.message).encode()


def test_worker_that_closes_its_pipe_and_stays_is_ended(
    run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_channel, "CLOSED_S", 0.5)
    record = run(
        "say(Phase('eager')); answer.close(); open('pid', 'w').write(str(os.getpid())); "
        "time.sleep(600)"
    )
    assert (record.status, record.phase) == ("crashed", "eager")
    assert record.message == "the worker closed its pipe and went on for 0.5 s"
    assert_gone(int(Path("pid").read_text()))


def test_stop_ends_a_worker_that_has_closed_its_pipe(run, in_empty_folder: Path) -> None:
    stop = set_when_there(in_empty_folder / "closed")
    record = run("answer.close(); open('closed', 'w').close(); time.sleep(600)", stop=stop)
    assert record.status == "interrupted"


def test_worker_that_reads_no_grants_is_ended(run) -> None:
    record = run(
        "say(Phase('eager'))\nwhile True: say(LeaseRequest('device')); say(LeaseRequest('nothing'))"
    )
    assert (record.status, record.phase) == ("crashed", "eager")
    assert record.message == "the worker does not read what it is sent"


def test_what_a_worker_said_while_its_driver_was_stopped_counts_before_its_limit(
    run, in_empty_folder: Path
) -> None:
    def be_stopped(_began: PhaseBegan) -> None:
        wait_for(in_empty_folder / "said")
        time.sleep(2.0)

    body = (
        "say(Phase('building')); say(Outcome('ok', process=process())); open('said', "
        "'w').close(); time.sleep(60)"
    )
    assert run(body, on_phase=be_stopped, timeout_s=1.5).status == "ok"


def test_timeout_kills_the_whole_process_group(run, in_empty_folder: Path) -> None:
    record = run(
        """
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        open("child", "w").write(str(child.pid))
        say(Phase("measuring"))
        signal.signal(signal.SIGUSR1, lambda *_: None)
        while True: time.sleep(1)
        """,
        timeout_s=2.0,
    )
    assert (record.status, record.phase) == ("timeout", "measuring")
    assert "measure.timeout_s=2" in str(record.message)
    assert_gone(int((in_empty_folder / "child").read_text()))


def test_daemon_in_a_session_of_its_own_ends_with_its_worker(run) -> None:
    body = """
        sleeps = [sys.executable, "-c", "import time; time.sleep(600)"]
        daemon = subprocess.Popen(sleeps, start_new_session=True)
        open("daemon", "w").write(str(daemon.pid)); say(Outcome("ok", process=process()))
    """
    assert run(body).status == "ok"
    assert_gone(int(Path("daemon").read_text()))


def test_phase_has_a_limit_of_its_own(run) -> None:
    record = run(
        "say(Phase('building')); time.sleep(1); say(Phase('compiling')); time.sleep(600)",
        phase_timeouts_s={"building": 30.0, "compiling": 0.5},
    )
    assert (record.status, record.phase) == ("timeout", "compiling")
    assert record.message == "still compiling after measure.phase_timeouts_s.compiling=0.5"


def test_waiting_for_the_device_counts_in_no_limit_and_not_as_time_of_the_trial(
    run, in_empty_folder: Path, trial: Trial
) -> None:
    """Somebody else has the device for longer than the trial may last."""
    slot, others = DeviceSlot(Device("cpu")), Tenant(0, lambda _grant: True)
    slot.lease.request(others, DEVICE)
    threading.Timer(3.0, lambda: slot.lease.request(others, NOTHING)).start()
    record = run(
        """
        say(Phase("building")); say(LeaseRequest("device"))
        news = LeaseNews.loads(sys.stdin.readline())
        say(Outcome("ok", process=process(), environment={"stopped_s": news.stopped_s}))
        """,
        slot=slot,
        timeout_s=2.0,
    )
    assert record.status == "ok", record.message
    assert record.environment == {"stopped_s": 0.0}
    assert record.wall_s < 3.0


def test_child_that_holds_the_pipe_does_not_hold_up_the_runner(run) -> None:
    record = run(
        """
        os.set_inheritable(a.answer_fd, True)
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], close_fds=False)
        say(Phase("compiling")); os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    assert record.status == "crashed"


def test_stop_ends_the_worker_and_gives_a_record(run, in_empty_folder: Path) -> None:
    stop = set_when_there(in_empty_folder / "ready")
    record = run(
        "say(Phase('eager')); open('ready', 'w').write(str(os.getpid())); time.sleep(600)",
        stop=stop,
    )
    assert (record.status, record.phase) == ("interrupted", "eager")
    assert_gone(int((in_empty_folder / "ready").read_text()))


@pytest.mark.parametrize(
    "hold", ["time.sleep(600)", "ctypes.PyDLL(None).sleep(600)"], ids=["waits", "holds the GIL"]
)
def test_worker_ends_when_its_driver_dies(in_empty_folder: Path, hold: str) -> None:
    """A stand-in with the worker's own two watches, started as the runner does, by a driver that is
    killed.
    """
    worker = (
        "import ctypes, threading, time\n"
        "from sweeper.worker.driver_link import DriverLink\n"
        "from sweeper.worker.parent_death import die_with_parent\n"
        "die_with_parent()\n"
        "threading.Thread(target=DriverLink(0, print).listen, daemon=True).start()\n"
        f"print('ready', flush=True); {hold}"
    )
    driver = (
        "import subprocess, sys, time\n"
        f"w = subprocess.Popen([sys.executable, '-c', {worker!r}], stdin=subprocess.PIPE, "
        "stdout=subprocess.PIPE,"
        " start_new_session=True)\n"
        "assert w.stdout.readline() == b'ready\\n'\n"
        "print(w.pid, flush=True); time.sleep(600)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", driver], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.kill()
    process.wait()
    assert_gone(pid)
