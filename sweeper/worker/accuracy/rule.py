"""Is the compiled step right? All that a step gives and changes against the same step in fp64.

The question is asked of the code that is timed (a replay, for CUDA graphs), in several cases:
states of the model and batches. There are two rules for each tensor. The rule of size, in root mean
squares:

    error(compiled) <= max(MAX_TIMES * error(eager),
                           tolerance * max(size(reference), FLOOR * size(all gradients)))

and, where that bound is so wide that nothing but zeros would pass (the gradients of a CNN in
bfloat16 are further from the truth than they are long), size(compiled) >= size(eager) / MAX_TIMES.
The rule of direction, of the projection p(step) = <step, reference> / <reference, reference>, which
errors of rounding hardly move, since they point anywhere:

    min p(eager) - margin <= p(compiled) <= max p(eager) + margin

over the steps of eager. Where the compiled error is at most NEAR_TIMES eager's, the span reaches to
1 as well, the projection of the reference. The margin is a share of eager's relative error, and at
most MAX_MARGIN in tensors of many numbers. It is asked of the gradients of each stage of the model
as well, and sees a gradient that is negated or scaled within eager's errors.

Compiled code sums in another order than eager does, so it may be a few times further from the
truth. The form of the rule of size is that of torch's own benchmark suite, `same` in
torch/_dynamo/utils.py; three things are added, each for a correct model that failed without it.
Gradients that are tiny beside the others get a floor, and MAX_TIMES squared in place of MAX_TIMES:
their summands cancel, so their errors show above all how a sum is taken. A gradient that is smaller
than eager's own error (a bias before batch normalisation) is noise in both arms and gets a higher
one, NOISE. And before a compiled step is called wrong, more steps of eager count, whose inputs and
parameters were moved by about what reordered sums do: some activations near zero then change sides,
and a single one moves gradients a thousand times further than rounding does. A compiled step that
is still wrong, by at most twice what is allowed, is moved in the same way three times, and is right
if it is so once.
`docs/decisions/what-counts-as-wrong.md` has the figures.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import torch

from sweeper.core.record import Accuracy, PerArm
from sweeper.core.trial import Precision, Trial
from sweeper.worker.measurement.capture import (
    CHANGE,
    GRADIENT,
    LOSS,
    OUTPUT,
    Keep,
    Named,
    StepTensors,
    is_whole,
)
from sweeper.worker.monitoring import torch_flags

from .chunks import Chunk, sum_up
from .verdict import CaseVerdict

MAX_TIMES = 3.0
# reduced: tf32 and half precisions anywhere in the step
TOLERANCE = {"full": 1e-4, "reduced": 1e-2}
FLOOR = 1e-3
NOISE = {"full": 1e-3, "reduced": 0.03}  # of the size of all gradients
# of the size of all tensors of a kind: smaller ones say nothing by their size or direction
LEAST_SIZE = 1e-3
# of an update by Adam, which is as long for any gradient: where some are near zero their signs
# change
UPDATE = 0.3
UPDATE_MARGIN = 0.1
MAX_UPDATE, MAX_UPDATE_MARGIN = 0.9, 0.5  # below 1, so that no update at all is seen
MARGIN = {"full": 0.01, "reduced": 0.03}  # of projections, however exact eager is
ERROR_SHARE = 0.75  # of eager's relative error; what of an error lies along the reference
# times the relative error over the root of the number of elements: in a few numbers errors do not
# average
FEW = 3.0
MANY = 1000  # elements: their projections never lie further apart than
MAX_MARGIN = 0.2
NEAR_TIMES = 1.2  # of eager's error: with at most this a step is as near to the reference as eager
# of every step of eager: with less of the reference in it, eager says nothing about directions
MIN_PROJECTION = 0.5
# relative; a well-conditioned model answers with an error of the size of the tolerance
PERTURBATION = 1e-5
# eager steps before a step is called wrong, and more of them, which widen directions alone
PERTURBED_STEPS, DIRECTION_STEPS = 3, 9
NARROWLY = 2.0  # times what is allowed: a compiled step up to that is moved as well
WIDER = 10.0  # times as much for whole numbers: one that is near a tie is to change sides

ALL_GRADIENTS = "all gradients"
STAGE = "gradients of "
CHANGE_OF_BUFFER = f"{CHANGE}buffer "
# a step names those alone that it has changed
IF_CHANGED = (f"{CHANGE}parameter ", f"{CHANGE}attribute ")
# from the cause of an error to what follows from it; then all others, and the loss
CAUSES = ((OUTPUT,), (CHANGE_OF_BUFFER, f"{CHANGE}input ", *IF_CHANGED), (GRADIENT,))
HUGE = 1e30  # as good as infinite: masks are filled with the largest number of a format


class DifferentTensorsError(ValueError):
    """Two steps did not give tensors of the same names and shapes."""


class Sums(NamedTuple):
    """Sums over the elements of a tensor that are finite in the reference, and how many these
    are.
    """

    # squares of the differences between step and reference; NaN or infinite where one is
    differences: float = 0.0
    reference: float = 0.0  # squares
    step: float = 0.0  # squares
    products: float = 0.0  # of step and reference
    elements: int = 0
    infinite: int = 0  # how many elements of the reference are not finite
    whole: int = 0  # how many elements are whole numbers, of which `differences` counts the unequal

    @property
    def error(self) -> float:
        return self._root_mean(self.differences)

    @property
    def reference_size(self) -> float:
        return self._root_mean(self.reference)

    @property
    def step_size(self) -> float:
        return self._root_mean(self.step)

    def _root_mean(self, total: float) -> float:
        return math.sqrt(total / max(self.elements, 1))

    @property
    def projection(self) -> float:
        """The share of the reference that the step has, 1 for the reference itself; NaN where that
        is 0.
        """
        return self.products / self.reference if self.reference else math.nan


TensorSums = Mapping[str, Sums]  # by the name of the tensor


def name_stages(module: torch.nn.Module) -> dict[str, str]:
    """The stage of each parameter: the child of the longest list or sequence, else the top-level
    child, that holds it.

    Of a transformer these are its layers, the embedding and the head.
    """
    inside, length = "", -1
    for name, child in module.named_modules():
        if isinstance(child, (torch.nn.ModuleList, torch.nn.Sequential)) and len(child) > length:
            inside, length = f"{name}.", len(child)
    stages = {}
    for name, _ in module.named_parameters():
        prefix = inside if name.startswith(inside) else ""
        stages[name] = prefix + name.removeprefix(prefix).partition(".")[0]
    return stages


def compare(step: Named, reference: StepTensors, stages: Mapping[str, str] = {}) -> TensorSums:
    """Compare two steps, tensor by tensor; all gradients together, and those of each of `stages`,
    have names as well.

    `stages` has the stage of each parameter. Raises DifferentTensorsError when the steps did not
    give the same tensors.
    """
    comparison = {}
    numbers = {}
    given = dict(step)
    for name, tensor, other in pair_up(given.items(), reference.tensors, "the reference"):
        if is_whole(other):
            comparison[name] = _compare_whole(tensor, other, given, reference.tensors)
        else:
            comparison[name] = Sums()
            numbers[name] = tensor, other
    for name, found in sum_up(numbers, _compare_chunk).items():
        differences, squares, steps, products, infinite, unlike = found.tolist()
        if unlike:
            differences = math.inf
        elements = numbers[name][0].numel() - int(infinite)
        comparison[name] = Sums(differences, squares, steps, products, elements, int(infinite))
    by_stage: dict[str, list[Sums]] = defaultdict(list)
    for name, sums in comparison.items():
        if name.startswith(GRADIENT):
            by_stage[stages.get(name.removeprefix(GRADIENT), "")].append(sums)
    for stage, parts in by_stage.items():
        if stage:
            comparison[f"{STAGE}{stage}"] = _add(parts)
    if by_stage:
        comparison[ALL_GRADIENTS] = _add(chain(*by_stage.values()))
    return comparison


def take_whole(
    reference: StepTensors, eager: Mapping[str, torch.Tensor], keep: Keep
) -> StepTensors:
    """The reference with copies of eager's whole numbers: they may follow from the number
    format.
    """
    tensors = {name: item for name, item in reference.tensors.items() if not is_whole(item)}
    tensors |= keep.copy((name, item) for name, item in eager.items() if is_whole(item))
    return replace(reference, tensors=tensors)


def pair_up(
    step: Named, others: Mapping[str, torch.Tensor], whose: str
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Put each tensor of a step beside the other one of its name; what one of them has not changed
    is zero there. A gradient of zeros is left out where the other step has none: AOTAutograd gives
    zeros to the parameters of an output that has no part in the loss.

    Raises DifferentTensorsError when names or shapes differ from those of `whose` tensors.
    """
    seen = set()
    for name, tensor in step:
        other = others.get(name)
        if other is None and name.startswith(IF_CHANGED):
            other = torch.zeros_like(tensor)
        if other is None and name.startswith(GRADIENT) and not tensor.any():
            continue
        if other is None or other.shape != tensor.shape:
            shape = "nothing" if other is None else list(other.shape)
            raise DifferentTensorsError(
                f"{name} has shape {list(tensor.shape)}, where {whose} has {shape}"
            )
        seen.add(name)
        yield name, tensor, other
    missing = sorted(others.keys() - seen)
    for name in missing:
        if not name.startswith(IF_CHANGED):
            raise DifferentTensorsError(
                f"{name} is missing ({len(missing)} tensors that {whose} has)"
            )
        yield name, torch.zeros_like(others[name]), others[name]


def _compare_whole(
    tensor: torch.Tensor,
    other: torch.Tensor,
    step: Mapping[str, torch.Tensor],
    reference: Mapping[str, torch.Tensor],
) -> Sums:
    """Count the whole numbers that are not equal. Where they point to values of an output, as an
    argmax does, values that are as good as equal count as equal.
    """
    other = other.to(tensor.device)
    unlike = tensor != other
    if unlike.any():
        for name, values in reference.items():
            if name.startswith(OUTPUT) and values.is_floating_point() and name in step:
                for dim in range(values.dim()):
                    unlike &= ~_find_ties(tensor, other, step[name], values, dim)
    return Sums(float(unlike.sum()), elements=unlike.numel(), whole=unlike.numel())


def _find_ties(
    indices: torch.Tensor,
    others: torch.Tensor,
    values: torch.Tensor,
    reference: torch.Tensor,
    dim: int,
) -> torch.Tensor:
    """Where two indices along a dimension point to values that lie no further apart than the steps'
    own values do; nowhere if they cannot be indices.
    """
    nowhere, keeps_dim = torch.zeros_like(indices, dtype=torch.bool), True
    if indices.dim() == values.dim() - 1:
        indices, others, keeps_dim = indices.unsqueeze(dim), others.unsqueeze(dim), False
    shape = [*indices.shape[:dim], values.shape[dim], *indices.shape[dim + 1 :]]
    if indices.dim() != values.dim() or shape != list(values.shape):
        return nowhere
    reference = reference.to(values.device)
    distance = (values - reference).abs().nan_to_num(0.0, 0.0, 0.0).max()
    inside = (indices >= 0) & (indices < values.shape[dim]) & (others >= 0)
    pointed = [
        reference.gather(dim, item.long().clamp(0, values.shape[dim] - 1))
        for item in (indices, others)
    ]
    ties = inside & ((pointed[0] - pointed[1]).abs() <= MAX_TIMES * distance)
    ties &= reference.amax(dim, keepdim=True) > reference.amin(dim, keepdim=True)
    return ties if keeps_dim else ties.squeeze(dim)


def _compare_chunk(chunk: Chunk) -> torch.Tensor:
    """What `Sums` are made of, for each piece: float64 [pieces, 6]."""
    step, reference = chunk.tensors
    finite = reference.abs() < HUGE
    # An infinity that is meant, of a mask, is in both; NaN equals nothing.
    alike = finite | ((reference.sign() == step.sign()) & (step.abs() >= HUGE))
    step, reference = torch.where(finite, step, 0.0), torch.where(finite, reference, 0.0)
    parts = [
        (step - reference).square(),
        reference.square(),
        step.square(),
        step * reference,
        ~finite,
        ~alike,
    ]
    sums = torch.stack([part.sum(1, dtype=torch.float64) for part in parts], dim=1)
    return chunk.sum_pieces(sums)


def _add(parts: Iterable[Sums]) -> Sums:
    return Sums(*map(sum, zip(Sums(), *parts, strict=True)))


def choose_tolerance(trial: Trial, module: torch.nn.Module) -> str:
    """What the number formats of the step allow: `full` or `reduced`."""
    precision = trial.precision
    half = precision.autocast is not None or precision.parameters != "float32"
    convolves = any(isinstance(child, torch.nn.modules.conv._ConvNd) for child in module.modules())
    flags = torch_flags.read()
    # None beside torch's newer `fp32_precision`
    cudnn_tf32 = convolves and flags["cudnn_allow_tf32"] is not False
    tf32 = trial.device == "cuda" and (flags["float32_matmul_precision"] != "highest" or cudnn_tf32)
    return "reduced" if half or tf32 else "full"


def perturbation(precision: Precision, tolerance: str) -> float:
    """By how much, relatively, rounding and the order of sums move a number; in reduced precision
    half a last place.
    """
    if tolerance == "full":
        return PERTURBATION
    # bits of a significand; tf32 has those of float16
    bits = 8 if "bfloat16" in (precision.autocast, precision.parameters) else 11
    return 0.5 * 2.0**-bits


class Span(NamedTuple):
    """Where the projections of eager's steps lie, and how far beyond them the compiled one may
    be.
    """

    low: float
    high: float
    margin: float
    error: float  # of eager

    def share(self, compiled: Sums) -> float:
        """By how much the compiled projection lies beyond the span, in margins."""
        low, high, projection = self.low, self.high, compiled.projection
        if compiled.error <= NEAR_TIMES * self.error:
            low, high = min(low, 1.0), max(high, 1.0)
        beyond = max(low - projection, projection - high)
        return math.inf if math.isnan(beyond) else max(beyond, 0.0) / self.margin

    def nearest(self, compiled: float) -> PerArm:
        """Both arms' projections, of eager's the nearest one."""
        if not math.isfinite(compiled):
            return PerArm(self.high)
        return PerArm(min(max(compiled, self.low), self.high), compiled)


@dataclass(frozen=True)
class Bounds:
    """What the compiled step may be, by the name of the tensor, and what eager is."""

    reference: StepTensors
    comparisons: Sequence[TensorSums]  # of eager's steps with it
    errors: Mapping[str, float]  # of eager, of all tensors whose size is judged where it is finite
    bounds: Mapping[str, float]
    least_sizes: Mapping[str, float]  # where zeros would be within the bounds
    projections: Mapping[str, Span]
    nondeterministic: bool
    # the reference may be another model's: some do other things in other number formats
    far_off: bool
    unverified: str | None  # why a step within the bounds need not be right


def set_bounds(
    reference: StepTensors,
    comparisons: Sequence[TensorSums],
    repeated: TensorSums | None,
    tolerance: str,
) -> Bounds:
    """Set the bounds by eager steps that were compared with the reference.

    `repeated` compares eager with itself: it counts as nondeterministic when its loss, an output, a
    change or the concatenated gradient moves by more than the tolerance.
    """
    eager = _EagerSteps(comparisons, reference.sizes, tolerance)
    errors, bounds, least_sizes, spans = {}, {}, {}, {}
    for name, sums in eager.first.items():
        if eager.follows_noise(name):
            continue
        if not name.startswith(STAGE):
            errors[name] = eager.find_error(name)
            if math.isfinite(errors[name]):
                bounds[name] = eager.bound_error(name)
                if sums.whole and bounds[name] >= 1:  # any number would pass
                    del bounds[name]
                if eager.passes_zeros(name):
                    least_sizes[name] = eager.find_least_size(name) / MAX_TIMES
        if span := eager.span_projections(name):
            spans[name] = span
    moved = any(
        not sums.error <= eager.find_floor(name)
        for name, sums in (repeated or {}).items()
        if name in bounds and not name.startswith(GRADIENT)
    )
    far_off = _explain_far_off(comparisons)
    unverified = _explain_infinite(eager.first, errors) or far_off
    if moved:
        unverified = "eager differs from itself when it is run twice"
    return Bounds(
        reference,
        comparisons,
        errors,
        bounds,
        least_sizes,
        spans,
        moved,
        bool(far_off),
        unverified,
    )


def differs(comparison: TensorSums, tolerance: str) -> bool:
    """Whether two steps that were compared differ by more than the tolerance, in anything but a
    single gradient.
    """
    return any(
        not sums.error <= TOLERANCE[tolerance] * sums.reference_size
        for name, sums in comparison.items()
        if not name.startswith((GRADIENT, STAGE))
    )


class _EagerSteps:
    """Steps of eager, compared with the reference, and what they allow to a tensor."""

    def __init__(
        self, comparisons: Sequence[TensorSums], sizes: Mapping[str, float], tolerance: str
    ) -> None:
        self.first = comparisons[0]
        self._comparisons = comparisons
        self._sizes_before = sizes
        self._tolerance = tolerance
        # root mean squares of the reference over all gradients, and over all changes of buffers
        self._gradients = self.first.get(ALL_GRADIENTS, Sums()).reference_size
        buffers = [sums for name, sums in self.first.items() if name.startswith(CHANGE_OF_BUFFER)]
        self._buffers = _add(buffers).reference_size
        self._least_gradient = LEAST_SIZE * self._gradients

    def find_error(self, name: str) -> float:
        """The largest error of a step; infinite where one is not finite."""
        errors = [item[name].error for item in self._comparisons if name in item]
        return max(errors) if all(map(math.isfinite, errors)) else math.inf

    def find_least_size(self, name: str) -> float:
        """The smallest size of a tensor in a step, of the reference among them: noise in a few
        numbers has any.
        """
        sizes = [item[name].step_size for item in self._comparisons if name in item]
        return min(self.first[name].reference_size, *sizes)

    def _find_gradient(self, name: str) -> str | None:
        """The gradient that a parameter's update, or the optimizer's state for it, follows from;
        None for other tensors.
        """
        gradient = GRADIENT + name.partition(" of ")[2]
        return gradient if gradient in self.first and gradient != name else None

    def _is_update(self, name: str) -> bool:
        return name.startswith(CHANGE) and self._find_gradient(name) is not None

    def follows_noise(self, name: str) -> bool:
        """Whether an update or a state follows from a gradient that is noise: Adam makes updates of
        any length of it.
        """
        gradient = self._find_gradient(name)
        if gradient is None:
            return False
        errors = [item[gradient].error for item in self._comparisons]
        noise = max(self._least_gradient, *errors)
        return not self.first[gradient].reference_size > noise

    def _find_noise(self, name: str) -> float:
        """The size up to which a tensor is noise: a bias before batch normalisation, the mean of
        what has none.
        """
        error = self.first[name].error
        if name.startswith(CHANGE_OF_BUFFER):
            return max(error, LEAST_SIZE * self._buffers)
        return error

    def find_floor(self, name: str) -> float:
        """What is allowed however exact eager is.

        A tensor that is noise, that is tiny beside the others of its kind, or beside what it
        changes, is measured against those.
        """
        size, others = self.first[name].reference_size, 0.0
        if self.first[name].whole:
            return 0.0
        if self._is_update(name):
            return UPDATE * size
        if name.startswith(GRADIENT):
            others = self._gradients
        elif name.startswith(CHANGE_OF_BUFFER):
            others = self._buffers
        least = max(size, FLOOR * max(others, self._sizes_before.get(name, 0.0)))
        floor = TOLERANCE[self._tolerance] * least
        if size < self._find_noise(name):
            floor = max(floor, NOISE[self._tolerance] * others)
        return floor

    def _bound_size(self, name: str) -> float:
        return max(MAX_TIMES * self.find_error(name), self.find_floor(name))

    def bound_error(self, name: str) -> float:
        """The largest error that is allowed to a tensor of which eager is finite."""
        bound = self._bound_size(name)
        if self._is_update(name):
            turned = min(2 * math.sqrt(self._share_of_flips(name)), MAX_UPDATE)
            bound = max(bound, turned * self.first[name].reference_size)
        is_gradient = name.startswith(GRADIENT)
        if is_gradient and self.first[name].reference_size < self._least_gradient:
            bound = max(bound, MAX_TIMES**2 * self.find_error(name))
        return bound

    def _share_of_flips(self, update: str) -> float:
        """Of an update, roughly the share of numbers whose gradient may have another sign, within
        what is allowed to it.

        Each of these turns an update of Adam around: an error of twice its size, and twice as much
        off its direction. More than all of them are as good as all.
        """
        gradient = self._find_gradient(update) or update
        return _divide(self._bound_size(gradient), self.first[gradient].reference_size)

    def passes_zeros(self, name: str) -> bool:
        """Whether zeros would pass for a gradient that is more than noise beside the others.

        Outputs as far off as they are long are nothing to judge by at all; a loss has nothing that
        would say what is noise.
        """
        if not name.startswith((GRADIENT, ALL_GRADIENTS)):
            return False
        return self._bound_size(name) >= self.first[name].reference_size > self._least_gradient

    def span_projections(self, name: str) -> Span | None:
        """Where the projections of eager lie, of a gradient that is more than noise or another
        tensor of eager's size; else None.

        A loss is one number, for which the rule of size says all.
        """
        sums = self.first[name]
        is_gradient = name.startswith((GRADIENT, STAGE, ALL_GRADIENTS))
        noise = self._least_gradient if is_gradient else self._find_noise(name)
        projections = [item[name].projection for item in self._comparisons if name in item]
        low, high = min(projections), max(projections)
        error = self.find_error(name)
        says_nothing = not (sums.reference_size > noise and low >= MIN_PROJECTION)
        if name == LOSS or says_nothing or math.isinf(error):
            return None
        margin = error / sums.reference_size * max(ERROR_SHARE, FEW / math.sqrt(sums.elements))
        if sums.elements >= MANY:
            margin = min(margin, MAX_MARGIN)
        least = MARGIN[self._tolerance]
        if self._is_update(name):
            least = min(max(UPDATE_MARGIN, 2 * self._share_of_flips(name)), MAX_UPDATE_MARGIN)
        return Span(low, high, max(margin, least), error)


def _explain_infinite(first: TensorSums, errors: Mapping[str, float]) -> str | None:
    """Why there is nothing to judge by where reference or eager are not finite, or None.

    Outputs may hold infinities that are meant; eager has the same ones then.
    """
    of_eager, of_reference, empty = [], [], []
    for name, sums in first.items():
        if math.isinf(errors.get(name, 0.0)) and not name.startswith(GRADIENT):
            of_eager.append(name)
        if name in errors and sums.infinite and not name.startswith(OUTPUT):
            of_reference.append(name)
        if sums.infinite and not sums.elements:
            empty.append(name)
    if of_eager:
        return f"eager gives NaN or infinity in {', '.join(of_eager)}"
    if of_reference:
        return f"the reference is not finite in {', '.join(of_reference)}"
    return f"no finite number in {', '.join(empty)}" if empty else None


def _explain_far_off(comparisons: Sequence[TensorSums]) -> str | None:
    """Why eager is nothing to judge by when its outputs are so far off that being as far says
    nothing, or None.

    Where outputs are not seen, its loss is taken.
    """
    first = comparisons[0]
    names = [name for name in first if name.startswith(OUTPUT) and not first[name].whole] or [LOSS]
    for item in comparisons:
        sums = _add(item[name] for name in names if name in item)
        error = _divide(math.sqrt(sums.differences), math.sqrt(sums.reference))
        if not MAX_TIMES * error < 1:
            kind = LOSS if names == [LOSS] else OUTPUT
            return f"eager's {kind} is too far from the reference to judge by"
    return None


def judge(comparison: TensorSums, bounds: Bounds) -> CaseVerdict:
    """Judge the compiled step, compared with the reference; a tensor in which eager itself is not
    finite is not.
    """
    elements = sum(
        sums.elements
        for name, sums in comparison.items()
        if not name.startswith((STAGE, ALL_GRADIENTS))
    )
    unjudged = sum(
        name not in bounds.bounds or (comparison[name].infinite > 0 and not name.startswith(OUTPUT))
        for name in bounds.errors
    )
    if not any(comparison[name].elements for name in bounds.bounds if not name.startswith(CHANGE)):
        reason = bounds.unverified or "the step gives no finite floating-point tensor"
        return CaseVerdict(Accuracy(bounds.reference.kind, None, reason, unjudged=unjudged))
    shares = {name: _share_of_bounds(name, sums, bounds) for name, sums in comparison.items()}
    worst = max(shares, key=lambda name: _rank(name, shares[name], comparison[name]))
    share = max(shares.values())
    failed = share > 1 and not bounds.nondeterministic
    unverified = None if failed else bounds.unverified
    sums = comparison[worst]
    found = Accuracy(
        reference=bounds.reference.kind,
        passed=None if unverified else not failed,
        unverified=unverified,
        nondeterministic=bounds.nondeterministic,
        tensors=len(bounds.bounds),
        unjudged=unjudged,
        worst=worst,
        too_small=bounds.least_sizes.get(worst, 0.0) > sums.step_size,
        elements=elements,
    )
    if sums.whole:
        return CaseVerdict(replace(found, unequal=sums.error**2), share)
    found = replace(
        found,
        compiled_error=keep_finite(sums.error),
        size=sums.reference_size,
        compiled_size=keep_finite(sums.step_size),
    )
    if worst in bounds.bounds:
        found = replace(found, eager_error=bounds.errors[worst], bound=bounds.bounds[worst])
    if worst in bounds.projections:
        span = bounds.projections[worst]
        found = replace(found, projection=span.nearest(sums.projection), margin=span.margin)
    return CaseVerdict(found, share)


def _rank(name: str, share: float, sums: Sums) -> tuple[bool, int, bool, float]:
    """A key that orders tensors: of what is wrong the nearest to the cause is the last, and the
    furthest beyond its bound.
    """
    if not share > 1:
        return False, 0, False, share
    places = (place for place, kinds in enumerate(CAUSES) if name.startswith(kinds))
    return True, -next(places, len(CAUSES) + (name == LOSS)), not sums.whole, share


def _share_of_bounds(name: str, sums: Sums, bounds: Bounds) -> float:
    """The largest share of what is allowed to a tensor: in size, by the least size, in
    direction.
    """
    shares = [0.0]
    if name not in bounds.errors and name.startswith(IF_CHANGED):  # which eager leaves alone
        shares.append(_divide(sums.error, 0.0))
    if name in bounds.least_sizes:
        shares.append(_divide(bounds.least_sizes[name], sums.step_size))
    if name in bounds.bounds:
        shares.append(_divide(sums.error, bounds.bounds[name]))
    if name in bounds.projections:
        shares.append(bounds.projections[name].share(sums))
    return max(shares)


def keep_finite(value: float) -> float | None:
    """The value as a record keeps it, None where it is NaN or infinite."""
    return value if math.isfinite(value) else None


def _divide(error: float, allowed: float) -> float:
    """The error as a share of what is allowed; infinite where one is not a number, or nothing is
    allowed.
    """
    if not math.isfinite(error) or math.isnan(allowed):
        return math.inf
    if allowed:
        return error / allowed
    return math.inf if error else 0.0
