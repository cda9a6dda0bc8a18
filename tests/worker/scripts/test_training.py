"""What is noted of a training: losses, norms of gradients, where weights go, and the seeds of the
script.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sweeper.core.record import Training
from sweeper.core.serialization import from_json, to_json
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
    (scaler.scale((16 * weight).sum()) / 4).backward()
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


def test_a_training_is_described_in_points_and_how_far_arms_are_apart_is_a_share_of_eagers_way(
    tmp_path: Path,
) -> None:
    losses, steps = LossWatch(), 2 * POINTS
    found = {}
    for arm, size in (("eager", 1.0), ("compiled", 1.1)):
        weight = torch.nn.Parameter(torch.zeros(10_000))
        watch = TrainingWatch(losses, [torch.optim.SGD([weight])], steps, tmp_path / "0.pt")
        train(watch, weight, torch.full_like(weight, size), steps)
        found[arm] = watch.describe(arm, 0, seeded=True)
    eager, compiled = found["eager"], found["compiled"]
    assert (eager.steps, eager.every) == (steps, 2)
    assert (len(eager.losses), len(compiled.apart), eager.apart) == (POINTS, POINTS, ())
    assert eager.gradient_norms == pytest.approx([100.0] * POINTS)
    assert eager.losses[0] == pytest.approx(-5000.0)  # 0 in the first step, then -10000
    assert compiled.apart == pytest.approx([0.1] * POINTS, rel=1e-3)


def test_weights_that_are_not_finite_have_no_distance(tmp_path: Path) -> None:
    for arm, size in (("eager", 1.0), ("compiled", float("nan"))):
        weight = torch.nn.Parameter(torch.zeros(10))
        watch = TrainingWatch(LossWatch(), [torch.optim.SGD([weight])], POINTS, tmp_path / "0.pt")
        train(watch, weight, torch.full_like(weight, size), POINTS)
        found = watch.describe(arm, 0, seeded=True)
    assert set(found.apart) == set(found.gradient_norms) == {None}
    assert from_json(Training, json.loads(json.dumps(to_json(found)))) == found


@pytest.mark.parametrize("shape", [(300, 50), (256, 4096)])
def test_a_sketch_keeps_the_length_of_a_column(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    change = torch.zeros(shape)
    change[:, 7] = torch.randn(shape[0])
    assert (sketch([change]) - sketch([torch.zeros(shape)])).norm() == pytest.approx(
        float(change.norm()), rel=0.05
    )


def test_a_sketch_keeps_lengths_of_differences() -> None:
    torch.manual_seed(0)
    one = [torch.randn(300, 50), torch.randn(7)]
    other = [tensor + 0.01 * torch.randn_like(tensor) for tensor in one]
    true = torch.cat([(a - b).flatten() for a, b in zip(one, other, strict=True)]).norm()
    assert (sketch(one) - sketch(other)).norm() == pytest.approx(float(true), rel=0.05)
