"""What is noted of a training: losses, norms of gradients, where weights go, and the seeds of the script."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sweeper.worker.scripts.training import POINTS, LossWatch, SeedShift, TrainingWatch, sketch


@pytest.fixture(autouse=True)
def _torch_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    for place, name in (
        (torch, "manual_seed"),
        (torch.random, "manual_seed"),
        (torch.autograd, "backward"),
        (torch.amp.GradScaler, "scale"),
    ):
        monkeypatch.setattr(place, name, getattr(place, name))


def test_losses_are_noted_without_the_factor_of_the_scaler() -> None:
    losses, weight = LossWatch(), torch.ones(1, requires_grad=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    (2 * weight).sum().backward()
    scaler.scale((4 * weight).sum()).backward()
    assert losses.take() == torch.tensor(3.0)
    assert losses.take() is None


def test_seeds_are_shifted() -> None:
    torch.manual_seed(7)
    plain = torch.rand(3)
    shift = SeedShift(2)
    assert not shift.has_seeded
    torch.manual_seed(5)
    assert shift.has_seeded
    assert torch.equal(torch.rand(3), plain)


def train(watch: TrainingWatch, weight: torch.nn.Parameter, step: torch.Tensor, steps: int) -> None:
    optimizer = torch.optim.SGD([weight], lr=1.0)
    for _ in range(steps):
        optimizer.zero_grad()
        (weight * step).sum().backward()
        optimizer.step()
        watch.add_step()


def test_a_training_is_described_in_points_and_its_drift_is_a_share_of_eagers_way(tmp_path: Path) -> None:
    losses, steps = LossWatch(), 2 * POINTS
    found = {}
    for arm, size in (("eager", 1.0), ("compiled", 1.1)):
        weight = torch.nn.Parameter(torch.zeros(10_000))
        watch = TrainingWatch(losses, [torch.optim.SGD([weight])], steps, tmp_path / "0.pt")
        train(watch, weight, torch.full_like(weight, size), steps)
        found[arm] = watch.describe(arm, 0, seeded=True)
    eager, compiled = found["eager"], found["compiled"]
    assert (eager.every, len(eager.losses), len(compiled.drift), eager.drift) == (2, POINTS, POINTS, ())
    assert eager.gradient_norms == pytest.approx([100.0] * POINTS)
    assert eager.losses[0] == pytest.approx(-5000.0)  # 0 in the first step, then -10000
    assert compiled.drift == pytest.approx([0.1] * POINTS, rel=1e-3)


def test_a_sketch_keeps_lengths_of_differences() -> None:
    torch.manual_seed(0)
    one = [torch.randn(300, 50), torch.randn(7)]
    other = [tensor + 0.01 * torch.randn_like(tensor) for tensor in one]
    true = torch.cat([(a - b).flatten() for a, b in zip(one, other, strict=True)]).norm()
    assert (sketch(one) - sketch(other)).norm() == pytest.approx(float(true), rel=0.05)
