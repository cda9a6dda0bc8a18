"""A step reduced to a few numbers for each tensor, beside the mean of other steps, its
direction.
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch

from sweeper.worker.measurement.capture import GRADIENT, LOSS, Named, to_reals

from .chunks import ROW, Chunk, sum_up
from .rule import DifferentTensorsError, pair_up


class Reduced(NamedTuple):
    """What is kept of a tensor x of one step; m is the direction."""

    blocks: torch.Tensor  # <x, m> by blocks of elements, float64 [ROW]
    distance: float  # |x - m|^2
    zeros: int  # among the elements where m is not negligible
    finite: bool = True


class Size(NamedTuple):
    """The size of the direction of a tensor."""

    square: float  # <m, m>
    elements: int
    least: float  # elements of m up to this one are negligible
    counted: int  # elements that are not


class StepDistance(NamedTuple):
    """How far two steps of one seed are from each other, in one tensor."""

    square: float = 0.0  # |x' - x|^2
    log_odds: float = 0.0  # of exact zeros


class Direction:
    """The mean of steps. Where it is infinite, as masked logits are, elements of all steps are left
    out; where it is NaN, no step is finite beside it.
    """

    def __init__(self, means: Mapping[str, torch.Tensor]) -> None:
        self._means = dict(means)
        self.sizes: dict[str, Size] = {}
        alone = {name: (mean,) for name, mean in means.items()}
        squares = sum_up(alone, _sum_squares)
        leasts = {}
        for name, mean in means.items():
            # of the root mean square: whether smaller elements are zero is up to rounding
            leasts[name] = 1e-3 * math.sqrt(float(squares[name]) / max(1, mean.numel()))
        counts = sum_up(alone, lambda chunk: _count_large(chunk, leasts))
        for name, mean in means.items():
            square, counted = float(squares[name]), int(counts[name])
            self.sizes[name] = Size(square, mean.numel(), leasts[name], counted)
        self.gradients = {
            name: size for name, size in self.sizes.items() if name.startswith(GRADIENT)
        }

    def reduce(self, step: Named) -> dict[str, Reduced]:
        """Reduce a step.

        Raises DifferentTensorsError when it does not have the tensors of the direction.
        """
        given = {}
        for name, tensor, mean in pair_up(step, self._means, "eager"):
            if name not in self.sizes:
                raise DifferentTensorsError(f"{name}, where eager changes nothing")
            given[name] = tensor, mean
        reduced = {}
        for name, sums in sum_up(given, self._reduce).items():
            distance, zeros = sums[ROW:].tolist()
            finite = bool(sums.isfinite().all())
            reduced[name] = Reduced(sums[:ROW], distance, int(zeros), finite)
        return reduced

    def _reduce(self, chunk: Chunk) -> torch.Tensor:
        """The numbers of a `Reduced`, by pieces: float64 [pieces, ROW + 2]."""
        x, m = chunk.tensors
        zeros = self._count_zeros(chunk, x, m)
        left_out = m.isinf()
        x, m = torch.where(left_out, 0.0, x), torch.where(left_out, 0.0, m)
        distances = chunk.sum_pieces(_square_rows(x - m))
        return torch.column_stack([chunk.sum_pieces(x * m), distances, zeros])

    def compare(self, step: Named, other: Mapping[str, torch.Tensor]) -> dict[str, StepDistance]:
        """Compare the tensors that two steps of one seed have in common; elements that are not
        finite in both are left out.
        """
        given = {
            name: (tensor, other[name], self._means[name]) for name, tensor in step if name in other
        }
        changes = {}
        for name, sums in sum_up(given, self._compare).items():
            first, second = compute_log_odds(sums[1:], self.sizes[name].counted)
            changes[name] = StepDistance(float(sums[0]), float((first - second).abs()))
        return changes

    def _compare(self, chunk: Chunk) -> torch.Tensor:
        """The square of the difference, and the zeros of both steps: float64 [pieces, 3]."""
        one, two, mean = chunk.tensors
        squares = chunk.sum_pieces(_square_rows((one - two).nan_to_num(0.0, 0.0, 0.0)))
        zeros = [self._count_zeros(chunk, values, mean) for values in (one, two)]
        return torch.column_stack([squares, *zeros])

    def _count_zeros(self, chunk: Chunk, values: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        """Count the exact zeros of pieces where the direction is not negligible."""
        least = chunk.repeat(self.sizes[name].least for name in chunk.names)
        found = (values == 0) & (mean.abs() > least)
        return chunk.sum_pieces(found.sum(1, dtype=torch.float64))

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


def join(parts: Iterable[Reduced]) -> Reduced:
    """Several tensors as one; exact zeros are left to the single ones."""
    blocks, distances, _, finite = zip(*parts, strict=True)
    return Reduced(torch.cat(blocks), sum(distances), 0, all(finite))


def compute_log_odds(zeros: torch.Tensor, elements: int) -> torch.Tensor:
    """The log odds of the share of zeros; half an element keeps it from 0 and 1."""
    return ((zeros + 0.5) / (elements - zeros + 0.5)).log()


def _sum_squares(chunk: Chunk) -> torch.Tensor:
    """Squares of the elements that are finite."""
    return chunk.sum_pieces(_square_rows(chunk.tensors[0].nan_to_num(0.0, 0.0, 0.0)))


def _count_large(chunk: Chunk, leasts: Mapping[str, float]) -> torch.Tensor:
    least = chunk.repeat(leasts[name] for name in chunk.names)
    return chunk.sum_pieces((chunk.tensors[0].abs() > least).sum(1, dtype=torch.float64))


def _square_rows(values: torch.Tensor) -> torch.Tensor:
    squares: torch.Tensor = torch.linalg.vecdot(values, values)
    return squares
