"""The guardian: a small process that ends what is left of a sweep when its driver dies.

Workers end with their driver by themselves, but what they have started and is stopped with them while another measures
does not. So the driver tells this process which process groups there are, and when the pipe between them closes, they
are killed.

Place in the flow: `execute` has one; `turns` tells it of every worker. It runs as a program of its own and imports
nothing of sweeper, so that it starts within milliseconds: `python -IS guardian.py`, lines `+GROUP` and `-GROUP`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress


class Reaper:
    """The driver's end."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def watch(self, group: int) -> None:
        self._say(f"+{group}\n")

    def forget(self, group: int) -> None:
        self._say(f"-{group}\n")

    def _say(self, line: str) -> None:
        assert self._process.stdin
        with suppress(BrokenPipeError):  # somebody has killed it; workers that are not stopped watch us themselves
            os.write(self._process.stdin.fileno(), line.encode())


@contextmanager
def running_reaper() -> Iterator[Reaper]:
    """A guardian as long as the body runs; it outlives this process only to do its work."""
    process = subprocess.Popen(
        [sys.executable, "-IS", __file__], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield Reaper(process)
    finally:
        process.communicate()


def kill_registered_groups(lines: Iterable[str]) -> None:
    """Read to the end; then kill every group that was not taken back."""
    groups: set[int] = set()
    for line in lines:
        (groups.add if line.startswith("+") else groups.discard)(int(line[1:]))
    for group in groups:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    kill_registered_groups(sys.stdin)
