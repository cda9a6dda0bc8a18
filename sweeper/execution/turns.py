"""Turns: of which trial a device runs a process next.

A trial that wants another process waits for its turn. Trials that differ in mode or backend alone
are a race: no second process begins before each of them has shown what it gains in a first one. One
that another beats then waits until those are done that none beats, and ends if it is beaten still.
Trials of features wait for the trial that they are compared with: before their first process until
that has had one, which shows its code and its compile time, and before a second until it has ended.
Trials on several GPUs wait until all on fewer have ended, so that none waits for another. Trials go
in their order, race by race; where the time of the sweep is limited, those with the fewest
processes go first.
"""

import math
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweeper.analysis.gains import TrialGain, beats
from sweeper.core.backends import CONTROLS
from sweeper.core.settings import Measure, Settings
from sweeper.core.trial import Trial

from .placement import DeviceSlot

POLL_S = 0.5  # of looking whether the user has interrupted


@dataclass(eq=False)
class Entrant:
    """A trial that has not ended."""

    trial: Trial
    id: str  # of the trial
    race: int  # the number of its first trial
    number: int  # of the trial among all
    num_devices: int
    slot: DeviceSlot | None = None  # on which it began
    steps: Generator[TrialGain | None, bool, Any] | None = None  # as the scheduler says
    processes: int = 0  # that have ended
    runs: bool = False
    gain: TrialGain | None = None  # so far; None: not known, or of no interest


class Turns:
    """The trials of a sweep that have not ended, for the threads of all its devices."""

    def __init__(self, trials: Sequence[Trial], settings: Settings, stop: threading.Event) -> None:
        """The sweep begins now."""
        self._stop, self._limit_s = stop, settings.sweep_time_s
        self._end = time.monotonic() + (self._limit_s or math.inf)
        self._changed = threading.Condition()
        self._left: list[Entrant] = []
        self._ended: list[Entrant] = []
        begins: dict[str, int] = {}
        for number, name in enumerate(name_races(trials, settings.measure)):
            trial, race = trials[number], begins.setdefault(name, number)
            self._left.append(Entrant(trial, trial.id, race, number, trial.num_devices))

    @property
    def time_is_over(self) -> bool:
        return time.monotonic() >= self._end

    def take(self, slot: DeviceSlot) -> Entrant | None:
        """Wait for a trial that may run a process on a slot; None where none is left for it."""
        with self._changed:
            while True:
                if self._stop.is_set() or self.time_is_over:
                    self._drop_waiting()
                of_slot = [one for one in self._left if _may_run(one, slot)]
                if not of_slot:
                    return None
                left = {one.id: one for one in self._left}
                fewest = min(one.num_devices for one in self._left)
                if ready := [one for one in of_slot if self._is_ready(one, left, fewest)]:
                    taken = min(ready, key=self._rank)
                    taken.slot, taken.runs = slot, True
                    return taken
                self._changed.wait(POLL_S)

    def gets_another(self, entrant: Entrant) -> bool:
        """Whether a trial gets the process that it wants."""
        with self._changed:
            return not self._is_beaten(entrant) and not self.time_is_over

    def give_back(self, entrant: Entrant, gain: TrialGain | None) -> None:
        """Have a trial wait, after a process that shows what it gains so far."""
        with self._changed:
            entrant.processes += 1
            entrant.gain, entrant.runs = gain, False
            self._changed.notify_all()

    def end(self, entrant: Entrant, ok: bool) -> None:
        """Take out a trial that has ended."""
        with self._changed:
            self._left.remove(entrant)
            if ok:
                self._ended.append(entrant)
            self._changed.notify_all()

    def begin_no_other(self) -> None:
        """Have only those trials go on that have begun."""
        with self._changed:
            self._drop_waiting()
            self._changed.notify_all()

    def _drop_waiting(self) -> None:
        self._left = [one for one in self._left if one.runs or one.processes]

    def _is_ready(self, entrant: Entrant, left: Mapping[str, Entrant], fewest: int) -> bool:
        """Whether it may run, where `left` has all that have not ended by their ids, and each of
        them `fewest` devices or more.
        """
        if entrant.runs or entrant.num_devices > fewest:
            return False
        default = left.get(entrant.trial.labels.default_id or "")
        if default and (entrant.processes or not default.processes):
            return False
        if not entrant.processes or self._stop.is_set() or self.time_is_over:
            return True
        mates = [one for one in self._left if one.race == entrant.race]
        if not all(one.processes for one in mates):
            return False
        return not self._is_beaten(entrant) or all(map(self._is_beaten, mates))

    def _is_beaten(self, entrant: Entrant) -> bool:
        own = entrant.gain
        others = [one.gain for one in (*self._left, *self._ended) if one.race == entrant.race]
        return own is not None and any(gain and beats(gain, own) for gain in others)

    def _rank(self, entrant: Entrant) -> tuple[int, int, int]:
        if self._limit_s is not None:
            return entrant.processes, entrant.race, entrant.number
        return entrant.race, entrant.processes, entrant.number


def _may_run(entrant: Entrant, slot: DeviceSlot) -> bool:
    return entrant.num_devices == slot.num_devices and entrant.slot in (None, slot)


def name_races(trials: Sequence[Trial], measure: Measure) -> list[str]:
    """The race of each trial: a key that those share of which an answer takes one. What compiles
    nothing is alone, so is each trial of an ablation and of a ladder, and each where the number of
    processes is given.
    """
    races = []
    for trial in trials:
        labels = trial.labels
        is_alone = trial.mode == "eager" or trial.backend in CONTROLS
        if is_alone or labels.feature or labels.rung or not measure.goes_on_until_sure:
            races.append(trial.id)
        else:
            races.append(trial.key_without("mode", "backend"))
    return races
