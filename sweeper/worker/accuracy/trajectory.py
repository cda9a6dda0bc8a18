"""Does compiled code train a model as eager does? The differences of many steps, each from one
state.

In each step of a training the same inputs, weights, random numbers and gradients of the outputs go
through several arms: `eager`, `compiled`, eager whose weights and inputs are `moved` by what
rounding does, and under autocast eager without it, `longer`. Nothing is carried from step to step,
so no arm runs away from the others by chance. Of each tensor (outputs, gradients, changes of
buffers) five questions are asked, each by a figure relative to eager's size:

* typical: how far is the compiled one from eager, in the median of the steps?
* often: how far in one step of twenty, the 95th percentile?
* worst: how far in the worst step?
* drift: how long is the mean of the differences over all steps? Errors of rounding point anywhere
  and cancel out.
* gain: by how much is it longer or shorter than eager along eager's own direction, on average?

A figure is too large where it is several times that of the moved steps, above a least value and,
for drift and gain, larger than chance makes the mean of such differences. Beside `longer` 1.5 times
are enough, and compiled has to be further from `longer` than eager is: compiled code may round
where eager does not, and the other way around. `docs/decisions/same-training.md` has the error
rates.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import torch

from sweeper.core.record import Trajectory
from sweeper.core.trial import MIN_TRAJECTORY
from sweeper.worker.measurement.capture import GRADIENT, OUTPUT

from .rule import FLOOR, keep_finite, pair_up

EAGER, COMPILED, LONGER = "eager", "compiled", "longer"
MOVED = ("moved 1", "moved 2")
INPUT = "gradient at input"
# whose shapes follow the batch, so that a mean over steps has no meaning
OF_CALLS = (OUTPUT, INPUT)
TYPICAL, OFTEN, WORST, DRIFT, GAIN = KINDS = ("typical", "often", "worst", "drift", "gain")
TIMES, TIMES_BESIDE_LONGER = 3.0, 1.5  # of the moved steps' figure
RARE = {OFTEN: 2.0, WORST: 3.0}  # times as many, where few steps decide
# Shares of a tensor. In one of some hundred steps an activation near zero may change sides, in one
# arm alone: two of 40 right trainings had 4 % in a single gradient then, a thousand times what
# rounding gives.
LEAST = {
    "full": {TYPICAL: 1e-4, OFTEN: 1e-3, WORST: 0.3, DRIFT: 3e-3, GAIN: 3e-3},
    "reduced": {TYPICAL: 2e-3, OFTEN: 2e-2, WORST: 0.3, DRIFT: 3e-3, GAIN: 3e-3},
}
SURE = 5.0  # standard deviations by which a mean has to leave 0
NEARER = 1.5  # times as far from the longer format as eager is near enough


class _Pair:
    """The differences of two arms: a row per sample with a figure per tensor, and sums over
    samples.
    """

    def __init__(self) -> None:
        self.relative: list[torch.Tensor] = []
        self.gains: list[torch.Tensor] = []
        self.totals: list[torch.Tensor] = []  # of tensors that have one shape in all samples


class _Figures(NamedTuple):
    """The figures of a pair, each a vector over tensors; `sure` says where drift and gain are no
    chance.
    """

    counts: torch.Tensor  # of the calls in which eager is finite
    values: Mapping[str, torch.Tensor]
    sure: Mapping[str, torch.Tensor]


class Differences:
    """The differences of a training so far, in calls of a module that give the same tensors."""

    def __init__(self, tolerance: str) -> None:
        self.num_samples = 0
        self._tolerance = tolerance
        self._names: tuple[str, ...] = ()
        self._pairs: defaultdict[tuple[str, str], _Pair] = defaultdict(_Pair)

    def add(self, arms: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Compare what the arms gave in one call. Raises DifferentTensorsError where they gave
        other tensors.
        """
        eager = arms[EAGER]
        self._names = self._names or tuple(eager)
        for tensors in arms.values():
            list(pair_up(tensors.items(), eager, EAGER))
        device = next(iter(eager.values())).device
        values = {}
        for arm, tensors in arms.items():
            values[arm] = [tensors[name].detach().to(device, torch.float32) for name in self._names]
        sizes = self._sizes(values[EAGER])
        pairs = [(COMPILED, LONGER), (EAGER, LONGER)] if LONGER in arms else []
        pairs += [(arm, EAGER) for arm in arms if arm not in (EAGER, LONGER)]
        usable, lasting = torch.isfinite(sizes), self._find_lasting()
        for pair in pairs:
            kept, reference = self._pairs[pair], values[pair[1]]
            differences = torch._foreach_sub(values[pair[0]], reference)
            relative = torch.stack(torch._foreach_norm(differences)) / sizes
            relative = relative.nan_to_num(nan=torch.inf, posinf=torch.inf)
            products = zip(differences, reference, strict=True)
            along = torch.stack([torch.dot(a.flatten(), b.flatten()) for a, b in products])
            kept.relative.append(torch.where(usable, relative, torch.nan))
            # 0 where eager is not finite
            kept.gains.append((along / sizes.square()).nan_to_num(0.0, 0.0, 0.0))
            if not kept.totals:
                kept.totals.extend(torch.zeros_like(differences[place]) for place in lasting)
            for total, place in zip(kept.totals, lasting, strict=True):
                total += (differences[place] / sizes[place]).nan_to_num(0.0, 0.0, 0.0)
        self.num_samples += 1

    def _find_lasting(self) -> list[int]:
        """The places of tensors that have one shape in all samples."""
        return [place for place, name in enumerate(self._names) if not name.startswith(OF_CALLS)]

    def _sizes(self, eager: list[torch.Tensor]) -> torch.Tensor:
        """The norm of each tensor; one that is tiny beside the others of its kind is measured
        against those.
        """
        counts = torch.tensor([max(tensor.numel(), 1) for tensor in eager], dtype=torch.float32)
        norms = torch.stack(torch._foreach_norm(eager))
        counts = counts.to(norms.device)
        kinds = [_kind(name) for name in self._names]
        floors = torch.zeros_like(norms)
        for kind in {*kinds}.difference(OF_CALLS):
            places = [place for place, other in enumerate(kinds) if other == kind]
            squares = norms[places].square()
            mean_square = torch.where(squares.isfinite(), squares, 0.0).sum() / counts[places].sum()
            floors[places] = FLOOR * (mean_square * counts[places]).sqrt()
        return torch.maximum(norms, floors).clamp_min(1e-30)

    def judge(self) -> Trajectory:
        """Say whether compiled code trains the same, and which tensor's figure is the worst by its
        limit.
        """
        if self.num_samples < MIN_TRAJECTORY:
            reason = (
                f"{self.num_samples} calls of the module were compared, and {MIN_TRAJECTORY} "
                "are needed"
            )
            return Trajectory(self.num_samples, None, reason)
        figures = {pair: self._read(item) for pair, item in self._pairs.items()}
        found = torch.stack([self._judge_kind(kind, figures) for kind in KINDS])
        enough = figures[COMPILED, EAGER].counts >= MIN_TRAJECTORY
        if not enough.any():
            return Trajectory(self.num_samples, None, "eager gives no finite numbers")
        shares = torch.where(enough, found[:, 0] / found[:, 2], -1.0)
        shares = shares.nan_to_num(nan=-1.0, posinf=torch.inf)
        worst_of_kinds = shares.amax(1)
        # the first kind says most: a difference in half of the steps
        beyond = (worst_of_kinds > 1).nonzero()
        row = int(beyond[0]) if len(beyond) else int(worst_of_kinds.argmax())
        tensor = int(shares[row].argmax())
        value, yardstick, limit, excused = found[row, :, tensor].tolist()
        return Trajectory(
            samples=self.num_samples,
            passed=value <= limit,
            worst=self._names[tensor],
            kind=KINDS[row],
            reference=LONGER if excused else EAGER,
            value=keep_finite(value),
            yardstick=keep_finite(yardstick),
            limit=keep_finite(limit),
        )

    def _judge_kind(self, kind: str, figures: Mapping[tuple[str, str], _Figures]) -> torch.Tensor:
        """Of each tensor the figure, what it is measured by, its limit, and 1 where they are
        against `longer`: [4, tensors].
        """
        is_beside = (COMPILED, LONGER) in figures
        times = RARE.get(kind, 1.0) * (TIMES_BESIDE_LONGER if is_beside else TIMES)
        least = LEAST[self._tolerance][kind]
        compiled = figures[COMPILED, EAGER]
        value = compiled.values[kind]
        if kind in compiled.sure:
            value = torch.where(compiled.sure[kind], value, 0.0)
        other = torch.stack([figures[arm, EAGER].values[kind] for arm in MOVED]).amax(0)
        limit = (times * other).clamp_min(least)
        found = torch.stack([value, other, limit, torch.zeros_like(other)])
        if not is_beside:
            return found
        far, eager_far = figures[COMPILED, LONGER].values[kind], figures[EAGER, LONGER].values[kind]
        far_limit = (NEARER * eager_far).clamp_min(least)
        longer = torch.stack([far, eager_far, far_limit, torch.ones_like(far)])
        return torch.where(far / far_limit < value / limit, longer, found)

    def _read(self, pair: _Pair) -> _Figures:
        relative = torch.stack(pair.relative).double().cpu()
        gains = torch.stack(pair.gains).double().cpu()
        usable = ~torch.isnan(relative)
        counts = usable.sum(0)
        divisors = counts.clamp_min(1)
        squares = relative.square().nansum(0)
        drift = torch.zeros(len(self._names), dtype=torch.float64)
        if lasting := self._find_lasting():
            drift[lasting] = torch.stack(torch._foreach_norm(pair.totals)).double().cpu()
        gain, spread = gains.sum(0).abs(), gains.square().sum(0).sqrt()
        return _Figures(
            counts,
            {
                TYPICAL: relative.nanmedian(0).values,
                OFTEN: torch.nanquantile(relative, 0.95, dim=0),
                WORST: torch.where(usable, relative, -1.0).amax(0),
                DRIFT: drift / divisors,
                GAIN: gain / divisors,
            },
            {DRIFT: drift > SURE * squares.sqrt(), GAIN: gain > SURE * spread},
        )


def _kind(name: str) -> str:
    for kind in (*OF_CALLS, GRADIENT):
        if name.startswith(kind):
            return kind
    return ""
