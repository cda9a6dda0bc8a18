"""The parts of benchmarks/queued_steps.py that need no GPU."""

from __future__ import annotations

import argparse

import pytest
import torch
from benchmark_scripts import load_script

queued_steps = load_script("queued_steps")


@pytest.mark.parametrize(
    ("launches", "wanted", "steps"),
    [(10, None, 10), (300, None, 3), (1000, None, 1), (300, 2, 2), (0, None, 10)],
)
def test_as_many_steps_are_queued_as_fit(launches: int, wanted: int | None, steps: int) -> None:
    assert queued_steps.choose_steps(launches, wanted) == steps


@pytest.mark.parametrize(("launches", "wanted"), [(1001, None), (300, 4)])
def test_steps_beyond_the_queue_are_refused(launches: int, wanted: int | None) -> None:
    with pytest.raises(queued_steps.RefusedError, match=r"more than 1,000"):
        queued_steps.choose_steps(launches, wanted)


def test_every_model_is_a_trial_as_sweeper_reads_it() -> None:
    for model, overrides in queued_steps.MODELS.items():
        trial = queued_steps.read_trial(
            [*overrides.split(), "precision=amp", "device=cpu", "batch_size=2"]
        )
        assert (trial.model.name != "", trial.precision.autocast, trial.batch_size) == (
            True,
            "auto",
            2,
        ), model
        assert trial.text.form == "none", "a mask may be read in the step"


def test_a_row_has_a_text_for_each_heading() -> None:
    row = queued_steps.Row(
        "a", "eager", 100, 5, 0.0100, 0.0101, 0.0098, 1e-6, "steps", (1e-6, 2e-6, 3e-6), 0.01, 0.011
    )
    texts = dict(zip(queued_steps.HEADINGS, row.texts(), strict=True))
    assert texts["gap us"] == "1.00"
    assert texts["queued gaps us"] == "1.00 / 2.00 / 3.00"
    assert row.texts()[4:9] == ["10.000", "10.100", "+1.00%", "9.800", "-2.00%"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert queued_steps.main(argparse.Namespace()) == 2
    assert "needs an NVIDIA GPU" in capsys.readouterr().err
