"""Ladders of a report: each rung with what it is compared with, and what a ladder answers.

Trials are compared unpaired, by Welch's t over processes (over draws where there are three).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from statistics import fmean, geometric_mean

from sweeper.analysis.flags import UNVERIFIED
from sweeper.analysis.gains import MIN_GAIN
from sweeper.analysis.stats import Estimate, difference, ratio_of
from sweeper.core.ladder import COMPILED_RUNGS, EAGER_RUNGS
from sweeper.loading.entries import Entry
from sweeper.loading.environment import read_environment
from sweeper.loading.ladder import Ladder, Step
from sweeper.report.columns import cell
from sweeper.report.columns.formats import count, estimated, join, prefix, ratio

from .candidates import find_doubts
from .trials import show_axis

MAX_SENTENCES = 3  # of a verdict
# What all rungs of a ladder have in common, beside the model.
AXES = ("precision", "workload", "batch_size", "variant", "sweep")


@dataclass(frozen=True)
class Rung:
    """A step of a ladder with what it is compared with."""

    ladder: Ladder
    step: Step
    before: Step | None  # the last step above that worked

    @property
    def entry(self) -> Entry:
        return self.step.entry

    @property
    def title(self) -> str:
        return self.step.title

    @property
    def variant(self) -> str:
        return join((self.ladder.plain.variant, *self.ladder.origin))

    @cached_property
    def speedup(self) -> Estimate | None:
        """Over eager as built; for eager itself 1, without an interval."""
        built = self.ladder.steps[0]
        if self.step is built and built.time:
            return Estimate(0.0)
        return _compare(built, self.step)

    @cached_property
    def over_before(self) -> Estimate | None:
        return _compare(self.before, self.step)

    @cached_property
    def over_strongest(self) -> Estimate | None:
        """Over the strongest eager, of a compiled rung."""
        if self.step.rung not in COMPILED_RUNGS:
            return None
        return _compare(self.ladder.strongest, self.step)

    @property
    def device_step_s(self) -> float | None:
        """Of the arms whose step time it has: the mean of both where eager is timed against
        eager.
        """
        found = self.entry.result.device_step_s
        if not self.step.time:
            return None
        if self.entry.trial.mode != "eager":
            return found.eager if self.step.rung in EAGER_RUNGS else found.compiled
        if found.eager is None or found.compiled is None:
            return None
        return fmean((found.eager, found.compiled))


def _compare(one: Step | None, other: Step) -> Estimate | None:
    if one and one.time and other.time:
        return difference(one.time, other.time)
    return None


def _show_axis(rung: Rung, name: str) -> str:
    if name == "variant":
        return cell.show(rung.variant)
    return show_axis(rung.entry, name)


@dataclass(frozen=True)
class LadderAnswer:
    """What a ladder says, by its rungs: eager as built comes first."""

    rungs: Sequence[Rung]

    @property
    def built(self) -> Rung:
        return self.rungs[0]

    @property
    def model(self) -> str:
        return self.built.entry.trial.labels.model

    @cached_property
    def strongest(self) -> Rung | None:
        """The fastest rung in eager; None: not every way to run it was tried."""
        strongest = self.built.ladder.strongest
        return next((rung for rung in self.rungs if rung.step is strongest), None)

    @cached_property
    def best(self) -> Rung | None:
        """The compiled rung that is fastest against the strongest eager; None: none worked."""
        compiled = [rung for rung in self.rungs if rung.over_strongest]
        return max(compiled, key=lambda rung: ratio_of(rung.over_strongest) or 0.0, default=None)

    @property
    def eager_gain(self) -> float:
        """How many times as fast as eager as built the strongest eager is; 0 where not known."""
        if self.strongest:
            return ratio_of(self.strongest.speedup) or 0.0
        return 0.0

    @property
    def compile_gain(self) -> float:
        """How many times as fast as the strongest eager the best compiled rung is; 0: none."""
        if self.best:
            return ratio_of(self.best.over_strongest) or 0.0
        return 0.0

    @property
    def adds(self) -> bool:
        """Whether torch.compile gains anything beyond the strongest eager."""
        return self.compile_gain > 1 + MIN_GAIN

    @property
    def is_whole(self) -> bool:
        """Whether it can say what torch.compile gains."""
        return bool(self.eager_gain and self.compile_gain)

    @cached_property
    def doubts(self) -> dict[str, Sequence[str]]:
        """The doubt flags of the rungs that are compared, by their titles."""
        doubts: dict[str, Sequence[str]] = {}
        for rung in filter(None, (self.built, self.strongest, self.best)):
            if flags := find_doubts(rung.entry):
                doubts[rung.title] = flags
        return doubts

    @property
    def flags(self) -> Sequence[str]:
        """The doubt flags of all of them, each once."""
        return list(dict.fromkeys(chain.from_iterable(self.doubts.values())))

    @property
    def num_gpus(self) -> int:
        uuids = {read_environment(rung.entry).uuid for rung in self.rungs}
        return len(uuids - {None})

    def name(self, axes: Iterable[str]) -> str:
        """Name the ladder by its model and the values of `axes`, e.g. `resnet50 amp`."""
        return join([self.model, *(_show_axis(self.built, axis) for axis in axes)], " ")

    def describe(self) -> str:
        """E.g. `gains 1.93x without torch.compile (eager + channels_last), and another 1.35x with
        compile default`.
        """
        assert self.strongest
        assert self.best
        compiled = f"{ratio(self.compile_gain)}x with {self.best.title}"
        added = f"torch.compile adds nothing to that ({compiled})"
        if self.adds:
            added = f"another {compiled}"
        gains = f"gains {ratio(self.eager_gain)}x without torch.compile ({self.strongest.title})"
        return join((f"{gains}, and {added}", prefix("flagged ", ", ".join(self.flags))))

    def explain(self) -> str:
        """Say the same with intervals, and what is missing of it."""
        if self.strongest is None:
            return "not every way to run eager was tried, so none is called the strongest"
        strongest = f"the strongest eager is {self.strongest.title}"
        if self.eager_gain and self.strongest is not self.built:
            gain = estimated(self.strongest.speedup)
            strongest += f", {gain} times as fast as eager as built"
        if self.best is None:
            return f"{strongest}; no compiled rung worked"
        gain = f"{estimated(self.best.over_strongest)} ({self.best.title}"
        if total := estimated(self.best.speedup):
            gain += f", {total} over eager as built"
        named = [f"{rung} ({', '.join(flags)})" for rung, flags in self.doubts.items()]
        doubts = prefix("doubts: ", ", ".join(named))
        return join((strongest, f"beyond it torch.compile gives {gain})", doubts))


def answer_ladders(ladders: Iterable[Ladder]) -> list[LadderAnswer]:
    """Compare the rungs of each ladder with the last one above that worked."""
    answers = []
    for ladder in ladders:
        rungs, before = [], None
        for step in ladder.steps:
            rungs.append(Rung(ladder, step, before))
            before = step if step.time else before
        answers.append(LadderAnswer(rungs))
    return answers


def find_ladder_axes(answers: Sequence[LadderAnswer]) -> list[str]:
    """Find the axes in which ladders of one model differ."""
    models = {answer.model for answer in answers}
    differing = []
    for name in AXES:
        values = {(answer.model, _show_axis(answer.built, name)) for answer in answers}
        if len(values) > len(models):
            differing.append(name)
    return differing


def conclude(answers: Sequence[LadderAnswer]) -> list[str]:
    """Say what torch.compile gains: up to `MAX_SENTENCES` ladders get a sentence each, and more of
    them share one, with geometric means over those that are verified.
    """
    whole = [answer for answer in answers if answer.is_whole]
    if len(whole) <= MAX_SENTENCES:
        axes = find_ladder_axes(answers)
        return [f"over eager as built, {answer.name(axes)} {answer.describe()}" for answer in whole]
    verified = [answer for answer in whole if UNVERIFIED not in answer.flags]
    if not verified:
        return [f"over eager as built, none of {len(whole)} ladders is verified"]
    sure = sum(not answer.doubts for answer in verified)
    rest = ""
    if len(verified) < len(whole):
        rest = f"; {len(whole) - len(verified)} more not verified"
    gain = geometric_mean(answer.eager_gain for answer in verified)
    added = geometric_mean(answer.compile_gain for answer in verified)
    return [
        f"over eager as built, {count(len(verified), 'ladder')} gain {ratio(gain)}x without "
        f"torch.compile, and another {ratio(added)}x with it (geometric means over the best rungs; "
        f"{sure or 'none'} of them undisturbed{rest})"
    ]
