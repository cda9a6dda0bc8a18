"""What draws and hosts may change that a pair has not sampled."""

from __future__ import annotations

import math

import pytest
from comparisons import measured

from sweeper.analysis.margins import MARGINS
from sweeper.compare.pairs import make_side
from sweeper.compare.quantities import QUANTITIES
from sweeper.compare.unsampled_variance import find_unsampled_logs

WALL = next(quantity for quantity in QUANTITIES if quantity.arms)


@pytest.mark.parametrize(
    ("device", "processes", "moved", "is_sampled"),
    [
        ("cuda", 1, False, True),
        ("cpu", 1, False, False),
        ("cpu", 2, False, True),
        ("cpu", 2, True, False),
    ],
)
def test_a_host_is_sampled_by_one_process_of_a_gpu_and_two_of_a_cpu(
    device: str, processes: int, moved: bool, is_sampled: bool
) -> None:
    side = make_side(measured(wobble=[1.0] * processes, device=device))
    margin = MARGINS[device]
    host = 0.0 if is_sampled else math.log1p(margin.host)
    assert find_unsampled_logs((side, side), WALL, moved) == (math.log1p(margin.row), host)
