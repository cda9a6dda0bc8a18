"""A step reduced to a few numbers for each tensor, beside the mean of other steps, its
direction.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch.nn.functional import pad

from sweeper.worker.measurement.capture import GRADIENT, LOSS, Named, to_reals

from .rule import CHUNK, DifferentTensorsError, pair_up, split

BLOCKS = 64


class Reduced(NamedTuple):
    """What is kept of a tensor x of one step; m is the direction."""

    blocks: torch.Tensor  # <x, m> by blocks of elements, float64 [BLOCKS]
    distance: float  # |x - m|^2
    zeros: int  # among the elements where m is not negligible
    finite: bool = True


class Size(NamedTuple):
    """The size of the direction of a tensor."""

    square: float  # <m, m>
    elements: int
    least: float  # elements of m up to this one are negligible
    counted: int  # elements that are not
    has_nan: bool = False
    has_infinity: bool = False


class StepDistance(NamedTuple):
    """How far two steps of one seed are from each other, in one tensor."""

    square: float = 0.0  # |x' - x|^2
    log_odds: float = 0.0  # of exact zeros


class Direction:
    """The mean of steps. Where it is infinite, as masked logits are, elements of all steps are left
    out.
    """

    def __init__(self, means: Mapping[str, torch.Tensor]) -> None:
        self._means = dict(means)
        self.sizes: dict[str, Size] = {}
        self.gradients: dict[str, Size] = {}
        for name, mean in means.items():
            square = sum(
                float(m.nan_to_num(0.0, 0.0, 0.0).square().sum()) for m, _ in _split(mean, mean)
            )
            # of the root mean square: whether smaller elements are zero is up to rounding
            least = 1e-3 * math.sqrt(square / max(1, mean.numel()))
            counted = sum(int((m.abs() > least).sum()) for m, _ in _split(mean, mean))
            has_nan, has_infinity = bool(mean.isnan().any()), bool(mean.isinf().any())
            self.sizes[name] = Size(square, mean.numel(), least, counted, has_nan, has_infinity)
            if name.startswith(GRADIENT):
                self.gradients[name] = self.sizes[name]

    def reduce(self, step: Named) -> dict[str, Reduced]:
        """Reduce a step.

        Raises DifferentTensorsError when it does not have the tensors of the direction.
        """
        found = {}
        for name, tensor, mean in pair_up(step, self._means, "eager"):
            if name not in self.sizes:
                raise DifferentTensorsError(f"{name}, where eager changes nothing")
            found[name] = _sum_up(tensor, mean, self.sizes[name])
        if not found:
            return {}
        device = next(iter(found.values())).device
        # the host waits once
        on_host = torch.stack([sums.to(device) for sums in found.values()]).cpu()
        reduced = {}
        for name, sums in zip(found, on_host, strict=True):
            distance, zeros = sums[BLOCKS:].tolist()
            finite = bool(sums.isfinite().all())
            reduced[name] = Reduced(sums[:BLOCKS], distance, int(zeros), finite)
        return reduced

    def compare(self, step: Named, other: Mapping[str, torch.Tensor]) -> dict[str, StepDistance]:
        """Compare two steps of one seed; elements that are not finite in both are left out."""
        changes = {}
        for name, tensor in step:
            if name not in other:
                continue
            square = 0.0
            for x, y in _split(tensor, other[name]):
                square += float((x - y).nan_to_num(0.0, 0.0, 0.0).square().sum())
            odds = self._compute_log_odds(name, tensor) - self._compute_log_odds(name, other[name])
            changes[name] = StepDistance(square, float(odds.abs()))
        return changes

    def _compute_log_odds(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        size, zeros = self.sizes[name], torch.tensor(0)
        for x, m in _split(tensor, self._means[name]):
            zeros = zeros + _count_zeros(x, m, size.least)
        return compute_log_odds(zeros, size.counted)

    @property
    def loss(self) -> float:
        """The loss of a training step; without one NaN."""
        return float(self._means[LOSS]) if LOSS in self._means else math.nan

    def displace(self, module: torch.nn.Module, alpha: float, factor: float) -> bool:
        """Add to parameters what their gradients, divided by `factor`, are more than the direction,
        times `alpha`.

        False where the parameters' number format would swallow it.
        """
        moved = []
        for name, parameter in module.named_parameters():
            if f"{GRADIENT}{name}" in self._means:
                if torch.finfo(parameter.dtype).eps > 1e-6:
                    return False
                moved.append((parameter, self._means[f"{GRADIENT}{name}"]))
        with torch.no_grad():
            for parameter, mean in moved:
                assert parameter.grad is not None, "a gradient is gone"
                target, grad = to_reals(parameter), to_reals(parameter.grad)
                mean = mean.to(target.device, target.dtype)
                target.add_((grad / factor - mean).nan_to_num(0.0, 0.0, 0.0), alpha=alpha)
        return True

    def move(self, place: torch.device) -> None:
        """Hold the means at another place from now on."""
        self._means = {name: mean.to(place) for name, mean in self._means.items()}


def join(parts: Iterable[Reduced]) -> Reduced:
    """Several tensors as one; exact zeros are left to the single ones."""
    blocks, distances, _, finite = zip(*parts, strict=True)
    return Reduced(torch.cat(blocks), sum(distances), 0, all(finite))


def compute_log_odds(zeros: torch.Tensor, elements: int) -> torch.Tensor:
    """The log odds of the share of zeros; half an element keeps it from 0 and 1."""
    return ((zeros + 0.5) / (elements - zeros + 0.5)).log()


def _sum_up(tensor: torch.Tensor, mean: torch.Tensor, size: Size) -> torch.Tensor:
    """The numbers of a `Reduced`, where the tensor lies, without waiting for them: float64 [BLOCKS
    + 2].
    """
    sums = torch.zeros(BLOCKS + 2, dtype=torch.float64, device=tensor.device)
    for x, m in _split(tensor, mean):
        sums[BLOCKS + 1] += _count_zeros(x, m, size.least)
        if size.has_infinity:
            finite = torch.isfinite(m)
            x, m = torch.where(finite, x, 0.0), torch.where(finite, m, 0.0)
        sums[:BLOCKS] += pad(x * m, (0, -len(x) % BLOCKS)).view(-1, BLOCKS).sum(0)
        difference = x - m
        sums[BLOCKS] += torch.dot(difference, difference)
    return sums


def _split(one: torch.Tensor, other: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Chunks of two tensors in fp64, where the first one lies."""
    # 512 KiB in fp64 stay in the cache of a CPU, and sums take a fifth of the time
    return split(one, other, 1 << 16 if one.device.type == "cpu" else CHUNK)


def _count_zeros(x: torch.Tensor, m: torch.Tensor, least: float) -> torch.Tensor:
    return ((x == 0) & (m.abs() > least)).sum()
