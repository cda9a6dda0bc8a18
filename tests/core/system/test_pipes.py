"""What becomes of a program whose output cannot be written, or whose machine has run out of
something.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkout import ENVIRONMENT
from records import make_record, write_sweep

from sweeper.core.system.exit_codes import BAD_INPUT, CLOSED, INTERRUPTED, NOT_OK
from sweeper.core.system.pipes import run_until_closed

PRINTS = """
import sys
from sweeper.core.system.pipes import run_until_closed
def main():
    print("x" * 100_000)
    return 3
sys.exit(run_until_closed(main))
"""
OUTLIVES = """
import os, sys
from sweeper.core.system.pipes import outlive_output
print("before")
outlive_output("stdout", "stderr")
print("after")
print("after", file=sys.stderr)
print("again", file=sys.__stdout__)
sys.stdout.flush()
sys.stdout.buffer.write(b"bytes")
sys.stdout.flush()
os._exit(7)
"""


def run(
    program: str, stdout: int, stderr: int = subprocess.PIPE, unbuffered: str = ""
) -> subprocess.CompletedProcess[str]:
    command, environment = (
        [sys.executable, "-c", program],
        {**ENVIRONMENT, "PYTHONUNBUFFERED": unbuffered},
    )
    return subprocess.run(
        command, stdout=stdout, stderr=stderr, env=environment, text=True, timeout=60, check=False
    )


@pytest.fixture
def closed() -> Iterator[int]:
    """A pipe that nobody reads."""
    read, write = os.pipe()
    os.close(read)
    yield write
    os.close(write)


def test_exit_code_is_that_of_the_program_unless_its_output_is_closed(closed: int) -> None:
    assert run(PRINTS, subprocess.DEVNULL).returncode == 3
    found = run(PRINTS, closed)
    assert (found.returncode, found.stderr) == (CLOSED, "")


def test_an_exit_that_is_not_about_the_output_passes(capsys: pytest.CaptureFixture[str]) -> None:
    def leave() -> int:
        raise SystemExit(5)

    def interrupt() -> int:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit, match="5"):
        run_until_closed(leave)
    assert run_until_closed(interrupt) == INTERRUPTED
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_can_be_written_is(unbuffered: str) -> None:
    found = run(OUTLIVES, subprocess.PIPE, unbuffered=unbuffered)
    assert (found.returncode, found.stdout, found.stderr) == (
        7,
        "before\nafter\nagain\nbytes",
        "after\n",
    )
    at_once = run(
        OUTLIVES.replace("sys.stdout.flush()", "os._exit(7)"),
        subprocess.PIPE,
        unbuffered=unbuffered,
    )
    assert at_once.stdout == ("before\nafter\nagain\n" if unbuffered else "before\n")


def test_output_that_cannot_be_written_is_dropped(closed: int) -> None:
    assert run(OUTLIVES, closed, closed).returncode == 7
    with Path("/dev/full").open("w") as full:
        found = run(OUTLIVES, full.fileno())
    assert (found.returncode, found.stderr) == (7, "after\n")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("sweeper.report night", NOT_OK),
        ("sweeper.explain host_bound", NOT_OK),
        ("sweeper.compare --help", BAD_INPUT),  # its 1 says that a step is SLOWER
        ("sweeper compare --help", BAD_INPUT),
    ],
)
def test_full_output_is_said_without_a_traceback(tmp_path: Path, command: str, code: int) -> None:
    write_sweep(tmp_path / "runs", [make_record()])
    # argparse swallows what an unbuffered stream raises
    environment = {**ENVIRONMENT, "PYTHONUNBUFFERED": ""}
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [sys.executable, "-m", *command.split()],
            cwd=tmp_path,
            env=environment,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (result.returncode, result.stderr) == (
        code,
        "sweeper: No space left on device; free some space\n",
    )


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/x"),
            "No space left on device (runs/x); free some space",
        ),
        (
            OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
            "Too many open files; raise the limit of open files (ulimit",
        ),
        (MemoryError(), "the memory is full; free some"),
    ],
    ids=["disk", "files", "memory"],
)
def test_what_the_machine_lacks_is_a_line(
    error: BaseException, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def main() -> int:
        raise error

    assert run_until_closed(main) == NOT_OK
    assert capsys.readouterr().err.startswith(f"sweeper: {line}")


def test_what_the_program_does_wrong_keeps_its_traceback() -> None:
    def main() -> int:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "a file of ours")

    with pytest.raises(FileNotFoundError):
        run_until_closed(main)
