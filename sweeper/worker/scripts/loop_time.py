"""How long a step of a whole loop takes, with one arm throughout.

An evaluation, a saved file and the start of a loader's workers come once in many steps, and each
takes as long as many of them. Both arms need the same share of these: the eager loop is timed from
one to another of the rarest kind, and the compiled loop over as many steps, or a multiple, with as
many of each kind. Where a whole period would take too long, both are timed without.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch

from sweeper.core.record import LoopRun, ScriptRun
from sweeper.worker.measurement.bench import Steps

from .subject import ScriptSubject
from .watch.loop import Counts, ScriptOverError

LOOP_S = 10.0  # length of a loop's measurement, unless `measure.rounds_s` says less
# times that length, or LOOP_S, for which the beginning of a period is waited for, and for its end
PATIENCE = 3
MIN_STEPS = 8
ASK_S = 0.5  # of a loop, after which ranks ask whether its time is long enough
MAX_STARTS = 4  # of a loop's measurement because of compilations, and as many because of events


def time_loop(subject: ScriptSubject, known: ScriptRun) -> Steps[LoopRun]:
    """Time steps of the loop until there are enough of them.

    What compiles meanwhile, as the first evaluation does, comes once in a training: the time begins
    anew after it. A loop that compiles again and again is timed with what it compiles.

    Rank 0 decides for all, and tells them once in `ASK_S`: that takes time, too.
    """
    timing, ranks, loop = _Timing(subject, known), subject.ranks, subject.loop
    ended, first = _StepEnds(subject), loop.num_steps
    begin, is_enough, left = ended.note(first), False, 1
    try:
        while True:
            yield
            now = ended.note(loop.num_steps)
            is_enough, left = is_enough or timing.note_step(), left - 1
            if ranks.size > 1 and left:
                continue
            step_s = (now - begin) / (loop.num_steps - first)
            is_enough, left = ranks.share("enough", (is_enough, int(ASK_S / step_s) + 1))[0]
            if is_enough:
                break
    except ScriptOverError:  # what it did after its last step is no part of that
        if timing.choose().steps < MIN_STEPS:
            raise
    window = timing.choose()
    run = window.describe(subject, timing.leaves_out)
    if ranks.size > 1:
        first, last = ranks.share("window", (window.before.steps, window.seen.steps))[0]
        own_s = ended.seconds_between(first, last) / (last - first)
        run = replace(run, step_s=max(ranks.share("loop", own_s)))
    return run


class _StepEnds:
    """When each step has ended in this rank, by its number: on a GPU when it is computed, of which
    the host may be far ahead.
    """

    def __init__(self, subject: ScriptSubject) -> None:
        self._is_queued = subject.ranks.size > 1 and subject.device.type == "cuda"
        self._device, self._clock = subject.device, subject.bench.clock
        self._times: dict[int, float] = {}
        self._events: dict[int, torch.cuda.Event] = {}

    def note(self, step: int) -> float:
        """Note the end of a step; the time of the host, which does not wait for the device."""
        if self._is_queued:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(self._device))
            self._events[step] = event
        self._times[step] = self._clock()
        return self._times[step]

    def seconds_between(self, begin: int, end: int) -> float:
        """Seconds from the end of a step to that of another one."""
        if self._is_queued:
            self._events[end].synchronize()
            return float(self._events[begin].elapsed_time(self._events[end])) / 1e3
        return self._times[end] - self._times[begin]


NO_EVENT = 3  # before the end of a step; other events are places in `Counts.events`, rarest first
# of each of these, in as many steps as eager's; some are no whole part of others
MAX_DIFFERENCES = (0.25, 1, 1)


class _Window(NamedTuple):
    """A time in which a loop is measured: from an idle device to the end of a step."""

    before: Counts
    seen: Counts

    @staticmethod
    def begin(subject: ScriptSubject) -> _Window:
        subject.bench.synchronize()
        before = subject.loop.count()
        return _Window(before, before)

    def extend(self, subject: ScriptSubject) -> _Window:
        return self._replace(seen=subject.loop.count())

    @property
    def found(self) -> Counts:
        """What happened in it."""
        return self.seen.since(self.before)

    @property
    def steps(self) -> int:
        return self.found.steps

    def describe(self, subject: ScriptSubject, left_out: bool) -> LoopRun:
        found, steps, has_forms = self.found, self.steps, bool(subject.switch.forms)
        evaluation_s = None
        if 0 < found.evaluations < steps:
            others_s = (found.seconds - found.evaluation_s) / (steps - found.evaluations)
            evaluation_s = max(found.evaluation_s / found.evaluations - others_s, 0.0)
        return LoopRun(
            steps,
            found.seconds / steps,
            found.loader_s / steps if subject.loop.loader.seen else None,
            found.batches / steps,
            found.calls / steps if has_forms else None,
            found.programs,
            *found.events,
            left_out,
            found.untrained if has_forms else None,
            evaluation_s,
        )


class _Timing:
    """Decides after each step whether the window is long enough, and where it begins anew."""

    def __init__(self, subject: ScriptSubject, known: ScriptRun) -> None:
        self._subject, self._interval, self._eager = subject, known.interval, known.loop_eager
        self._limit_s = min(LOOP_S, subject.measure.rounds_s or LOOP_S)
        self._patience_s = max(PATIENCE * self._limit_s, LOOP_S)
        self._compilations = self._restarts = 0  # for which the time began anew
        self._begin()
        self._first = self._window

    def _begin(self) -> None:
        """Begin with nothing seen."""
        self._window = _Window.begin(self._subject)
        self._start = self._window.before.seconds  # of what is waited for
        # the longest one of whole periods, or with as much as eager's
        self._whole = self._window
        self._without = self._window  # the longest one that ended before an event
        self._period = NO_EVENT  # the events between which the window lies

    def note_step(self) -> bool:
        """Note the end of a step, and say whether the time is long enough."""
        last, self._window = self._window, self._window.extend(self._subject)
        if self._window.found.programs and self._compilations < MAX_STARTS - 1:
            self._compilations += 1
            self._begin()
            return False
        seen = enumerate(self._window.seen.since(last.seen).events)
        event = next((kind for kind, count in seen if count), NO_EVENT)
        if self._eager:
            return self._follow(self._eager, event, last)
        return self._look_for_periods(event, last)

    @property
    def leaves_out(self) -> bool:
        """Whether an event was seen and is not in the window, or not as often per step as in
        eager's.
        """
        window, eager = self.choose(), self._eager
        if eager is None:
            return self._period != NO_EVENT and not window.found.events[self._period]
        periods = window.steps / eager.steps
        found = zip(window.found.events, eager.events, MAX_DIFFERENCES, strict=True)
        return self._restarts > 0 or any(
            bool(ours) != bool(eagers) or abs(ours / periods - eagers) > most
            for ours, eagers, most in found
        )

    def choose(self) -> _Window:
        """Choose the window that counts."""
        for window in (self._whole, self._longest_without(self._window)):
            if window.steps >= MIN_STEPS:
                return window
        return self._first._replace(seen=self._window.seen)

    def _begin_after(self, last: _Window) -> None:
        """Begin anew after an event, before which the window was `last`."""
        self._without = self._longest_without(last)
        self._window = _Window.begin(self._subject)

    def _longest_without(self, window: _Window) -> _Window:
        """The longest window without an event, of which `window` is the last one."""
        return max(self._without, window, key=lambda one: one.steps)

    def _finish(self) -> None:
        """End the window when the device is idle."""
        self._subject.bench.synchronize()
        self._window = self._window.extend(self._subject)

    def _is_long(self) -> bool:
        return self._window.steps >= MIN_STEPS and self._window.found.seconds >= self._limit_s

    def _look_for_periods(self, event: int, last: _Window) -> bool:
        if event < self._period:  # a rarer one
            self._begin_after(last)
            self._period, self._whole = event, self._window
            return False
        if event == self._period != NO_EVENT:
            if self._is_long():
                self._finish()
            self._whole = self._window
            return self._is_long()
        interval, found = self._interval, self._window.found
        is_near = interval * found.seconds / found.steps <= self._patience_s
        waits = self._period != NO_EVENT or (is_near and found.steps <= interval)
        waited_s = self._window.seen.seconds - self._start
        is_late = found.seconds >= self._patience_s or waited_s >= 2 * self._patience_s
        if (self._is_long() and not waits) or (is_late and found.steps >= MIN_STEPS):
            self._finish()
            return True
        return False

    def _follow(self, eager: LoopRun, event: int, last: _Window) -> bool:
        if event != NO_EVENT and not eager.events[event] and self._restarts < MAX_STARTS:
            self._restarts += 1
            self._begin_after(last)
            return False
        if self._window.steps % eager.steps == 0:
            self._finish()
            self._whole = self._window
            return not any(eager.events) or self._window.found.seconds >= self._limit_s
        most_s = max(2 * eager.steps * eager.step_s, self._patience_s)
        if self._window.found.seconds >= most_s and self._window.steps >= MIN_STEPS:
            self._finish()
            return True
        return False
