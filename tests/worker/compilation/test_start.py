"""How a compiled program starts: the first process keeps what a later one begins with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from worker_runs import MEASURE, custom, private_cache, run

from sweeper.core.protocol import Job, Outcome, decode
from sweeper.core.record import Process
from sweeper.core.trial import Compile, Precision

pytestmark = pytest.mark.compile
assert private_cache  # a fixture that every test here uses


def run_in_a_process(job: Path, *arguments: str) -> Process:
    command = [sys.executable, "-m", "sweeper.worker", str(job), *arguments]
    support = os.pathsep.join([str(Path(__file__).parents[2] / "support"), *sys.path])
    ended = subprocess.run(
        command, check=False, capture_output=True, env={**os.environ, "PYTHONPATH": support}
    )
    outcome = decode(ended.stdout.splitlines()[-1])
    assert isinstance(outcome, Outcome)
    assert outcome.status == "ok", outcome.message
    assert outcome.process is not None
    return outcome.process


@pytest.mark.slow
def test_a_mega_cache_gives_an_empty_folder_what_was_compiled(tmp_path: Path) -> None:
    job = tmp_path / "trial.json"
    compiling = Compile(start="mega_cache")
    trial = custom("mlp", backend="inductor", workload="inference", compile=compiling)
    job.write_text(Job(trial, MEASURE).dumps())
    first = run_in_a_process(job)
    assert first.autograd_cache == {"hits": 0, "misses": 1, "bypassed": 0}
    assert (tmp_path / "inductor" / "kept_mega_cache").exists()
    later = run_in_a_process(job, "--slot", '{"index": 1, "cold": false}')
    assert later.autograd_cache == {"hits": 1, "misses": 0, "bypassed": 0}
    assert later.code_fingerprint == first.code_fingerprint
    [own] = tmp_path.glob("inductor-*")
    assert (own / "kept_mega_cache").stat().st_size == 0  # kept by the first process alone


@pytest.mark.slow
@pytest.mark.parametrize("start", ["caching_precompile", "aot_compile"])
@pytest.mark.parametrize("workload", ["train", "inference"])
@pytest.mark.parametrize("autocast", [None, "bfloat16"])
def test_kept_code_begins_without_dynamo(
    tmp_path: Path, start: str, workload: str, autocast: str | None
) -> None:
    job = tmp_path / "trial.json"
    trial = custom(
        "residual",
        backend="inductor",
        workload=workload,
        compile=Compile(start=start),
        precision=Precision(autocast=autocast),
    )
    job.write_text(Job(trial, MEASURE).dumps())
    first = run_in_a_process(job)
    assert first.autograd_cache == {"hits": 0, "misses": 1, "bypassed": 0}
    later = run_in_a_process(job, "--slot", '{"index": 1, "cold": false}')
    assert later.autograd_cache == {}
    assert later.accuracy is not None
    assert later.accuracy.passed
    if start == "caching_precompile":  # a file has no code that could be told
        assert later.code_fingerprint == first.code_fingerprint


def test_a_model_that_is_no_whole_graph_cannot_be_compiled_ahead_of_time() -> None:
    outcome, _ = run(
        custom("breaks_once", backend="inductor", compile=Compile(start="aot_compile"))
    )
    assert outcome.status == "unavailable"
    assert outcome.message is not None
    assert outcome.message.startswith("aot_compile: Unsupported")
    assert "graph_break" in outcome.message
