"""The reaper: a small process that kills what is left of a sweep when its driver dies.

Workers end with their driver by themselves. What they have started, and what is stopped with them while another worker
measures, does not. So the driver tells the reaper which process groups there are. When the pipe between them closes,
the reaper kills those groups.

The reaper runs as a program of its own and imports nothing of sweeper, so that it starts within milliseconds:
`python -IS reaper.py`, with lines `+GROUP` and `-GROUP` on standard input.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress


class Reaper:
    """The driver's end of the pipe."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def watch(self, group: int) -> None:
        self._send(f"+{group}\n")

    def forget(self, group: int) -> None:
        self._send(f"-{group}\n")

    def _send(self, line: str) -> None:
        assert self._process.stdin
        with suppress(BrokenPipeError):  # somebody has killed it; workers that are not stopped watch us themselves
            os.write(self._process.stdin.fileno(), line.encode())


@contextmanager
def run_reaper() -> Iterator[Reaper]:
    """Run a reaper as long as the body runs; it outlives this process only to do its work."""
    command = [sys.executable, "-IS", __file__]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield Reaper(process)
    finally:
        process.communicate()


def kill_registered_groups(lines: Iterable[str]) -> None:
    """Read to the end, then kill every group that was not taken back."""
    groups: set[int] = set()
    for line in lines:
        (groups.add if line.startswith("+") else groups.discard)(int(line[1:]))
    for group in groups:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    kill_registered_groups(sys.stdin)
