"""How far two measurements of one program lie apart for reasons that a single process does not
show. Reports and comparisons have one table of these margins.
"""

import math
from typing import NamedTuple


class Margin(NamedTuple):
    """Shares by which a time may change from one measurement to another."""

    program: float  # another process, draw, session or machine of one kind
    row: float  # the same for one row of many that are compared, none of which may be a false alarm
    host: float  # what a host does to a step that waits for it; every step of a CPU does
    eager: float  # the eager step of one model in several trials of a sweep


# On H200s a step that does not wait for its host repeated within 1.3 % by wall clock and 0.7 % by
# device time (docs/results/h200-scheduling.md), and half as much again is left for other machines.
# Among many rows 5 % gave no false alarm (docs/results/compare-power.md). Where a step waits,
# wall-clock speedups of one trial were 1.88 and 2.56 (resnet50, the first page), and 3.55 and 4.04
# (mobilenet_v2, docs/results/h200-repeatability.md). A CPU's clock wobbles by 10 %, and on a busy
# machine of two cores processes of one trial were 2.32 times apart (docs/results/compare-power.md).
MARGINS = {"cuda": Margin(0.02, 0.05, 0.36, 0.01), "cpu": Margin(0.10, 0.10, 1.32, 0.10)}


def find_margin(device: str) -> Margin:
    """Find the margin of a type of device; `cpu` or, for any other, that of a GPU."""
    return MARGINS.get(device, MARGINS["cuda"])


def single_process_margin(device: str, waits: bool) -> float:
    """Return the share by which the speedup of one process may be off; `waits`: an arm waits for
    the host.
    """
    margin = find_margin(device)
    if waits or device == "cpu":
        return (1 + margin.program) * (1 + margin.host) - 1
    return margin.program


def find_unsampled(device: str, samples_draws: bool, samples_host: bool) -> tuple[float, float]:
    """Return the logs by which draws and the host may change a time; 0 for what its processes
    sample.
    """
    margin = find_margin(device)
    draws = 0.0 if samples_draws else math.log1p(margin.row)
    host = 0.0 if samples_host else math.log1p(margin.host)
    return draws, host
