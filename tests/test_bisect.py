"""Bisection: which backend, which part of it, and which application of that is wrong."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from records import make_record, write_sweep
from worker_runs import MEASURE, custom

from sweeper.bisect import BisectionError, Finding, Probes, bisect, read_job, write_script
from sweeper.core.errors import ConfigError
from sweeper.core.protocol import Job
from sweeper.core.trial import Compile

LOWERINGS = [f"%node_{number}" for number in range(11)]


class Planted(Probes):
    """Probes of a compiler that is wrong where one part is in use."""

    def __init__(self, job: Job, bad: str, number: int = 0) -> None:
        super().__init__(job, Path("nowhere"), 1.0)
        self.bad, self.number, self.seen = bad, number, 0

    def is_good(self, _what: str, job: Job, part: str = "", **files: str) -> bool:
        self.seen += 1
        backend, options = job.trial.backend, job.trial.compile.options
        if backend == self.bad:
            return False
        if self.bad == "budget":
            return job.trial.compile.memory_budget is None or backend == "eager"
        if backend != "inductor":
            return True
        if self.bad == "option":
            return part == "inductor_layout_optimization"
        if options.get("disabled_passes"):
            return options["disabled_passes"] == LOWERINGS[self.number]
        if part != self.bad:
            return False
        if files["run_state"] == "find_max_bounds":
            self.high = len(LOWERINGS) - 1
            return False
        if files["run_state"] == "test_disable":
            return True
        low, high = map(int, re.findall(r"\d+", files["bisect_range"]))
        self.names |= {str(number): LOWERINGS[number] for number in (low, min(high, 10))}
        return (low + high) // 2 < self.number


def job_of(backend: str = "inductor", **compiling: object) -> Job:
    return Job(custom("mlp", backend=backend, compile=Compile(**compiling)), MEASURE)


@pytest.mark.parametrize(
    ("bad", "finding"),
    [
        ("eager", Finding("Dynamo", "mode=eager")),
        ("aot_eager_default_partitioner", Finding("AOTAutograd", "backend=eager")),
        (
            "aot_eager_decomp_partition",
            Finding("decompositions", "backend=aot_eager"),
        ),
        (
            "option",
            Finding(
                "Inductor: what layout_optimization changes",
                "compile.options.layout_optimization=false",
            ),
        ),
    ],
)
def test_the_first_wrong_stage_or_option_is_named(bad: str, finding: Finding) -> None:
    assert bisect(Planted(job_of(), bad)) == finding


@pytest.mark.parametrize("number", range(len(LOWERINGS)))
def test_halving_names_the_first_application_that_is_wrong(number: int) -> None:
    probes = Planted(job_of(), "lowerings", number)
    found = bisect(probes)
    assert found.part == f"Inductor: lowerings, number {number}: %node_{number}"
    assert found.mend == "backend=aot_eager_decomp_partition"
    assert probes.seen <= 25  # as the command says before it begins


def test_a_wrong_pass_is_mended_by_leaving_it_out() -> None:
    found = bisect(Planted(job_of(), "post_grad_passes", 3))
    assert found.part == "Inductor: post_grad_passes, number 3: %node_3"
    assert found.mend == "compile.options.disabled_passes=%node_3"


def test_a_memory_budget_that_is_wrong_is_traced_to_the_first_stage_that_heeds_it() -> None:
    found = bisect(Planted(job_of(memory_budget=0.3), "budget"))
    assert found.mend == "no compile.memory_budget"


def test_a_fault_that_does_not_repeat_is_no_finding() -> None:
    probes = Planted(job_of("aot_eager"), "nothing")
    with pytest.raises(BisectionError, match="with backend=aot_eager is ok"):
        bisect(probes)
    assert probes.seen == 3  # no backend beyond that of the trial


def test_what_cannot_be_bisected_is_refused_before_any_probe(tmp_path: Path) -> None:
    ok, script = make_record("a"), make_record("b", workload="script", status="runtime_error")
    folder = write_sweep(tmp_path, [ok, script])
    for record, reason in ((ok, "is ok; allowed are"), (script, "allowed are models")):
        with pytest.raises(ConfigError, match=reason):
            read_job(str(folder), record.trial_id)
    with pytest.raises(ConfigError, match="has no trial nope"):
        read_job(str(folder), "nope")


def test_the_script_runs_without_sweeper_and_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parent / "support")
    job, path = job_of(), tmp_path / "show.py"
    job = replace(job, trial=replace(job.trial, backend="aot_eager"))
    write_script(job, Finding('Inductor: "a\\b"', "backend=eager"), path)
    text = path.read_text()
    assert len(text.splitlines()) < 60
    assert "sweeper" not in {
        name.name.partition(".")[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }
    ended = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True)
    lines = ended.stdout.splitlines()
    assert lines[0] == "off by 0.0%: loss"
    assert len(lines) == 5  # the loss and four gradients


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factory", "part"),
    [("wrong_lowering", "lowerings"), ("breaking_pass", "post_grad_passes")],
)
def test_a_planted_fault_of_inductor_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factory: str, part: str
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent / "support")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "support"), prepend=":")
    trial = custom(factory, "broken_compiler", backend="inductor", workload="inference")
    found = bisect(Probes(Job(trial, MEASURE), tmp_path, 600.0))
    assert found.part.startswith(f"Inductor: {part}, number ")
    assert (": sin" if part == "lowerings" else "post_grad_custom_post_pass") in found.part


def test_the_command_says_what_is_wrong_with_its_arguments(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["sweeper.bisect", "no-such-sweep", "0"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("sweeper.bisect", run_name="__main__")
    assert ended.value.code == 2
    assert "no-such-sweep has no trial 0" in capsys.readouterr().err
