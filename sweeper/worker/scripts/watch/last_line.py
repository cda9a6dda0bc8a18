"""The last line that a script wrote, for the message of how it ended: `argparse` says there what it
lacks.
"""

import os
from contextlib import suppress
from pathlib import Path

MAX_BYTES = 300


def measure_log() -> int:
    """Return how many bytes the file of standard error has; 0 where it is none."""
    return os.fstat(2).st_size


def describe_last_line(begin: int) -> str:
    """Describe what the script wrote last behind so many bytes; empty where it wrote nothing."""
    size, text = measure_log(), ""
    if size > begin:
        with suppress(OSError), Path("/dev/fd/2").open("rb") as log:
            log.seek(max(begin, size - MAX_BYTES))
            text = log.read().decode(errors="replace").strip()
    return f"; the last line of its output: {text.splitlines()[-1]}" if text else ""
