"""Bisection: which backend, which part of it, and which application of that is wrong."""

from __future__ import annotations

import ast
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import fake_python
import pytest
from processes import assert_gone, list_processes
from records import make_record, write_sweep
from worker_runs import MEASURE, custom

from sweeper.bisect import BisectionError, Finding, Probes, bisect, read_job, write_script
from sweeper.core.errors import ConfigError
from sweeper.core.protocol import Job, ProtocolError
from sweeper.core.trial import Compile, Precision

LOWERINGS = [f"%node_{number}" for number in range(11)]


class Planted(Probes):
    """Probes of a compiler that is wrong where one part is in use."""

    def __init__(self, job: Job, bad: str, number: int = 0) -> None:
        super().__init__(job, Path("nowhere"), 1.0)
        self.bad, self.number, self.seen = bad, number, 0

    def is_good(self, _what: str, job: Job, part: str = "", **files: str) -> bool:
        self.seen += 1
        backend, asked = job.trial.backend, job.trial.compile
        if backend == self.bad:
            return False
        if self.bad in ("memory_budget", "dynamo", "functorch"):  # heeded by AOTAutograd
            return backend == "eager" or not getattr(asked, self.bad)
        if backend != "inductor":
            return True
        if self.bad == "options":
            return not asked.options
        if self.bad == "layout_optimization":
            return asked.options.get(self.bad) is False and asked.options["shape_padding"] is True
        if asked.options.get("disabled_passes"):
            return asked.options["disabled_passes"] == LOWERINGS[self.number]
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
            "layout_optimization",
            Finding(
                "Inductor: what layout_optimization changes",
                "compile.options.layout_optimization=false",
            ),
        ),
        ("options", Finding("Inductor", "leaving out compile.options")),
    ],
)
def test_the_first_wrong_stage_or_option_is_named(bad: str, finding: Finding) -> None:
    job = job_of(options={"shape_padding": True})
    assert bisect(Planted(job, bad)) == finding


@pytest.mark.parametrize("number", range(len(LOWERINGS)))
def test_halving_names_the_first_application_that_is_wrong(number: int) -> None:
    probes = Planted(job_of(), "lowerings", number)
    found = bisect(probes)
    assert found.part == f"Inductor: lowerings, number {number}: %node_{number}"
    assert found.mend == "backend=aot_eager_decomp_partition"
    assert probes.seen <= 30  # as the command says before it begins


def test_a_wrong_pass_is_mended_by_leaving_it_out() -> None:
    found = bisect(Planted(job_of(), "post_grad_passes", 3))
    assert found.part == "Inductor: post_grad_passes, number 3: %node_3"
    assert found.mend == "compile.options.disabled_passes=%node_3"


@pytest.mark.parametrize(
    ("bad", "value"),
    [("memory_budget", 0.3), ("functorch", {"cse": False}), ("dynamo", {"trace_numpy": False})],
)
def test_a_setting_that_is_wrong_is_traced_to_the_first_stage_that_heeds_it(
    bad: str, value: object
) -> None:
    found = bisect(Planted(job_of(**{bad: value}), bad))
    assert found == Finding("AOTAutograd", f"leaving out compile.{bad}")


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


@pytest.mark.parametrize(
    ("there", "why"),
    [("nothing", "No such file"), ("folder", "not a regular"), ("{}", "cannot be read")],
)
def test_a_job_that_cannot_be_read_is_refused(tmp_path: Path, there: str, why: str) -> None:
    record = make_record("a", status="accuracy_mismatch")
    folder = write_sweep(tmp_path, [record])
    (path,) = folder.glob(f"*-{record.trial_id}/trial.json")
    path.unlink()
    if there == "folder":
        path.mkdir()
    elif there == "{}":
        path.write_text(there)
    with pytest.raises(ConfigError, match=rf"trial\.json: {why}"):
        read_job(str(folder), record.trial_id)


@pytest.mark.parametrize(
    ("factory", "autocast"),
    [("one_tensor", None), ("list_of_batches", "auto"), ("own_loss", "float16")],
)
def test_the_script_shows_the_fault_without_sweeper_and_is_short(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    factory: str,
    autocast: str | None,
) -> None:
    monkeypatch.chdir(Path(__file__).parent / "support")
    monkeypatch.setattr(sys, "path", [*sys.path])
    trial = custom(factory, "wrong_models", precision=Precision(autocast=autocast))
    path = tmp_path / "show.py"
    write_script(Job(trial, MEASURE), Finding('AOTAutograd: "a\\b"', "backend=eager"), path)
    text = path.read_text()
    assert len(text.splitlines()) < 60
    assert "sweeper" not in {
        name.name.partition(".")[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }
    capsys.readouterr()
    runpy.run_path(str(path))
    shares = re.findall(r"off by (.*)%: (.*)", capsys.readouterr().out)
    off = {name: float(share) for share, name in shares}
    assert off["gradient of layer.weight"] > 50
    assert off["loss"] == 0 == off["output 0"]


def test_what_a_script_cannot_show_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, path = job_of(options={"shape_padding": True}), tmp_path / "show.py"
    job = replace(job, trial=replace(job.trial, mode="max-autotune"))
    write_script(job, Finding("Inductor", "backend=eager"), path)
    assert "could not show compile.options.shape_padding, mode" in capsys.readouterr().out
    assert not path.exists()


def probe(tmp_path: Path, body: str, limit_s: float = 600.0) -> bool:
    """One probe with a worker that does `body` and then says that it is ok."""
    python = fake_python.write(tmp_path / "python", body)
    probes = Probes(Job(custom("mlp", python=str(python)), MEASURE), tmp_path / "bisect", limit_s)
    return probes.is_good("probe", probes.job)


def test_a_progress_bar_does_not_hide_the_outcome_of_a_probe(tmp_path: Path) -> None:
    (tmp_path / "bisect").write_text("a file in place of the folder")
    assert probe(tmp_path, 'print("50 %", end="", flush=True); take("device"); take("alone")')


@pytest.mark.parametrize(
    ("body", "limit_s", "why"),
    [
        ("sys.exit(3)", 600.0, "crashed while building the model; see"),
        ("time.sleep(600)", 1.0, r"timeout while [a-z ]+; see"),
        ('os.write(options.answer_fd, b"{}\\n")', 600.0, "cannot be understood"),
    ],
)
def test_a_probe_without_an_outcome_has_no_verdict(
    tmp_path: Path, body: str, limit_s: float, why: str
) -> None:
    with pytest.raises((BisectionError, ProtocolError), match=why):
        probe(tmp_path, body, limit_s)


PROBE = """
import sys
from pathlib import Path
from worker_runs import MEASURE, custom
from sweeper.bisect import Job, Probes
job = Job(custom("hangs"), MEASURE)
Probes(job, Path(sys.argv[1]), 600.0).is_good("probe", job)
"""


def test_a_worker_ends_with_the_bisection_that_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "support"), prepend=":")
    with subprocess.Popen([sys.executable, "-c", PROBE, tmp_path]) as bisection:
        workers: list[int] = []
        while not workers:
            assert bisection.poll() is None
            time.sleep(0.02)
            for seen in list_processes():
                if seen.parent == bisection.pid and b"sweeper.worker" in seen.command:
                    workers.append(seen.pid)
        bisection.terminate()
    try:
        assert_gone(workers[0])
    finally:
        with suppress(ProcessLookupError):
            os.kill(workers[0], signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["waves", "pictures", "sentences"])
@pytest.mark.parametrize(
    ("fault", "part"),
    [("wrong_lowering", "lowerings"), ("breaking_pass", "post_grad_passes")],
)
def test_a_planted_fault_of_inductor_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, part: str, model: str
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent / "support")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "support"), prepend=":")
    factory = f"{fault}_{model}"
    trial = custom(factory, "broken_compiler", backend="inductor", workload="inference")
    found = bisect(Probes(Job(trial, MEASURE), tmp_path, 600.0))
    assert found.part.startswith(f"Inductor: {part}, number ")
    assert (": sin" if part == "lowerings" else "post_grad_custom_post_pass") in found.part


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-sweep", "0"], "no-such-sweep: no sweep runs/no-such-sweep and no folder"),
        (["a", "0", "--limit-s", "0"], "--limit-s 0.0: give seconds above 0"),
        (["a", "0", "--limit-s", "-1"], "--limit-s -1.0: give seconds above 0"),
        (["a", "0", "--limit-s", "nan"], "--limit-s nan: give seconds above 0"),
    ],
)
def test_the_command_says_what_is_wrong_with_its_arguments(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["sweeper.bisect", *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("sweeper.bisect", run_name="__main__")
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
