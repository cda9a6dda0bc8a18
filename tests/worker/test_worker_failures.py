from __future__ import annotations

import pytest

from sweeper.worker.failures import MismatchError, UnavailableError, message_of


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
    assert message_of(error) == message
