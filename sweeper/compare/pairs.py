"""Pairs: the two sides of one trial, from two sweeps or from two values of an axis of one sweep.

Trials match by their ids. A trial's own interpreter is part of its id and is what an upgrade changes, so trials that
are left over match without it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from sweeper.compare.sides import Side
from sweeper.core.errors import ConfigError
from sweeper.core.trial import MODES, Compile, Trial


@dataclass(frozen=True)
class Pair:
    """A trial in BASE and in HEAD; None where a sweep does not have it."""

    base: Side | None
    head: Side | None

    @property
    def any(self) -> Side:
        """The side that exists, HEAD's of two."""
        side = self.head or self.base
        assert side is not None
        return side

    @property
    def both(self) -> tuple[Side, Side] | None:
        return (self.base, self.head) if self.base and self.head else None

    @property
    def ok(self) -> bool:
        """Whether both sides were measured."""
        return self.both is not None and all(side.status == "ok" for side in self.both)


@dataclass(frozen=True)
class Axis:
    """An axis of a trial that leaves its eager step alone, so that eager can be the control of a comparison."""

    value: Callable[[Trial], str]
    without: Callable[[Trial], Trial]


def _compile_axis(name: str) -> Axis:
    default = getattr(Compile(), name)
    return Axis(
        lambda trial: json.dumps(getattr(trial.compile, name)).strip('"'),
        lambda trial: replace(trial, compile=replace(trial.compile, **{name: default})),
    )


AXES: Mapping[str, Axis] = {
    "worker.python": Axis(lambda trial: trial.python or "null", lambda trial: replace(trial, python=None)),
    "mode": Axis(lambda trial: trial.mode, lambda trial: replace(trial, mode="default")),
    "backend": Axis(lambda trial: trial.backend or "null", lambda trial: replace(trial, backend=None)),
    **{f"compile.{name}": _compile_axis(name) for name in ("scope", "dynamic", "fullgraph")},
}


def match_sweeps(base: Sequence[Side], head: Sequence[Side]) -> list[Pair]:
    """Pair the sides of two sweeps, in the order of HEAD; trials that only BASE has come last."""
    ids_of_both = {side.trial.id for side in base} & {side.trial.id for side in head}
    without_python = AXES["worker.python"].without
    alone = ([side.trial for side in sides if side.trial.id not in ids_of_both] for sides in (base, head))
    in_base, in_head = (Counter(without_python(trial).id for trial in trials) for trials in alone)

    def key(trial: Trial) -> str:
        short = without_python(trial).id
        unique = trial.id not in ids_of_both and in_base[short] == in_head[short] == 1
        return f"{short} without python" if unique else trial.id

    return _match(base, head, key)


def match_values(sides: Sequence[Side], axis: str, base_value: str, head_value: str) -> list[Pair]:
    """Pair the sides of one sweep that differ in the value of `axis` alone."""
    compared = AXES[axis]
    base, head = ([side for side in sides if compared.value(side.trial) == value] for value in (base_value, head_value))
    return _match(base, head, lambda trial: compared.without(trial).id)


def _match(base: Sequence[Side], head: Sequence[Side], key: Callable[[Trial], str]) -> list[Pair]:
    bases, heads = ({key(side.trial): side for side in sides} for sides in (base, head))
    return [Pair(bases.get(name), heads.get(name)) for name in heads | bases]


def choose_values(sides: Sequence[Side], axis: str, asked: Sequence[str]) -> tuple[str, str]:
    """Choose BASE's and HEAD's value of an axis: those asked for, or the only two.

    Values are listed with modes from mild to aggressive, null first and the rest in alphabetical order. Raises
    ConfigError for an axis that is not in `AXES`, and for values that no trial has.
    """
    if axis not in AXES:
        raise ConfigError(f"--by {axis}: allowed are {', '.join(AXES)}: axes that leave the eager step as it is")

    def order(value: str) -> tuple[int, str]:
        return (MODES.index(value) if value in MODES else -1 if value == "null" else len(MODES)), value

    found = sorted({AXES[axis].value(side.trial) for side in sides}, key=order)
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
