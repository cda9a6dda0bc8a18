from __future__ import annotations

import io
import sys
from typing import TextIO

import factories
import pytest
from records import make_trial
from torch._dynamo.exc import BackendCompilerFailed
from torch._inductor.exc import InductorError

from sweeper.core.protocol import Job
from sweeper.core.settings import Measure
from sweeper.core.system.pipes import flush_output
from sweeper.worker.failures import MismatchError, UnavailableError, describe_error
from sweeper.worker.lease import Lease
from sweeper.worker.process_log import ProcessLog, ProcessSlot, run


def closed() -> TextIO:
    stream = io.StringIO()
    stream.close()
    return stream


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


def test_an_error_of_a_backend_begins_with_its_own_type_and_words() -> None:
    wrapped = BackendCompilerFailed(len, KeyError("no such op"), None)
    wrapped.args = (f"{wrapped.args[0]}\n\nfrom user code:\n  model.py, line 3",)
    assert describe_error(wrapped) == (
        "KeyError: 'no such op'\nfrom user code:\n  model.py, line 3"
    )


def test_an_error_of_inductor_has_no_wrapper() -> None:
    assert describe_error(InductorError(KeyError("no such op"), None)) == "KeyError: 'no such op'"


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_an_error_without_words_has_the_line_that_raised_it(is_wrapped: bool) -> None:
    try:
        raise AssertionError
    except AssertionError as error:
        found = describe_error(BackendCompilerFailed(len, error, None) if is_wrapped else error)
    assert found.startswith(f"AssertionError: raise AssertionError ({__file__}:")


@pytest.mark.parametrize("stream", [None, closed()], ids=["none", "closed"])
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError("no data"), "RuntimeError: no data"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt("enough"), "KeyboardInterrupt: enough"),
        (factories.Stop(), "Stop: its text could not be made"),
    ],
)
def test_whatever_a_models_code_raises_and_makes_of_its_streams_is_a_status(
    error: BaseException,
    message: str,
    stream: TextIO | None,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def task(_job: Job, log: ProcessLog) -> None:
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(sys, "stderr", stream)
        log.announce("building")
        log.note("still building")
        raise error

    slot, job = ProcessSlot(), Job(make_trial(), Measure())
    outcome = run(job, slot, lambda _phase: None, Lease(), task)
    flush_output()
    assert (outcome.status, outcome.phase) == ("eager_error", "building")
    assert str(outcome.message).endswith(message)
    logged = capfd.readouterr().err
    assert logged.startswith("still building\nTraceback")
    assert type(error).__name__ in logged
