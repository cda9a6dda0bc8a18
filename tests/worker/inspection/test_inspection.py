"""Inspection of a trial: a real compilation of a tiny model, in a process of its own as the trace
of torch needs it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from checkout import Run, place_in_factories

from sweeper.core.protocol import Job, Outcome, decode
from sweeper.core.settings import Measure
from sweeper.core.tlparse import find_tlparse
from sweeper.core.trial import Labels, Model, Trial

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(find_tlparse() is None, reason="needs tlparse"),
]


def inspect(run_module: Run, folder: Path, name: str, backend: str) -> tuple[Outcome, Path]:
    trial = Trial(
        Model("custom", f"factories:{name}"), 4, Labels(name, "fp32"), backend=backend, device="cpu"
    )
    (folder / "trial.json").write_text(Job(trial, Measure()).dumps())
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "cache" / "inductor")}
    ended = run_module("sweeper.worker", "trial.json", "--inspect", "seen", **cache)
    assert not list(folder.glob("cache/trace-*")), "what torch wrote is gone"
    outcome = decode(ended.stdout.splitlines()[-1].encode())
    assert isinstance(outcome, Outcome), ended.stdout + ended.stderr
    return outcome, folder / "seen"


def test_the_line_of_a_break_and_the_report_are_kept(run_module: Run, tmp_path: Path) -> None:
    outcome, seen = inspect(run_module, tmp_path, "backward_in_a_thread", "inductor")
    assert outcome.status == "ok", outcome.message
    assert (seen / "tlparse" / "index.html").exists()
    code = "".join(file.read_text() for file in seen.glob("tlparse/*/inductor_output_code_*.txt"))
    assert "cpp_fused_exp_sin_0 = async_compile.cpp_pybinding(" in code
    summary = (seen / "summary.md").read_text()
    assert "1 graph, 1 graph break, 0 recompilations" in summary
    assert f"fingerprint of the code: {outcome.process.code_fingerprint}; " in summary
    line = 'print(end="")'
    assert f"{place_in_factories(line)}`: `{line}`: " in summary


@pytest.mark.slow
def test_other_backends_show_graphs_and_what_fails(run_module: Run, tmp_path: Path) -> None:
    outcome, seen = inspect(run_module, tmp_path, "only_compiled_raises", "aot_eager")
    assert (outcome.status, outcome.phase) == ("compile_error", "compiling")
    summary = (seen / "summary.md").read_text()
    assert "the compiled step failed: " in summary
    assert "no code of Inductor's" in summary
