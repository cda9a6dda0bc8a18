from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import assert_gone

from sweeper.execution import reaper

ROOT = Path(__file__).parents[2]
DRIVER = """
import os, signal, subprocess, sys, time
from pathlib import Path
from sweeper.execution.processes import OWN_MARK, start_group
from sweeper.execution.reaper import run_reaper
SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]
with run_reaper(OWN_MARK) as reaper:
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
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=folder)
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


@pytest.mark.parametrize("program", [LEFT, REAPER_DIES], ids=["in a session of its own", "after the reaper has died"])
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
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
