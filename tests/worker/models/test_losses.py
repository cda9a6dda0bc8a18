"""The losses of models that compute none by themselves."""

from __future__ import annotations

import pytest
import torch

from sweeper.worker.models.batches import Batch, mean_of_floats, weighted_mean_of_floats

NOTHING = Batch(args=())


def test_a_weighted_mean_has_weights_by_sample_and_by_last_dimension() -> None:
    """Samples weigh 0.5 and -1.5, and three places 0.5, -1 and 1.5."""
    output = torch.tensor([[[2.0, 3.0, 4.0]], [[6.0, 9.0, 12.0]]], dtype=torch.float64)
    found = weighted_mean_of_floats({"logits": output, "mask": torch.ones(2)}, NOTHING)
    logits, mask = (0.5 * (1 - 3 + 6) - 1.5 * (3 - 9 + 18)) / 6, (0.5 - 1.5) / 2
    assert float(found) == pytest.approx((logits + mask) / 2)
    assert found.dtype == torch.float64


@pytest.mark.parametrize("shape", [(), (1,), (3,), (1, 1)])
def test_small_outputs_have_a_weighted_mean_too(shape: tuple[int, ...]) -> None:
    assert torch.isfinite(weighted_mean_of_floats(torch.ones(shape), NOTHING))


@pytest.mark.parametrize(
    "layer", [torch.nn.BatchNorm1d(16), torch.nn.Softmax(dim=-1), torch.nn.LayerNorm(16)]
)
def test_it_sends_gradients_back_where_a_plain_mean_sends_rounding(layer: torch.nn.Module) -> None:
    inputs = torch.randn(32, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    sizes = []
    for loss in (mean_of_floats, weighted_mean_of_floats):
        given = inputs.clone().requires_grad_()
        loss(layer.double()(given), NOTHING).backward()  # type: ignore[no-untyped-call]
        assert given.grad is not None
        sizes.append(float(given.grad.abs().max()))
    assert sizes[0] < 1e-15 < 1e-5 < sizes[1]


def test_an_output_without_floats_has_no_mean() -> None:
    with pytest.raises(ValueError, match="no floating-point tensor"):
        weighted_mean_of_floats(torch.ones(3, dtype=torch.int64), NOTHING)
