"""What can go wrong with a trial: exceptions that know their status, and the status of every other
exception. `sweeper.core.record` declares the statuses.
"""

import traceback
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

from sweeper.core.record import EAGER_PHASES
from sweeper.core.system.pipes import log_error

# CUDA, the CPU, cuBLAS and cuDNN
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "STATUS_ALLOC_FAILED")
MESSAGE_LINES = 8
MESSAGE_LENGTH = 2000

T = TypeVar("T")


class Failure(Exception):  # noqa: N818  # the base class; its subclasses say what the error is
    """A trial cannot be measured, for a reason that has a status of its own."""

    status: str

    def __init__(self, message: str = "", status: str | None = None) -> None:
        """`status` is another one than that of the class."""
        super().__init__(message)
        if status is not None:
            self.status = status


class UnavailableError(Failure):
    """This machine lacks the backend or mode, or the model what the scope compiles."""

    status = "unavailable"


class EagerError(Failure):
    """The model itself goes wrong, before any compiler."""

    status = "eager_error"


class MismatchError(Failure):
    """The compiled step gives other results than the eager step."""

    status = "accuracy_mismatch"


class NotCompiledError(Failure):
    """What would be timed is not the compiled model."""

    status = "not_compiled"


class UnsteadyError(Failure):
    """Too many rounds were void."""

    status = "runtime_error"


@dataclass(frozen=True)
class Missing:
    """A reading that could not be taken, and why."""

    reason: str


def try_reading(reading: Callable[[], T]) -> T | Missing:
    """Take a reading outside of the timed blocks; what goes wrong in it becomes a reason, and the
    trial goes on.

    Raises a `Failure`, which says something of the trial.
    """
    try:
        return reading()
    except Failure:
        raise
    except Exception as error:  # noqa: BLE001  # models and libraries raise anything, here in steps of our own making
        log_error(error)
        return Missing(describe_error(error))


def try_steps(steps: Generator[None, None, T]) -> Generator[None, None, T | Missing]:
    """Take a reading as `try_reading` does, in steps that a loop may have to run."""
    try:
        return (yield from steps)
    except Failure:
        raise
    except Exception as error:  # noqa: BLE001  # as above
        log_error(error)
        return Missing(describe_error(error))


def choose_status(error: BaseException, phase: str) -> str:
    """The status of a trial that ended with an exception in a phase."""
    if isinstance(error, Failure):
        return error.status
    if is_out_of_memory(error):
        return "oom"
    if phase in EAGER_PHASES:
        return "eager_error"
    return "compile_error" if phase == "compiling" else "runtime_error"


def describe_error(error: BaseException) -> str:
    """The first lines of an error, after its type unless it is a `Failure`, whose status says as
    much. An error without words, as a bare `assert` raises it, has the line that raised it. One
    that torch wraps because a backend raised it has its own type.
    """
    lines = [line for line in read_text(error).strip().splitlines() if line.strip()]
    inner = getattr(error, "inner_exception", None)  # torch/_dynamo/exc.py
    kind = f"{type(error).__name__}: "
    if isinstance(inner, BaseException) and lines:
        kind = ""
        if lines[0].endswith(" raised:") and len(lines) > 1:  # `backend='inductor' raised:`
            del lines[0]
        if not read_text(inner):
            lines[0] = f"{lines[0].rstrip()} {_name_line(inner)}".rstrip()
    elif not lines:
        lines = [_name_line(error)]
    elif isinstance(error, Failure):
        kind = ""
    text = kind + "\n".join(lines[:MESSAGE_LINES])
    return text[:MESSAGE_LENGTH]


def _name_line(error: BaseException) -> str:
    """Name the line that raised an error; "" where that is not known."""
    if error.__traceback__ is None:
        return ""
    raised = traceback.extract_tb(error.__traceback__)[-1]
    return f"{raised.line} ({raised.filename}:{raised.lineno})"


def read_text(error: BaseException) -> str:
    """The text of an error, whose class may be a user's own."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # a user's method may raise anything
        return "its text could not be made"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device or the host had too little memory, in the words of any library."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's
        return True
    return isinstance(error, RuntimeError) and any(
        text in read_text(error) for text in OUT_OF_MEMORY
    )
