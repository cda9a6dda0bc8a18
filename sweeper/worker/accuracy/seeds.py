"""Is a compiled step right that draws random numbers? A test over seeds, of eager and compiled
steps.

For one seed, compiled code draws other numbers than eager does, so no single step can be compared.
Nor can one of eager that differs from itself, as where sums on the GPU change their order.
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
Whole numbers and booleans are tensors like others, and besides, one that is the same in all eager
steps may not be another one in all compiled steps. `permutation` gives the p-values; ALPHA is the
chance that any test of a right step is significant.
`docs/decisions/random-steps.md` has the reasons, `docs/results/random-steps.md` what the test
finds.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from sweeper.worker.measurement.capture import GRADIENT, HOST, LOSS, Named, is_whole

from .permutation import LEAST_SHARE, compare_spreads, correlate, find_largest, list_splits, rank
from .reduction import Direction, Reduced, Size, StepDistance, compute_log_odds, join
from .rule import ALL_GRADIENTS, LEAST_SIZE, MAX_TIMES, pair_up

DIRECTION_STEPS = 4
STEPS = 8  # of each arm: 6435 splits, so that the real one alone is 1.6e-4 of them
ALPHA = 4e-4  # half of it for spreads, half for all other tests
MARGIN = {"full": 1e-2, "reduced": 3e-2}  # of the size of a tensor
# of what `rule.perturbation` moves: 1e-6 in full precision, 16 roundings of fp32
ROUNDING = {"full": 0.1, "reduced": 1.0}
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
WHOLE = "whole numbers"


class Test(NamedTuple):
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
        if self.statistic in ("not finite", WHOLE):
            return self.tensor
        return f"{self.statistic} of {self.tensor}"


class SeedVerdict(NamedTuple):
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


class SeedTest:
    """Takes steps in the order of the module's docstring, and keeps what the verdict needs.

    At `place` it holds the mean of `steps`, which are eager ones for the direction, and until the
    rounding step the last of them. A step's tensors may be overwritten when the next one is taken.
    """

    def __init__(self, precision: str, steps: Iterable[Named], place: torch.device = HOST) -> None:
        """`precision` is full or reduced."""
        self._precision = precision
        self._last: dict[str, torch.Tensor] = {}
        self._changes: dict[str, StepDistance] = {}
        # by kind: eager, compiled, and reliable, which are eager ones in a reliable format
        self.steps: defaultdict[str, list[dict[str, Reduced]]] = defaultdict(list)
        self._newest: dict[str, Reduced]  # of all kinds
        self._slopes: list[float] = []
        self._displacement = 0.0
        means: dict[str, torch.Tensor] = {}
        self._place = place
        # whole numbers of the first step, and where they are the same ones in all eager steps, and
        # others in all compiled ones
        self._whole: dict[str, torch.Tensor] = {}
        self._wrong: dict[str, torch.Tensor] = {}
        for step in steps:
            self._last = {}  # its memory is free for the next one
            for name, tensor in self._take_whole("eager", step):
                longer = torch.promote_types(tensor.dtype, torch.float32)
                if name in means:
                    means[name] += tensor.to(place, longer)
                else:
                    means[name] = tensor.to(place, longer, copy=True)
                self._last[name] = tensor.to(place, copy=True)
        for mean in means.values():
            mean.div_(DIRECTION_STEPS)
        self.direction = Direction(means)

    def add_rounding(self, step: Named) -> None:
        """Take an eager step with the seed of the last one, and with perturbed parameters and
        inputs.
        """
        numbers = ((name, _as_numbers(tensor)) for name, tensor in step)
        self._changes = self.direction.compare(numbers, self._last)
        self._last = {}

    def add(self, kind: str, step: Named) -> None:
        """Take a step of a kind (`steps`), with a seed of its own.

        Raises DifferentTensorsError when it did not give the tensors that the direction has.
        """
        self._newest = self.direction.reduce(self._take_whole(kind, step))
        self.steps[kind].append(self._newest)

    def _take_whole(self, kind: str, step: Named) -> Named:
        """Compare the whole numbers of a step, and give its tensors."""
        for name, tensor in step:
            yield name, _as_numbers(tensor)
            if not is_whole(tensor):
                continue
            first = self._whole.setdefault(name, tensor.to(self._place, copy=True))
            for _, one, other in pair_up([(name, tensor)], {name: first}, "eager"):
                unlike = one.to(first.device) != other
                if kind != "reliable":
                    suspect = unlike if kind == "compiled" else ~unlike
                    self._wrong[name] = self._wrong.get(name, suspect) & suspect

    def displace(self, module: torch.nn.Module, factor: float = 1.0) -> bool:
        """Move parameters by what the last step's seed added to their gradients; False where that
        is next to nothing.

        The parameters are as they were before the last step, and still have its gradients, times
        `factor`. Parameters in half precision are not moved either: they would be rounded to
        another direction.
        """
        direction, last = self.direction, self._newest
        length = math.sqrt(sum(size.square for size in direction.gradients.values()))
        distance = math.sqrt(sum(last[name].distance for name in direction.gradients))
        if not math.isfinite(distance * direction.loss):
            return False
        if not distance > MARGIN[self._precision] * length > 0:
            return False
        self._displacement = LOSS_RISE[self._precision] * abs(direction.loss) / (distance * length)
        return self._displacement > 0 and direction.displace(module, self._displacement, factor)

    def add_displaced_loss(self, loss: torch.Tensor) -> None:
        """Take the loss of the arm and the seed of the last step, with displaced parameters."""
        direction, last = self.direction, self._newest
        before = float(last[LOSS].blocks.sum()) / direction.loss
        square = slope = 0.0
        for name, size in direction.gradients.items():
            distance = last[name].distance
            square += distance
            slope += distance + float(last[name].blocks.sum()) - size.square
        self._slopes.append(((float(loss) - before) / self._displacement - slope) / square)

    def verdict(self) -> SeedVerdict:
        """Judge the compiled steps by those of eager.

        A gradient of which eager itself is not finite is not judged. Reliable steps and slopes may
        be missing.
        """
        eager, compiled = self.steps["eager"], self.steps["compiled"]
        assert len(eager) == len(compiled) == STEPS, f"an arm has to have {STEPS} steps"
        judged = {}
        infinite = []
        for name, size in self.direction.sizes.items():
            if _are_finite(eager, name):
                judged[name] = size
            else:
                infinite.append(name)
        if names := sorted(name for name in infinite if not name.startswith(GRADIENT)):
            return SeedVerdict(None, f"eager gives NaN or infinity in {', '.join(names)}")
        for name in judged:
            if not _are_finite(compiled, name):
                return _fail(name, "not finite", math.inf)
        for name, wrong in self._wrong.items():
            if wrong.any():
                return _fail(name, WHOLE, float(wrong.double().mean()))
        samples = _relate(judged, self._changes, [*eager, *compiled])
        reliable = self.steps["reliable"]
        references = _relate(judged, self._changes, reliable) if reliable else {}
        slopes = torch.tensor(self._slopes, dtype=torch.float64)
        if len(slopes) == 2 * STEPS and not infinite and bool(slopes.isfinite().all()):
            samples[ALL_GRADIENTS].values["slope"] = slopes
        resolved = [name for name in samples if name not in self._whole] or list(samples)
        if ALL_GRADIENTS in samples:
            resolved = [ALL_GRADIENTS]
        sought = [samples[name] for name in resolved]
        return _decide(samples, references, self._precision, len(infinite), sought)


def _as_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Whole numbers and booleans as others: how often one is drawn must agree as well."""
    return tensor.to(torch.float32) if is_whole(tensor) else tensor


def _fail(name: str, statistic: str, compiled: float) -> SeedVerdict:
    """The verdict on a fault that no seed gives eager."""
    worst = Test(name, statistic, torch.empty(0), 0.0, compiled, math.inf)
    return SeedVerdict(False, worst=worst, p=0.0)


StepSums = Sequence[Mapping[str, Reduced]]


def _are_finite(steps: StepSums, name: str) -> bool:
    return all(step[name].finite for step in steps)


class TensorSamples(NamedTuple):
    """One tensor in all steps, eager first, relative to its size."""

    # by statistic, [steps], of zeros their log odds, of a spread [steps, elements]
    values: dict[str, torch.Tensor]
    change: float  # that rounding explains
    log_odds_change: float


def _relate(
    sizes: Mapping[str, Size], changes: Mapping[str, StepDistance], steps: StepSums
) -> dict[str, TensorSamples]:
    """Divide what steps gave by the size of each tensor; all gradients are one more.

    A gradient that is tiny beside the others counts as LEAST_SIZE of their size: it may be nothing
    but rounding.
    """
    gradients = [name for name in sizes if name.startswith(GRADIENT)]
    square = sum(sizes[name].square for name in gradients)
    elements = sum(sizes[name].elements for name in gradients)
    floor = LEAST_SIZE**2 * square / max(1, elements)
    samples = {}
    for name, size in sizes.items():
        least = floor * size.elements if name in gradients else 0.0
        change = changes.get(name, StepDistance())
        parts = [step[name] for step in steps]
        samples[name] = _sample(max(size.square, least), size.counted, change, parts)
        if size.square < least:  # rounding alone says how many of its numbers are zeros
            samples[name].values["zeros"].zero_()
    if gradients:
        change = StepDistance(sum(changes[name].square for name in gradients if name in changes))
        parts = [join(step[name] for name in gradients) for step in steps]
        samples[ALL_GRADIENTS] = _sample(square, 0, change, parts)
    return samples


def _sample(
    square: float, counted: int, change: StepDistance, steps: Sequence[Reduced]
) -> TensorSamples:
    square = square or 1.0
    blocks = torch.stack([step.blocks for step in steps]) / square
    rows = [(step.distance / square, step.zeros) for step in steps]
    distance, zeros = torch.tensor(rows, dtype=torch.float64).T
    mean = float(zeros.mean())
    # zero, as of a channel that is dead but for rounding
    one_more = 1 / (mean + 0.5) + 1 / (counted - mean + 0.5)
    values = {
        "coefficient": blocks.sum(1),
        "distance": distance.sqrt(),
        "zeros": compute_log_odds(zeros, counted),
        "spread": blocks,
    }
    return TensorSamples(values, math.sqrt(change.square / square), max(change.log_odds, one_more))


def _decide(
    samples: Mapping[str, TensorSamples],
    references: Mapping[str, TensorSamples],
    precision: str,
    infinite: int,
    sought: Sequence[TensorSamples],
) -> SeedVerdict:
    """Decide by the samples of all tensors; in those of `sought` a change has to be seen."""
    tests: list[Test] = []
    unjudged = infinite
    for name, sample in samples.items():
        tests += _make_tests(name, sample, precision)
        if name != ALL_GRADIENTS:
            unjudged += MAX_TIMES * sample.change >= 1
    means = [test for test in tests if test.statistic != "spread"]
    spreads = [test for test in tests if test.statistic == "spread"]
    splits = list_splits(STEPS)
    no_values = torch.zeros(2 * STEPS, 0, dtype=torch.float64)
    values = torch.column_stack([no_values, *(test.values for test in means)])
    correlations = correlate(values, splits)
    ratios = compare_spreads([test.values for test in spreads], splits)
    shares = [rank(correlations), rank(ratios)]
    p_values = (len(shares) * torch.cat(shares)).clamp(max=1.0).tolist()
    found = sorted(
        zip(p_values, [*means, *spreads], strict=True), key=lambda pair: (pair[0], -pair[1].excess)
    )
    faults = [
        (p, test)
        for p, test in found
        if p <= ALPHA and test.excess > 1 and not _rounds_less(test, references)
    ]
    p, worst = next(iter(faults or found), (None, None))
    resolution = _resolve(sought, correlations, MARGIN[precision])
    if not faults and resolution > MAX_RESOLUTION:
        passed, unverified = None, "steps differ so much between seeds that a wrong step would pass"
    else:
        passed, unverified = not faults, None
    return SeedVerdict(passed, unverified, worst, p, unjudged, resolution)


def _make_tests(name: str, sample: TensorSamples, precision: str) -> Iterator[Test]:
    """Tests of the means of both arms, and of the spread. No test where no two steps differ by more
    than the margin, or than rounding explains: it cannot fail.

    The excess slope is -1 where gradients have nothing of the forward pass's masks. Rounding moves
    gradients by r, of which the loss knows nothing, so this slope is -|r|^2 / |x - m|^2.
    """
    rounding = MAX_TIMES * sample.change
    distance = float(sample.values["distance"].mean())
    explained = MARGIN[precision] + rounding
    margins = {"coefficient": explained, "distance": explained + DISTANCE_MARGIN * distance}
    if ZEROS[0] < _measure("zeros", sample.values["zeros"]) < ZEROS[1]:
        margins["zeros"] = ODDS_MARGIN + MAX_TIMES * sample.log_odds_change
    if "slope" in sample.values:
        margins["slope"] = SLOPE_MARGIN[precision] + (rounding / max(distance, LEAST_SHARE)) ** 2
    for statistic, margin in margins.items():
        values = sample.values[statistic]
        if float(values.max() - values.min()) > margin:
            eager, compiled = values[:STEPS], values[STEPS:]
            excess = float((compiled.mean() - eager.mean()).abs()) / margin
            measured = _measure(statistic, eager), _measure(statistic, compiled)
            yield Test(name, statistic, values, *measured, excess)
    vectors = sample.values["spread"]
    if distance > explained and bool(vectors.var(0).sum() > 0):
        first, second = _measure("spread", vectors[:STEPS]), _measure("spread", vectors[STEPS:])
        least = LEAST_SHARE * (first + second) or LEAST_SHARE
        first, second = max(first, least), max(second, least)
        allowed = SPREAD_MARGIN + 2 * math.log1p(rounding / distance)
        excess = 2 * abs(math.log(second / first)) / allowed
        yield Test(name, "spread", vectors, first, second, excess)


def _measure(statistic: str, values: torch.Tensor) -> float:
    """A statistic of the steps of one arm."""
    if statistic == "spread":
        return float(values.var(0).sum().sqrt())
    mean = values.mean()
    return float(mean.sigmoid() if statistic == "zeros" else mean)


def _rounds_less(test: Test, references: Mapping[str, TensorSamples]) -> bool:
    """Whether compiled steps are nearer than eager's to those in a reliable format, of which no
    slopes are taken.
    """
    if test.statistic == "slope" or test.tensor not in references:
        return False
    reference = _measure(test.statistic, references[test.tensor].values[test.statistic])
    eager, compiled = test.eager, test.compiled
    if test.statistic == "spread":  # compared as in its test
        reference = math.log(max(reference, LEAST_SHARE))
        eager, compiled = math.log(eager), math.log(compiled)
    return abs(compiled - reference) < abs(eager - reference)


def _resolve(samples: Sequence[TensorSamples], correlations: torch.Tensor, margin: float) -> float:
    """The least change of the coefficient of any of these samples that is a fault.

    Only the real split may be so far out. With correlation r, two means are apart by the deviation
    within an arm times 2 r / sqrt(1 - r^2).
    """
    r = float(find_largest(correlations)[1:].max())
    factor = 2 * r / math.sqrt(max(1 - r * r, 1e-12))
    found = []
    for sample in samples:
        arms = sample.values["coefficient"].view(2, STEPS)
        deviation = float(arms.var(1, correction=0).mean().sqrt())
        found.append(margin + MAX_TIMES * sample.change + factor * deviation)
    return max(found)
