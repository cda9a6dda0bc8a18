"""Children of a worker, as real processes."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from processes import assert_gone

from sweeper.core.protocol import Outcome, Phase
from sweeper.core.record import Process
from sweeper.worker.children import run_child
from sweeper.worker.lease import Lease
from sweeper.worker.session import ProcessLog

BEGIN = """
import os, signal, subprocess, sys, time
answer = os.fdopen(int(sys.argv[-1]), "w")
def say(kind, **values):
    import json
    answer.write(json.dumps({"kind": kind, **values}) + "\\n"); answer.flush()
say("Phase", name="building")
"""


def run(code: str, deadline: float = float("inf")) -> tuple[Outcome | int, list[Phase]]:
    phases: list[Phase] = []
    log = ProcessLog(phases.append, Process(0, 0, cold=True), Lease())
    return run_child([sys.executable, "-c", BEGIN + code], log, deadline), phases


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        ("say('Outcome', status='ok')", Outcome("ok")),
        ("os._exit(4)", 4),
        ("os.kill(os.getpid(), 40)", -40),
    ],
    ids=["outcome", "exit code", "signal without a name"],
)
def test_phases_are_announced_and_the_end_is_told(code: str, ended: Outcome | int) -> None:
    assert run(code) == (ended, [Phase("building")])


def test_deadline_kills_the_whole_group(tmp_path: Path) -> None:
    code = f"""
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
time.sleep(600)
"""
    outcome, _ = run(code, time.monotonic() + 5.0)
    assert outcome == Outcome("timeout", "building", "measure.timeout_s was over")
    assert_gone(int((tmp_path / "pid").read_text()))
