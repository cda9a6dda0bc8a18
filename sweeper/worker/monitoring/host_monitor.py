"""What else uses the host's processor, asked of the kernel."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sweeper.core.system import host

QUOTA_FILES = (
    ("/sys/fs/cgroup/cpu.stat", "throttled_usec", 1e-6),
    ("/sys/fs/cgroup/cpu/cpu.stat", "throttled_time", 1e-9),
)


own_sessions = {os.getsid(0)}  # with those of other ranks of a script


class HostMonitor:
    """Processor time that others took since this was made, as a share of the cores we may use; time
    lost to a quota.

    A neighbour on cores of its own, as when each GPU of a machine has its share, does not count.
    """

    def __init__(self) -> None:
        self._start, self._waited_s = _take_reading(), _quota_waited_s()

    def share_busy_by_others(self, away_s: float = 0.0) -> float | None:
        """Return the share of processor time that others took; None where the kernel does not
        report it.

        The time that others took while this process was away is included, so the share is an upper
        bound.
        """
        now = _take_reading()
        passed_s = now.clock_s - self._start.clock_s - away_s
        if now.busy_s <= 0 or passed_s <= 0:
            return None
        others_s = now.busy_s - self._start.busy_s - spent_s(self._start.own, now.own)
        return max(0.0, others_s / passed_s / len(os.sched_getaffinity(0)))

    def throttled_s(self) -> float | None:
        """Seconds for which the cgroup's quota kept us waiting."""
        waited_s = _quota_waited_s()
        return None if waited_s is None or self._waited_s is None else waited_s - self._waited_s


class Spent(NamedTuple):
    """Processor seconds of a process so far, those of ended children that it has collected
    included.
    """

    parent: int
    seconds: float


def spent_s(before: Mapping[int, Spent], now: Mapping[int, Spent]) -> float:
    """Processor seconds that a session has spent between two readings, by the numbers of its
    processes.

    What has ended was either collected, and all its time is now in its parent's, or is gone with
    what it spent.
    """
    spent = sum(item.seconds for item in now.values())
    for pid, item in before.items():
        if pid in now or item.parent in now:
            spent -= item.seconds
    return spent


class _Reading(NamedTuple):
    clock_s: float
    busy_s: float  # of everybody on our cores
    own: Mapping[int, Spent]


def _take_reading() -> _Reading:
    own = {}
    for pid, stat in _find_processes(own_sessions):
        ticks = sum(map(int, stat[11:15]))
        own[pid] = Spent(int(stat[1]), ticks / host.TICKS_PER_SECOND)
    return _Reading(time.monotonic(), host.busy_s(os.sched_getaffinity(0)), own)


def own_processes(neighbours: frozenset[int] = frozenset()) -> set[int]:
    """Numbers of the processes of our sessions, those that compile for us with them, and of those
    of neighbours.
    """
    return {pid for pid, _ in _find_processes({*own_sessions, *neighbours})}


def _find_processes(sessions: set[int]) -> Iterator[tuple[int, list[str]]]:
    """Processes of these sessions with the fields of their /proc/<pid>/stat that follow the
    name.
    """
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):  # it has just ended
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) in sessions:
                    yield int(folder.name), fields


def _quota_waited_s() -> float | None:
    """`throttled_usec` of cgroup v2 (kernel documentation, admin-guide/cgroup-v2), or v1's
    `throttled_time`.
    """
    for path, name, unit in QUOTA_FILES:
        with suppress(OSError):
            counts = dict(line.split() for line in Path(path).read_text().splitlines())
            if name in counts:
                return int(counts[name]) * unit
    return None
