from __future__ import annotations

import pytest

from sweeper.worker.failures import MismatchError, UnavailableError, describe_error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (UnavailableError("backend thunder is not installed"), "backend thunder is not installed"),
        (MismatchError("loss is off\n\n by much"), "loss is off\n by much"),
        (UnavailableError(), "UnavailableError: "),
        (RuntimeError("no kernel"), "RuntimeError: no kernel"),
        (KeyError("x"), "KeyError: 'x'"),
    ],
)
def test_our_own_errors_do_without_their_class(error: Exception, message: str) -> None:
    assert describe_error(error) == message
