"""Models that train in two processes: what a worker measures of them, and how they end."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from checkout import ROOT, SUPPORT
from processes import assert_gone
from script_runs import make_entry, run_worker
from worker_runs import custom

from sweeper.core.protocol import Outcome
from sweeper.core.record import LoopRun, Process
from sweeper.core.trial import Precision, Trial

# in eager, before anything is compiled, each rank says what it has
SAYS = """
import os, factories, torch
def build(batch_size, device):
    module, inputs = factories.tower(batch_size, device)
    calls = []
    def loss(output):
        calls.append(output)
        if len(calls) == 1:
            weights = [one.detach() for one in module.parameters()]
            whole = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in weights]
            found = sum(float(one.double().square().sum()) for one in whole)
            text = f"weights {found!r} batch {float(inputs[0].sum())!r} pid {os.getpid()}"
            os.write(2, f"{text}\\n".encode())
        ends(len(calls))
        return output.float().square().mean()
    return module, inputs, loss
"""
GOES_ON = "def ends(count): pass\n"


def make_parallel(name: str, module: str = "says") -> Trial:
    return replace(custom("build", module), parallel=name, parallel_devices=2)


def run(trial: Trial, folder: Path, code: str = GOES_ON) -> tuple[Outcome, str]:
    (folder / "says.py").write_text(SAYS + code)
    path = os.pathsep.join(map(str, (ROOT, SUPPORT, folder)))
    return run_worker(trial, folder, PYTHONPATH=path)


def assert_measured(outcome: Outcome, printed: str) -> Process:
    assert outcome.status == "ok", printed
    process = outcome.process
    assert process is not None
    assert [item.order for item in process.rounds if item.void is None][:2] == ["AB", "BA"]
    assert process.script is not None
    assert len(process.script.ranks) == 2
    loops: list[LoopRun | None] = [process.script.loop_eager, process.script.loop_compiled]
    assert loops == [None, None]  # its steps are all that it does
    weights, batches = zip(*re.findall(r"weights (\S+) batch (\S+)", printed), strict=True)
    assert len(weights) == len(set(batches)) == 2
    assert len(set(weights)) == 1
    return process


def test_a_model_in_distributed_data_parallel_is_measured_and_judged(tmp_path: Path) -> None:
    trial = replace(make_parallel("ddp"), precision=Precision(autocast="auto"))
    outcome, printed = run(trial, tmp_path)
    process = assert_measured(outcome, printed)
    assert process.accuracy is not None
    assert process.accuracy.passed is True, process.accuracy.unverified
    diagnostics = outcome.diagnostics
    assert diagnostics is not None
    assert diagnostics.settings["autocast"] == "bfloat16"
    assert diagnostics.settings["optimizer"] == "Adam"
    assert diagnostics.settings["loss"] == "the factory's loss_fn"
    assert sum(diagnostics.parameters.values()) > 0
    result = make_entry(trial, outcome).result  # a model's, of two batches per step
    assert result.compiled_step is not None
    assert result.samples_per_s == pytest.approx(2 * trial.batch_size / result.compiled_step.ratio)
    assert result.loop_speedup is None


@pytest.mark.slow
def test_a_sharded_model_is_measured_by_its_blocks_and_not_judged(tmp_path: Path) -> None:
    outcome, printed = run(make_parallel("fsdp2"), tmp_path)
    process = assert_measured(outcome, printed)
    assert process.accuracy is not None
    assert process.accuracy.passed is None
    assert "no rank can be judged by itself" in (process.accuracy.unverified or "")
    assert process.script is not None
    # of three equal blocks, the first of which has inputs without gradients
    assert [rank.graphs for rank in process.script.ranks] == [2, 2]


LIVES = {
    "os._exit(4)": "rank 1: the script ended its process with exit code 4",
    "raise ValueError('odd')": r"rank 1: says.py:\d+: ValueError: odd",
}


@pytest.mark.slow
@pytest.mark.parametrize("code", LIVES)
def test_a_rank_that_ends_is_named_and_nothing_of_the_group_is_left(
    code: str, tmp_path: Path
) -> None:
    ends = f"def ends(count):\n    if os.environ['RANK'] == '1' and count == 10: {code}\n"
    outcome, printed = run(make_parallel("ddp"), tmp_path, ends)
    assert outcome.status == "eager_error", printed
    assert re.match(LIVES[code], outcome.message or ""), outcome.message
    started = {int(pid) for pid in re.findall(r"pid (\d+)", printed)}
    assert len(started) == 2
    for pid in started:
        assert_gone(pid)


@pytest.mark.slow
def test_a_model_without_parameters_is_an_error_of_its_own(tmp_path: Path) -> None:
    code = "def build(batch_size, device): return torch.nn.GELU(), (torch.ones(2, 2),)\n"
    for name, said in (("ddp", "any parameter that requires"), ("fsdp2", "no parameters to train")):
        outcome, printed = run(make_parallel(name), tmp_path, code)
        assert outcome.status == "eager_error", printed
        assert said in (outcome.message or "")
