"""What is wrong with a step that failed the accuracy check, in words."""

import math

from sweeper.core.record import Accuracy, PerArm
from sweeper.worker.failures import MismatchError


def require_right(accuracy: Accuracy) -> None:
    """Raise MismatchError for a step that failed the check."""
    if accuracy.passed is False:
        raise MismatchError(f"{describe_mismatch(accuracy)} ({accuracy.case})")


def describe_mismatch(accuracy: Accuracy) -> str:
    """What is wrong with the worst tensor of a step that failed the check."""
    if accuracy.randomness is not None:
        found = accuracy.statistic
        if found is None:
            return f"{accuracy.worst} has NaN or infinity over seeds, and is finite in eager"
        return (
            f"the {accuracy.worst} over seeds is {found.compiled:.3g}, eager's is "
            f"{found.eager:.3g}; chance and rounding do not explain the difference"
        )
    if accuracy.too_small:
        return f"{accuracy.worst} has less than a third of the size that it has in eager"
    error = math.inf if accuracy.compiled_error is None else accuracy.compiled_error
    if accuracy.bound is not None and not error <= accuracy.bound:
        return (
            f"{accuracy.worst} is off by {error:.3g} (root mean square against "
            f"{accuracy.reference}); "
            f"eager is off by {accuracy.eager_error:.3g}, and {accuracy.bound:.3g} is allowed"
        )
    projection, allowed = accuracy.projection or PerArm(), accuracy.margin or 0.0
    compiled = math.nan if projection.compiled is None else projection.compiled
    eager = math.nan if projection.eager is None else projection.eager
    return (
        f"{accuracy.worst} has {compiled:.3g} times the reference in it ({accuracy.reference}); "
        f"eager has {eager:.3g} times, and {allowed:.3g} more or less is allowed"
    )
