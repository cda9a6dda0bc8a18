"""Quantities that are compared: how each is read from a process, and the smallest difference that
counts.

A new quantity is a `Quantity` here and, for people to read, a column in `text`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from sweeper.analysis.derive import read_speedup
from sweeper.core.record import ARMS, Process, of_arm

MIN_EFFECT = 0.02  # smaller changes never count as regressions, unless --min-effect says so
# Of device time. The same trials twice on H200s: device speedups within 0.06 % and, at the power
# cap, within 0.7 % (docs/results/h200-repeatability.md, docs/results/h200-scheduling.md).
DEVICE_MIN_EFFECT = 0.01
STEP_FLOOR_S = 5e-6  # four usual gaps between two kernels: one launch more or less is no regression
SLOWER_FASTER = ("SLOWER", "FASTER")


@dataclass(frozen=True)
class Quantity:
    """What is compared. `floor` is the smallest difference that counts, in the unit that the name
    ends in.
    """

    name: str
    value: Callable[[Process], float | None]
    verdicts: tuple[str, str]  # when HEAD has more of it, and when it has less
    floor: float = 0.0
    min_effect: float = MIN_EFFECT
    # of a time: the quantity of eager that moves with the whole session as this one does
    control: str = ""
    arms: tuple[str, ...] = ()  # arms that spoil the quantity when they are host-bound
    of_artifact: bool = False  # whether it depends on which kernels autotuning chose
    # whether all rows scatter alike, so that one variance says something about the others
    pooled: bool = False
    # share by which single processes may differ; None: a table has it, or no size decides
    unsampled: float | None = None
    spoilt_by: str = ""  # a flag

    def name_direction(self, log: float) -> str:
        """The verdict on a change of the log of HEAD / BASE."""
        more, less = self.verdicts
        if log < 0:
            return less
        return more


EAGER = Quantity(
    "eager_step_s",
    lambda process: process.step_s("eager"),
    SLOWER_FASTER,
    STEP_FLOOR_S,
    control="eager_step_s",
    arms=("eager",),
    pooled=True,
)
COMPILED = replace(
    EAGER,
    name="compiled_step_s",
    value=lambda process: process.step_s("compiled"),
    arms=("compiled",),
    of_artifact=True,
)
SPEEDUP = Quantity(
    "speedup",
    read_speedup,
    ("HIGHER", "LOWER"),
    arms=ARMS,
    of_artifact=True,
    pooled=True,
)
COMPILE = Quantity(
    "compile_cold_s",
    lambda process: process.compile_s if process.cold else None,
    SLOWER_FASTER,
    floor=1.0,  # s, paid once in the life of a program
    # One trial in two sweeps on H200s compiled up to 1.38 times as long, and needed memory within
    # 1.8 MiB: docs/decisions/what-is-a-regression.md.
    unsampled=0.5,
    spoilt_by="compile_contended",
)
MEMORY = Quantity(
    "compiled_peak_memory_bytes",
    lambda process: of_arm(process.memory_bytes, "compiled"),
    ("MORE", "LESS"),
    # torch's allocator takes this much from the device at once for anything that needs 1 to 10 MiB:
    # kLargeBuffer in https://github.com/pytorch/pytorch/blob/main/c10/core/AllocatorConfig.h
    floor=20 * 2**20,
    of_artifact=True,
    unsampled=0.0,
)
# No host disturbs the device, so `arms` is empty.
EAGER_DEVICE = replace(
    EAGER,
    name="eager_device_step_s",
    value=lambda process: of_arm(process.device_step_s, "eager"),
    min_effect=DEVICE_MIN_EFFECT,
    control="eager_device_step_s",
    arms=(),
)
COMPILED_DEVICE = replace(
    EAGER_DEVICE,
    name="compiled_device_step_s",
    value=lambda process: of_arm(process.device_step_s, "compiled"),
    of_artifact=True,
)
STEP_TIMES = (COMPILED, COMPILED_DEVICE)  # what decides about a row
BY_SIZE = (*STEP_TIMES, COMPILE, MEMORY)  # what a large change decides where there is no test
# In the order of the columns of CSV and JSON, which is a contract: new ones go to the end.
QUANTITIES = (
    EAGER,
    COMPILED,
    SPEEDUP,
    COMPILE,
    MEMORY,
    EAGER_DEVICE,
    COMPILED_DEVICE,
)
