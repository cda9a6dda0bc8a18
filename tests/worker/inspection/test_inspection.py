"""Inspection of a trial: a real compilation of a tiny model, in a process of its own as torch's
trace needs it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from checkout import SUPPORT, Run

from sweeper.core.protocol import Job, Outcome, decode
from sweeper.core.settings import Measure
from sweeper.core.trial import Labels, Model, Trial

pytestmark = pytest.mark.compile


def inspect(run_module: Run, folder: Path, name: str, backend: str) -> tuple[Outcome, Path]:
    trial = Trial(
        Model("custom", f"factories:{name}"), 4, Labels(name, "fp32"), backend=backend, device="cpu"
    )
    (folder / "trial.json").write_text(Job(trial, Measure()).dumps())
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "cache" / "inductor")}
    ended = run_module(
        "sweeper.worker", "trial.json", "--inspect", "seen", "--timed", "0123", **cache
    )
    assert not list(folder.glob("cache/trace-*")), "what torch wrote is gone"
    outcome = decode(ended.stdout.splitlines()[-1])
    assert isinstance(outcome, Outcome), ended.stdout + ended.stderr
    return outcome, folder / "seen"


def test_generated_code_fusions_and_the_line_of_a_break_are_kept(
    run_module: Run, tmp_path: Path
) -> None:
    outcome, seen = inspect(run_module, tmp_path, "backward_in_a_thread", "inductor")
    assert outcome.status == "ok", outcome.message
    (graph,) = seen.glob("graph-*")
    files = {file.relative_to(graph).as_posix() for file in graph.rglob("*.*")}
    stages = (
        "aot_graph.py",
        "post_grad_graph.py",
        "ir_pre_fusion.txt",
        "ir_post_fusion.txt",
        "output_code.py",
    )
    assert files == {
        "dynamo_graph.py",
        *(f"{part}/{stage}" for part in ("forward", "backward") for stage in stages),
    }
    code = (graph / "forward" / "output_code.py").read_text()
    assert "cpp_fused_exp_sin_0 = async_compile.cpp_pybinding(" in code
    assert "at::vec::Vectorized<float>" in code
    assert "torch.ops.aten.sin.default" in (graph / "forward" / "aot_graph.py").read_text()
    assert ".sin()" in (graph / "dynamo_graph.py").read_text()
    summary = (seen / "summary.md").read_text()
    assert "1 graph, 1 graph break, 0 recompilations" in summary
    assert (
        f"other code than was timed: fingerprint {outcome.process.code_fingerprint} here, 0123 "
        "there" in summary
    )
    assert cells(summary, "`cpp_fused_exp_sin`")[2] == "2"
    assert set(cells(summary, "`cpp_fused_exp_sin`")[3].split(", ")) == {"sin", "exp"}
    _, _, operations, fused, _ = cells(summary, "cpp_fused_cos")  # in the backward pass
    assert int(operations) >= 3
    assert {"cos", "mul (2)"} <= set(fused.split(", "))
    number = (SUPPORT / "factories.py").read_text().splitlines().index(
        '            print(end="")'
    ) + 1
    assert f'factories.py:{number}`: `print(end="")`: ' in summary
    assert 'print(end="")' in (seen / "graph_breaks.txt").read_text()


def cells(summary: str, kernel: str) -> list[str]:
    """The row of a kernel: launches, name, number of operations, operations, places."""
    (row,) = [line for line in summary.splitlines() if line.startswith("|") and kernel in line]
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_other_backends_show_graphs_and_what_fails(run_module: Run, tmp_path: Path) -> None:
    outcome, seen = inspect(run_module, tmp_path, "only_compiled_raises", "aot_eager")
    assert (outcome.status, outcome.phase) == ("compile_error", "compiling")
    summary = (seen / "summary.md").read_text()
    assert "the compiled step failed: " in summary
    assert "no code of Inductor's" in summary


def test_what_does_not_fit_is_left_out_and_named(tmp_path: Path) -> None:
    from sweeper.worker.inspection.run import write_files

    left_out = write_files(
        tmp_path,
        [("a/first.py", "x" * 600), ("long.txt", "x" * 500), ("short.txt", "x" * 400)],
        1000,
    )
    assert {file.name for file in tmp_path.rglob("*.*")} == {"first.py", "short.txt"}
    (line,) = left_out
    assert line.startswith("`long.txt`, 0.0005 MB")
