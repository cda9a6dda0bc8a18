"""A command whose output cannot be written, or whose machine has run out of something."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import SEARCH_PATH
from records import make_record, write_sweep

from sweeper.core.exit_codes import BAD_INPUT
from sweeper.core.pipes import run_until_closed


@pytest.mark.parametrize("arguments", [["sweeper.report", "night"], ["sweeper.explain", "host_bound"]], ids=str)
def test_full_output_is_said_without_a_traceback(tmp_path: Path, arguments: list[str]) -> None:
    write_sweep(tmp_path / "runs", [make_record()])
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": SEARCH_PATH},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (result.returncode, result.stderr) == (2, "sweeper: No space left on device; free some space\n")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE), "runs/a"), "runs/a: Too many open files; raise the limit"),
        (MemoryError(), "out of memory; free some memory"),
        (RuntimeError("can't start new thread"), "can't start new thread; end other processes"),
    ],
    ids=["files", "memory", "threads"],
)
def test_machine_that_has_run_out_of_something_is_said(
    error: Exception, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> int:
        raise error

    assert run_until_closed(fail) == BAD_INPUT
    assert capsys.readouterr().err.startswith(f"sweeper: {says}")


def test_fault_of_our_own_keeps_its_traceback() -> None:
    def fail() -> int:
        raise FileNotFoundError(errno.ENOENT, "no such file")

    with pytest.raises(FileNotFoundError):
        run_until_closed(fail)
