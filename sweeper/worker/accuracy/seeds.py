"""Is a compiled step right that draws random numbers? A test over seeds, of eager and compiled
steps.

For one seed, compiled code draws other numbers than eager does, so no single step can be compared.
What must agree is how steps are distributed over seeds. All steps start from the same state with
the same batch, each with its own seed:

1. DIRECTION_STEPS of eager. Their mean is the direction of each tensor. They serve for nothing
   else, since eager's own steps are nearer to their mean than other steps are.
2. One more eager step with the last of these seeds, and parameters and inputs moved by about what
   rounding does. How far it is from the last step is how much of a difference rounding explains.
3. STEPS of eager, then STEPS of the compiled step; after each of these one more with the same seed,
   of which only the loss is taken, with parameters that `displace` has moved. Of batches of one
   size the first alone has these.

Each step is reduced to a few numbers for each tensor x with the direction m: the coefficient <x, m>
/ <m, m> (a factor, a sign, a lost scale), the distance |x - m| / |m| (another keep rate, gradients
of another mask), the log odds of exact zeros (the keep rate itself, where zeros reach an output or
a gradient; elements of which m is next to nothing are left out, since rounding alone may make them
zero), and <x, m> by blocks of elements, of which the variance over the steps is the spread (masks
that are the same for every seed). All gradients together count as one more tensor. Parameters are
displaced by what the seed adds to their gradients, x - m: the loss must rise by <x, x - m>, else
the backward pass has other masks than the forward pass, and the excess over this slope says so.

A difference is a fault when it is significant and beyond a margin: a few percent, and what rounding
explains. Compiled code rounds in another way than eager does, so a right step may differ
significantly. Where it rounds less, eager may be nothing but rounding: the gradient of a bias that
a softmax cancels is zero, and in bfloat16 it is not. So before a step is called wrong, STEPS of
eager in a longer number format are taken, and it is no fault to be nearer to them than eager.
`permutation` gives the p-values; ALPHA is the chance that any test of a right step is significant.
`docs/decisions/random-steps.md` has the reasons, `docs/results/random-steps.md` what the test
finds.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from sweeper.worker.measurement.capture import GRADIENT, HOST, LOSS, Named

from .permutation import (
    LEAST_SHARE,
    compare_spreads,
    correlate,
    find_largest,
    list_splits,
    rank,
)
from .reduction import (
    Direction,
    Reduced,
    Size,
    StepDistance,
    compute_log_odds,
    join,
)
from .rule import ALL_GRADIENTS, LEAST_SIZE, MAX_TIMES

DIRECTION_STEPS = 4
STEPS = 8  # of each arm: 6435 splits, so that the real one alone is 1.6e-4 of them
ALPHA = 4e-4  # half of it for spreads, half for all other tests
MARGIN = {"full": 1e-2, "reduced": 3e-2}  # of the size of a tensor
# relative; the distance is as sqrt(p / (1 - p)), so from p = 0.1 it allows 0.09 to 0.11
DISTANCE_MARGIN = 0.05
ODDS_MARGIN = 0.1  # of a log; as much as 0.90 is from 0.91
SPREAD_MARGIN = 0.2  # of the log of a variance
ZEROS = (1e-3, 1 - 1e-3)  # shares of exact zeros that are judged
# of the slope that belongs to what the seed adds to the gradients
SLOPE_MARGIN = {"full": 0.02, "reduced": 0.05}
# relative, by a displacement of this length along the gradients
LOSS_RISE = {"full": 0.01, "reduced": 0.15}
# of the size of all gradients, or of an output; a pass that would miss more says nothing
MAX_RESOLUTION = 0.5


@dataclass(frozen=True)
class Test:
    """One statistic of one tensor in both arms."""

    tensor: str
    statistic: str  # coefficient, distance, zeros, slope, spread or not finite
    values: torch.Tensor  # [steps], eager first; of a spread [steps, elements]
    # mean coefficient, distance or excess slope, share of zeros, or deviation between steps
    eager: float
    compiled: float
    excess: float  # the difference between the arms as a multiple of the margin

    @property
    def name(self) -> str:
        return (
            self.tensor if self.statistic == "not finite" else f"{self.statistic} of {self.tensor}"
        )


@dataclass(frozen=True)
class SeedVerdict:
    """What the test over seeds found; `passed` is None where `unverified` says why there is no
    telling.
    """

    passed: bool | None
    unverified: str | None = None
    # the fault that is the least likely to be chance, else the most significant difference
    worst: Test | None = None
    p: float | None = None  # of the worst, corrected for the number of tests
    unjudged: int = 0  # tensors of which rounding may explain anything
    # the least change of all gradients (else outputs) that is a fault, of their size
    resolution: float = math.inf
    alpha: float = ALPHA


class SeedTest:
    """Takes steps in the order of the module's docstring, and keeps what the verdict needs.

    At `place` it holds the direction, and until the rounding step the last step. A step's tensors
    may be overwritten as soon as the call returns.
    """

    def __init__(self, full: bool, place: torch.device = HOST) -> None:
        self._precision = "full" if full else "reduced"
        self._place = place
        self._sums: dict[str, torch.Tensor] = {}
        self._last: dict[str, torch.Tensor] = {}
        self._num_summed = 0
        self._direction: Direction | None = None
        self._changes: dict[str, StepDistance] = {}
        self._eager: list[dict[str, Reduced]] = []
        self._compiled: list[dict[str, Reduced]] = []
        self._reliable: list[dict[str, Reduced]] = []
        self._slopes: list[float] = []
        self._displacement = 0.0

    def add_direction(self, step: Named) -> None:
        """Take an eager step for the direction."""
        assert self._direction is None, "the steps for the direction come first"
        self._last = {}  # its memory is free for the next one
        for name, tensor in step:
            longer = torch.promote_types(tensor.dtype, torch.float32)
            if name in self._sums:
                self._sums[name] += tensor.to(self._place, longer)
            else:
                self._sums[name] = tensor.to(self._place, longer, copy=True)
            self._last[name] = tensor.to(self._place, copy=True)
        self._num_summed += 1

    def add_rounding(self, step: Named) -> None:
        """Take an eager step with the seed of the last one, and with perturbed parameters and
        inputs.
        """
        last = self._last
        self._changes = self._find_direction().compare(step, last)

    def add_eager(self, step: Named) -> None:
        """Take an eager step with a seed of its own."""
        self._eager.append(self._find_direction().reduce(step))

    def add_compiled(self, step: Named) -> None:
        """Take a compiled step with a seed of its own.

        Raises DifferentTensorsError when it did not give the tensors that the direction has.
        """
        assert len(self._eager) == STEPS, "eager steps come first"
        self._compiled.append(self._find_direction().reduce(step))

    def add_reliable(self, step: Named) -> None:
        """Take an eager step in a reliable format, with a seed of its own.

        Raises DifferentTensorsError when it did not give the tensors that the direction has.
        """
        self._reliable.append(self._find_direction().reduce(step))

    def displace(self, module: torch.nn.Module, factor: float = 1.0) -> bool:
        """Move parameters by what the last step's seed added to their gradients; False where that
        is next to nothing.

        The parameters are as they were before the last step, and still have its gradients, times
        `factor`. Parameters in half precision are not moved either: they would be rounded to
        another direction.
        """
        direction = self._find_direction()
        gradients = [name for name in direction.sizes if name.startswith(GRADIENT)]
        length = math.sqrt(sum(direction.sizes[name].square for name in gradients))
        distance = math.sqrt(sum(self._get_last()[name].distance for name in gradients))
        if not (
            math.isfinite(distance * direction.loss)
            and distance > MARGIN[self._precision] * length > 0
        ):
            return False
        self._displacement = LOSS_RISE[self._precision] * abs(direction.loss) / (distance * length)
        return self._displacement > 0 and direction.displace(module, self._displacement, factor)

    def add_displaced_loss(self, loss: torch.Tensor) -> None:
        """Take the loss of the arm and the seed of the last step, with displaced parameters."""
        direction, last = self._find_direction(), self._get_last()
        before = float(last[LOSS].blocks.sum()) / direction.loss
        gradients = [
            (step, direction.sizes[name].square)
            for name, step in last.items()
            if name.startswith(GRADIENT)
        ]
        square = sum(step.distance for step, _ in gradients)
        slope = sum(step.distance + float(step.blocks.sum()) - size for step, size in gradients)
        self._slopes.append(((float(loss) - before) / self._displacement - slope) / square)

    def _get_last(self) -> dict[str, Reduced]:
        return (self._compiled or self._eager)[-1]

    def move(self, place: torch.device) -> None:
        """Hold the tensors at another place from now on."""
        self._place = place
        self._sums, self._last = (
            {name: t.to(place) for name, t in held.items()} for held in (self._sums, self._last)
        )
        if self._direction is not None:
            self._direction.move(place)

    @property
    def num_reliable(self) -> int:
        """Steps in a reliable format so far."""
        return len(self._reliable)

    @property
    def num_tensors(self) -> int:
        return len(self._find_direction().sizes)

    @property
    def num_elements(self) -> int:
        """Of all steps together."""
        steps = len(self._eager) + len(self._compiled)
        return steps * sum(size.elements for size in self._find_direction().sizes.values())

    def verdict(self) -> SeedVerdict:
        """Judge the compiled steps by those of eager."""
        sizes, steps = self._find_direction().sizes, (self._eager, self._compiled, self._reliable)
        return judge(sizes, self._changes, *steps, self._slopes, self._precision)

    def _find_direction(self) -> Direction:
        if self._direction is None:
            assert self._num_summed, "the steps for the direction come first"
            self._direction = Direction(
                {name: total.div_(self._num_summed) for name, total in self._sums.items()}
            )
            self._sums, self._last = {}, {}
        return self._direction


StepSums = Sequence[Mapping[str, Reduced]]


def judge(
    sizes: Mapping[str, Size],
    changes: Mapping[str, StepDistance],
    eager: StepSums,
    compiled: StepSums,
    reliable: StepSums,
    slopes: Sequence[float],
    precision: str,
) -> SeedVerdict:
    """Judge reduced steps. A gradient of which eager itself is not finite is not judged.

    `slopes` are the excess slopes, eager first; or there are none. `reliable` steps may be missing.
    """
    assert len(eager) == len(compiled) == STEPS, f"the test is made for {STEPS} steps of each arm"
    infinite = {
        name
        for name, size in sizes.items()
        if size.has_nan or not all(step[name].finite for step in eager)
    }
    if names := sorted(name for name in infinite if not name.startswith(GRADIENT)):
        return SeedVerdict(None, f"eager gives NaN or infinity in {', '.join(names)}")
    judged = {name: size for name, size in sizes.items() if name not in infinite}
    for name in judged:
        if not all(step[name].finite for step in compiled):
            values = torch.tensor([step[name].distance for step in [*eager, *compiled]])
            return SeedVerdict(
                False,
                None,
                Test(name, "not finite", values, 0.0, math.inf, math.inf),
                0.0,
            )
    samples = _relate(judged, changes, [*eager, *compiled])
    references = (
        {sample.name: sample for sample in _relate(judged, changes, reliable)} if reliable else {}
    )
    usable = len(slopes) == 2 * STEPS and not infinite and all(map(math.isfinite, slopes))
    excess_slopes = torch.tensor(slopes, dtype=torch.float64) if usable else None
    return _decide(samples, references, excess_slopes, precision, len(infinite))


@dataclass(frozen=True)
class TensorSamples:
    """One tensor in all steps, eager first, relative to its size."""

    name: str
    blocks: torch.Tensor  # [steps, elements]
    distance: torch.Tensor  # [steps]
    log_odds: torch.Tensor  # [steps], of exact zeros
    change: float  # that rounding explains
    log_odds_change: float


def _relate(
    sizes: Mapping[str, Size], changes: Mapping[str, StepDistance], steps: StepSums
) -> list[TensorSamples]:
    """Divide what steps gave by the size of each tensor; all gradients are one more.

    A gradient that is tiny beside the others counts as LEAST_SIZE of their size: it may be nothing
    but rounding.
    """
    gradients = [name for name in sizes if name.startswith(GRADIENT)]
    square, elements = (
        sum(sizes[name].square for name in gradients),
        sum(sizes[name].elements for name in gradients),
    )
    floor = LEAST_SIZE**2 * square / max(1, elements)
    samples = []
    for name, size in sizes.items():
        least = floor * size.elements if name in gradients else 0.0
        change = changes.get(name, StepDistance())
        sample = _sample(
            name, max(size.square, least), size.counted, change, [step[name] for step in steps]
        )
        is_noise = size.square < least  # rounding alone says how many of its numbers are zeros
        samples.append(
            replace(sample, log_odds=torch.zeros_like(sample.log_odds)) if is_noise else sample
        )
    if gradients:
        change = StepDistance(sum(changes[name].square for name in gradients if name in changes))
        joined = [join(step[name] for name in gradients) for step in steps]
        samples.append(_sample(ALL_GRADIENTS, square, 0, change, joined))
    return samples


def _sample(
    name: str, square: float, counted: int, change: StepDistance, steps: Sequence[Reduced]
) -> TensorSamples:
    square = square or 1.0
    blocks = torch.stack([step.blocks for step in steps]) / square
    distance, zeros = torch.tensor(
        [(step.distance / square, step.zeros) for step in steps], dtype=torch.float64
    ).T
    odds, mean = compute_log_odds(zeros, counted), float(zeros.mean())
    # zero, as of a channel that is dead but for rounding
    one_more = 1 / (mean + 0.5) + 1 / (counted - mean + 0.5)
    odds_change = max(change.log_odds, one_more)
    return TensorSamples(
        name, blocks, distance.sqrt(), odds, math.sqrt(change.square / square), odds_change
    )


def _decide(
    samples: Sequence[TensorSamples],
    references: Mapping[str, TensorSamples],
    slopes: torch.Tensor | None,
    precision: str,
    infinite: int,
) -> SeedVerdict:
    margin = MARGIN[precision]
    means = [test for sample in samples for test in _test_means(sample, margin)]
    spreads = [test for sample in samples for test in _test_spread(sample, margin)]
    if slopes is not None:
        means += _test_slope(
            next(item for item in samples if item.name == ALL_GRADIENTS), slopes, precision
        )
    splits = list_splits(STEPS, STEPS)
    correlations = correlate(_stack([test.values for test in means]), splits)
    ratios = compare_spreads([test.values for test in spreads], splits)
    shares = [rank(statistics, find_largest(statistics)) for statistics in (correlations, ratios)]
    p_values = (len(shares) * torch.cat(shares)).clamp(max=1.0).tolist()
    tests = [*means, *spreads]
    found = sorted(zip(p_values, tests, strict=True), key=lambda pair: (pair[0], -pair[1].excess))
    faults = [
        (p, test)
        for p, test in found
        if p <= ALPHA and test.excess > 1 and not _rounds_less(test, references)
    ]
    p, worst = next(iter(faults or found), (None, None))
    resolution = _resolve(samples, correlations, margin)
    unverified = None
    if not faults and resolution > MAX_RESOLUTION:
        unverified = "steps differ so much between seeds that a wrong step would pass"
    unjudged = infinite + sum(
        MAX_TIMES * sample.change >= 1 for sample in samples if sample.name != ALL_GRADIENTS
    )
    passed = None if unverified else not faults
    return SeedVerdict(passed, unverified, worst, p, unjudged, resolution)


def _test_means(sample: TensorSamples, margin: float) -> Iterator[Test]:
    """Tests of the means of both arms. No test where no two steps differ by more than the margin:
    it cannot fail.
    """
    explained = margin + MAX_TIMES * sample.change
    statistics = [
        ("coefficient", sample.blocks.sum(1), explained),
        ("distance", sample.distance, explained + DISTANCE_MARGIN * float(sample.distance.mean())),
    ]
    if ZEROS[0] < float(sample.log_odds.mean().sigmoid()) < ZEROS[1]:
        statistics.append(
            ("zeros", sample.log_odds, ODDS_MARGIN + MAX_TIMES * sample.log_odds_change)
        )
    for statistic, values, allowed in statistics:
        yield from _test_mean(sample.name, statistic, values, allowed)


def _test_mean(name: str, statistic: str, values: torch.Tensor, margin: float) -> Iterator[Test]:
    if float(values.max() - values.min()) > margin:
        means = values[:STEPS].mean(), values[STEPS:].mean()
        eager, compiled = (
            float(mean.sigmoid() if statistic == "zeros" else mean) for mean in means
        )
        yield Test(
            name, statistic, values, eager, compiled, float((means[1] - means[0]).abs()) / margin
        )


def _rounds_less(test: Test, references: Mapping[str, TensorSamples]) -> bool:
    """Whether compiled steps are nearer than eager's to those in a reliable format, of which no
    slopes are taken.
    """
    if test.statistic == "slope" or test.tensor not in references:
        return False
    reference = _measure(test.statistic, references[test.tensor])
    eager, compiled = test.eager, test.compiled
    if test.statistic == "spread":  # compared as in its test
        eager, compiled, reference = (
            math.log(deviation) for deviation in (eager, compiled, reference)
        )
    return abs(compiled - reference) < abs(eager - reference)


def _measure(statistic: str, sample: TensorSamples) -> float:
    """A statistic of all steps of a sample, as a test has it of an arm."""
    if statistic == "spread":
        return max(float(sample.blocks.var(0).sum().sqrt()), LEAST_SHARE)
    if statistic == "zeros":
        return float(sample.log_odds.mean().sigmoid())
    return float((sample.blocks.sum(1) if statistic == "coefficient" else sample.distance).mean())


def _test_slope(gradients: TensorSamples, slopes: torch.Tensor, precision: str) -> Iterator[Test]:
    """The test of the excess slope: -1 where gradients have nothing of the forward pass's masks.

    Rounding moves gradients by r, of which the loss knows nothing, so the excess is -|r|^2 / |x -
    m|^2.
    """
    explained = (
        MAX_TIMES * gradients.change / max(float(gradients.distance.mean()), LEAST_SHARE)
    ) ** 2
    return _test_mean(gradients.name, "slope", slopes, SLOPE_MARGIN[precision] + explained)


def _test_spread(sample: TensorSamples, margin: float) -> Iterator[Test]:
    """The test of the spread, where steps differ by more than what rounding explains."""
    explained, distance = margin + MAX_TIMES * sample.change, float(sample.distance.mean())
    if distance > explained and bool(sample.blocks.var(0).sum() > 0):
        eager, compiled = _measure_deviations(sample.blocks)
        allowed = SPREAD_MARGIN + 2 * math.log1p(MAX_TIMES * sample.change / distance)
        yield Test(
            sample.name,
            "spread",
            sample.blocks,
            eager,
            compiled,
            2 * abs(math.log(compiled / eager)) / allowed,
        )


def _measure_deviations(vectors: torch.Tensor) -> tuple[float, float]:
    """The deviation of each arm between steps, which LEAST_SHARE keeps from zero."""
    deviations = [float(arm.var(0).sum().sqrt()) for arm in (vectors[:STEPS], vectors[STEPS:])]
    least = LEAST_SHARE * sum(deviations) or LEAST_SHARE
    return max(deviations[0], least), max(deviations[1], least)


def _stack(values: Sequence[torch.Tensor]) -> torch.Tensor:
    return (
        torch.stack(list(values), dim=1)
        if values
        else torch.zeros(2 * STEPS, 0, dtype=torch.float64)
    )


def _resolve(samples: Sequence[TensorSamples], correlations: torch.Tensor, margin: float) -> float:
    """The least change of the coefficient of all gradients that is a fault; without gradients, of
    an output.

    Only the real split may be so far out. With correlation r, two means are apart by the deviation
    within an arm times 2 r / sqrt(1 - r^2).
    """
    decisive = [sample for sample in samples if sample.name == ALL_GRADIENTS] or samples
    r = float(find_largest(correlations)[1:].max())
    factor = 2 * r / math.sqrt(max(1 - r * r, 1e-12))
    deviations = [
        sample.blocks.sum(1).view(2, STEPS).var(1, correction=0).mean().sqrt()
        for sample in decisive
    ]
    pairs = zip(decisive, deviations, strict=True)
    return max(
        margin + MAX_TIMES * sample.change + factor * float(deviation)
        for sample, deviation in pairs
    )
