"""Two networks that predict the noise in an image, `model=dit_b2` and `model=unet_ddpm`, in the
sizes of their papers.

DiT-B/2 is a stack of transformer blocks on patches of latents (Peebles and Xie 2023,
https://arxiv.org/abs/2212.09748). The U-Net is the one of denoising diffusion for CIFAR-10 (Ho et
al. 2020, https://arxiv.org/abs/2006.11239).

Try: `python -m sweeper model=unet_ddpm batch_size=2`
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

TIMESTEPS = 1000  # Ho et al., section 4, as are the first and the last variance
VARIANCES = (1e-4, 0.02)
PERIOD = 10_000  # the longest of the sinusoids
LONG = 4  # the hidden width of an MLP, in widths of its input

Tensors = tuple[torch.Tensor, ...]
Factory = tuple[nn.Module, list[Tensors], Callable[[torch.Tensor], torch.Tensor]]


class NoisePrediction(nn.Module):
    """Adds noise to images and predicts it: in training the output is the error of the prediction.

    In evaluation mode the images are taken to be noisy already, and the output is the prediction.
    """

    signal: torch.Tensor

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("signal", torch.cumprod(1 - torch.linspace(*VARIANCES, TIMESTEPS), 0))

    def forward(
        self,
        images: torch.Tensor,
        noise: torch.Tensor,
        timesteps: torch.Tensor,
        *labels: torch.Tensor,
    ) -> torch.Tensor:
        """images, noise: float32 [batch, channels, side, side]; timesteps, labels: int64
        [batch].
        """
        if not self.training:
            return self.network(images, timesteps, *labels)  # type: ignore[no-any-return]
        signal = self.signal[timesteps].view(-1, 1, 1, 1)
        noisy = signal.sqrt() * images + (1 - signal).sqrt() * noise
        return self.network(noisy, timesteps, *labels) - noise  # type: ignore[no-any-return]


class TimeEmbedding(nn.Module):
    """Sinusoids of the timestep and an MLP: int64 [batch] to [batch, out]."""

    def __init__(self, sinusoids: int, out: int) -> None:
        super().__init__()
        self.frequencies = sinusoids // 2
        self.first, self.second = nn.Linear(sinusoids, out), nn.Linear(out, out)

    def forward(self, timesteps: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(self.frequencies, device=timesteps.device)
        angles = timesteps[:, None] * torch.exp(-math.log(PERIOD) / self.frequencies * steps)
        waves = torch.cat([angles.cos(), angles.sin()], dim=1)
        return self.second(functional.silu(self.first(waves.to(self.first.weight.dtype))))  # type: ignore[no-any-return]


class DiTBlock(nn.Module):
    """Attention and an MLP; scales, shifts and gates come from the condition and begin at zero
    (adaLN-Zero).
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = (
            nn.LayerNorm(width, eps=1e-6, elementwise_affine=False) for _ in range(2)
        )
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, LONG * width),
            nn.GELU(approximate="tanh"),
            nn.Linear(LONG * width, width),
        )
        self.modulation = nn.Sequential(nn.SiLU(), _zero(nn.Linear(width, 6 * width)))

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        """x: [batch, patches, width]; condition: [batch, width]."""
        shift1, scale1, gate1, shift2, scale2, gate2 = (
            self.modulation(condition).unsqueeze(1).chunk(6, dim=-1)
        )
        x = x + gate1 * self._attend(self.norm1(x) * (1 + scale1) + shift1)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)  # type: ignore[no-any-return]

    def _attend(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value)
        return self.projection(attended.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class DiT(nn.Module):
    """Latents [batch, channels, side, side] with timesteps and class labels, both int64 [batch], to
    their noise.
    """

    positions: torch.Tensor

    def __init__(
        self, width: int, depth: int, heads: int, side: int, channels: int, patch: int, classes: int
    ) -> None:
        super().__init__()
        self.patches, self.patch = side // patch, patch
        self.embed = nn.Conv2d(channels, width, patch, stride=patch)
        self.register_buffer("positions", _embed_positions(self.patches, width))
        self.time, self.classes = TimeEmbedding(256, width), nn.Embedding(classes, width)
        self.blocks = nn.ModuleList(DiTBlock(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=1e-6, elementwise_affine=False)
        self.modulation = nn.Sequential(nn.SiLU(), _zero(nn.Linear(width, 2 * width)))
        self.head = _zero(nn.Linear(width, channels * patch**2))

    def forward(
        self, latents: torch.Tensor, timesteps: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        x = self.embed(latents).flatten(2).transpose(1, 2) + self.positions
        condition = self.time(timesteps) + self.classes(labels)
        for block in self.blocks:
            x = block(x, condition)
        shift, scale = self.modulation(condition).unsqueeze(1).chunk(2, dim=-1)
        pixels = self.head(self.norm(x) * (1 + scale) + shift).transpose(1, 2)
        return functional.pixel_shuffle(
            pixels.unflatten(2, (self.patches, self.patches)), self.patch
        )


class ResidualBlock(nn.Module):
    """Two convolutions with group norm; the embedding of the timestep is added between them."""

    def __init__(self, channels: int, out: int, time: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(32, channels), nn.SiLU(), nn.Conv2d(channels, out, 3, padding=1)
        )
        self.time = nn.Linear(time, out)
        self.second = nn.Sequential(
            nn.GroupNorm(32, out), nn.SiLU(), _zero(nn.Conv2d(out, out, 3, padding=1))
        )
        self.shortcut = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """x: [batch, channels, side, side]; time: [batch, width]."""
        inner = self.first(x) + self.time(functional.silu(time))[:, :, None, None]
        return self.shortcut(x) + self.second(inner)  # type: ignore[no-any-return]


class ImageAttention(nn.Module):
    """Attention with one head among the pixels of [batch, channels, side, side]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.qkv = nn.GroupNorm(32, channels), nn.Conv2d(channels, 3 * channels, 1)
        self.projection = _zero(nn.Conv2d(channels, channels, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pixels = self.qkv(self.norm(x)).flatten(2).transpose(1, 2).unsqueeze(1)
        attended = functional.scaled_dot_product_attention(*pixels.chunk(3, dim=-1))
        return x + self.projection(attended.squeeze(1).transpose(1, 2).reshape(x.shape))  # type: ignore[no-any-return]


class Stage(nn.Module):
    """A residual block, followed by attention where the images are small."""

    def __init__(self, channels: int, out: int, time: int, attends: bool) -> None:
        super().__init__()
        self.block, self.attention = (
            ResidualBlock(channels, out, time),
            ImageAttention(out) if attends else None,
        )

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        x = self.block(x, time)
        return x if self.attention is None else self.attention(x)


class UNet(nn.Module):
    """Images [batch, channels, side, side] with timesteps int64 [batch] to their noise.

    `widths` are the channels at each resolution, of which each is half the one before; `attends`
    are the resolutions with attention, by their index.
    """

    def __init__(
        self, channels: int, widths: tuple[int, ...], blocks: int, attends: tuple[int, ...]
    ) -> None:
        super().__init__()
        first, last = widths[0], widths[-1]
        time = LONG * first
        self.time, self.stem = TimeEmbedding(first, time), nn.Conv2d(channels, first, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        kept, width = [first], first  # the channels of what goes across to the way up
        for level, out in enumerate(widths):
            for _ in range(blocks):
                self.down.append(Stage(width, out, time, level in attends))
                width = out
                kept.append(width)
            if level < len(widths) - 1:
                self.down.append(nn.Conv2d(width, width, 3, stride=2, padding=1))
                kept.append(width)
        self.middle = nn.ModuleList(
            [Stage(last, last, time, attends=True), Stage(last, last, time, attends=False)]
        )
        for level, out in reversed(list(enumerate(widths))):
            for _ in range(blocks + 1):
                self.up.append(Stage(width + kept.pop(), out, time, level in attends))
                width = out
            if level:
                self.up.append(
                    nn.Sequential(
                        nn.Upsample(scale_factor=2), nn.Conv2d(width, width, 3, padding=1)
                    )
                )
        self.head = nn.Sequential(
            nn.GroupNorm(32, first), nn.SiLU(), _zero(nn.Conv2d(first, channels, 3, padding=1))
        )

    def forward(self, images: torch.Tensor, timesteps: torch.Tensor) -> torch.Tensor:
        time, x = self.time(timesteps), self.stem(images)
        kept = [x]
        for part in self.down:
            x = part(x, time) if isinstance(part, Stage) else part(x)
            kept.append(x)
        for part in self.middle:
            x = part(x, time)
        for part in self.up:
            x = (
                part(torch.cat([x, kept.pop()], dim=1), time)
                if isinstance(part, Stage)
                else part(x)
            )
        return self.head(x)  # type: ignore[no-any-return]


def dit_b2(batch_size: int, device: torch.device) -> Factory:
    """DiT-B/2 for latents of images of 256 pixels a side, with the 1,000 classes of ImageNet."""
    network = DiT(width=768, depth=12, heads=12, side=32, channels=4, patch=2, classes=1000)
    return _predict_noise(network, (4, 32, 32), batch_size, device, classes=1000)


def unet_ddpm(batch_size: int, device: torch.device) -> Factory:
    """The U-Net for images of 32 pixels a side, without its dropout."""
    network = UNet(channels=3, widths=(128, 256, 256, 256), blocks=2, attends=(1,))
    return _predict_noise(network, (3, 32, 32), batch_size, device)


def _predict_noise(
    network: nn.Module,
    shape: tuple[int, ...],
    batch_size: int,
    device: torch.device,
    classes: int = 0,
) -> Factory:
    """The network with three batches and the mean squared error of the predicted noise."""

    def make_batch() -> Tensors:
        images, noise = (torch.randn(batch_size, *shape, device=device) for _ in range(2))
        ranges = (TIMESTEPS, classes) if classes else (TIMESTEPS,)
        return (
            images,
            noise,
            *(torch.randint(count, (batch_size,), device=device) for count in ranges),
        )

    module = NoisePrediction(network).to(device)
    return module, [make_batch() for _ in range(3)], lambda error: error.square().mean()


def _zero(layer: nn.Linear | nn.Conv2d) -> nn.Module:
    """The layer with zeros in it, so that its branch begins as nothing."""
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


def _embed_positions(side: int, width: int) -> torch.Tensor:
    """Sinusoids of rows and columns, float32 [side * side, width]."""
    frequencies = PERIOD ** -(torch.arange(width // 4) / (width // 4))
    angles = torch.arange(side)[:, None] * frequencies
    waves = torch.cat([angles.sin(), angles.cos()], dim=1)
    return torch.cat([waves.repeat(side, 1), waves.repeat_interleave(side, 0)], dim=1)
