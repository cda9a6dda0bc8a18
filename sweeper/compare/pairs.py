"""Pairs: the two sides of one trial, from two sweeps or from two values of an axis of one sweep.

Place in the flow: `Side -> Pair`. Trials match by what they are, so by their id; an interpreter of their own is part of
that, and is what an upgrade changes, so trials that are left over match without it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sweeper.compare.sides import Side
from sweeper.core.errors import ConfigError
from sweeper.core.trial import MODES, Trial


@dataclass(frozen=True)
class Pair:
    """A trial in BASE and in HEAD; None where a side does not have it."""

    base: Side | None
    head: Side | None

    @property
    def any(self) -> Side:
        """The side that is there, HEAD's of two."""
        side = self.head or self.base
        assert side is not None
        return side

    @property
    def both(self) -> tuple[Side, Side] | None:
        return (self.base, self.head) if self.base and self.head else None

    @property
    def ok(self) -> bool:
        """Whether both sides were measured."""
        return all(side is not None and side.status == "ok" for side in (self.base, self.head))


@dataclass(frozen=True)
class Axis:
    """An axis of a trial that leaves its eager step alone, so that eager can be the control of a comparison."""

    value: Callable[[Trial], str]
    without: Callable[[Trial], Trial]


def _json(value: object) -> str:
    return json.dumps(value).strip('"')


AXES: Mapping[str, Axis] = {
    "worker.python": Axis(lambda trial: trial.python or "null", lambda trial: replace(trial, python=None)),
    "mode": Axis(lambda trial: trial.mode, lambda trial: replace(trial, mode="default")),
    "backend": Axis(lambda trial: trial.backend or "null", lambda trial: replace(trial, backend=None)),
    "compile.scope": Axis(
        lambda trial: trial.compile.scope, lambda trial: replace(trial, compile=replace(trial.compile, scope="model"))
    ),
    "compile.dynamic": Axis(
        lambda trial: _json(trial.compile.dynamic),
        lambda trial: replace(trial, compile=replace(trial.compile, dynamic=None)),
    ),
    "compile.fullgraph": Axis(
        lambda trial: _json(trial.compile.fullgraph),
        lambda trial: replace(trial, compile=replace(trial.compile, fullgraph=False)),
    ),
}
PYTHON = AXES["worker.python"]


def match(base: Sequence[Side], head: Sequence[Side]) -> list[Pair]:
    """Pairs of two sweeps, in the order of HEAD; what only BASE has comes last."""
    same = {side.trial.id for side in base} & {side.trial.id for side in head}
    of_base, of_head = (
        Counter(_without_python(side.trial) for side in sides if side.trial.id not in same) for sides in (base, head)
    )
    alone = {key for key, count in of_base.items() if count == of_head[key] == 1}

    def key(trial: Trial) -> str:
        short = _without_python(trial)
        return f"{short} without python" if trial.id not in same and short in alone else trial.id

    return _paired(base, head, key)


def match_values(sides: Sequence[Side], axis: str, base_value: str, head_value: str) -> list[Pair]:
    """Pairs of one sweep, whose sides differ in the value of `axis` alone."""
    named = AXES[axis]
    base, head = ([side for side in sides if named.value(side.trial) == value] for value in (base_value, head_value))
    return _paired(base, head, lambda trial: named.without(trial).id)


def _without_python(trial: Trial) -> str:
    return PYTHON.without(trial).id


def _paired(base: Sequence[Side], head: Sequence[Side], key: Callable[[Trial], str]) -> list[Pair]:
    bases, heads = ({key(side.trial): side for side in sides} for sides in (base, head))
    return [Pair(bases.get(name), heads.get(name)) for name in dict.fromkeys((*heads, *bases))]


def values_of(sides: Iterable[Side], axis: str) -> list[str]:
    """The values that an axis has: modes from mild to aggressive, what is null first, the rest in alphabetical order.

    Raises ConfigError for an axis that cannot be compared by.
    """
    if axis not in AXES:
        raise ConfigError(f"--by {axis}: allowed are {', '.join(AXES)}: axes that leave the eager step as it is")
    return sorted({AXES[axis].value(side.trial) for side in sides}, key=_order)


def _order(value: str) -> tuple[int, str]:
    return (MODES.index(value) if value in MODES else -1 if value == "null" else len(MODES)), value


def two_values(sides: Sequence[Side], axis: str, asked: Sequence[str]) -> tuple[str, str]:
    """BASE's and HEAD's value of an axis: those asked for, or the only two. Raises ConfigError otherwise."""
    found = values_of(sides, axis)
    names = ", ".join(found) or "none"
    if not asked and len(found) == 1:
        raise ConfigError(f"--by {axis}: all trials have {axis} {names}: there is nothing to compare")
    for value in asked:
        if value not in found:
            raise ConfigError(f"--by {axis}: no trial has {value}; there are: {names}")
    if not asked and len(found) != 2:
        raise ConfigError(f"--by {axis}: give BASE_VALUE and HEAD_VALUE of these: {names}")
    base, head = asked or found
    if base == head:
        raise ConfigError(f"--by {axis} {base} {head}: the same value twice; there are: {names}")
    return base, head
