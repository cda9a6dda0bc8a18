"""Process groups against real processes."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
from processes import assert_gone

from sweeper.execution.processes import describe_exit, read_last_lines, start_group, wait_for_end

SLEEPS = "import time; time.sleep(600)"
LEAVES_A_CHILD = (
    "import subprocess, sys, time\n"
    f"print(subprocess.Popen([sys.executable, '-c', {SLEEPS!r}]).pid, flush=True)\n"
    "while '--ends' not in sys.argv: time.sleep(1)"
)


@pytest.mark.parametrize(("arguments", "code"), [([], None), (["--ends"], 0)], ids=["limit", "end"])
def test_children_end_with_the_limit_and_with_the_program(
    tmp_path: Path, arguments: list[str], code: int | None
) -> None:
    log = tmp_path / "log"
    process = start_group([sys.executable, "-c", LEAVES_A_CHILD, *arguments], {}, log)
    while not read_last_lines(log, 1):
        assert process.poll() in (None, 0)
    assert wait_for_end(process, limit_s=60 if arguments else 0) == code
    assert_gone(int(read_last_lines(log, 1)[0]))


def test_stop_ends_a_program_before_its_limit(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    process = start_group([sys.executable, "-c", SLEEPS], {}, tmp_path / "log")
    assert wait_for_end(process, 600, stop) is None
    assert process.poll() is not None


def test_environment_is_added_and_the_output_goes_to_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    program = "import os, sys; print(os.environ['MINE'], os.environ.get('HYDRA_FULL_ERROR')); sys.exit('no\\n')"
    process = start_group([sys.executable, "-c", program], {"MINE": "here"}, tmp_path / "log")
    assert wait_for_end(process, 60) == 1
    assert sorted(read_last_lines(tmp_path / "log", 4)) == ["here None", "no"]
    assert read_last_lines(tmp_path / "log", 1) in (["here None"], ["no"])


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (3, "exited with code 3"),
        (-11, "was killed by SIGSEGV"),
        (-9, "was killed by SIGKILL; the kernel kills so when memory runs out"),
    ],
)
def test_ends_of_processes_are_described(code: int, text: str) -> None:
    assert describe_exit(code) == text
