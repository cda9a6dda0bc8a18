"""Is the compiled step right? Loss, outputs and gradients against the same step in fp64.

The question is asked after warm-up, of the code that is timed next (a replay, for CUDA graphs), on inputs that it was
not compiled with, from the state in which the model was built. The rule, for each tensor, in root mean squares:

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

Place in the flow: `session` takes the reference before anything is compiled and judges before the rounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from sweeper.core.record import Accuracy
from sweeper.core.trial import Precision, Trial
from sweeper.worker.measurement.capture import GRADIENT, LOSS, OUTPUT, Named, Observed

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


@dataclass
class Comparison:
    """Sums over elements for each name: of squares of the differences, of both sides, and how many elements."""

    squares: dict[str, float] = field(default_factory=dict)
    sizes: dict[str, float] = field(default_factory=dict)  # of the reference
    found: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def error(self, name: str) -> float:
        return _root_mean(self.squares[name], self.counts[name])

    def size(self, name: str) -> float:
        return _root_mean(self.sizes[name], self.counts[name])

    def found_size(self, name: str) -> float:
        return _root_mean(self.found[name], self.counts[name])

    def share(self, prefix: str) -> float:
        """Error over size of all tensors of a kind together; None has neither."""
        names = [name for name in self.counts if name.startswith(prefix)]
        squares, sizes = sum(self.squares[name] for name in names), sum(self.sizes[name] for name in names)
        return math.sqrt(squares / sizes) if sizes else (math.inf if squares else 0.0)

    def with_all_gradients(self) -> Comparison:
        """The same with the concatenation of all gradients under a name of its own."""
        gradients = [name for name in self.counts if name.startswith(GRADIENT)]
        if gradients:
            self.squares[ALL_GRADIENTS] = sum(self.squares[name] for name in gradients)
            self.sizes[ALL_GRADIENTS] = sum(self.sizes[name] for name in gradients)
            self.found[ALL_GRADIENTS] = sum(self.found[name] for name in gradients)
            self.counts[ALL_GRADIENTS] = sum(self.counts[name] for name in gradients)
        return self


def compare(found: Named, with_: Observed) -> Comparison:
    """Root mean squares of the differences between two steps, over the elements that are finite in `with_`.

    Raises DifferentTensorsError when the steps did not give the same tensors.
    """
    comparison = Comparison()
    for name, tensor in found:
        other = with_.tensors.get(name)
        if other is None or other.shape != tensor.shape:
            shape = "nothing" if other is None else list(other.shape)
            raise DifferentTensorsError(f"{name} has shape {list(tensor.shape)}, where the reference has {shape}")
        sums = [_sums(*pair) for pair in zip(_chunks(tensor), _chunks(other), strict=True)]
        comparison.squares[name] = sum(item[0] for item in sums)
        comparison.sizes[name] = sum(item[1] for item in sums)
        comparison.found[name] = sum(item[2] for item in sums)
        comparison.counts[name] = int(sum(item[3] for item in sums))
    if missing := sorted(with_.tensors.keys() - comparison.counts.keys()):
        raise DifferentTensorsError(f"{missing[0]} is missing ({len(missing)} tensors that the reference has)")
    return comparison.with_all_gradients()


def _chunks(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.split(tensor.reshape(-1), CHUNK) if tensor.numel() else ()


def _sums(found: torch.Tensor, other: torch.Tensor) -> tuple[float, float, float, float]:
    other = other.to(found.device).double()
    finite = torch.isfinite(other)
    both = [torch.where(finite, side, 0.0) for side in (found.double(), other)]
    sums = torch.stack([side.square().sum() for side in (both[0] - both[1], both[1], both[0])])
    squares, sizes, found_sizes = sums.tolist()
    return squares, sizes, found_sizes, float(finite.sum())


def tolerance(trial: Trial, module: torch.nn.Module) -> float:
    """What the number formats of the step allow, relative to the size of a tensor."""
    precision = trial.precision
    half = precision.autocast is not None or precision.parameters != "float32"
    convolves = any(isinstance(child, torch.nn.modules.conv._ConvNd) for child in module.modules())
    on_gpu = trial.device == "cuda"
    tf32 = on_gpu and (
        torch.get_float32_matmul_precision() != "highest" or (convolves and _allowed_tf32(torch.backends.cudnn))
    )
    return TOLERANCE["reduced" if half or tf32 else "full"]


def _allowed_tf32(backend: object) -> bool:
    try:
        return bool(backend.allow_tf32)  # type: ignore[attr-defined]
    except RuntimeError:  # beside torch's newer `fp32_precision` the old switch has no value
        return True


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


def bounds(
    reference: Observed, eager: Observed, again: Named, tolerance: float, perturbed: Iterable[Named] = ()
) -> Bounds:
    """From eager steps against the reference, and a second one from another seed against the first.

    Eager counts as nondeterministic when its loss, an output or the concatenated gradient moves by more than the
    tolerance: random numbers in the step do that, rounding does not.
    """
    found = compare(eager.tensors.items(), reference)
    repeated = compare(again, eager)
    compared = [found, *(compare(step, reference) for step in perturbed)]
    errors = {name: max(item.error(name) for item in compared) for name in found.counts}
    floors = {name: _floor(name, found, tolerance) for name in found.counts}
    moved = any(not repeated.error(n) <= floors[n] for n in repeated.counts if not n.startswith(GRADIENT))
    allowed = {name: max(MAX_TIMES * error, floors[name]) for name, error in errors.items() if math.isfinite(error)}
    least = {name: found.found_size(name) / MAX_TIMES for name in allowed if _says_little(name, found, allowed[name])}
    far = _is_far_off(compared)
    why = "eager differs from itself when it is run twice" if moved else _infinite(errors) or far
    return Bounds(reference.kind, errors, allowed, least, moved, bool(far), why)


def _infinite(errors: Mapping[str, float]) -> str | None:
    """Whether eager gives NaN or infinity where it matters for the verdict."""
    found = [name for name in errors if not math.isfinite(errors[name]) and not name.startswith(GRADIENT)]
    return f"eager gives NaN or infinity in {', '.join(found)}" if found else None


def _says_little(name: str, eager: Comparison, allowed: float) -> bool:
    """Whether zeros would pass for a gradient that is more than noise beside the others.

    Outputs as far off as they are long are nothing to judge by at all; a loss has nothing that would say what is noise.
    """
    if not name.startswith((GRADIENT, ALL_GRADIENTS)):
        return False
    return allowed >= eager.size(name) > NOISE * eager.size(ALL_GRADIENTS)


def _is_far_off(compared: Sequence[Comparison]) -> str | None:
    """Whether eager's outputs, or its loss where they are not seen, are so far off that being as far says nothing."""
    kind = OUTPUT if any(name.startswith(OUTPUT) for name in compared[0].counts) else LOSS
    if all(MAX_TIMES * item.share(kind) < 1 for item in compared):
        return None
    return f"eager's {kind} is too far from the reference to judge by"


def _floor(name: str, eager: Comparison, tolerance: float) -> float:
    """What is allowed however exact eager is."""
    all_gradients = eager.size(ALL_GRADIENTS) if name.startswith(GRADIENT) else 0.0
    floor = tolerance * max(eager.size(name), FLOOR * all_gradients)
    return max(floor, NOISE * all_gradients) if eager.size(name) < eager.error(name) else floor


def judge(found: Named, reference: Observed, bounds: Bounds) -> Accuracy:
    """The verdict on the compiled step; a tensor in which eager itself is not finite is not judged.

    Raises DifferentTensorsError when it did not give the tensors that the reference has.
    """
    compared = compare(found, reference)
    shares = {name: _share(compared.error(name), allowed) for name, allowed in bounds.bounds.items()}
    unjudged = len(compared.counts) - len(shares)
    if not shares:
        return Accuracy(bounds.kind, None, "the step gives no finite floating-point tensor", unjudged=unjudged)
    small = {name: _share(least, compared.found_size(name)) for name, least in bounds.least_sizes.items()}
    worst = max(shares, key=lambda name: max(shares[name], small.get(name, 0.0)))
    error, too_small = compared.error(worst), small.get(worst, 0.0) > 1
    failed = (shares[worst] > 1 or too_small) and not bounds.nondeterministic
    return Accuracy(
        reference=bounds.kind,
        passed=False if failed else None if bounds.unverified else True,
        unverified=None if failed else bounds.unverified,
        nondeterministic=bounds.nondeterministic,
        tensors=len(shares),
        unjudged=unjudged,
        worst=worst,
        too_small=too_small,
        compiled_error=error if math.isfinite(error) else None,
        eager_error=bounds.errors[worst],
        bound=bounds.bounds[worst],
    )


def _share(error: float, allowed: float) -> float:
    if not math.isfinite(error):
        return math.inf
    return error / allowed if allowed else (0.0 if error == 0 else math.inf)


def _root_mean(total: float, count: int) -> float:
    return math.sqrt(total / count) if count and total >= 0 else 0.0 if not count else math.nan
