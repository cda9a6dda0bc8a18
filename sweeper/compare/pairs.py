"""Sides, what `verdicts` needs of a trial's record, and pairs: one trial in BASE and in HEAD.

The sides of a pair come from two sweeps, or from two values of an axis of one sweep. Trials match
by their ids. A trial's own interpreter is part of its id and is what an upgrade changes, so trials
that are left over match without it.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from sweeper.analysis.derive import derive
from sweeper.core.errors import ConfigError
from sweeper.core.files import read_json
from sweeper.core.paths import TrialPaths
from sweeper.core.record import Record, RecordError
from sweeper.core.serialization import from_json, get_mapping
from sweeper.core.text import printable
from sweeper.core.trial import AXES, OF_COMPILING, OPEN_SETTINGS, Axis, Trial
from sweeper.loading.device_names import DeviceKind, read_device
from sweeper.loading.environment import Facts, read_other_facts, read_version_facts
from sweeper.loading.sources import FoundRecord, Source
from sweeper.report.answers.trials import rank_mode

from .quantities import QUANTITIES, Quantity

# Statuses of a trial without a record, and how they are said of BASE or HEAD.
LOST: Mapping[str, str] = {
    "unreadable": "its record in {} cannot be read",
    "unfinished": "has not ended in {}",
}
TRIAL_ID = re.compile(r"[0-9a-f]{12}")


class Sample(NamedTuple):
    """One figure of one process; every figure that is compared is above 0."""

    draw: int
    value: float


@dataclass(frozen=True)
class Side:
    """A trial and what was measured of it. Only an `ok` trial has samples: a wrong program has no
    speed.
    """

    trial: Trial
    status: str  # of the record, or one of `LOST` where no record can be read
    batch_size: int  # the one used
    # by the name of the quantity
    samples: Mapping[str, Sequence[Sample]] = field(default_factory=dict)
    # of its processes; None: one whose code is not known
    artifacts: frozenset[str | None] = frozenset()
    host_bound_arms: str | None = None  # eager, compiled or both
    clock: str = "block"  # or step: whether each step was waited for, which takes longer
    flags: tuple[str, ...] = ()
    phase: str | None = None
    message: str | None = None
    device: DeviceKind | None = None  # that ran the trial; None where the record does not say
    versions: Facts = field(default_factory=dict)
    facts: Facts = field(default_factory=dict)  # how it ran, without device and versions

    @property
    def lost(self) -> bool:
        """Whether no record can be read, so that only the trial is known."""
        return self.status in LOST

    def take(self, quantity: Quantity) -> Sequence[Sample]:
        return self.samples.get(quantity.name, ())


Sides = tuple[Side, Side]  # of BASE and of HEAD


class SweepSides(NamedTuple):
    """The sides of a sweep, one per trial id, and a line for each record that could not be read."""

    sides: Mapping[str, Side]  # by trial id
    lost: Mapping[str, str]  # keys of `LOST`, by the ids of trials of which nothing else is known
    problems: tuple[str, ...]


def read_sides(source: Source) -> SweepSides:
    """Read every trial of a sweep; of several records of one trial the last counts, which is
    reported.
    """
    sides: dict[str, Side] = {}
    lost = {}
    problems = []
    for found in source.records():
        try:
            side = make_side(found.read())
        except RecordError as error:
            problems.append(printable(f"{found.where}: {error}"))
            trial_id, trial = _identify(found)
            status = "unreadable" if found.ended else "unfinished"
            lost[trial_id] = status
            if trial:
                sides.setdefault(trial_id, Side(trial, status, trial.batch_size))
            continue
        if side.trial.id in sides and not sides[side.trial.id].lost:
            problems.append(
                printable(f"{found.where}: replaces an earlier record of the same trial")
            )
        sides[side.trial.id] = side
    return SweepSides(sides, lost, tuple(problems))


def _identify(found: FoundRecord) -> tuple[str, Trial | None]:
    """The id in the folder's name or of `trial.json`, empty where neither has one, and the trial if
    it is known.

    After an out of memory `trial.json` holds the smaller batch, so a trial with another id.
    """
    named = TRIAL_ID.fullmatch(found.folder.name.rpartition("-")[2])
    with suppress(OSError, ValueError):
        trial = from_json(Trial, get_mapping(read_json(TrialPaths(found.folder).trial), "trial"))
        if not named or named[0] == trial.id:
            return trial.id, trial
    return named[0] if named else "", None


def list_sides(read: SweepSides, other: SweepSides) -> list[Side]:
    """The sides of a sweep, and empty ones for trials without a record.

    Such a trial is known by its `trial.json`, or because the other sweep has a trial with its id.
    """
    sides = list(read.sides.values())
    for trial_id, status in read.lost.items():
        if trial_id in other.sides and trial_id not in read.sides:
            trial = other.sides[trial_id].trial
            sides.append(Side(trial, status, trial.batch_size))
    return sides


def make_side(record: Record) -> Side:
    """Extract what is compared of a record."""
    samples: dict[str, list[Sample]] = {}
    for quantity in QUANTITIES:
        samples[quantity.name] = found = []
        for process in record.processes if record.status == "ok" else ():
            value = quantity.value(process)
            # the figures that exist and have a logarithm
            if value is not None and math.isfinite(value) and value > 0:
                found.append(Sample(process.draw, value))
    return Side(
        trial=record.trial,
        status=record.status,
        batch_size=record.batch_size,
        samples=samples,
        artifacts=frozenset(map(attrgetter("artifact"), record.processes)),
        host_bound_arms=derive(record).host_bound_arms,
        clock="step" if any(map(attrgetter("latencies"), record.processes)) else "block",
        flags=record.flags,
        phase=record.phase,
        message=record.message,
        device=read_device(record),
        versions=read_version_facts(record),
        facts=read_other_facts(record),
    )


@dataclass(frozen=True)
class Pair:
    """A trial in BASE and in HEAD; None where a sweep does not have it."""

    base: Side | None
    head: Side | None

    @property
    def sides(self) -> list[tuple[str, Side]]:
        """The sides that exist, each after what people call it."""
        sides = ("BASE", self.base), ("HEAD", self.head)
        return [(name, side) for name, side in sides if side]

    @property
    def both(self) -> Sides | None:
        return (self.base, self.head) if self.base and self.head else None

    @property
    def ok(self) -> bool:
        """Whether both sides were measured."""
        return self.both is not None and all(side.status == "ok" for side in self.both)


# Axes that leave a trial's eager step alone, so that eager can be the control of a comparison.
COMPARED: dict[str, Axis] = {}
for part in OF_COMPILING:
    for path, axis in AXES.items():
        owner, _, name = path.partition(".")
        if owner == part and name not in OPEN_SETTINGS:
            COMPARED[axis.name] = axis


def match_sweeps(base: Sequence[Side], head: Sequence[Side]) -> list[Pair]:
    """Pair the sides of two sweeps, in the order of HEAD; trials that only BASE has come last."""
    ids_of_both = {side.trial.id for side in base} & {side.trial.id for side in head}
    # how many trials are left over, by their key without python
    in_base, in_head = Counter[str](), Counter[str]()
    for left, sides in ((in_base, base), (in_head, head)):
        for side in sides:
            if side.trial.id not in ids_of_both:
                left[side.trial.key_without("python")] += 1

    def key(trial: Trial) -> str:
        short = trial.key_without("python")
        if trial.id not in ids_of_both and in_base[short] == in_head[short] == 1:
            return short
        return trial.id

    bases = {key(side.trial): side for side in base}
    heads = {key(side.trial): side for side in head}
    return _pair(bases, heads)


def match_values(sides: Sequence[Side], axis: str, base_value: str, head_value: str) -> list[Pair]:
    """Pair the sides of one sweep that differ in the value of `axis` alone."""
    compared = COMPARED[axis]
    by_value: dict[str, dict[str, Side]] = defaultdict(dict)
    for side in sides:
        by_value[compared.show(side.trial)][side.trial.key_without(compared.path)] = side
    return _pair(by_value[base_value], by_value[head_value])


def _pair(bases: Mapping[str, Side], heads: Mapping[str, Side]) -> list[Pair]:
    return [Pair(bases.get(key), heads.get(key)) for key in {**heads, **bases}]


def choose_values(sides: Sequence[Side], axis: str, asked: Sequence[str]) -> tuple[str, str]:
    """Choose BASE's and HEAD's value of an axis: those asked for, or the only two.

    Values are listed with modes from mild to aggressive, null first and the rest in alphabetical
    order. Raises ConfigError for an axis that is not in `COMPARED`, and for values that no trial
    has.
    """
    if axis not in COMPARED:
        raise ConfigError(
            f"--by {axis}: allowed are {', '.join(COMPARED)}: axes that leave the eager step as it "
            "is"
        )

    def order(value: str) -> tuple[bool, int, str]:
        return value != "null", rank_mode(value), value

    found = sorted({COMPARED[axis].show(side.trial) for side in sides}, key=order)
    chosen = asked or found
    if len(set(chosen)) != 2 or not set(chosen) <= set(found):
        given = " ".join([axis, *asked])
        raise ConfigError(
            f"--by {given}: give BASE_VALUE and HEAD_VALUE, two of these: {', '.join(found)}"
        )
    base, head = chosen
    return base, head
