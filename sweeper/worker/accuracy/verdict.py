"""Verdicts, and the one order of them."""

from typing import NamedTuple

from sweeper.core.record import Accuracy


class CaseVerdict(NamedTuple):
    """What was found in a case, and the largest share of its bound that a tensor takes; above 1 it
    is wrong.
    """

    accuracy: Accuracy
    share: float = 0.0


def severity(passed: bool | None, share: float = 0.0) -> tuple[bool, bool, float]:
    """A key that orders verdicts: what is right, then what could not be judged, then what is wrong;
    among equals by their share of what is allowed.
    """
    return passed is False, passed is None, share
