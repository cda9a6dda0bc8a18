from __future__ import annotations

import torch

from sweeper.worker.memory import Reading, before_building, of_arm, of_graph_pools


def test_a_cpu_has_no_figures() -> None:
    assert before_building(torch.device("cpu")) is None
    assert of_arm(lambda _steps: None, None) == Reading()


def test_pools_of_graphs_are_told_from_the_ordinary_one() -> None:
    segments = [
        {"segment_pool_id": (0, 0), "total_size": 100, "allocated_size": 90},
        {"segment_pool_id": (0, 1), "total_size": 20, "allocated_size": 5},
        {"segment_pool_id": (2, 0), "total_size": 8, "allocated_size": 0},
    ]
    assert of_graph_pools(segments) == (28, 5)
    assert of_graph_pools([]) == (0, 0)
