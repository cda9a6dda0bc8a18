"""Fixtures of the tests of what measures."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def small_heap() -> Iterator[None]:
    """What measures collects garbage first, which takes seconds where a process has run a thousand
    tests.
    """
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
