"""Waiting for processes to end."""

from __future__ import annotations

import time
from pathlib import Path

import pytest


def assert_gone(pid: int, within_s: float = 20.0) -> None:
    """The process has ended (or is a zombie that only waits to be collected)."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return
        time.sleep(0.05)
    pytest.fail(f"process {pid} is still running")
