from __future__ import annotations

import pytest

from sweeper.core.system.process_group import describe_exit, describe_signal


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (3, "exited with code 3"),
        (-11, "was killed by SIGSEGV"),
        (-9, "was killed by SIGKILL; the kernel kills so when memory runs out"),
        (-40, "was killed by signal 40"),
    ],
)
def test_ends_of_processes_are_described(code: int, text: str) -> None:
    assert describe_exit(code) == text


def test_a_signal_is_named_without_a_guess() -> None:
    assert describe_signal(9) == "was killed by SIGKILL"
