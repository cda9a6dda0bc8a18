"""What a script does that makes no step for long is said."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from sweeper.worker.scripts.watch import silence
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


def test_a_loop_without_a_line_of_the_user_has_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "find_script_line", lambda _frame: "")
    loop: Any = SimpleNamespace(last_step=0.0, loader=SimpleNamespace(num_since=0))
    assert silence._describe(loop, 0, 60.0) == "no step for 60 s: the script took 0 batches since"
