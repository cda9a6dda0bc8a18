"""A clock that only the tests move, so that they need not wait for what it says."""

from __future__ import annotations


class Clock:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now = round(self.now + seconds, 6)
