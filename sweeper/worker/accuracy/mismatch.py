"""What is wrong with a step that failed the accuracy check, in words."""

import math

from sweeper.core.record import Accuracy, PerArm
from sweeper.worker.failures import MismatchError


def require_right(accuracy: Accuracy, where: str = "") -> None:
    """Raise MismatchError for a step that failed the check, with where that was."""
    if accuracy.passed is False:
        raise MismatchError(f"{where}{describe_mismatch(accuracy)} ({accuracy.case})")


def describe_mismatch(accuracy: Accuracy) -> str:
    """What is wrong with the worst tensor of a step that failed the check."""
    if accuracy.unequal is not None:
        return f"{_percent(accuracy.unequal)} of the numbers in {accuracy.worst} are not eager's"
    if accuracy.randomness is not None:
        found = accuracy.statistic
        if found is None:
            return f"{accuracy.worst} has NaN or infinity over seeds, and is finite in eager"
        return (
            f"the {accuracy.worst} over seeds is {found.compiled:.3g}, eager's is "
            f"{found.eager:.3g}; chance and rounding do not explain the difference"
        )
    if accuracy.compiled_size == 0 and accuracy.size:
        return f"{accuracy.worst} is zero in the compiled step"
    if accuracy.too_small:
        return f"{accuracy.worst} has less than a third of the size that it has in eager"
    if accuracy.compiled_error is None:
        return f"{accuracy.worst} differs from {accuracy.reference} in NaN or infinity"
    if accuracy.bound is not None and accuracy.compiled_error > accuracy.bound:
        errors = (accuracy.compiled_error, accuracy.eager_error, accuracy.bound)
        error, eager_error, bound = (_divide(value, accuracy.size) for value in errors)
        return (
            f"{accuracy.worst} is off by {error} (root mean square against {accuracy.reference}); "
            f"eager is off by {eager_error}, and {bound} is allowed"
        )
    projection, allowed = accuracy.projection or PerArm(), accuracy.margin or 0.0
    compiled = math.nan if projection.compiled is None else projection.compiled
    eager = math.nan if projection.eager is None else projection.eager
    return (
        f"{accuracy.worst} has {compiled:.3g} times the reference in it ({accuracy.reference}); "
        f"eager has {eager:.3g} times, and {allowed:.3g} more or less is allowed"
    )


def _divide(error: float | None, size: float | None) -> str:
    """An error as a share of the tensor's size; as it is where the size says nothing."""
    error = error or 0.0
    return _percent(error / size) if size else f"{error:.3g}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
