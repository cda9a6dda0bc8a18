"""The summary of an inspection, of what it was given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from records import make_trial

from sweeper.core.record import Diagnostics, GraphBreak
from sweeper.worker.inspection.summary import Findings, source_line, write_summary
from sweeper.worker.inspection.torch_trace import Compilation, Part, Trace

SIGHT = Findings(
    make_trial(device="cpu"),
    {"torch": "2.13.0"},
    Trace(),
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
    text = write_summary(replace(SIGHT, diagnostics=Diagnostics(1, breaks, 0)), [])
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
    assert says in write_summary(replace(SIGHT, timed_fingerprint=timed), [])


def test_recompilation_shows_the_guard_that_failed_last() -> None:
    reasons = (
        "0/1: self.calls == 4    # self.calls += 1 (HINT: long)\nUser stack trace:\n0/0: "
        "self.calls == 3"
    )
    text = write_summary(replace(SIGHT, trace=Trace(recompiles=[("0/2", reasons)] * 12)), [])
    assert "- 0/2 since 0/1: self.calls == 4 # self.calls += 1\n" in text
    assert "and 2 others" in text


def test_files_that_were_left_out_are_named() -> None:
    assert "## Left out, too long to keep\n\n- `graph-0_0/x.txt`, 30 MB\n" in write_summary(
        SIGHT, ["`graph-0_0/x.txt`, 30 MB"]
    )


def test_graph_of_a_backend_without_code_is_a_row() -> None:
    forward = Part("forward", aot_graph="    add = torch.ops.aten.add.Tensor(a, b)\n")
    graph = Compilation("0/0", "a graph", "forward at /a/model.py:3", 2, parts={"forward": forward})
    text = write_summary(replace(SIGHT, trace=Trace({"0/0": graph}), code_fingerprint=None), [])
    assert "| 0/0 | `forward at /a/model.py:3` | 2 | forward | 1 |  |  |  |  |\n" in text
    assert "## Graph 0/0" not in text
