"""The signals that end a sweep or tell it that its terminal has gone: this module alone handles
them.

SIGINT (Ctrl-C) and SIGTERM take effect as KeyboardInterrupt where the sweep waits or asks (`allow`,
`check`), never in the middle of an import, a write or a call of MLflow: an interrupted import of
mlflow leaves a package that cannot be imported again, and an exception that is raised in `__del__`
is lost. The third signal ends the program at once.

Without `install`, as in a cluster's job and in the other commands, Python's own handlers work and
nothing here does anything.
"""

import atexit
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TypeVar

from .command_line import make_resume_command
from .exit_codes import INTERRUPTED
from .pipes import drop_output

# the number of the signal that waits for nothing; `timeout` and wrappers of programs send two
AT_ONCE = 3

T = TypeVar("T")


class _State:
    """What has come so far. Signals belong to the whole process, so there is one; `dataclasses`
    would load too long.
    """

    received = 0
    pending = False  # one has come that was not raised yet
    allowed = False
    terminals: tuple[int, ...] = ()  # of the file descriptors of standard output and error


_state = _State()


def install() -> None:
    """Handle the signals from now on. Ignored ones stay so, as SIGHUP under nohup; SIGTERM is
    handled in any case.
    """
    _state.terminals = tuple(number for number in (1, 2) if os.isatty(number))
    # the first one registered runs last: Python then gives signals their default actions
    atexit.register(_ignore)
    for number, handler in _HANDLERS.items():
        if number == signal.SIGTERM or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def release() -> None:
    """Give the signals back to Python, for a command that has nothing to keep."""
    for number, handler in _HANDLERS.items():
        if signal.getsignal(number) == handler:
            is_ctrl_c = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if is_ctrl_c else signal.SIG_DFL)
    check()


@contextmanager
def allow() -> Iterator[None]:
    """Let signals raise KeyboardInterrupt in the body; one that has come before raises it at
    once.
    """
    before, _state.allowed = _state.allowed, True
    try:
        check()
        yield
    finally:
        _state.allowed = before


def check() -> None:
    """Raise KeyboardInterrupt if a signal has come that was not raised yet."""
    if _state.pending:
        _state.pending = False
        raise KeyboardInterrupt


def is_pending() -> bool:
    """Whether the next `check` raises."""
    return _state.pending


def receive(items: Iterator[T]) -> Iterator[T]:
    """Yield the items; signals raise KeyboardInterrupt while one is waited for, not while it is
    used.
    """
    while True:
        with allow():
            try:
                item = next(items)
            except StopIteration:
                return
        yield item


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    _state.received += 1
    if _state.received >= AT_ONCE:
        with suppress(OSError):  # the reader has left
            # shown again; the live view has hidden it
            cursor = "\x1b[?25h" if 2 in _state.terminals else ""
            os.write(
                2,
                f"{cursor}\nsweeper: ended at once; go on with: {make_resume_command()}\n".encode(),
            )
        os._exit(INTERRUPTED)  # the reaper ends the workers
    if _state.allowed:
        raise KeyboardInterrupt
    _state.pending = True


def _hang_up(_number: int, _frame: FrameType | None) -> None:
    """Write no more to the terminal, which has gone; a file or a pipe gets all output as before."""
    drop_output(_state.terminals)


def _ignore() -> None:
    for number in _HANDLERS:
        signal.signal(number, signal.SIG_IGN)


_HANDLERS = {signal.SIGINT: _interrupt, signal.SIGTERM: _interrupt, signal.SIGHUP: _hang_up}
