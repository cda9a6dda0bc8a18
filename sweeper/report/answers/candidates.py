"""The modes that an answer chooses from: what each gains over eager, and how people see it."""

import math
from dataclasses import dataclass
from functools import lru_cache

from sweeper.analysis.flags import DOUBTS
from sweeper.analysis.gains import Gain, TrialGain, find_gain
from sweeper.core.libraries import SCRIPT
from sweeper.loading.entries import Entry
from sweeper.report.columns.formats import interval, ratio


@dataclass(frozen=True)
class Candidate(TrialGain):
    """A mode whose result is right."""

    entry: Entry

    @property
    def name(self) -> str:
        return name_mode(self.entry)

    @property
    def clock(self) -> str:
        """What was timed of a script, before its speedup; "" of other models."""
        if self.of_loop:
            return "loop "
        return "step " if self.entry.trial.workload == SCRIPT else ""

    @property
    def shown(self) -> str:
        """The speedup as text, e.g. `1.28`, or of a script `loop 1.28`."""
        return f"{self.clock}{ratio(self.gain.value)}"

    @property
    def bounds(self) -> str:
        """Both ends, e.g. `[1.25, 1.31]`, or `(1.25 to 1.31)` where they are no interval: by the
        margin of one process, or the range of a few.
        """
        return show_bounds(self.gain)


def show_bounds(gain: Gain) -> str:
    if gain.by_margin or gain.by_range:
        return f"({ratio(gain.low)} to {ratio(gain.high)})"
    return interval(gain.low, gain.high)


def find_doubts(entry: Entry) -> tuple[str, ...]:
    """List the flags that say that a speedup may be off by more than its interval shows; one whose
    ends are too far apart shows nothing.
    """
    one = find_candidate(entry)
    shown = one.gain.share if one and not one.gain.is_far_apart else 0.0
    doubts = []
    for flag in entry.flags:
        if flag in DOUBTS and entry.disturbances.get(flag, math.inf) > shown:
            doubts.append(flag)
    return tuple(doubts)


def name_mode(entry: Entry) -> str:
    """Return what to type: the mode, or the backend where the backend has no modes."""
    trial = entry.trial
    if trial.backend in ("inductor", None):
        return trial.mode
    if trial.mode == "default":
        return str(trial.backend)
    return f"{trial.mode} with {trial.backend}"


@lru_cache(maxsize=2**16)  # figures, tables and answers ask again and again
def find_candidate(entry: Entry, steps: int | None = None) -> Candidate | None:
    """Find what a trial that is ok measured, for a job of `steps` steps."""
    found = find_gain(entry.trial.device, entry.result, entry.flags, entry.disturbances, steps)
    return Candidate(**vars(found), entry=entry) if found else None
