"""The last line that a script wrote, for the message of how it ended: `argparse` says there what it
lacks.
"""

import os
import stat
from contextlib import suppress
from pathlib import Path

MAX_BYTES = 4096  # that are looked at
MAX_CHARACTERS = 300


def measure_log() -> int:
    """Return how many bytes standard error's file has; a script writes behind them."""
    return os.fstat(2).st_size


def describe_last_line(begin: int) -> str:
    """Return `; the last line of its output: ...`; empty where nothing came after `begin` bytes, or
    where standard error is no file.
    """
    if not stat.S_ISREG(os.fstat(2).st_mode):
        return ""
    written = b""
    with suppress(OSError), Path("/dev/fd/2").open("rb") as log:
        log.seek(max(begin, measure_log() - MAX_BYTES))
        written = log.read()
    lines = [line for line in written.decode(errors="replace").splitlines() if line.strip()]
    return f"; the last line of its output: {lines[-1].strip()[:MAX_CHARACTERS]}" if lines else ""
