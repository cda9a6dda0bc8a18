"""What a script does that makes no step for long is said."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

from sweeper.worker.scripts.watch.silence import watch_silence


def test_a_script_that_makes_no_step_says_where_it_is_and_what_it_took() -> None:
    loop: Any = SimpleNamespace(last_step=time.monotonic(), loader=SimpleNamespace(num_since=7))
    said, heard = list[str](), threading.Event()

    def say(text: str) -> None:
        said.append(text)
        heard.set()

    with watch_silence(loop, say, limit_s=0.05):
        assert heard.wait(30)
    assert "no step for " in said[0]
    assert "test_silence.py:" in said[0]
    assert said[0].endswith("and took 7 batches since")
    assert "sweeper-silence" not in {thread.name for thread in threading.enumerate()}
