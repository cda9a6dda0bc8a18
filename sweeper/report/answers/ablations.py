"""Ablations of a report: what each feature of the compiler does to a model, and what to set."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from sweeper.analysis.flags import UNVERIFIED
from sweeper.analysis.gains import are_alike, differ
from sweeper.analysis.stats import Estimate, difference
from sweeper.core.ablation import FEATURES, Feature, change
from sweeper.core.record import NOT_JUDGED
from sweeper.core.serialization import drop_defaults, flatten, show_value
from sweeper.core.trial import Trial
from sweeper.loading.entries import Entry
from sweeper.report.columns.formats import count, estimated, join

from .candidates import find_candidate

BREAKS, HURTS, PAYS = "breaks", "hurts", "pays"
NOT_SURE, NO_DIFFERENCE, NO_EFFECT = "not sure", "no difference", "no effect"
DIFFERING = (BREAKS, HURTS, PAYS)
VERDICTS = ("", *DIFFERING, NOT_SURE, NO_DIFFERENCE, NO_EFFECT)  # "": of the default


@dataclass(frozen=True)
class FeatureAnswer:
    """A trial of an ablation, and the one that it is compared with, which may be itself."""

    entry: Entry
    default: Entry

    @property
    def feature(self) -> Feature | None:
        """What its trial leaves out or adds; None: nothing, it is the default."""
        return FEATURES.get(self.entry.trial.labels.feature or "")

    @property
    def usual(self) -> str:
        """Whether torch has the feature `on` or `off` by default."""
        if self.feature is None:
            return ""
        return "off" if self.feature.adds else "on"

    @property
    def sides(self) -> tuple[Entry, Entry]:
        """The trial with the feature, and the one without it."""
        if self.usual == "off":
            return self.entry, self.default
        return self.default, self.entry

    @cached_property
    def speedup(self) -> Estimate | None:
        """How many times as fast a compiled step with the feature is as one without it."""
        having, lacking = (entry.result.compiled_step for entry in self.sides)
        return difference(lacking, having) if self.usual and having and lacking else None

    @property
    def failure(self) -> str:
        """The side that is not ok, and what became of it."""
        for entry, side in zip(self.sides, ("with it", "without it"), strict=True):
            if self.feature and find_status(entry) != "ok":
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
        if self.feature is None:
            return ""
        if self.failure:
            statuses = {find_status(having), find_status(lacking)}
            is_known = "ok" in statuses and statuses.isdisjoint(NOT_JUDGED)
            return BREAKS if is_known else NOT_SURE
        code = having.result.code
        if code and code == lacking.result.code and self.feature.in_code:
            return NO_EFFECT
        one, other, device = find_candidate(having), find_candidate(lacking), having.trial.device
        if one is None or other is None:
            return NOT_SURE
        if differ(one, other, device):
            return PAYS if one.gain.value > other.gain.value else HURTS
        return NO_DIFFERENCE if are_alike(one, other, device) else NOT_SURE

    @property
    def is_better(self) -> bool:
        """Whether its trial is better than the default, so that the settings are worth having."""
        if find_status(self.entry) != "ok" or UNVERIFIED in self.entry.flags:
            return False
        return self.verdict in (BREAKS, PAYS if self.usual == "off" else HURTS)

    def describe(self) -> str:
        """E.g. `mix-order reduction hurts (0.95 [0.94, 0.96])`."""
        assert self.feature
        return f"{self.feature.title} {self.verdict} ({self.failure or estimated(self.speedup)})"


def find_status(entry: Entry) -> str:
    """Find the status of a trial; a smaller batch is none that can be compared."""
    return "oom" if entry.record.smaller_batch_size else entry.record.status


@dataclass(frozen=True)
class AblationAnswer:
    """The trials of an ablation: the one that the others are compared with, then those that differ
    from it, then the rest.
    """

    features: Sequence[FeatureAnswer]

    @property
    def default(self) -> Entry:
        return self.features[0].entry

    def explain(self) -> str:
        """Say which features make a difference, and what to set."""
        said = [one.describe() for one in self.features if one.verdict in DIFFERING]
        if not said:
            said = [f"none of {count(len(self.features) - 1, 'feature')} is known to differ"]
        unsure = sum(feature.verdict == NOT_SURE for feature in self.features)
        if unsure:
            said.append(f"{NOT_SURE} of {unsure}")
        return join([*said, *self._advise()])

    def _advise(self) -> Iterator[str]:
        """Say what to set; of several that they were not measured together, and how to do that."""
        better = [one for one in self.features if one.is_better]
        if not better:
            yield "nothing to set"
            return
        together = self.default.trial
        for one in better:
            together = change(together, str(one.entry.trial.labels.feature))
        yield f"set {write_call(together)}"
        if len(better) > 1:
            settings = flatten(drop_defaults(together.compile)).items()
            overrides = " ".join(f"compile.{key}={show_value(value)}" for key, value in settings)
            yield (
                "what they give together was not measured: run the command again with "
                f"feature=null {overrides}"
            )


def write_call(trial: Trial) -> str:
    """Write Python that compiles a model as a trial does."""
    arguments, lines = ["model"], []
    if trial.compile.dynamic is not None:
        arguments.append(f"dynamic={trial.compile.dynamic}")
    options, mode = trial.compile.read_settings("options"), trial.mode
    if options and mode != "default":  # torch takes one of them
        arguments.append(f"options=torch._inductor.list_mode_options({mode!r}) | {options}")
    elif options:
        arguments.append(f"options={options}")
    elif mode != "default":
        arguments.append(f"mode={mode!r}")
    for place in ("dynamo", "functorch"):
        for key, value in trial.compile.read_settings(place).items():
            lines.append(f"torch._{place}.config.{key} = {value!r}")
    return join([*lines, f"torch.compile({', '.join(arguments)})"])


def find_ablations(entries: Sequence[Entry]) -> list[AblationAnswer]:
    """Find the trials of features with the one that each is compared with, sweep by sweep."""
    features: dict[tuple[object, ...], list[Entry]] = defaultdict(list)
    for entry in entries:
        if default_id := entry.trial.labels.default_id:
            features[entry.sweep, entry.origin, default_id].append(entry)
    answers = []
    for default in entries:
        if found := features[default.sweep, default.origin, default.record.trial_id]:
            rows = [FeatureAnswer(one, default) for one in (default, *found)]
            rows.sort(key=lambda one: VERDICTS.index(one.verdict))
            answers.append(AblationAnswer(rows))
    return answers


def conclude(answers: Sequence[AblationAnswer]) -> list[str]:
    """Say what each ablation found."""
    return [f"ablation of {one.default.trial.labels.model}: {one.explain()}" for one in answers]
