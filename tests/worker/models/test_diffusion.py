"""The two diffusion networks: as large as published, and trained on the error of the predicted
noise.
"""

from __future__ import annotations

import pytest
import torch

from sweeper.worker.models.diffusion import DiT, Factory, NoisePrediction, UNet, dit_b2, unet_ddpm

CPU, META = torch.device("cpu"), torch.device("meta")


def small(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    if name == "dit":
        return DiT(width=32, depth=2, heads=2, side=8, channels=3, patch=2, classes=5)
    return UNet(channels=3, widths=(32, 64), blocks=1, attends=(1,))


def inputs(name: str) -> list[torch.Tensor]:
    torch.manual_seed(1)
    labels = [torch.tensor([1, 4])] if name == "dit" else []
    return [torch.randn(2, 3, 8, 8), torch.randn(2, 3, 8, 8), torch.tensor([10, 900]), *labels]


@pytest.mark.parametrize(("factory", "millions"), [(dit_b2, 130), (unet_ddpm, 35.7)])
def test_networks_have_as_many_parameters_as_published(factory: Factory, millions: float) -> None:
    module, batches, _ = factory(1, META)  # type: ignore[operator]
    count = sum(parameter.numel() for parameter in module.parameters())
    assert count / 1e6 == pytest.approx(millions, rel=0.005)
    assert len(batches) == 3


@pytest.mark.parametrize("name", ["dit", "unet"])
def test_network_begins_by_predicting_nothing_so_that_the_error_is_the_noise(name: str) -> None:
    module, (images, noise, *rest) = NoisePrediction(small(name)), inputs(name)
    torch.testing.assert_close(module.train()(images, noise, *rest), -noise)
    assert not module.eval()(images, noise, *rest).any()


@pytest.mark.parametrize("name", ["dit", "unet"])
def test_every_parameter_is_trained_and_every_input_counts(name: str) -> None:
    module, given = NoisePrediction(small(name)), inputs(name)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    error = module(*given)
    error.square().mean().backward()
    assert all(
        parameter.grad is not None and parameter.grad.any() for parameter in module.parameters()
    )
    for index, tensor in enumerate(given):
        other = [*given]
        other[index] = tensor.flip(0)
        assert not torch.allclose(module(*other), error)


def test_noise_is_mixed_in_by_the_timestep() -> None:
    class Same(torch.nn.Module):
        def forward(self, noisy: torch.Tensor, _timesteps: torch.Tensor) -> torch.Tensor:
            return noisy

    images, noise = torch.ones(2, 1, 1, 1), torch.zeros(2, 1, 1, 1)
    kept = NoisePrediction(Same())(images, noise, torch.tensor([0, 999])).flatten().tolist()
    assert kept == pytest.approx([(1 - 1e-4) ** 0.5, 4e-5**0.5], rel=0.01)
