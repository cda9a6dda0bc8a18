"""Trials of tiny models in this process, as a worker runs them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sweeper.analysis.derive import derive
from sweeper.analysis.flags import find_flags
from sweeper.core.protocol import Job, Known, LeaseGrant, Outcome, Phase
from sweeper.core.record import Accuracy, Record
from sweeper.core.settings import Measure
from sweeper.core.trial import Labels, Model, Trial

MEASURE = Measure(processes=1, rounds=4, block_s=0.002, block_steps=2, warmup_s=0.02)


@pytest.fixture(autouse=True)
def private_cache(tmp_path, monkeypatch) -> None:
    import torch

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    torch._dynamo.reset()


def custom(name: str, module: str = "factories", **changes: object) -> Trial:
    trial = Trial(
        Model("custom", f"{module}:{name}"),
        4,
        Labels(name, "fp32"),
        backend="aot_eager",
        optimizer="adam",
        device="cpu",
    )
    return replace(trial, **changes)


def run(
    trial: Trial, measure: Measure = MEASURE, known: Known | None = None
) -> tuple[Outcome, list[str]]:
    """Run a trial as if nothing had been compiled here; gives its outcome and its phases."""
    import torch
    from torch._inductor.codecache import PyCodeCache

    from sweeper.worker import process_log
    from sweeper.worker.lease import Lease
    from sweeper.worker.session import measure_model

    torch._dynamo.reset()
    PyCodeCache.cache_clear()  # what it holds is the code of this trial then
    phases: list[str] = []

    def say(message: Phase) -> None:
        phases.append(message.name)

    slot = process_log.ProcessSlot()
    lease = Lease(lambda _wants: LeaseGrant(known=known or Known()))
    outcome = process_log.run(Job(trial, measure), slot, say, lease, measure_model)
    return outcome, phases


def flags(trial: Trial, outcome: Outcome) -> set[str]:
    """The flags that the runner would give; those that tell of a noisy test machine left out."""
    assert outcome.process is not None
    record = Record(
        trial.id, "s", trial.label, outcome.status, trial=trial, processes=(outcome.process,)
    )
    noise = {"unsteady", "host_busy", "compile_contended", "single_process"}
    return set(find_flags(record, derive(record), MEASURE)) - noise


def faulty(name: str, **changes: object) -> Trial:
    """A trial of one of `wrong_models`."""
    return replace(custom(name), **{"model": Model("custom", f"wrong_models:{name}"), **changes})  # type: ignore[arg-type]


def accuracy_of(outcome: Outcome) -> Accuracy:
    assert outcome.process is not None
    assert outcome.process.accuracy is not None, outcome.message
    return outcome.process.accuracy
