"""Ladders: the trials of one eager step with one-liners, with a graph recorded by hand, and
compiled on top of these.

Step times of different trials are compared as independent means of log times (Welch's t), as modes
are for a recommendation. A ladder belongs to one sweep and one kind of device.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from sweeper.analysis.flags import FAILED_BEFORE, UNVERIFIED
from sweeper.analysis.stats import Estimate, pool_estimates
from sweeper.core import ladder
from sweeper.core.backends import GRAPHED
from sweeper.core.grouping import group_by
from sweeper.core.trial import Compile, Trial

from .device_names import name_origins
from .entries import Entry


@dataclass(frozen=True, eq=False)
class Step:
    """A rung of a ladder that was tried."""

    rung: str
    title: str
    entry: Entry
    status: str
    time: Estimate | None = None  # of log seconds per step; None: the rung failed


@dataclass(frozen=True, eq=False)
class Ladder:
    """The rungs in order, eager as built first, and every trial of the same eager step that was
    compiled.
    """

    plain: Trial  # its labels and axes without any rung's
    origin: tuple[str, ...]  # its device as in `name_origins`, where its sweep has several
    steps: tuple[Step, ...]
    compiled: tuple[Entry, ...]

    @property
    def strongest(self) -> Step | None:
        """The fastest way to run eager; None unless all ways that apply were tried.

        A graph recorded by hand counts when its result was verified, or when no step of this model
        can be, and it has not failed before.
        """
        variants = ladder.list_eager_variants(self.plain)
        tried = {step.rung for step in self.steps if step.status != "interrupted"}
        if not tried.issuperset(variants):
            return None
        can_be_verified = any(
            step.time and UNVERIFIED not in step.entry.flags for step in self.steps
        )
        doubted = {UNVERIFIED} if can_be_verified else {UNVERIFIED, FAILED_BEFORE}
        times = {}
        for step in self.steps:
            counts = step.rung != GRAPHED or not doubted.issubset(step.entry.flags)
            if step.rung in variants and step.time and counts:
                times[step] = step.time.log
        return min(times, key=times.__getitem__, default=None)


def find_ladders(entries: Sequence[Entry]) -> Iterator[Ladder]:
    """Find the models with eager as built and at least one other way to run eager, in order of
    appearance.
    """
    for sweep in group_by(map(attrgetter("sweep"), entries), entries).values():
        varied = {entry.trial.model.name for entry in sweep if _is_variant(entry.trial)}
        if not varied:
            continue
        origins = name_origins([(entry.record, entry.sweep) for entry in sweep])
        groups: dict[tuple[str, tuple[str, ...]], list[Entry]] = defaultdict(list)
        for entry, origin in zip(sweep, origins, strict=True):
            # others have no ladder, and an id takes its time
            if entry.trial.model.name in varied:
                groups[_strip(entry.trial).id, origin].append(entry)
        for (_, origin), group in groups.items():
            if built := _build(origin, group):
                yield built


def _is_variant(trial: Trial) -> bool:
    """Whether a trial is another way to run eager than as built."""
    return _one_liners(trial) != ("contiguous", "default", False) or trial.backend == GRAPHED


def _one_liners(trial: Trial) -> tuple[str, str, bool]:
    return trial.model.memory_format, trial.optimizer_impl, trial.cudnn_benchmark


def _strip(trial: Trial) -> Trial:
    """The trial with mode=default and nothing of what a rung chooses."""
    parts = trial.labels.overrides.split("; ")
    overrides = "; ".join(part for part in parts if not part.startswith("model.memory_format="))
    return replace(
        trial,
        model=replace(trial.model, memory_format="contiguous"),
        labels=replace(trial.labels, rung=None, overrides=overrides),
        mode="default",
        backend="inductor",
        compile=Compile(),
        optimizer_impl="default",
        cudnn_benchmark=False,
    )


def _build(origin: tuple[str, ...], group: Sequence[Entry]) -> Ladder | None:
    if not any(_is_variant(entry.trial) for entry in group):
        return None
    plain = _strip(group[0].trial)
    steps: list[Step] = []
    for rung in ladder.RUNGS:
        steps += _find_steps(plain, rung, group)
    if not steps or steps[0].rung != ladder.EAGER:
        return None
    compiled = tuple(entry for entry in group if entry.trial.backend not in (None, GRAPHED))
    return Ladder(plain, origin, tuple(steps), compiled)


def _find_steps(plain: Trial, rung: str, group: Sequence[Entry]) -> Iterator[Step]:
    """Find the trials of a rung: of an eager one its own, or else the trials whose eager arm is
    that.
    """
    if ladder.explain_not_for(plain, rung):
        return
    expected, title = ladder.climb(plain, rung), ladder.TITLES[rung]
    own = []
    timed = []
    times = []
    for entry in group:
        trial, eager = entry.trial, entry.result.eager_step
        if _one_liners(trial) == _one_liners(expected):
            if (trial.mode, trial.backend) == (expected.mode, expected.backend):
                own.append(entry)
            if entry.is_ok and eager and not entry.record.smaller_batch_size:
                timed.append(entry)
                times.append(eager)
    if rung in ladder.EAGER_RUNGS and own:
        yield _make_step(rung, title, own[0], _pool_arms(own[0]))
    elif rung in ladder.EAGER_RUNGS and timed:
        yield _make_step(rung, title, timed[0], pool_estimates(times))
    else:
        for entry in own:  # with its compile settings, e.g. `compile default (compile.scope=step)`
            parts = entry.variant.split("; ")
            settings = ", ".join(part for part in parts if part.startswith("compile."))
            whole = f"{title} ({settings})" if settings else title
            yield _make_step(rung, whole, entry, entry.result.compiled_step)


def _make_step(rung: str, title: str, entry: Entry, time: Estimate | None) -> Step:
    record = entry.record
    if record.smaller_batch_size:  # its steps are others
        return Step(rung, title, entry, f"oom with batch {record.trial.batch_size}")
    return Step(rung, title, entry, record.status, time)


def _pool_arms(entry: Entry) -> Estimate | None:
    """The mean of both arms of a trial that times eager against eager, each process counted once.

    The variance of the mean of two values is half the sum of theirs, less a quarter of that of
    their difference; so it is right although the arms of a process are alike.
    """
    result = entry.result
    one, other, apart = result.eager_step, result.compiled_step, result.speedup
    if one is None or other is None or apart is None:
        return None
    log = (one.log + other.log) / 2
    if one.variance is None or other.variance is None or apart.variance is None:
        return Estimate(log, count=one.count)
    variance = (one.variance + other.variance) / 2 - apart.variance / 4
    return Estimate(log, max(variance, 0.0), one.degrees, one.count)
