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

where the margin is a share of eager's relative error, and at most MAX_MARGIN in tensors of many
numbers. It is asked of the gradients of each stage of the model as well, and sees a gradient that
is negated or scaled within eager's errors.

Compiled code sums in another order than eager does, so it may be a few times further from the
truth. The form of the rule of size is that of torch's own benchmark suite, `same` in
torch/_dynamo/utils.py; three things are added, each for a correct model that failed without it.
Gradients that are tiny beside the others get a floor. A gradient that is smaller than eager's own
error (a bias before batch normalisation) is noise in both arms and gets a higher one, NOISE. And
before a compiled step is called wrong, more steps of eager count, whose inputs and parameters were
moved by about what reordered sums do: some activations near zero then change sides, and a single
one moves gradients a thousand times further than rounding does.
`docs/decisions/what-counts-as-wrong.md` has the figures.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from sweeper.core.record import Accuracy, PerArm
from sweeper.core.trial import Precision, Trial
from sweeper.worker.measurement.capture import CHANGE, GRADIENT, LOSS, OUTPUT, Named, StepTensors
from sweeper.worker.monitoring import torch_flags

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
# of every step of eager: with less of the reference in it, eager says nothing about directions
MIN_PROJECTION = 0.5
# relative; a well-conditioned model answers with an error of the size of the tolerance
PERTURBATION = 1e-5
PERTURBED_STEPS = 3
BITS = {"bfloat16": 8, "float16": 11}  # of a significand; tf32 has those of float16
ALL_GRADIENTS = "all gradients"
STAGE = "gradients of "
CHANGE_OF_BUFFER = f"{CHANGE}buffer "
CHUNK = 1 << 22  # elements that are compared at a time: 32 MiB in fp64
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

    @property
    def error(self) -> float:
        return _root_mean(self.differences, self.elements)

    @property
    def reference_size(self) -> float:
        return _root_mean(self.reference, self.elements)

    @property
    def step_size(self) -> float:
        return _root_mean(self.step, self.elements)

    @property
    def projection(self) -> float:
        """The share of the reference that the step has, 1 for the reference itself; NaN where that
        is 0.
        """
        return self.products / self.reference if self.reference else math.nan


TensorSums = Mapping[str, Sums]  # by the name of the tensor
Stages = Mapping[str, str]  # the stage of each parameter, by name


def name_stages(module: torch.nn.Module) -> dict[str, str]:
    """The stage of each parameter: the child of the longest list or sequence, else the top-level
    child, that holds it.

    Of a transformer these are its layers, the embedding and the head.
    """
    lists = [
        (name, child)
        for name, child in module.named_modules()
        if isinstance(child, (torch.nn.ModuleList, torch.nn.Sequential))
    ]
    longest = max(lists, key=lambda item: len(item[1]), default=None)
    inside = f"{longest[0]}." if longest else ""

    def stage(name: str) -> str:
        prefix = inside if name.startswith(inside) else ""
        return prefix + name.removeprefix(prefix).partition(".")[0]

    return {name: stage(name) for name, _ in module.named_parameters()}


def compare(step: Named, reference: StepTensors, stages: Stages | None = None) -> TensorSums:
    """Compare two steps, tensor by tensor; the gradients of a stage together, and all gradients,
    have names as well.

    Raises DifferentTensorsError when the steps did not give the same tensors.
    """
    comparison: dict[str, Sums] = {}
    for name, tensor, other in pair_up(step, reference.tensors, "the reference"):
        chunks = zip(*(torch.split(side.flatten(), CHUNK) for side in (tensor, other)), strict=True)
        comparison[name] = _add(_compare_chunk(*pair) for pair in chunks)
    by_stage: dict[str, list[Sums]] = {}
    for name, sums in comparison.items():
        if name.startswith(GRADIENT):
            by_stage.setdefault((stages or {}).get(name.removeprefix(GRADIENT), ""), []).append(
                sums
            )
    if by_stage:
        comparison |= {f"{STAGE}{stage}": _add(parts) for stage, parts in by_stage.items() if stage}
        comparison[ALL_GRADIENTS] = _add(sums for parts in by_stage.values() for sums in parts)
    return comparison


def pair_up(
    step: Named, others: Mapping[str, torch.Tensor], whose: str
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Put each tensor of a step beside the other one of its name.

    Raises DifferentTensorsError when names or shapes differ from those of `whose` tensors.
    """
    seen = set()
    for name, tensor in step:
        other = others.get(name)
        if other is None or other.shape != tensor.shape:
            shape = "nothing" if other is None else list(other.shape)
            raise DifferentTensorsError(
                f"{name} has shape {list(tensor.shape)}, where {whose} has {shape}"
            )
        seen.add(name)
        yield name, tensor, other
    if missing := sorted(others.keys() - seen):
        raise DifferentTensorsError(
            f"{missing[0]} is missing ({len(missing)} tensors that {whose} has)"
        )


def _compare_chunk(step: torch.Tensor, reference: torch.Tensor) -> Sums:
    reference, step = reference.to(step.device).double(), step.double()
    finite = reference.abs() < HUGE
    # An infinity that is meant, of a mask, is in both; NaN equals nothing.
    alike = finite | ((reference.sign() == step.sign()) & (step.abs() >= HUGE))
    step, reference = (torch.where(finite, side, 0.0) for side in (step, reference))
    sums = [
        (step - reference).square(),
        reference.square(),
        step.square(),
        step * reference,
        finite,
        ~alike,
    ]
    *parts, elements, unlike = torch.stack(
        [part.sum(dtype=torch.float64) for part in sums]
    ).tolist()
    differences, references, steps, products = parts
    infinite = reference.numel() - int(elements)
    return Sums(
        math.inf if unlike else differences, references, steps, products, int(elements), infinite
    )


def _add(parts: Iterable[Sums]) -> Sums:
    return Sums(*map(sum, zip(Sums(), *parts, strict=True)))


def _root_mean(total: float, count: int) -> float:
    if not count:
        return 0.0 if total == 0 else math.inf
    return math.sqrt(total / count)


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
    half = "bfloat16" if "bfloat16" in (precision.autocast, precision.parameters) else "float16"
    return 0.5 * 2.0 ** -BITS[half]


@dataclass(frozen=True)
class Span:
    """Where the projections of eager's steps lie, and how far beyond them the compiled one may
    be.
    """

    low: float
    high: float
    margin: float

    def share(self, projection: float) -> float:
        """By how much a projection lies beyond the span, in margins."""
        beyond = max(self.low - projection, projection - self.high)
        return math.inf if math.isnan(beyond) else max(beyond, 0.0) / self.margin


@dataclass(frozen=True)
class Bounds:
    """What the compiled step may be, by the name of the tensor, and what eager is."""

    kind: str
    errors: Mapping[str, float]
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
    first = comparisons[0]
    judged = [
        name
        for name in first
        if not name.startswith(STAGE) and not _follows_noise(name, comparisons)
    ]
    errors = {
        name: max((item[name].error for item in comparisons), key=_nan_last) for name in judged
    }
    sizes = _sizes_of_kinds(first)
    floors = {name: _floor(name, first, tolerance, reference.sizes, sizes) for name in judged}
    again = repeated or {}
    judged_again = [name for name in again if name in floors and not name.startswith(GRADIENT)]
    moved = any(
        not again[name].error <= floors[name]
        for name in judged_again
        if math.isfinite(errors[name])
    )
    bounds = {
        name: max(MAX_TIMES * error, floors[name])
        for name, error in errors.items()
        if math.isfinite(error)
    }
    least = {
        name: first[name].step_size / MAX_TIMES
        for name in bounds
        if _passes_zeros(name, first, bounds[name])
    }
    far_off = _explain_far_off(comparisons)
    unverified = (
        "eager differs from itself when it is run twice"
        if moved
        else _explain_infinite(first, errors) or _explain_nothing_compared(first) or far_off
    )
    flips = {
        name: _share_of_flips(name, first, bounds) for name in first if _is_update(name, first)
    }
    for name in bounds.keys() & flips.keys():
        allowed = min(2 * math.sqrt(flips[name]), MAX_UPDATE) * first[name].reference_size
        bounds[name] = max(bounds[name], allowed)
    projections = dict(_span_projections(comparisons, MARGIN[tolerance], flips, sizes))
    return Bounds(
        reference.kind, errors, bounds, least, projections, moved, bool(far_off), unverified
    )


def differs(comparison: TensorSums, tolerance: str) -> bool:
    """Whether two steps that were compared differ by more than the tolerance, in anything but a
    single gradient.
    """
    judged = (sums for name, sums in comparison.items() if not name.startswith((GRADIENT, STAGE)))
    return any(not sums.error <= TOLERANCE[tolerance] * sums.reference_size for sums in judged)


def _nan_last(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _floor(
    name: str,
    eager: TensorSums,
    tolerance: str,
    sizes: Mapping[str, float],
    sizes_of_kinds: Mapping[str, float],
) -> float:
    """What is allowed however exact eager is.

    A tensor that is tiny beside the others of its kind, or beside what it changes, is measured
    against those. One that is smaller than eager's own error is noise: a bias before batch
    normalisation, the mean of what has none.
    """
    size, least = eager[name].reference_size, TOLERANCE[tolerance]
    if _is_update(name, eager):
        return UPDATE * size
    kind = next((kind for kind in sizes_of_kinds if name.startswith(kind)), None)
    others = sizes_of_kinds[kind] if kind else 0.0
    floor = least * max(size, FLOOR * max(others, sizes.get(name, 0.0)))
    least_size = LEAST_SIZE * others if kind == CHANGE_OF_BUFFER else 0.0
    return (
        max(floor, NOISE[tolerance] * others)
        if size < max(eager[name].error, least_size)
        else floor
    )


def _sizes_of_kinds(eager: TensorSums) -> dict[str, float]:
    """The root mean squares of the reference over all gradients, and over all changes of
    buffers.
    """
    buffers = _add(sums for name, sums in eager.items() if name.startswith(CHANGE_OF_BUFFER))
    return {
        GRADIENT: eager.get(ALL_GRADIENTS, Sums()).reference_size,
        CHANGE_OF_BUFFER: buffers.reference_size,
    }


def _find_gradient(name: str, names: TensorSums) -> str | None:
    """The gradient that a parameter's update, or the optimizer's state for it, follows from; None
    for other tensors.
    """
    _, _, parameter = name.partition(" of ")
    gradient = f"{GRADIENT}{parameter}"
    return gradient if gradient in names and gradient != name else None


def _is_update(name: str, names: TensorSums) -> bool:
    return name.startswith(CHANGE) and _find_gradient(name, names) is not None


def _follows_noise(name: str, comparisons: Sequence[TensorSums]) -> bool:
    """Whether an update or a state follows from a gradient that is noise: Adam makes updates of any
    length of it.
    """
    first = comparisons[0]
    if (gradient := _find_gradient(name, first)) is None:
        return False
    least = LEAST_SIZE * first[ALL_GRADIENTS].reference_size
    return not first[gradient].reference_size > max(
        least, *(item[gradient].error for item in comparisons)
    )


def _passes_zeros(name: str, eager: TensorSums, bound: float) -> bool:
    """Whether zeros would pass for a gradient that is more than noise beside the others.

    Outputs as far off as they are long are nothing to judge by at all; a loss has nothing that
    would say what is noise.
    """
    if not name.startswith((GRADIENT, ALL_GRADIENTS)):
        return False
    return bound >= eager[name].reference_size > LEAST_SIZE * eager[ALL_GRADIENTS].reference_size


def _share_of_flips(name: str, eager: TensorSums, bounds: Mapping[str, float]) -> float:
    """Of an update, roughly the share of numbers whose gradient may have another sign, within what
    is allowed to it.

    Each of these turns an update of Adam around: an error of twice its size, and twice as much off
    its direction. More than all of them are as good as all.
    """
    gradient = _find_gradient(name, eager) or name
    return _divide(bounds.get(gradient, math.inf), eager[gradient].reference_size)


def _span_projections(
    comparisons: Sequence[TensorSums],
    least_margin: float,
    flips: Mapping[str, float],
    sizes_of_kinds: Mapping[str, float],
) -> Iterator[tuple[str, Span]]:
    """Where the projections of eager lie, for gradients that are more than noise and for other
    tensors of eager's size.

    A loss is one number, for which the rule of size says all.
    """
    first = comparisons[0]
    of_gradients, of_buffers = (
        LEAST_SIZE * sizes_of_kinds[kind] for kind in (GRADIENT, CHANGE_OF_BUFFER)
    )
    for name, sums in first.items():
        if name == LOSS or _follows_noise(name, comparisons):
            continue
        is_gradient = name.startswith((GRADIENT, STAGE, ALL_GRADIENTS))
        least_size = of_buffers if name.startswith(CHANGE_OF_BUFFER) else 0.0
        if sums.reference_size > (of_gradients if is_gradient else max(sums.error, least_size)):
            found = [item[name].projection for item in comparisons]
            if not min(found) >= MIN_PROJECTION:
                continue
            error = (
                max((item[name].error for item in comparisons), key=_nan_last) / sums.reference_size
            )
            if not math.isfinite(error):
                continue
            margin = error * max(ERROR_SHARE, FEW / math.sqrt(sums.elements))
            if sums.elements >= MANY:
                margin = min(margin, MAX_MARGIN)
            least = least_margin
            if name in flips:
                least = min(max(UPDATE_MARGIN, 2 * flips[name]), MAX_UPDATE_MARGIN)
            yield name, Span(min(found), max(found), max(margin, least))


def _explain_infinite(eager: TensorSums, errors: Mapping[str, float]) -> str | None:
    """Why there is nothing to judge by where reference or eager are not finite, or None.

    Outputs may hold infinities that are meant; eager has the same ones then.
    """
    names = [
        name for name in errors if not math.isfinite(errors[name]) and not name.startswith(GRADIENT)
    ]
    if names:
        return f"eager gives NaN or infinity in {', '.join(names)}"
    names = [name for name in errors if eager[name].infinite and not name.startswith(OUTPUT)]
    return f"the reference is not finite in {', '.join(names)}" if names else None


def _explain_nothing_compared(eager: TensorSums) -> str | None:
    names = [name for name, sums in eager.items() if sums.infinite and not sums.elements]
    return f"no finite number in {', '.join(names)}" if names else None


def _explain_far_off(comparisons: Sequence[TensorSums]) -> str | None:
    """Why eager is nothing to judge by when its outputs are so far off that being as far says
    nothing, or None.

    Where outputs are not seen, its loss is taken.
    """
    kind = OUTPUT if any(name.startswith(OUTPUT) for name in comparisons[0]) else LOSS
    sums = [_add(item[name] for name in item if name.startswith(kind)) for item in comparisons]
    near = all(
        MAX_TIMES * _divide(math.sqrt(item.differences), math.sqrt(item.reference)) < 1
        for item in sums
    )
    return None if near else f"eager's {kind} is too far from the reference to judge by"


@dataclass(frozen=True)
class CaseVerdict:
    """What was found in a case, and the share of its bound that the worst tensor takes; above 1 it
    is wrong.
    """

    accuracy: Accuracy
    share: float = 0.0


def judge(comparison: TensorSums, bounds: Bounds) -> CaseVerdict:
    """Judge the compiled step, compared with the reference; a tensor in which eager itself is not
    finite is not.
    """
    elements = sum(
        sums.elements
        for name, sums in comparison.items()
        if not name.startswith((STAGE, ALL_GRADIENTS))
    )
    not_finite = (
        name for name in bounds.errors if comparison[name].infinite and not name.startswith(OUTPUT)
    )
    unjudged = len({*not_finite, *(name for name in bounds.errors if name not in bounds.bounds)})
    if not any(comparison[name].elements for name in bounds.bounds if not name.startswith(CHANGE)):
        reason = bounds.unverified or "the step gives no finite floating-point tensor"
        return CaseVerdict(Accuracy(bounds.kind, None, reason, unjudged=unjudged))
    shares = {name: _share_of_bounds(name, comparison[name], bounds) for name in comparison}
    worst = max(shares, key=lambda name: shares[name])
    failed = shares[worst] > 1 and not bounds.nondeterministic
    error = comparison[worst].error
    span = bounds.projections.get(worst)
    unverified = None if failed else bounds.unverified
    found = Accuracy(
        reference=bounds.kind,
        passed=None if unverified else not failed,
        unverified=unverified,
        nondeterministic=bounds.nondeterministic,
        tensors=len(bounds.bounds),
        unjudged=unjudged,
        worst=worst,
        too_small=bounds.least_sizes.get(worst, 0.0) > comparison[worst].step_size,
        compiled_error=error if math.isfinite(error) else None,
        eager_error=bounds.errors[worst] if worst in bounds.bounds else None,
        bound=bounds.bounds.get(worst),
        elements=elements,
        projection=_nearest_projections(span, comparison[worst].projection) if span else None,
        margin=span.margin if span else None,
    )
    return CaseVerdict(found, shares[worst])


def _share_of_bounds(name: str, sums: Sums, bounds: Bounds) -> float:
    """The largest share of what is allowed to a tensor: in size, by the least size, in
    direction.
    """
    shares = [0.0]
    if name in bounds.least_sizes:
        shares.append(_divide(bounds.least_sizes[name], sums.step_size))
    if name in bounds.bounds:
        shares.append(_divide(sums.error, bounds.bounds[name]))
    if name in bounds.projections:
        shares.append(bounds.projections[name].share(sums.projection))
    return max(shares)


def _nearest_projections(span: Span, compiled: float) -> PerArm:
    """Both arms' projections, of eager's the nearest one."""
    if not math.isfinite(compiled):
        return PerArm(span.high)
    return PerArm(min(max(compiled, span.low), span.high), compiled)


def _divide(error: float, allowed: float) -> float:
    """The error as a share of what is allowed; infinite where one is not a number, or nothing is
    allowed.
    """
    if not math.isfinite(error) or math.isnan(allowed):
        return math.inf
    return error / allowed if allowed else (0.0 if error == 0 else math.inf)
