"""Process groups: start a program in a group of its own, wait for it, kill it with everything that it has started."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

POLL_S = 0.05


def start_group(
    command: Sequence[str], environment: Mapping[str, str], log: Path, **options: Any
) -> subprocess.Popen[bytes]:
    """Start a program as the leader of a new process group; `environment` is added to the one of this process.

    Its output goes to `log`, unless the options (of `Popen`) say otherwise: to files in any case, because a child that
    outlives the program would hold a pipe open.
    """
    inherited = {key: value for key, value in os.environ.items() if key != "HYDRA_FULL_ERROR"}  # ours alone
    with log.open("wb") as output:
        options = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output, **options}
        return subprocess.Popen(command, env={**inherited, **environment}, start_new_session=True, **options)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill every process of the group and wait for its leader."""
    with suppress(ProcessLookupError):  # every process of the group has already ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def wait_for_end(process: subprocess.Popen[bytes], limit_s: float, stop: threading.Event | None = None) -> int | None:
    """Wait for a program and kill its whole group; its exit code, or None when the limit or `stop` came first."""
    stop, deadline = stop or threading.Event(), time.monotonic() + limit_s
    try:
        while process.poll() is None:
            if time.monotonic() >= deadline or stop.wait(POLL_S):
                return None
        return process.returncode
    finally:
        kill_group(process)


def describe_exit(code: int) -> str:
    """Say how a process ended, as the rest of a sentence about it."""
    if code >= 0:
        return f"exited with code {code}"
    hint = "; the kernel kills so when memory runs out" if -code == signal.SIGKILL else ""
    return f"was killed by {signal.Signals(-code).name}{hint}"


def read_last_lines(log: Path, count: int) -> list[str]:
    """The last lines of a log that are not empty."""
    lines = log.read_text(errors="replace").splitlines()
    return [line.rstrip() for line in lines if line.strip()][-count:]
