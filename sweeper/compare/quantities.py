"""Quantities that are compared: how each is read from a process, and from which difference on it counts.

A new quantity is a `Quantity` here and, for people to read, a column in `text`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import methodcaller

from sweeper.core.record import Process

STEP_FLOOR_S = 5e-6  # four usual gaps between two kernels: one launch more or less is no regression
COMPILE_FLOOR_S = 1.0  # paid once in the life of a program
# torch's allocator takes this much from the device at once for anything that needs 1 to 10 MiB: kLargeBuffer in
# https://github.com/pytorch/pytorch/blob/main/c10/core/AllocatorConfig.h
MEMORY_FLOOR_BYTES = 20 * 2**20
SLOWER_FASTER = ("SLOWER", "FASTER")


@dataclass(frozen=True)
class Quantity:
    """What is compared. `floor` is the smallest difference that counts, in the unit that the name ends in."""

    name: str
    value: Callable[[Process], float | None]
    verdicts: tuple[str, str]  # when HEAD has more of it, and when it has less
    floor: float = 0.0
    absolute: bool = False  # a time that moves with the whole session, as eager's does
    arms: tuple[str, ...] = ()  # arms that spoil the quantity when they are host-bound
    of_artifact: bool = False  # whether it depends on which kernels autotuning chose
    pooled: bool = False  # whether all rows scatter alike, so that one variance says something about the others


def _speedup(process: Process) -> float | None:
    eager_s, compiled_s = process.step_s("eager"), process.step_s("compiled")
    return eager_s / compiled_s if eager_s and compiled_s else None


def _cold_compile_s(process: Process) -> float | None:
    return process.compile_s if process.cold else None


def _memory_bytes(process: Process) -> float | None:
    return process.memory_bytes.compiled if process.memory_bytes else None


_eager_step_s, _compiled_step_s = methodcaller("step_s", "eager"), methodcaller("step_s", "compiled")
EAGER = Quantity("eager_step_s", _eager_step_s, SLOWER_FASTER, STEP_FLOOR_S, True, arms=("eager",), pooled=True)
COMPILED = replace(EAGER, name="compiled_step_s", value=_compiled_step_s, arms=("compiled",), of_artifact=True)
SPEEDUP = Quantity("speedup", _speedup, ("HIGHER", "LOWER"), arms=("eager", "compiled"), of_artifact=True, pooled=True)
COMPILE = Quantity("compile_cold_s", _cold_compile_s, SLOWER_FASTER, COMPILE_FLOOR_S)
MEMORY = Quantity("compiled_peak_memory_bytes", _memory_bytes, ("MORE", "LESS"), MEMORY_FLOOR_BYTES, of_artifact=True)
QUANTITIES = (EAGER, COMPILED, SPEEDUP, COMPILE, MEMORY)
