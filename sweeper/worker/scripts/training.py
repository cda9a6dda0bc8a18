"""A training of a script from beginning to end: its losses, the norms of its gradients, and where
its weights go.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch.optim import Optimizer

from sweeper.core.record import Training

POINTS = 30  # of each curve
# of a sketch, a prime: a column of a weight fills all of them. Lengths are right within 3 %
BUCKETS = 4093


class SeedShift:
    """Adds to the seeds that the script gives to `torch.manual_seed`, itself or through a
    library.
    """

    def __init__(self, shift: int) -> None:
        self.has_seeded = False
        seed_generators: Callable[[int], torch.Generator] = torch.manual_seed

        def manual_seed(seed: int) -> torch.Generator:
            self.has_seeded = True
            return seed_generators(int(seed) + shift)

        for place in (torch, torch.random):
            setattr(place, "manual_seed", manual_seed)  # noqa: B010  # a function of ours, to mypy


class LossWatch:
    """Notes what the script calls `backward` on, without the factor of a gradient scaler."""

    def __init__(self) -> None:
        self._losses: list[torch.Tensor] = []
        self._factor: torch.Tensor | None = None  # of what the script calls `backward` on next
        backward, scale = torch.autograd.backward, torch.amp.GradScaler.scale

        def note(tensors: Any, *arguments: Any, **options: Any) -> None:
            given = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
            found = [
                loss.detach().float().reshape(()).clone() for loss in given if loss.numel() == 1
            ]
            self._losses += (
                found if self._factor is None else [loss / self._factor for loss in found]
            )
            self._factor = None
            backward(tensors, *arguments, **options)

        def note_scale(scaler: torch.amp.GradScaler, outputs: Any) -> Any:
            scaled = scale(scaler, outputs)
            self._factor = None if scaler._scale is None else scaler._scale.clone()
            return scaled

        setattr(torch.autograd, "backward", note)  # noqa: B010
        setattr(torch.amp.GradScaler, "scale", note_scale)  # noqa: B010

    def take(self) -> torch.Tensor | None:
        """The mean of the losses since the last time."""
        losses, self._losses = self._losses, []
        return torch.stack(losses).mean() if losses else None


class TrainingWatch:
    """Follows a training from one step to the next; `weights` is where eager's are kept for the
    compiled training.
    """

    def __init__(
        self, losses: LossWatch, optimizers: Iterable[Optimizer], steps: int, weights: Path
    ) -> None:
        self._losses, self._weights = losses, weights
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        self._parameters: list[torch.Tensor] = [
            item for group in groups for item in group["params"]
        ]
        self._every = math.ceil(steps / POINTS)
        self._rows: list[tuple[torch.Tensor | None, torch.Tensor | None]] = []
        self._sketches = [sketch(self._parameters)]

    @property
    def num_steps(self) -> int:
        return len(self._rows)

    def add_step(self) -> None:
        """Note a step that has ended."""
        gradients = [item.grad.detach() for item in self._parameters if item.grad is not None]
        norm = (
            torch.stack([item.float().norm() for item in gradients]).norm() if gradients else None
        )
        self._rows.append((self._losses.take(), norm))
        if len(self._rows) % self._every == 0:
            self._sketches.append(sketch(self._parameters))

    def describe(self, arm: str, shift: int, seeded: bool) -> Training:
        """What the training was; in eager, also keep where its weights went, for the compiled
        one.
        """
        losses, norms = (_average(column, self._every) for column in zip(*self._rows, strict=True))
        sketches = torch.stack(self._sketches).cpu()
        apart: tuple[float | None, ...] = ()
        if arm == "eager":
            torch.save(sketches, self._weights)
        else:
            eager = torch.load(self._weights, weights_only=True)
            both = min(len(eager), len(sketches))
            distance = (sketches[1:both] - eager[1:both]).norm(dim=1)
            way = (eager[1:both] - eager[0]).norm(dim=1)
            apart = tuple(map(_finite, (distance / way.clamp_min(1e-30)).tolist()))
        return Training(arm, shift, self.num_steps, self._every, losses, norms, apart, seeded)


def sketch(parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    """Weights in `BUCKETS` numbers, whose differences are about as long as those of the weights
    themselves.

    A number goes into the bucket of its place, with a sign by chance, always the same one.
    """
    device = parameters[0].device
    generator = torch.Generator(device).manual_seed(0)
    total = torch.zeros(BUCKETS, device=device)
    for parameter in parameters:
        values = parameter.detach().to(device, torch.float32).flatten()
        signs = (
            torch.randint(0, 2, values.shape, generator=generator, device=device, dtype=torch.int8)
            * 2
            - 1
        )
        padded = torch.nn.functional.pad(values * signs, (0, -len(values) % BUCKETS))
        total += padded.view(-1, BUCKETS).sum(0)
    return total


def _average(column: Sequence[torch.Tensor | None], every: int) -> tuple[float | None, ...]:
    """The means of `every` steps each; None where they have no number."""
    values = [float(item) if item is not None else math.nan for item in column]
    chunks = (values[begin : begin + every] for begin in range(0, len(values), every))
    finite = ([value for value in chunk if math.isfinite(value)] for chunk in chunks)
    return tuple(fmean(chunk) if chunk else None for chunk in finite)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
