from __future__ import annotations

import pytest
import torch

from sweeper.worker import memory
from sweeper.worker.memory import Meter, Reading, of_graph_pools


def test_a_cpu_has_no_figures() -> None:
    meter = Meter(torch.device("cpu"))
    meter.leave()
    meter.come_back()
    assert meter.of_arm(lambda _steps: None) == Reading()


def test_pools_of_graphs_are_told_from_the_ordinary_one() -> None:
    segments = [
        {"segment_pool_id": (0, 0), "total_size": 100, "allocated_size": 90},
        {"segment_pool_id": (0, 1), "total_size": 20, "allocated_size": 5},
        {"segment_pool_id": (2, 0), "total_size": 8, "allocated_size": 0},
    ]
    assert of_graph_pools(segments) == (28, 5)
    assert of_graph_pools([]) == (0, 0)


def test_what_neighbours_take_in_their_turns_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    in_use = 500
    monkeypatch.setattr(memory, "_collect", lambda: None)
    monkeypatch.setattr(memory, "_beside_the_allocator", lambda: in_use)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 70)
    monkeypatch.setattr(torch.cuda, "memory_snapshot", list)
    meter = Meter(torch.device("cuda"))
    in_use += 8  # a library of ours
    meter.leave()
    in_use += 1000  # a neighbour's model
    meter.come_back()
    in_use += 2
    assert meter.of_arm(lambda _steps: None) == Reading(8 + 2 + 70, 70)
