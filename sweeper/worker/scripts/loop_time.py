"""How long a step of a whole loop takes, with one arm throughout.

An evaluation, a saved file and the start of a loader's workers come once in many steps, and each takes as long as many
of them. Both arms need the same share of these: the eager loop is timed from one to another, and the compiled loop over
as many steps, or a multiple. Where a whole period would take too long, both are timed without.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from enum import IntEnum

from sweeper.core.record import LoopRun, ScriptRun
from sweeper.worker.scripts.loop import Counts, Lead, ScriptOverError
from sweeper.worker.scripts.setup import ScriptSetup

LOOP_S = 10.0  # length of a loop's measurement, unless `measure.rounds_s` says less
PATIENCE = 3  # times that length, or LOOP_S, for which the end of a period is waited for
MIN_STEPS = 8
MAX_STARTS = 4  # of a loop's measurement


@dataclass(frozen=True)
class Known:
    """What earlier runs of the script have shown."""

    interval: int = 0  # steps from one evaluation or saved file to the next; 0: none was seen
    eager_steps: int = 0  # that the eager loop was timed over; 0: it was not timed yet
    is_whole: bool = False  # whether these go from one evaluation, saved file or epoch to another

    @staticmethod
    def of(script: ScriptRun) -> Known:
        run = script.loop_eager
        return Known(script.interval, run.steps, run.evaluations + run.epochs > 0) if run else Known(script.interval)


NOTHING = Known()


def time_loop(setup: ScriptSetup, arm: str, known: Known = NOTHING) -> Lead:
    """Time steps of the loop until there are enough of them.

    What compiles meanwhile, as the first evaluation does, comes once in a training: the time begins anew after it. A
    loop that compiles again and again is timed with what it compiles.
    """
    timing = _Timing(setup, known)
    try:
        while True:
            yield
            if timing.note_step():
                break
    except ScriptOverError:  # what it did after its last step is no part of that
        window = timing.choose()
        if window.steps < MIN_STEPS:
            window = replace(timing.first, end=timing.window.end, seen=timing.window.seen)
        if window.steps < MIN_STEPS:
            raise
    else:
        window = timing.choose()
    setup.loops[arm] = window.describe(setup, left_out=timing.leaves_out)


class _Event(IntEnum):
    """What came before the end of a step, the rarer one last."""

    NONE = 0
    EPOCH = 1  # the loader began anew
    EVALUATION = 2  # or a saved file


@dataclass(frozen=True)
class _Window:
    """A time in which a loop is measured: from an idle device to the end of a step."""

    before: Counts
    programs: int
    start: float
    end: float
    seen: Counts

    @staticmethod
    def begin(setup: ScriptSetup) -> _Window:
        setup.bench.synchronize()
        before, now = setup.loop.count(), time.perf_counter()
        return _Window(before, len(setup.arms.counters.programs), now, now, before)

    def extend(self, setup: ScriptSetup) -> _Window:
        return replace(self, end=time.perf_counter(), seen=setup.loop.count())

    def finish(self, setup: ScriptSetup) -> _Window:
        setup.bench.synchronize()
        return self.extend(setup)

    @property
    def length_s(self) -> float:
        return self.end - self.start

    @property
    def steps(self) -> int:
        return self.seen.steps - self.before.steps

    def describe(self, setup: ScriptSetup, left_out: bool) -> LoopRun:
        seen = self.seen.since(self.before)
        return LoopRun(
            seen.steps,
            self.length_s / seen.steps,
            seen.loader_s / seen.steps if setup.loop.loader.seen else None,
            seen.batches / seen.steps,
            len(setup.arms.counters.programs) - self.programs,
            seen.interrupted,
            seen.epochs,
            left_out,
        )


class _Timing:
    """Decides after each step whether the window is long enough, and where it begins anew."""

    def __init__(self, setup: ScriptSetup, known: Known) -> None:
        self._setup, self._known = setup, known
        self._limit_s = min(LOOP_S, setup.measure.rounds_s or LOOP_S)
        self._patience_s = max(PATIENCE * self._limit_s, LOOP_S)
        self.first = self.window = _Window.begin(setup)
        self._whole: _Window | None = None  # the longest one of whole periods, or of as many steps as eager
        self._without: _Window | None = None  # before the first event
        self._period = _Event.NONE  # the events between which the window lies
        self._starts = 1

    def note_step(self) -> bool:
        """Note the end of a step, and say whether the time is long enough."""
        last, self.window = self.window, self.window.extend(self._setup)
        if len(self._setup.arms.counters.programs) > last.programs and self._starts < MAX_STARTS:
            self._whole, self._without, self._period = None, None, _Event.NONE
            self._begin_anew()
            return False
        seen = self.window.seen.since(last.seen)
        event = _Event.EVALUATION if seen.interrupted else _Event.EPOCH if seen.epochs else _Event.NONE
        return self._follow_eager(event) if self._known.eager_steps else self._look_for_periods(event, last)

    @property
    def leaves_out(self) -> bool:
        """Whether an event was seen, and is not in the window."""
        is_whole = self._known.is_whole if self._known.eager_steps else self._whole is not None
        return self._period is not _Event.NONE and not is_whole

    def choose(self) -> _Window:
        """Choose the window that counts."""
        if self._whole is not None:
            return self._whole
        return max(filter(None, (self._without, self.window)), key=lambda window: window.steps)

    def _begin_anew(self) -> None:
        self.window, self._starts = _Window.begin(self._setup), self._starts + 1

    def _is_long(self) -> bool:
        return self.window.steps >= MIN_STEPS and self.window.length_s >= self._limit_s

    def _look_for_periods(self, event: _Event, last: _Window) -> bool:
        if event > self._period:
            self._without = self._without or last
            self._period, self._whole = event, None
            self._begin_anew()
            return False
        if event is not _Event.NONE and event is self._period:
            self._whole = self.window = self.window.finish(self._setup)
            return self._is_long()
        waits = self._period is not _Event.NONE or self.window.steps <= self._known.interval
        if (self._is_long() and not waits) or self.window.length_s >= self._patience_s:
            self.window = self.window.finish(self._setup)
            return True
        return False

    def _follow_eager(self, event: _Event) -> bool:
        if event is not _Event.NONE and not self._known.is_whole and self._starts < MAX_STARTS:
            self._period = event  # left out in eager, too
            self._begin_anew()
            return False
        if self.window.steps % self._known.eager_steps:
            return False
        self._whole = self.window = self.window.finish(self._setup)
        return not self._known.is_whole or self.window.length_s >= self._limit_s
