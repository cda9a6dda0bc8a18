from __future__ import annotations

import pytest
import torch

from sweeper.worker.measurement import memory
from sweeper.worker.measurement.memory import Meter, Reading, sum_graph_pools


def test_a_cpu_has_no_figures() -> None:
    meter = Meter(torch.device("cpu"))
    meter.leave_device()
    meter.return_to_device()
    assert meter.measure(lambda _steps: None) == Reading()


def test_pools_of_graphs_are_told_from_the_ordinary_one() -> None:
    segments = [
        {"segment_pool_id": (0, 0), "total_size": 100, "allocated_size": 90},
        {"segment_pool_id": (0, 1), "total_size": 20, "allocated_size": 5},
        {"segment_pool_id": (2, 0), "total_size": 8, "allocated_size": 0},
    ]
    assert sum_graph_pools(segments) == (28, 5)
    assert sum_graph_pools([]) == (0, 0)


@pytest.mark.parametrize("known", [False, True], ids=["of the device", "of the process"])
def test_what_neighbours_take_while_they_have_the_device_is_not_ours(
    monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    in_use = 500
    monkeypatch.setattr(memory, "_collect", lambda: None)
    monkeypatch.setattr(memory, "_device_bytes_in_use", lambda: in_use)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 0)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 70)
    monkeypatch.setattr(torch.cuda, "memory_snapshot", list)
    neighbours = 0
    meter = Meter(torch.device("cuda"), lambda: in_use - neighbours if known else None)
    in_use += 8  # a library of ours
    meter.leave_device()
    neighbours = 1000
    in_use += neighbours
    meter.return_to_device()
    in_use += 2
    assert meter.measure(lambda _steps: None) == Reading(8 + 2 + 70, 70)
