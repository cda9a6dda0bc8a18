"""Dropout is off, in every way in which a model may have it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from sweeper.core.trial import Labels, Model, Trial
from sweeper.worker import models
from sweeper.worker.models.dropout import silence_dropout

CPU = torch.device("cpu")


def draws(module: nn.Module, *inputs: torch.Tensor) -> bool:
    """Whether a step of training draws random numbers."""
    before = torch.get_rng_state()
    module.train()(*inputs).sum().backward()
    return not torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("library", "name", "arguments"),
    [
        ("timm", "ghostnet_100", {}),
        ("timm", "lcnet_050", {"drop_rate": 0.2, "drop_path_rate": 0.2}),
        (
            "timm",
            "vit_tiny_patch16_224",
            {"patch_drop_rate": 0.5, "attn_drop_rate": 0.1, "drop_path_rate": 0.1},
        ),
        pytest.param(
            "torchvision",
            "swin_t",
            {"dropout": 0.1, "attention_dropout": 0.1},
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_step_of_a_model_of_a_library_draws_nothing(
    library: str, name: str, arguments: dict[str, Any]
) -> None:
    for dropout in (True, False):
        model = Model(library, name, image_size=64, arguments=arguments, dropout=dropout)
        built = models.build(Trial(model, 2, Labels(name, "fp32"), device="cpu"), 0, CPU)
        assert draws(built.module, *built.batches[0].args) is dropout


@dataclass
class Inner:
    attn_dropout: float = 0.2
    eps: float = 0.1


@dataclass(frozen=True)
class Config:
    dropout: float = 0.1
    inner: Inner = field(default_factory=Inner)
    drop_last: bool = True
    droplet_size: float = 3.7


class Functional(nn.Module):
    """Dropout from an attribute, a configuration, a configuration in it, a dictionary and parsed
    arguments.
    """

    share_dropped = 0.5

    def __init__(self) -> None:
        super().__init__()
        self.drop_path_rate, self.scale, self.dropout_p = 0.3, 0.5, 0
        self.config, self.options = Config(), {"dropout": 0.1, "scale": 0.5}
        self.args = argparse.Namespace(Dropout=0.1)
        self.odd = nn.Dropout2d(0.1)
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        config = self.config
        rates = (
            self.drop_path_rate,
            config.dropout,
            config.inner.attn_dropout,
            self.options["dropout"],
        )
        for rate in (*rates, self.args.Dropout, self.share_dropped):
            x = functional.dropout(self.layer(x), rate, self.training)
        return x * self.scale


def test_rates_that_a_function_is_given_are_zero() -> None:
    module, x = Functional(), torch.randn(2, 4)
    assert draws(module, x)
    silence_dropout(module)
    assert not draws(module, x)


def test_floats_that_are_no_rates_stay() -> None:
    module = Functional()
    silence_dropout(module)
    assert (module.scale, module.options["scale"], module.config.inner.eps) == (0.5, 0.5, 0.1)
    assert (module.config.drop_last, module.config.droplet_size) == (True, 3.7)
    assert Functional.share_dropped == 0.5, "that of the class, which another model may share"


class PatchDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.prob, self.scale = 0.5, 0.5


class Noise(nn.Dropout):
    """A name without the word."""


def test_modules_of_dropout_are_known_by_class_and_by_name() -> None:
    module = nn.ModuleDict(
        {"patch": PatchDropout(), "noise": Noise(0.5), "rnn": nn.LSTM(4, 4, 2, dropout=0.5)}
    )
    module["attention"] = nn.MultiheadAttention(4, 2, dropout=0.5)
    silence_dropout(module)
    assert (module["patch"].prob, module["patch"].scale, module["noise"].p) == (0.0, 0.5, 0.0)
    assert (module["rnn"].dropout, module["attention"].dropout) == (0.0, 0.0)
