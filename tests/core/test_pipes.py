from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import SEARCH_PATH
from records import make_record, write_sweep

from sweeper.core.exit_codes import NOT_OK
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
    assert (result.returncode, result.stderr) == (NOT_OK, "sweeper: No space left on device; free some space\n")


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
def test_what_the_machine_lacks_is_a_line(error: BaseException, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> int:
        raise error

    assert run_until_closed(main) == NOT_OK
    assert capsys.readouterr().err.startswith(f"sweeper: {line}")


def test_what_the_program_does_wrong_keeps_its_traceback() -> None:
    def main() -> int:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "a file of ours")

    with pytest.raises(FileNotFoundError):
        run_until_closed(main)
