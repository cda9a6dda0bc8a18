"""Finding processes, and waiting for them to end."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

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


class Seen(NamedTuple):
    """A process of this machine."""

    pid: int
    parent: int
    command: bytes


def list_processes() -> Iterator[Seen]:
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            yield Seen(int(folder.name), parent, (folder / "cmdline").read_bytes())


def find_workers(python: Path) -> list[int]:
    """The processes that run a fake interpreter."""
    return [
        seen.pid
        for seen in list_processes()
        if str(python).encode() in seen.command.split(b"\0")[:2]
    ]


def wait_for_handlers(driver: subprocess.Popen[str]) -> None:
    """Until a driver handles SIGTERM; before, for the first 50 ms, the interpreter itself is
    loaded.
    """
    caught = 0
    while not caught >> (signal.SIGTERM - 1) & 1:
        assert driver.poll() is None, driver.communicate()
        lines = Path(f"/proc/{driver.pid}/status").read_text().splitlines()
        (caught,) = (int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:"))
        time.sleep(0.001)
