"""Is the compiled step right? Loss, outputs and gradients against the same step in fp64.

The question is asked after the first compiled steps, of the code that is timed next (a replay, for CUDA graphs), on
inputs that it was not compiled with, from the state in which the model was built. The rule, for each tensor, in root
mean squares:

    error(compiled) <= max(MAX_TIMES * error(eager), tolerance * max(size(reference), FLOOR * size(all gradients)))

and, where that bound is so wide that nothing but zeros would pass (the gradients of a CNN in bfloat16 are further from
the truth than they are long), size(compiled) >= size(eager) / MAX_TIMES.

Compiled code sums in another order than eager does, so it may be a few times further from the truth. The form is that
of torch's own benchmark suite, `same` in torch/_dynamo/utils.py; three things are added, each for a correct model that
failed without it. Gradients that are tiny beside the others get a floor. A gradient that is smaller than eager's own
error (a bias before batch normalisation) is noise in both arms and gets a higher one, NOISE. And the error of eager is
the largest of several steps whose inputs and parameters were moved by about what reordered sums do: some activations
near zero then change sides, and a single one moves gradients a thousand times further than rounding does. In reduced
precision rounding itself moves them, so such steps are taken only before a compiled step is called wrong.
`docs/decisions/what-counts-as-wrong.md` has the figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch

from sweeper.core.record import Accuracy
from sweeper.core.trial import Precision, Trial
from sweeper.worker.measurement.capture import GRADIENT, LOSS, OUTPUT, Named, StepTensors
from sweeper.worker.monitoring import torch_flags

MAX_TIMES = 3.0
TOLERANCE = {"full": 1e-4, "reduced": 1e-2}  # reduced: tf32 and half precisions anywhere in the step
FLOOR = 1e-3
NOISE = 1e-3  # of the size of all gradients
PERTURBATION = 1e-5  # relative; a well-conditioned model answers with an error of the size of the tolerance
PERTURBED_STEPS = 3
BITS = {"bfloat16": 8, "float16": 11}  # of a significand; tf32 has those of float16
ALL_GRADIENTS = "all gradients"
CHUNK = 1 << 22  # elements that are compared at a time: 32 MiB in fp64


class DifferentTensorsError(ValueError):
    """Two steps did not give tensors of the same names and shapes."""


class Sums(NamedTuple):
    """Sums over the elements of a tensor that are finite in the reference, and how many these are."""

    differences: float = 0.0  # squares of the differences between step and reference
    reference: float = 0.0  # squares
    step: float = 0.0  # squares
    elements: int = 0

    @property
    def error(self) -> float:
        return _root_mean(self.differences, self.elements)

    @property
    def reference_size(self) -> float:
        return _root_mean(self.reference, self.elements)

    @property
    def step_size(self) -> float:
        return _root_mean(self.step, self.elements)


Comparison = Mapping[str, Sums]  # by the name of the tensor


def compare(step: Named, reference: StepTensors) -> Comparison:
    """Compare two steps, tensor by tensor; the concatenation of all gradients has a name of its own.

    Raises DifferentTensorsError when the steps did not give the same tensors.
    """
    comparison: dict[str, Sums] = {}
    for name, tensor in step:
        other = reference.tensors.get(name)
        if other is None or other.shape != tensor.shape:
            shape = "nothing" if other is None else list(other.shape)
            raise DifferentTensorsError(f"{name} has shape {list(tensor.shape)}, where the reference has {shape}")
        chunks = zip(*(torch.split(side.flatten(), CHUNK) for side in (tensor, other)), strict=True)
        comparison[name] = _add(_compare_chunk(*pair) for pair in chunks)
    if missing := sorted(reference.tensors.keys() - comparison.keys()):
        raise DifferentTensorsError(f"{missing[0]} is missing ({len(missing)} tensors that the reference has)")
    if gradients := [sums for name, sums in comparison.items() if name.startswith(GRADIENT)]:
        comparison[ALL_GRADIENTS] = _add(gradients)
    return comparison


def _compare_chunk(step: torch.Tensor, reference: torch.Tensor) -> Sums:
    reference = reference.to(step.device).double()
    finite = torch.isfinite(reference)
    step, reference = (torch.where(finite, side, 0.0) for side in (step.double(), reference))
    squares = torch.stack([side.square().sum() for side in (step - reference, reference, step)])
    differences, reference_squares, step_squares = squares.tolist()
    return Sums(differences, reference_squares, step_squares, int(finite.sum()))


def _add(parts: Iterable[Sums]) -> Sums:
    differences, reference, step, elements = map(sum, zip(Sums(), *parts, strict=True))
    return Sums(differences, reference, step, int(elements))


def _root_mean(total: float, count: int) -> float:
    if not count:
        return 0.0
    return math.sqrt(total / count) if total >= 0 else math.nan


def choose_tolerance(trial: Trial, module: torch.nn.Module) -> float:
    """What the number formats of the step allow, relative to the size of a tensor."""
    precision = trial.precision
    half = precision.autocast is not None or precision.parameters != "float32"
    convolves = any(isinstance(child, torch.nn.modules.conv._ConvNd) for child in module.modules())
    flags = torch_flags.read()
    cudnn_tf32 = convolves and flags["cudnn_allow_tf32"] is not False  # None beside torch's newer `fp32_precision`
    tf32 = trial.device == "cuda" and (flags["float32_matmul_precision"] != "highest" or cudnn_tf32)
    return TOLERANCE["reduced" if half or tf32 else "full"]


@dataclass(frozen=True)
class Bounds:
    """How far the compiled step may be from the reference, by name, and how far eager is."""

    kind: str
    errors: Mapping[str, float]
    bounds: Mapping[str, float]
    least_sizes: Mapping[str, float] = field(default_factory=dict)  # where zeros would be within the bounds
    nondeterministic: bool = False
    far_off: bool = False  # the reference may be another model's: some do other things in other number formats
    unverified: str | None = None  # why a step within the bounds need not be right


def perturbation(precision: Precision, tolerance: float) -> float:
    """By how much, relatively, rounding and the order of sums move a number; in reduced precision half a last place."""
    if tolerance == TOLERANCE["full"]:
        return PERTURBATION
    half = "bfloat16" if "bfloat16" in (precision.autocast, precision.parameters) else "float16"
    return 0.5 * 2.0 ** -BITS[half]


def set_bounds(
    reference: StepTensors, eager: StepTensors, again: Named, tolerance: float, perturbed: Iterable[Named] = ()
) -> Bounds:
    """Set the bounds by eager steps: one against the reference, and a second one with another seed against the first.

    Eager counts as nondeterministic when its loss, an output or the concatenated gradient moves by more than the
    tolerance: random numbers in the step do that, rounding does not.
    """
    first = compare(eager.tensors.items(), reference)
    repeated = compare(again, eager)
    comparisons = [first, *(compare(step, reference) for step in perturbed)]
    errors = {name: max(item[name].error for item in comparisons) for name in first}
    floors = {name: _floor(name, first, tolerance) for name in first}
    moved = any(not repeated[name].error <= floors[name] for name in repeated if not name.startswith(GRADIENT))
    bounds = {name: max(MAX_TIMES * error, floors[name]) for name, error in errors.items() if math.isfinite(error)}
    least = {name: first[name].step_size / MAX_TIMES for name in bounds if _passes_zeros(name, first, bounds[name])}
    far_off = _explain_far_off(comparisons)
    unverified = "eager differs from itself when it is run twice" if moved else _explain_infinite(errors) or far_off
    return Bounds(reference.kind, errors, bounds, least, moved, bool(far_off), unverified)


def _floor(name: str, eager: Comparison, tolerance: float) -> float:
    """What is allowed however exact eager is."""
    size = eager[name].reference_size
    all_gradients = eager[ALL_GRADIENTS].reference_size if name.startswith(GRADIENT) else 0.0
    floor = tolerance * max(size, FLOOR * all_gradients)
    return max(floor, NOISE * all_gradients) if size < eager[name].error else floor


def _passes_zeros(name: str, eager: Comparison, bound: float) -> bool:
    """Whether zeros would pass for a gradient that is more than noise beside the others.

    Outputs as far off as they are long are nothing to judge by at all; a loss has nothing that would say what is noise.
    """
    if not name.startswith((GRADIENT, ALL_GRADIENTS)):
        return False
    return bound >= eager[name].reference_size > NOISE * eager[ALL_GRADIENTS].reference_size


def _explain_infinite(errors: Mapping[str, float]) -> str | None:
    """Why eager is nothing to judge by when it gives NaN or infinity where it matters for the verdict, or None."""
    names = [name for name in errors if not math.isfinite(errors[name]) and not name.startswith(GRADIENT)]
    return f"eager gives NaN or infinity in {', '.join(names)}" if names else None


def _explain_far_off(comparisons: Sequence[Comparison]) -> str | None:
    """Why eager is nothing to judge by when its outputs are so far off that being as far says nothing, or None.

    Where outputs are not seen, its loss is taken.
    """
    kind = OUTPUT if any(name.startswith(OUTPUT) for name in comparisons[0]) else LOSS
    sums = [_add(item[name] for name in item if name.startswith(kind)) for item in comparisons]
    near = all(MAX_TIMES * _divide(math.sqrt(item.differences), math.sqrt(item.reference)) < 1 for item in sums)
    return None if near else f"eager's {kind} is too far from the reference to judge by"


def judge(step: Named, reference: StepTensors, bounds: Bounds) -> Accuracy:
    """Judge the compiled step; a tensor in which eager itself is not finite is not judged.

    Raises DifferentTensorsError when it did not give the tensors that the reference has.
    """
    comparison = compare(step, reference)
    shares = {name: _divide(comparison[name].error, bound) for name, bound in bounds.bounds.items()}
    unjudged = len(comparison) - len(shares)
    if not shares:
        return Accuracy(bounds.kind, None, "the step gives no finite floating-point tensor", unjudged=unjudged)
    small = {name: _divide(least, comparison[name].step_size) for name, least in bounds.least_sizes.items()}
    worst = max(shares, key=lambda name: max(shares[name], small.get(name, 0.0)))
    error, too_small = comparison[worst].error, small.get(worst, 0.0) > 1
    failed = (shares[worst] > 1 or too_small) and not bounds.nondeterministic
    unverified = None if failed else bounds.unverified
    passed = None if unverified else not failed
    found = Accuracy(bounds.kind, passed, unverified, bounds.nondeterministic, len(shares), unjudged, worst, too_small)
    compiled_error = error if math.isfinite(error) else None
    return replace(found, compiled_error=compiled_error, eager_error=bounds.errors[worst], bound=bounds.bounds[worst])


def _divide(error: float, allowed: float) -> float:
    """The error as a share of what is allowed; infinite where it is not finite, or nothing is allowed."""
    if not math.isfinite(error):
        return math.inf
    return error / allowed if allowed else (0.0 if error == 0 else math.inf)
