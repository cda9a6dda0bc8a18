"""The summary of an inspection, of what it was given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from records import make_trial

from sweeper.core.record import Diagnostics, GraphBreak
from sweeper.worker.inspection.summary import Inspected, source_line, write_summary

SIGHT = Inspected(
    make_trial(device="cpu"),
    {"torch": "2.13.0"},
    Diagnostics(1, recompiles=0),
    "abc",
    "abc",
)


def test_break_shows_the_text_of_its_line(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("import torch\n    torch._dynamo.graph_break()\n")
    assert source_line(f"{file}:2") == "torch._dynamo.graph_break()"
    assert source_line(f"{file}:20") is None
    assert source_line(None) is None
    breaks = (GraphBreak("asked for", f"{file}:2", 3), GraphBreak("a frame", None))
    text = write_summary(replace(SIGHT, diagnostics=Diagnostics(1, breaks, 0)))
    assert "- 1 graph, 4 graph breaks, 0 recompilations\n" in text
    assert (
        f"- `{file}:2`: `torch._dynamo.graph_break()` (3 times): asked for\n- no place given: a "
        "frame\n" in text
    )


@pytest.mark.parametrize(
    ("timed", "says"),
    [
        ("abc", "it is the code that was timed"),
        ("xyz", "it is other code than was timed"),
        (None, "no timed code"),
    ],
)
def test_summary_says_whether_the_code_is_what_was_timed(timed: str | None, says: str) -> None:
    assert says in write_summary(replace(SIGHT, timed_fingerprint=timed))


def test_recompilation_shows_the_guard_that_failed_last() -> None:
    reasons = (
        "0/1: self.calls == 4    # self.calls += 1 (HINT: long)\nUser stack trace:\n0/0: "
        "self.calls == 3"
    )
    text = write_summary(replace(SIGHT, recompilations=[f"0/2 since {reasons}"] * 12))
    assert "- 0/2 since 0/1: self.calls == 4 # self.calls += 1\n" in text
    assert "and 2 others" in text


@pytest.mark.parametrize(
    ("missing", "says"),
    [(None, "[the report of tlparse](tlparse/index.html)"), ("why", "no report of tlparse: why\n")],
)
def test_summary_says_where_the_report_is_or_why_there_is_none(
    missing: str | None, says: str
) -> None:
    assert says in write_summary(replace(SIGHT, no_report=missing))
