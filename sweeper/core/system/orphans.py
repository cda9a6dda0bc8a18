"""Orphans: what a worker has started and left behind, in a session and with an environment of its
own.

The driver and its workers adopt what loses its parent. So as long as a worker lives, all that it
has started descends from it; once it has ended, the rest are children of the driver, which it has
not started itself.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import Popen
from typing import Any

from .process_group import ProcessGroup

POLL_S, LIMIT_S = 0.05, 10.0  # of seeing orphans end
_lock = threading.Lock()
_own: set[int] = set()  # leaders of sessions that this process has started itself


class WholeGroup(ProcessGroup):
    """A process group that ends with everything that it has started, where this process adopts
    orphans.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._begin_ticks = read_start_ticks(self.pid)

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        kill_orphans(self._begin_ticks, self)


@contextmanager
def start_session() -> Iterator[set[int]]:
    """Start a process in a session of its own in the body, which adds it to the set."""
    with _lock:
        yield _own


def kill_orphans(begin_ticks: int, ended: Popen[bytes]) -> None:
    """Kill the orphans that have started since then, and theirs, and see them end; `ended` is no
    longer our own.
    """
    with _lock:
        _own.discard(ended.pid)
    deadline = time.monotonic() + LIMIT_S
    while (found := _find_orphans(begin_ticks)) and time.monotonic() < deadline:
        for pid in found:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
        time.sleep(POLL_S)


def _find_orphans(begin_ticks: int) -> list[int]:
    found, own_session = [], os.getsid(0)
    with _lock:
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # it has just ended
                stat = _read_stat(path)
                pid, is_child = int(path.parent.name), int(stat[1]) == os.getpid()
                is_orphan = is_child and int(stat[3]) != own_session and pid not in _own
                if is_orphan and int(stat[19]) >= begin_ticks:
                    found.append(pid)
    return found


def read_start_ticks(pid: int) -> int:
    """When a process was started, in the kernel's own unit."""
    return int(_read_stat(Path(f"/proc/{pid}/stat"))[19])


def _read_stat(path: Path) -> list[str]:
    """State, parent, group, session and so on, as proc(5) names them from the third field on."""
    return path.read_text(errors="replace").rpartition(")")[2].split()
