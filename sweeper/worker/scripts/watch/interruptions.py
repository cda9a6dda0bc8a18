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
        self._steps = self._last = 0  # steps that have ended, and by when the last one was noticed
        self._seen = 0

    @property
    def interval(self) -> int:
        """Steps from one interruption to the next, the median of the last few; 0 before the
        second one.
        """
        return median_low(self._intervals) if self._intervals else 0

    def note(self, seen: int) -> None:
        """Note the end of a step; `seen` counts all that has interrupted the training so far."""
        self._steps += 1
        if seen != self._seen:
            if self._seen:
                self._intervals.append(self._steps - self._last)
            self._seen, self._last = seen, self._steps

    def leave_room(self, steps: int) -> bool:
        """Whether so many steps end before the next interruption, as far as is known."""
        return not self.interval or self._steps - self._last + steps < self.interval


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
