"""The accuracy check of a script's modules, wherever the script's last step ends."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from records import make_process
from script_runs import MEASURE, make_trial

from sweeper.core.protocol import Job
from sweeper.worker.failures import MismatchError
from sweeper.worker.lease import Lease
from sweeper.worker.process_log import ProcessLog
from sweeper.worker.scripts.arms import call_eager
from sweeper.worker.scripts.check import check_modules
from sweeper.worker.scripts.ranks import Ranks
from sweeper.worker.scripts.watch.patches import Patches


def test_a_module_is_judged_in_a_hook_that_trains_it() -> None:
    """An optimizer per parameter steps as soon as a gradient is complete, and drops it; the check
    runs in such a hook, without steps of its own.
    """
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
    steps, is_judged = list[torch.Tensor](), False
    log = ProcessLog(lambda _phase: None, make_process(), Lease())
    job = Job(make_trial("train.py"), MEASURE)
    forms = {module: partial(call_eager, module)}
    phases = check_modules(job, torch.device("cpu"), forms, {}, Patches(), log)

    def train(parameter: torch.Tensor) -> None:
        nonlocal is_judged
        assert not torch.is_grad_enabled()
        if parameter is module[0].weight:
            steps.append(parameter)
            is_judged = is_judged or next(phases, "over") == "over"
        parameter.grad = None

    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(train)
    for _ in range(4):
        module(torch.randn(8, 4)).square().mean().backward()
    assert is_judged
    assert len(steps) == 4
    assert log.process.accuracy is not None
    assert log.process.accuracy.passed is True


class BesideWrong(Ranks):
    """A rank, and another one in which all is wrong."""

    size = 2

    def share(self, what: str, value: Any) -> list[Any]:
        assert what == "verdict"
        wrong = {
            "passed": False,
            "worst": "output",
            "compiled_error": 1.0,
            "bound": 0.1,
            "size": 2.0,
        }
        return [value, replace(value, **wrong)]


def test_a_module_that_is_wrong_in_another_rank_is_a_mismatch_in_each() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
    log = ProcessLog(lambda _phase: None, make_process(), Lease())
    job, forms = Job(make_trial("train.py"), MEASURE), {module: partial(call_eager, module)}
    phases = check_modules(job, torch.device("cpu"), forms, {}, Patches(), log, BesideWrong())
    for _ in range(2):
        next(phases)
        module(torch.randn(8, 4)).square().mean().backward()
    with pytest.raises(MismatchError, match=r"^rank 1: output is off by 50 % "):
        next(phases)
    assert log.process.accuracy is not None
    assert log.process.accuracy.passed is False
