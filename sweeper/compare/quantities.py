"""What is compared of a pair: each quantity, from which difference on it counts, and what may spoil it.

A new one is a `Quantity` here, its figure in `sides` and, to be read, a column in `tables`.
"""

from __future__ import annotations

from dataclasses import dataclass

STEP_FLOOR_S = 5e-6  # four of the usual gaps between two kernels: one launch more or less is no regression
COMPILE_FLOOR_S = 1.0  # a second, once in the life of a program
# What torch's allocator takes from the device at once for what needs 1 to 10 MiB: kLargeBuffer in
# https://github.com/pytorch/pytorch/blob/main/c10/core/AllocatorConfig.h
MEMORY_FLOOR_BYTES = 20 * 2**20


@dataclass(frozen=True)
class Quantity:
    """What is compared. `floor` is the least difference that counts, in the unit that the name ends in."""

    name: str
    more: str  # the verdict when HEAD has more of it
    less: str
    floor: float = 0.0
    absolute: bool = False  # a time that moves with the whole session, as eager's does
    arms: tuple[str, ...] = ()  # whose host-boundness spoils it
    of_artifact: bool = False  # whether it depends on which kernels won the races
    pooled: bool = False  # whether rows wobble alike, so that one variance says something about the others


EAGER = Quantity("eager_step_s", "SLOWER", "FASTER", STEP_FLOOR_S, absolute=True, arms=("eager",), pooled=True)
COMPILED = Quantity(
    "compiled_step_s",
    "SLOWER",
    "FASTER",
    STEP_FLOOR_S,
    absolute=True,
    arms=("compiled",),
    of_artifact=True,
    pooled=True,
)
SPEEDUP = Quantity("speedup", "HIGHER", "LOWER", arms=("eager", "compiled"), of_artifact=True, pooled=True)
COMPILE = Quantity("compile_cold_s", "SLOWER", "FASTER", COMPILE_FLOOR_S)
MEMORY = Quantity("compiled_peak_memory_bytes", "MORE", "LESS", MEMORY_FLOOR_BYTES, of_artifact=True)
QUANTITIES = (EAGER, COMPILED, SPEEDUP, COMPILE, MEMORY)
