"""Says what a script does that makes no step for long: where it is, and its batches."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .loop import Loop
from .modules import find_script_line

MAX_SILENCE_S = 60.0


@contextmanager
def watch_silence(
    loop: Loop, say: Callable[[str], None], limit_s: float = MAX_SILENCE_S
) -> Iterator[None]:
    """Call `say` whenever the loop makes no step for `limit_s`, as long as the body runs."""
    over, script = threading.Event(), threading.get_ident()

    def watch() -> None:
        said_at = 0.0
        while not over.wait(limit_s / 10):
            now = time.monotonic()
            if now - max(loop.last_step, said_at) >= limit_s:
                said_at = now
                say(_describe(loop, script, now - loop.last_step))

    thread = threading.Thread(target=watch, name="sweeper-silence", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _describe(loop: Loop, script: int, silent_s: float) -> str:
    line = find_script_line(sys._current_frames().get(script))
    who = f"the script is at {line}, and" if line else "the script"
    batches = loop.loader.num_since
    return f"no step for {silent_s:.0f} s: {who} took {batches} batches since"
