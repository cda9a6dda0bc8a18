"""Ablations of a report: what each feature of the compiler does to a model, and what to set."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from sweeper.analysis.flags import UNVERIFIED
from sweeper.analysis.gains import TrialGain, are_alike, choose_clock, lie_apart
from sweeper.analysis.stats import Estimate, difference
from sweeper.core.ablation import FEATURES, Feature, change
from sweeper.core.record import CHANGEABLE, NOT_JUDGED
from sweeper.core.trial import Trial
from sweeper.loading.entries import Entry
from sweeper.report.columns.formats import estimated, join, shorten_names

from .candidates import find_candidate
from .trials import NAMING_AXES, find_varying, list_compile_arguments, name_by

BREAKS, NEEDED, HURTS, PAYS = "breaks", "needed", "hurts", "pays"
NOT_SURE, NO_DIFFERENCE, NO_EFFECT = "not sure", "no difference", "no effect"
DIFFERING = (BREAKS, NEEDED, HURTS, PAYS)
VERDICTS = ("", *DIFFERING, NOT_SURE, NO_DIFFERENCE, NO_EFFECT)  # "": of the default
NOT_TIMED = "not timed"
BLAMELESS = {*NOT_JUDGED, *CHANGEABLE, "timeout"}  # statuses that tell nothing of a feature
NO_FEATURE = Feature("", "", "", None)  # of the default
# By default; then the feature's trial is better than the default.
BETTER = {"on": (BREAKS, HURTS), "off": (NEEDED, PAYS)}

Place = tuple[object, ...]  # of a trial: its sweep, origin and id


@dataclass(frozen=True)
class FeatureAnswer:
    """A trial of an ablation, and the one that it is compared with, which may be itself. One that
    has several features has them in its settings alone.
    """

    entry: Entry
    default: Entry

    @property
    def name(self) -> str:
        """The value of `feature=`; "" of the default."""
        return self.entry.trial.labels.feature or ""

    @property
    def feature(self) -> Feature:
        """What its trial leaves out or adds."""
        return FEATURES.get(self.name, NO_FEATURE)

    @property
    def sides(self) -> tuple[Entry, Entry]:
        """The trial with the feature, and the one without it."""
        if self.feature.usual == "on":
            return self.default, self.entry
        return self.entry, self.default

    @cached_property
    def gains(self) -> tuple[TrialGain, TrialGain] | None:
        """What both sides gain over eager, by the clock by which they are compared."""
        having, lacking = map(find_candidate, self.sides)
        if having is None or lacking is None:
            return None
        return choose_clock(self.feature.in_code, having, lacking)

    @cached_property
    def speedup(self) -> Estimate | None:
        """How many times as fast a compiled step with the feature is as one without it; by the time
        of the device, and on a CPU, each beside its own eager step.
        """
        if self.gains is None or self.entry is self.default:
            return None
        having, lacking = (gain.result for gain in self.gains)
        if self.gains[0].by_device:
            one, other = having.device_speedup, lacking.device_speedup
        elif self.default.trial.device == "cpu":  # other work there slows down both arms
            one, other = having.speedup, lacking.speedup
        else:
            one, other = lacking.compiled_step, having.compiled_step
        if one is None or other is None:
            return None
        return difference(one, other)

    @property
    def failure(self) -> str:
        """The side that is not ok, and what became of it."""
        for entry, side in zip(self.sides, ("with it", "without it"), strict=True):
            if self.feature is not NO_FEATURE and find_status(entry) != "ok":
                return f"{find_status(entry)} {side}"
        return ""

    @property
    def error(self) -> float | None:
        """The compiled step's error over eager's, where it comes nearest to its bound."""
        worst = self.entry.worst
        if worst is None or worst.compiled_error is None or not worst.eager_error:
            return None
        return worst.compiled_error / worst.eager_error

    @cached_property
    def verdict(self) -> str:
        having, lacking = self.sides
        if self.feature is NO_FEATURE:
            return ""
        code, is_ok = having.result.code, find_status(self.entry) == "ok"
        if is_ok and code and code == lacking.result.code and self.feature.in_code:
            return NO_EFFECT
        if self.failure:
            statuses = find_status(having), find_status(lacking)
            if "ok" not in statuses or not BLAMELESS.isdisjoint(statuses):
                return NOT_SURE
            if judge(self.entry) == NOT_TIMED:  # its code was that of a default that failed later
                return NOT_SURE
            return NEEDED if statuses[0] == "ok" else BREAKS
        if self.gains is None:
            return NOT_SURE
        one, other = self.gains
        if lie_apart(one, other):
            return PAYS if one.gain.value > other.gain.value else HURTS
        return NO_DIFFERENCE if are_alike(one, other) else NOT_SURE

    @property
    def is_better(self) -> bool:
        """Whether its trial is better than the default, so that the setting is worth having."""
        return self.verdict in BETTER.get(self.feature.usual, ()) and judge(self.entry) == "ok"

    def describe(self) -> str:
        """E.g. `mix-order reduction hurts (0.95 [0.94, 0.96])`."""
        return f"{self.feature.title} {self.verdict} ({self.failure or estimated(self.speedup)})"


def find_status(entry: Entry) -> str:
    """Find the status of a trial; a smaller batch is none that can be compared."""
    return "oom" if entry.record.smaller_batch_size else entry.record.status


def judge(entry: Entry) -> str:
    """Find `ok` where the settings of a trial can be advised, else what is wrong with it."""
    if UNVERIFIED in entry.flags:
        return "unverified"
    status, candidate = find_status(entry), find_candidate(entry)
    if status != "ok":
        return status
    if candidate is None:
        return NOT_TIMED
    return "ok" if candidate.gain.value > 1 else "no faster than eager"


@dataclass(frozen=True)
class AblationAnswer:
    """The trials of an ablation: the one that the others are compared with, then those that differ
    from it, then the rest.
    """

    features: Sequence[FeatureAnswer]
    trials: Mapping[Place, Entry]  # of the report

    @property
    def default(self) -> Entry:
        return self.features[0].entry

    def list_unsure(self) -> list[FeatureAnswer]:
        return [one for one in self.features if one.verdict == NOT_SURE]

    def explain(self) -> str:
        """Say which features make a difference, and what to set."""
        said = [one.describe() for one in self.features if one.verdict in DIFFERING]
        unsure = [_name_unsure(one) for one in self.list_unsure()]
        if not said and len(unsure) < len(self.features) - 1:
            makes = "is known to make" if unsure else "makes"
            said = [f"no feature that was tried {makes} a difference"]
        if unsure:
            said.append(f"{NOT_SURE} about {shorten_names(unsure)}")
        return join([*said, *self._advise()])

    def _advise(self) -> Iterator[str]:
        """Say what to set; of several what they give together, or how to measure that."""
        better = [one for one in self.features if one.is_better]
        if not better:
            if any(judge(one.entry) == "ok" for one in self.features):
                yield "nothing to set"
            else:
                yield "no setting is known that computes correctly and is faster than eager"
            return
        default, together = self.default, self.default.trial
        for one in better:
            together = change(together, one.name)
        found = self.trials.get((default.sweep, default.origin, together.id))
        if found and judge(found) != "ok":
            yield f"set one of them alone (together: {judge(found)})"
            return
        yield f"set {write_call(together)}"
        if found is None:
            yield (
                "what they give together was not measured: run the command again with "
                f"feature=null {' '.join(together.compile.list_overrides())}"
            )
        elif len(better) > 1:
            speedup = FeatureAnswer(found, default).speedup
            yield f"what they give together: {estimated(speedup) or 'ok'}"


def _name_unsure(one: FeatureAnswer) -> str:
    title, status = one.feature.title, find_status(one.entry)
    return title if status == "ok" else f"{title} ({status})"


def write_call(trial: Trial) -> str:
    """Write Python that compiles a model as a trial does."""
    lines, arguments = list_compile_arguments(trial)
    return join([*lines, f"torch.compile({', '.join(['model', *arguments])})"])


def find_ablations(entries: Sequence[Entry]) -> list[AblationAnswer]:
    """Find the trials of features with the one that each is compared with, sweep by sweep."""
    trials: dict[Place, Entry] = {
        (one.sweep, one.origin, one.record.trial_id): one for one in entries
    }
    features: dict[Place, list[Entry]] = defaultdict(list)
    for entry in entries:
        if default_id := entry.trial.labels.default_id:
            features[entry.sweep, entry.origin, default_id].append(entry)
    answers = []
    for key, found in features.items():
        if default := trials.get(key):
            rows = [FeatureAnswer(one, default) for one in (default, *found)]
            rows.sort(key=lambda one: VERDICTS.index(one.verdict))
            answers.append(AblationAnswer(rows, trials))
    return answers


def conclude(answers: Sequence[AblationAnswer]) -> Iterator[str]:
    """Say what each ablation found, e.g. `ablation of resnet50 amp: combo kernels pays (1.25)`."""
    axes = find_varying([one.default for one in answers], NAMING_AXES)
    for one in answers:
        yield f"ablation of {name_by(one.default, axes)}: {one.explain()}"
