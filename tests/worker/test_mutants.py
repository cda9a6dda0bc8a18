"""The parts of benchmarks/mutants.py: planted faults are effective, and the accuracy check sees
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest
from benchmark_scripts import BENCHMARKS
from worker_runs import custom, private_cache

from sweeper.core.trial import Compile

pytestmark = pytest.mark.compile
assert private_cache  # a fixture that every test here uses


@pytest.fixture(autouse=True)
def benchmarks_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture(autouse=True)
def restore_attention() -> Iterator[None]:
    from torch.backends import cuda

    kernels = ("flash", "mem_efficient", "cudnn")
    before = {kernel: getattr(cuda, f"{kernel}_sdp_enabled")() for kernel in kernels}
    yield
    for kernel, was_enabled in before.items():
        getattr(cuda, f"enable_{kernel}_sdp")(was_enabled)


def test_planted_faults_are_effective_and_killed() -> None:
    from mutation.faults import FAULTS
    from mutation.graphs import AOT, CAPTURE
    from mutation.subject import Subject, largest_effect

    subject = Subject(replace(custom("mlp"), backend=AOT))
    subject.compile()
    forward, backward = CAPTURE.graphs
    unmutated = subject.run_exactly()
    assert subject.judge().outcome == "passed"
    assert largest_effect(subject.run_exactly(), unmutated).difference == 0

    for captured, fault in [
        (forward, "op dropped"),
        (backward, "gradient times 1.1"),
        (backward, "branch lost"),
    ]:
        site = next(FAULTS[fault].sites(captured))
        captured.plant(partial(FAULTS[fault].plant, site=site))
        assert largest_effect(subject.run_exactly(), unmutated).is_effective, fault
        assert subject.judge().killed, fault
        captured.uproot()

    assert largest_effect(subject.run_exactly(), unmutated).difference == 0
    assert subject.judge().outcome == "passed"


def test_exact_run_is_the_step_in_fp64() -> None:
    import torch
    from mutation.graphs import AOT
    from mutation.subject import BUILT, Subject, largest_effect

    from sweeper.worker.measurement.attributes import Attributes
    from sweeper.worker.measurement.capture import Keep, run_reference

    trial = replace(custom("mlp"), backend=AOT, compile=Compile(scope="step"))
    subject = Subject(trial)
    subject.compile()
    built = subject.setup.built
    attributes = Attributes(built.module)
    arguments = (attributes, built.unseen, trial, torch.float64, Keep())
    reference = run_reference(built, subject.setup.capture, *arguments).tensors
    exact = subject.run_exactly()[BUILT]
    parameters = {f"change of {name}" for name, _ in built.module.named_parameters()}
    assert parameters <= exact.keys()
    effect = largest_effect({BUILT: exact}, {BUILT: reference})
    # parameters keep their fp32, in which a small change is a few last places
    assert effect.difference < 1e-3, effect


def test_mutants_are_chosen_from_a_seed_and_counted_in_the_report() -> None:
    from mutation.graphs import AOT
    from mutation.report import write_report
    from mutation.score import Plan, score

    plan = Plan(
        replace(custom("mlp"), backend=AOT), ("op dropped", "gradient negated"), mutants=2, seed=1
    )
    scored = score(plan)
    assert [mutant.place for mutant in scored.mutants] == [
        mutant.place for mutant in score(plan).mutants
    ]
    assert [mutant.is_killed for mutant in scored.mutants] == [True, True]
    assert "| gradient negated | 1 | 0 | 1 | 1 | 0 | 100.0% |" in write_report([scored], [])
