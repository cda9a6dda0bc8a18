"""When a script does more than train: the steps between its evaluations, between the files that it
saves, or between the beginnings of its epochs.
"""

from collections import deque
from statistics import median_low


class Interruptions:
    """Counts steps since the last interruption, and from one to the next. A block that has one in
    it does not count.
    """

    def __init__(self) -> None:
        self._intervals: deque[int] = deque(maxlen=9)
        self._since: int | None = None  # steps that have ended since the last one was noticed
        self._seen = 0

    @property
    def interval(self) -> int | None:
        """Steps from one interruption to the next, the median of the last few; None before the
        second one.
        """
        return median_low(self._intervals) if self._intervals else None

    def note(self, seen: int) -> None:
        """Note the end of a step; `seen` counts all that has interrupted the training so far."""
        since = None if self._since is None else self._since + 1
        if seen != self._seen:
            self._seen = seen
            if since is not None:
                self._intervals.append(since)
            since = 0
        self._since = since

    def leave_room(self, steps: int) -> bool:
        """Whether so many steps end before the next interruption, as far as is known."""
        if self.interval is None or self._since is None:
            return True
        return self._since + steps < self.interval


class UnusualCalls:
    """Tells calls of an evaluation from those that each step has, as of a teacher or a rollout."""

    def __init__(self) -> None:
        self._before = 0
        self._counts: deque[int] = deque(maxlen=9)  # of calls in the last steps

    def note(self, calls: int) -> bool:
        """Note all calls until the end of a step; return whether the step had more than usual."""
        count, self._before = calls - self._before, calls
        usual = median_low(self._counts) if self._counts else count
        self._counts.append(count)
        return count > 2 * usual
