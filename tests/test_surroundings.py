from __future__ import annotations

import os
import subprocess
import sys
import time

import torch

from sweeper.worker.lookout import Lookout
from sweeper.worker.surroundings import HostWatch, own_processes

SPIN = "while True: pass"


def busy_by_others(*, own_session: bool) -> float:
    """What a watch says while a process keeps one core busy, in our session or in one of its own."""
    spinning = subprocess.Popen([sys.executable, "-c", SPIN], start_new_session=own_session)
    try:
        time.sleep(0.2)
        watch = HostWatch()
        time.sleep(1.5)
        found = watch.busy_by_others()
    finally:
        spinning.kill()
        spinning.wait()
    assert found is not None
    return found


def test_time_of_others_is_told_from_our_own() -> None:
    others, own = busy_by_others(own_session=True), busy_by_others(own_session=False)
    # Whatever else runs on this machine is in both; on a machine that is full, the spinning process gets less.
    assert others - own > 0.3 / (os.cpu_count() or 1) or others > 0.9


def test_own_processes_are_those_of_the_session() -> None:
    ours = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
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


def test_throttled_time_is_seconds_or_unknown() -> None:
    found = HostWatch().throttled_s()
    assert found is None or 0 <= found < 1


def test_a_cpu_has_no_state_of_a_gpu() -> None:
    lookout = Lookout(torch.device("cpu"))
    lookout.start_round()
    lookout.after_block("eager")
    assert lookout.gpu.state() is None
    assert lookout.why_void() is None
    assert lookout.changed_switches == {}
