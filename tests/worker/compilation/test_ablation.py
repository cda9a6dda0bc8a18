"""A fusion that is slow is named by an ablation: real Inductor, in which it is planted."""

from __future__ import annotations

from pathlib import Path

import pytest
from records import write_sweep
from worker_runs import custom, private_cache, run

from sweeper.core.ablation import change
from sweeper.core.protocol import Known, Outcome
from sweeper.core.record import Record
from sweeper.core.trial import Trial
from sweeper.loading.sources import SweepFolder
from sweeper.report.build import make_report

pytestmark = pytest.mark.compile
assert private_cache  # a fixture that every test here uses


def measure(trial: Trial, timed: str | None = None) -> Outcome:
    return run(trial, known=Known(timed=timed))[0]


@pytest.fixture
def slow_fusion(monkeypatch: pytest.MonkeyPatch) -> None:
    """With epilogue fusion a sine takes a hundred times as long, and is right."""
    import torch
    from torch._inductor import config, lowering

    aten = torch.ops.aten
    sine = lowering.lowerings[aten.sin.default]
    names = (aten.erf.default, aten.gt.Scalar, aten.where.self)
    erf, greater, where = (lowering.lowerings[name] for name in names)

    def slow_sine(x):
        found = sine(x)
        if not config.epilogue_fusion:
            return found
        wasted = x
        for _ in range(100):
            wasted = erf(wasted)
        return where(greater(wasted, 2.0), wasted, found)  # an error function is at most 1

    monkeypatch.setitem(lowering.lowerings, aten.sin.default, slow_sine)


@pytest.mark.parametrize(
    ("factory", "module"),
    [
        ("sine", "factories"),
        pytest.param("pictures", "broken_compiler", marks=pytest.mark.slow),
        pytest.param("sentences", "broken_compiler", marks=pytest.mark.slow),
    ],
)
def test_a_slow_fusion_is_named_and_code_that_is_the_same_is_not_timed(
    tmp_path: Path, slow_fusion: None, factory: str, module: str
) -> None:
    plain = custom(factory, module, backend="inductor", workload="inference", optimizer="none")
    default = measure(plain)
    assert default.process is not None
    code = default.process.code_fingerprint
    records = []
    for trial, outcome in (
        (plain, default),
        (change(plain, "epilogue_fusion"), measure(change(plain, "epilogue_fusion"), code)),
        (change(plain, "own_random_numbers"), measure(change(plain, "own_random_numbers"), code)),
    ):
        assert outcome.status == "ok", outcome.message
        assert outcome.process is not None
        records.append(
            Record(trial.id, "night", trial.label, "ok", trial=trial, processes=(outcome.process,))
        )
    assert [bool(record.processes[0].rounds) for record in records] == [True, True, False]
    (answer,) = make_report([SweepFolder(write_sweep(tmp_path, records))]).findings.ablations
    verdicts = [(one.feature.title, one.verdict) for one in answer.features if one.name]
    assert verdicts == [("epilogue fusion", "hurts"), ("random numbers of its own", "no effect")]
    # whether it is faster than eager without the fusion, and so worth setting, is up to the machine
    assert answer.explain().startswith("epilogue fusion hurts (")
