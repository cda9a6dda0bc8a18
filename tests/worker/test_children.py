"""Children of a worker, as real processes."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from processes import assert_gone

from sweeper.core.protocol import Outcome, Phase
from sweeper.core.record import Process
from sweeper.worker import children
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
        ("os.close(answer.fileno()); time.sleep(1); os._exit(5)", 5),
        ("os.execv(sys.executable, [sys.executable, '-c', 'raise SystemExit(6)'])", 6),
        ("os.fork() or time.sleep(600); os._exit(7)", 7),
        ("os.kill(os.getpid(), signal.SIGTERM)", -15),
    ],
    ids=[
        "outcome",
        "exit code",
        "signal without a name",
        "closed pipe",
        "another program",
        "a child holds the pipe",
        "signal",
    ],
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


def test_child_that_closes_its_pipe_and_goes_on_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "CLEAN_UP_S", 0.5)
    outcome, _ = run("os.close(answer.fileno()); time.sleep(600)")
    message = "the run was ended: it closed its pipe and went on for 0.5 s"
    assert outcome == Outcome("crashed", "building", message)
