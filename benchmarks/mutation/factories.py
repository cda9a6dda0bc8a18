"""Tiny models with parts that the libraries' models lack, for `Model("custom",
"mutation.factories:NAME")`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from timm.models.mlp_mixer import MlpMixer
from torch import Tensor, nn
from torch.nn import functional

WIDTH, VOCABULARY, TOKENS = 32, 64, 12
Built = tuple[nn.Module, tuple[Tensor, ...], Callable[[Tensor], Tensor]]


class Bags(nn.Module):
    """Sums over bags of numbers; where each bag begins is given by offsets, which the forward
    makes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(VOCABULARY, WIDTH, mode="sum")
        self.dense = nn.Linear(8, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 4))

    def forward(self, numbers: Tensor, dense: Tensor) -> Tensor:
        offsets = torch.arange(len(numbers), device=numbers.device) * numbers.shape[1]
        return self.head(self.norm(self.bags(numbers.flatten(), offsets) + self.dense(dense)))


def embedding_bag(batch_size: int, device: torch.device) -> Built:
    numbers = torch.randint(VOCABULARY, (batch_size, 6), device=device)
    return Bags().to(device), (numbers, torch.randn(batch_size, 8, device=device)), _square


class Experts(nn.Module):
    """A dense mixture: every expert sees every token, and the gate weighs what they give."""

    def __init__(self, experts: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, experts)
        self.up = nn.Parameter(torch.randn(experts, WIDTH, 2 * WIDTH) / WIDTH**0.5)
        self.down = nn.Parameter(torch.randn(experts, 2 * WIDTH, WIDTH) / (2 * WIDTH) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.gelu(torch.einsum("btd,edh->beth", x, self.up))
        given = torch.einsum("beth,ehd->betd", hidden, self.down)
        return torch.einsum("bte,betd->btd", self.gate(x).softmax(-1), given)


class Layers(nn.Module):
    """Tokens through residual layers, and a head."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(layers)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in layers)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))
        return self.head(x)


class CausalAttention(nn.Module):
    """Attention written out, with a mask made by `torch.tril` in each step."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.all = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.all(x).chunk(3, -1)
        )
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        mask = torch.tril(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device))
        mixed = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ value
        return self.out(mixed.transpose(1, 2).flatten(2))


class Gates(nn.Module):
    """A recurrent layer with the gates of a GRU, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.state = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        state, states = torch.zeros_like(x[:, 0]), []
        for step in self.inputs(x).unbind(1):
            parts = zip(step.chunk(3, -1), self.state(state).chunk(3, -1), strict=True)
            (reset_in, reset), (update_in, update), (new_in, new) = parts
            update = torch.sigmoid(update_in + update)
            new = torch.tanh(new_in + torch.sigmoid(reset_in + reset) * new)
            state = (1 - update) * new + update * state
            states.append(state)
        return torch.stack(states, 1)


class Mixed(nn.Module):
    """An MLP over channels whose last layer begins at zero, as residual branches of large models
    do.
    """

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        nn.init.zeros_(self.down.weight)
        nn.init.zeros_(self.down.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.gelu(self.up(x)))


def _tokens(batch_size: int, device: torch.device, *layers: nn.Module) -> Built:
    tokens = torch.randint(VOCABULARY, (batch_size, TOKENS), device=device)
    return Layers(*layers).to(device), (tokens,), _surprise


def _surprise(logits: Tensor) -> Tensor:
    """Cross entropy with the classes 0, 1, ... in turn, for there are no labels."""
    flat = logits.flatten(0, -2).float()
    return functional.cross_entropy(
        flat, torch.arange(len(flat), device=flat.device) % flat.shape[-1]
    )


def _square(output: Tensor) -> Tensor:
    return (output.float() - 1).square().mean()


def mixture_of_experts(batch_size: int, device: torch.device) -> Built:
    return _tokens(batch_size, device, CausalAttention(), Experts(), CausalAttention(), Experts())


def causal_transformer(batch_size: int, device: torch.device) -> Built:
    return _tokens(batch_size, device, CausalAttention(), Mixed(), CausalAttention(), Mixed())


def recurrent(batch_size: int, device: torch.device) -> Built:
    return _tokens(batch_size, device, Gates())


def mixer(batch_size: int, device: torch.device) -> Built:
    """timm's MLP-Mixer; the sizes of those that it has by name cannot be changed."""
    module = MlpMixer(num_classes=10, img_size=32, patch_size=8, num_blocks=2, embed_dim=48)
    return module.to(device), (torch.randn(batch_size, 3, 32, 32, device=device),), _surprise


class Autoencoder(nn.Module):
    """Convolutions down and up again, each with batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        down = [
            nn.Conv2d(3, 16, 3, 2, 1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, 1),
            nn.BatchNorm2d(32),
        ]
        up = [
            nn.ReLU(),
            nn.ConvTranspose2d(32, 16, 2, 2),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.ConvTranspose2d(16, 3, 2, 2),
        ]
        self.layers = nn.Sequential(*down, *up)

    def forward(self, images: Tensor) -> Tensor:
        return functional.mse_loss(self.layers(images), images, reduction="none").mean((1, 2, 3))


def autoencoder(batch_size: int, device: torch.device) -> Built:
    return (
        Autoencoder().to(device),
        (torch.randn(batch_size, 3, 32, 32, device=device),),
        torch.mean,
    )


class Answers(nn.Module):
    """Several outputs of floats and whole numbers, and means of weights and outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.teacher = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.means = {"hidden": torch.zeros(WIDTH)}

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = self.layer(x).tanh()
        logits = self.head(hidden)
        with torch.no_grad():
            self.teacher.weight.lerp_(self.layer.weight, 0.01)
            self.means["hidden"].lerp_(hidden.mean(0).float(), 0.1)
        codes = (8 * hidden).round().to(torch.int8)
        ids = logits.argmax(-1)
        return {
            "hidden": hidden,
            "taught": self.teacher(x).tanh(),
            "logits": logits,
            "ids": ids,
            "codes": codes,
            "mask": hidden > 0,
        }


def answers(batch_size: int, device: torch.device) -> tuple[nn.Module, Any, Any]:
    inputs = (torch.randn(batch_size, WIDTH, device=device),)
    return Answers().to(device), inputs, lambda output: _square(output["logits"])
