"""Fixtures of the tests of the worker."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def restore_float32_precision() -> Iterator[None]:
    import torch

    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture(autouse=True)
def nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests keep the processor busy, and no round is taken again for them."""
    from sweeper.worker.monitoring import round_monitor

    monkeypatch.setattr(round_monitor, "MAX_BUSY_HOST", math.inf)
