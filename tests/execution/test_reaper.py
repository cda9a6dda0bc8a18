from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from processes import assert_gone

ROOT = Path(__file__).parents[2]
DRIVER = """
import os, signal, subprocess, sys, time
from sweeper.execution.reaper import run_reaper
with run_reaper() as reaper:
    groups = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
              for _ in range(2)]
    for group in groups:
        reaper.watch(group.pid)
        os.killpg(group.pid, signal.SIGSTOP)
    reaper.forget(groups[1].pid)
    print(*(group.pid for group in groups), flush=True)
    {then}
"""


def start(then: str) -> tuple[subprocess.Popen[str], list[int]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    program = [sys.executable, "-c", DRIVER.format(then=then)]
    driver = subprocess.Popen(program, stdout=subprocess.PIPE, text=True, env=environment)
    assert driver.stdout is not None
    return driver, [int(word) for word in driver.stdout.readline().split()]


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_stopped_workers_end_with_a_driver_that_is_killed() -> None:
    driver, (watched, forgotten) = start("time.sleep(600)")
    driver.kill()
    driver.wait()
    assert_gone(watched)
    assert alive(forgotten), "a group that was taken back is nobody's business"
    os.kill(forgotten, signal.SIGKILL)
