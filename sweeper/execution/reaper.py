"""The reaper: a small process that kills what is left of a sweep when its driver dies. Time limits
of trials are kept by `trial_runner`.

Workers end with their driver by themselves. What they have started, and what is stopped with them
while another worker measures, does not. So the driver tells the reaper which process groups there
are. When the pipe between them closes, the reaper kills those groups, and what has left them for a
session of its own: everything that a driver starts has the environment variable `MARK` with the
driver's value, unless a program has cleared its environment.

The reaper runs as a program of its own and imports nothing of sweeper, so that it starts within
milliseconds: `python -IS reaper.py VALUE`, with lines `+GROUP` and `-GROUP` on standard input.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

MARK = "SWEEPER_STARTED_BY"
POLL_S, LIMIT_S = 0.05, 10.0  # of seeing marked processes end
END_S = 10.0  # for the reaper to do its work


class Reaper:
    """The driver's end of the pipe. A reaper that ends before it should is started anew; it
    outlives this process only to do its work.

    `mark` is the value of `MARK` in all that this process starts. Raises OSError where no
    process can be started.
    """

    def __init__(self, mark: str) -> None:
        self._command = [sys.executable, "-IS", __file__, mark]
        self._lock = threading.Lock()
        self._groups: set[int] = set()
        self._done = threading.Event()
        self._process = self._start()
        threading.Thread(target=self._keep, daemon=True).start()

    def watch(self, group: int) -> None:
        with self._lock:
            self._groups.add(group)
            self._send(f"+{group}\n")

    def forget(self, group: int) -> None:
        with self._lock:
            self._groups.discard(group)
            self._send(f"-{group}\n")

    def close(self) -> None:
        """Have the reaper do its work, and wait for it."""
        self._done.set()
        with self._lock:
            process = self._process
        try:
            process.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:  # somebody has stopped it
            process.kill()
            process.communicate()

    def _start(self) -> subprocess.Popen[bytes]:
        from sweeper.core.system.orphans import start_session  # which the program does without

        # which the reaper inherits
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with start_session() as own:
                process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                )
                own.add(process.pid)
            return process
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _keep(self) -> None:
        """Start another reaper whenever the last one has ended."""
        while True:
            self._process.wait()
            with self._lock:
                if self._done.is_set():
                    return
                try:
                    process = self._start()
                except OSError as error:  # no memory or file handles at the moment
                    print(f"note: cannot start the reaper again: {error.strerror}", file=sys.stderr)
                else:
                    assert self._process.stdin
                    self._process.stdin.close()
                    self._process = process
                    for group in self._groups:
                        self._send(f"+{group}\n")
            self._done.wait(1.0)  # before the next one may end at once, too

    def _send(self, line: str) -> None:
        assert self._process.stdin
        with suppress(BrokenPipeError):  # it has ended; the next one hears of all groups
            os.write(self._process.stdin.fileno(), line.encode())


def kill_marked(mark: str) -> None:
    """Kill every process that has `MARK` with this value, and see it end."""
    needle, deadline = f"{MARK}={mark}".encode(), time.monotonic() + LIMIT_S
    while (found := list(_find_marked(needle))) and time.monotonic() < deadline:
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)


def _find_marked(needle: bytes) -> Iterator[int]:
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has just ended, or is somebody else's
            if needle in path.read_bytes().split(b"\0"):
                yield int(path.parent.name)


def kill_registered_groups(lines: Iterable[str]) -> None:
    """Read to the end, then kill every group that was not taken back."""
    groups = set()
    for line in lines:
        if line.startswith("+"):
            groups.add(int(line[1:]))
        else:
            groups.discard(int(line[1:]))
    for group in groups:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    kill_registered_groups(sys.stdin)
    kill_marked(sys.argv[1])
