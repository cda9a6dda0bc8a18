from __future__ import annotations

import errno
import os

import pytest

from sweeper.core.exit_codes import NOT_OK
from sweeper.core.pipes import run_until_closed


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
