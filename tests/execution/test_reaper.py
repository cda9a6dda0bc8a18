from __future__ import annotations

import contextlib
import errno
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from clock import Clock
from processes import assert_gone

from sweeper.execution import reaper

ROOT = Path(__file__).parents[2]
DRIVER = """
import os, signal, subprocess, sys, time
from contextlib import closing
from pathlib import Path
from sweeper.execution.processes import OWN_MARK, start_group
from sweeper.execution.reaper import Reaper
SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]
with closing(Reaper(OWN_MARK)) as reaper:
    {start}
"""
STOPPED = """groups = [subprocess.Popen(SLEEPS, start_new_session=True) for _ in range(2)]
    for group in groups:
        reaper.watch(group.pid)
        os.killpg(group.pid, signal.SIGSTOP)
    reaper.forget(groups[1].pid)
    print(*(group.pid for group in groups), flush=True)
    time.sleep(600)
"""
SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]
DAEMON = f"import subprocess; print(subprocess.Popen({SLEEPS!r}, start_new_session=True).pid)"
LEFT = f"""start_group([sys.executable, "-c", {DAEMON!r}], {{}}, Path("log")).wait()
    print(Path("log").read_text(), flush=True)
    time.sleep(600)
"""
REAPER_DIES = """group = subprocess.Popen(SLEEPS, start_new_session=True)
    reaper.watch(group.pid)
    first = reaper._process.pid
    os.kill(first, signal.SIGKILL)
    while reaper._process.pid == first: time.sleep(0.05)
    os.killpg(group.pid, signal.SIGSTOP)
    print(group.pid, flush=True)
    time.sleep(600)
"""


def start(program: str, folder: Path) -> tuple[subprocess.Popen[str], list[int]]:
    command = [sys.executable, "-c", DRIVER.format(start=program)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    driver = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment, cwd=folder
    )
    assert driver.stdout is not None
    return driver, [int(word) for word in driver.stdout.readline().split()]


def kill(driver: subprocess.Popen[str]) -> None:
    driver.kill()
    driver.wait()


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_stopped_workers_end_with_a_driver_that_is_killed(tmp_path: Path) -> None:
    driver, (watched, forgotten) = start(STOPPED, tmp_path)
    kill(driver)
    assert_gone(watched)
    assert alive(forgotten), "a group that was taken back is nobody's business"
    os.kill(forgotten, signal.SIGKILL)


@pytest.mark.parametrize(
    "program", [LEFT, REAPER_DIES], ids=["in a session of its own", "after the reaper has died"]
)
def test_everything_ends_with_a_driver_that_is_killed(tmp_path: Path, program: str) -> None:
    driver, (left,) = start(program, tmp_path)
    assert left
    kill(driver)
    assert_gone(left)


def test_stopped_reaper_does_not_hold_up_the_end(tmp_path: Path) -> None:
    ends = "os.kill(reaper._process.pid, signal.SIGSTOP); print(reaper._process.pid, flush=True)"
    program = f"import sweeper.execution.reaper; sweeper.execution.reaper.END_S = 0.5; {ends}"
    driver, (reaper,) = start(program, tmp_path)
    assert driver.wait(60) == 0
    assert_gone(reaper)


def test_groups_that_were_taken_back_are_not_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[tuple[int, int]] = []

    def kill(group: int, number: int) -> None:
        killed.append((group, number))
        if group == 11:
            raise ProcessLookupError

    monkeypatch.setattr(os, "killpg", kill)
    reaper.kill_registered_groups(["+11\n", "+12\n", "-12\n", "+130\n"])
    assert sorted(killed) == [(11, signal.SIGKILL), (130, signal.SIGKILL)]


def test_an_interrupt_neither_ends_the_reaper_nor_makes_it_speak() -> None:
    interrupts = """first = reaper._process
    os.kill(first.pid, signal.SIGINT)
    time.sleep(0.5)
    assert first.poll() is None
"""
    command = [sys.executable, "-c", DRIVER.format(start=interrupts)]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_reaper_has_a_session_of_its_own() -> None:
    """So that what ends its driver's group, or the terminal, does not end it."""
    with contextlib.closing(reaper.Reaper("mark")) as running:
        assert os.getsid(running._process.pid) == running._process.pid


def test_marked_processes_are_those_of_the_mark() -> None:
    marks = ["mark", "mark", "mark1", "other.mark"]
    started = [subprocess.Popen(SLEEPS, env={**os.environ, reaper.MARK: mark}) for mark in marks]
    for process in started:
        wait_for_mark(process.pid)
    threading.Thread(
        target=lambda: [process.wait() for process in started[:2]], daemon=True
    ).start()
    try:
        reaper.kill_marked("mark")
        assert [process.poll() for process in started] == [-signal.SIGKILL] * 2 + [None] * 2
    finally:
        for process in started:
            process.kill()
            process.wait()


def wait_for_mark(pid: int) -> None:
    """Until the process has the environment that it was given: at first it has that of its
    parent.
    """
    while reaper.MARK.encode() not in Path(f"/proc/{pid}/environ").read_bytes():
        time.sleep(0.01)


def test_process_that_does_not_end_is_waited_for_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, killed = Clock(), []
    monkeypatch.setattr(reaper, "time", clock)
    monkeypatch.setattr(reaper, "_find_marked", lambda _needle: iter([17]))
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append((pid, number)))
    reaper.kill_marked("mark")
    assert clock.pauses == [0.05] * 200
    assert killed == [(17, signal.SIGKILL)] * 200


class Ended:
    """A reaper that has ended already, or hangs."""

    def __init__(self, folder: Path, hangs: bool = False) -> None:
        self.stdin = (folder / "stdin").open("ab", buffering=0)
        self.told: list[object] = []
        self._hangs = hangs

    def wait(self) -> int:
        return 0

    def communicate(self, timeout: float | None = None) -> None:
        self.told.append(timeout)
        if self._hangs and timeout is not None:
            raise subprocess.TimeoutExpired("reaper", timeout)

    def kill(self) -> None:
        self.told.append("kill")


def test_reaper_that_ends_is_started_again_after_a_second(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second start fails; each of the others hears of all groups."""
    pauses: list[float | None] = []
    starts = itertools.count(1)
    ended = threading.Event()

    class Done(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout)
            if len(pauses) == 3:
                self.set()
                ended.set()
            return self.is_set()

    def start(_self: reaper.Reaper) -> Ended:
        if next(starts) == 2:
            raise OSError(errno.EMFILE, "Too many open files")
        return Ended(tmp_path)

    monkeypatch.setattr(
        reaper, "threading", SimpleNamespace(Lock=threading.Lock, Thread=Waits, Event=Done)
    )
    monkeypatch.setattr(reaper.Reaper, "_start", start)
    running = reaper.Reaper("mark")
    running.watch(11)
    Waits.begin()
    assert ended.wait(60)
    assert pauses == [1.0] * 3
    assert capsys.readouterr().err == "note: cannot start the reaper again: Too many open files\n"
    assert (tmp_path / "stdin").read_text() == "+11\n" * 3


class Waits(threading.Thread):
    """A thread that begins when it is told to."""

    last: Waits

    def start(self) -> None:
        Waits.last = self

    @staticmethod
    def begin() -> None:
        threading.Thread.start(Waits.last)


@pytest.mark.parametrize(("hangs", "told"), [(False, [10.0]), (True, [10.0, "kill", None])])
def test_reaper_has_some_seconds_to_do_its_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hangs: bool, told: list[object]
) -> None:
    process = Ended(tmp_path, hangs)
    monkeypatch.setattr(
        reaper,
        "threading",
        SimpleNamespace(Lock=threading.Lock, Thread=Waits, Event=threading.Event),
    )
    monkeypatch.setattr(reaper.Reaper, "_start", lambda _self: process)
    reaper.Reaper("mark").close()
    assert process.told == told
