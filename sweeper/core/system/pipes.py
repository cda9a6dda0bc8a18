"""What to do when a program's output cannot be written any more, as behind `| head` or after its
terminal has gone.
"""

import io
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sweeper.core.text import clean_text

from . import shortages
from .exit_codes import CLOSED, INTERRUPTED, NOT_OK

STREAMS = ("stdin", "stdout", "stderr")


def run_until_closed(main: Callable[[], int], lacking: int = NOT_OK) -> int:
    """Call `main` and return its exit code.

    It ends without a traceback where its output is closed, by Ctrl-C, and where the machine lacks
    something: then the code is `lacking`. What becomes of standard error is no failure.
    """
    open_standard_streams()
    outlive_output("stderr")
    try:
        try:
            return main()
        finally:
            sys.stdout.flush()  # what is still in the buffer would fail when the interpreter ends
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except (BrokenPipeError, SystemExit) as error:
        # rich ends the program with exit code 1 when it meets a closed pipe.
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        drop_output()
        return CLOSED
    except (OSError, MemoryError) as error:
        # The exception holds what `main` had open until all is said: a forked process of a report
        # complains on standard error when its pipe closes before.
        if isinstance(error, MemoryError):
            why = "the memory is full; free some"
        elif error.errno in shortages.HINTS:
            why = shortages.describe(error)
        else:
            raise
        print(f"sweeper: {why}", file=sys.stderr)
        drop_output()
        return lacking


def drop_output(descriptors: Iterable[int] = (1,)) -> None:
    """Have output that cannot be written go nowhere, also what is still in the buffer."""
    with suppress(OSError):  # no file handles: then the output was not the problem
        nothing = os.open(os.devnull, os.O_WRONLY)
        for descriptor in descriptors:
            os.dup2(nothing, descriptor)
        os.close(nothing)


def open_standard_streams() -> None:
    """Open what is closed of standard input, output and error (`>&-`), to nothing. Else the next
    file that is opened becomes standard output.
    """
    for number, name in enumerate(STREAMS):
        if getattr(sys, name) is None:
            _renew_stream(number, os.open(os.devnull, os.O_RDWR))


@contextmanager
def lend_streams() -> Iterator[None]:
    """Lend standard input, output and error to code that may close, replace or redirect them. The
    next code finds new ones, which go where they went before.
    """
    kept = [*map(os.dup, range(3))]
    yield
    for number, descriptor in enumerate(kept):
        _renew_stream(number, descriptor)


def _renew_stream(number: int, descriptor: int) -> None:
    """Make a standard stream that goes where `descriptor` goes, which is closed if it is another
    one.
    """
    os.dup2(descriptor, number)
    os.set_inheritable(number, True)
    if descriptor != number:
        os.close(descriptor)
    stream = open(number, "w" if number else "r", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115  # as long as the program
    for name in (STREAMS[number], f"__{STREAMS[number]}__"):
        setattr(sys, name, stream)


def outlive_output(*names: str) -> None:
    """From now on drop what cannot be written to these streams: closed pipe, terminal that has
    gone, full disk. Nothing is raised.

    Text on standard error is cleaned: messages name what others have written.
    """
    for name in names:
        stream = getattr(sys, name)
        if stream is not getattr(sys, f"__{name}__"):  # somebody else's
            continue
        with suppress(OSError):
            stream.flush()
        raw = io.BufferedWriter(_LastingFile(stream.fileno(), "wb", closefd=False))
        by_line = stream.line_buffering or stream.write_through  # the latter with PYTHONUNBUFFERED
        make = _CleanStream if name == "stderr" else io.TextIOWrapper
        lasting = make(raw, stream.encoding, stream.errors, line_buffering=by_line)
        setattr(sys, name, lasting)
        setattr(sys, f"__{name}__", lasting)


def flush_output() -> None:
    """Write what is in the buffers of standard output and error, as far as a model's code has left
    them open.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # None, full, closed
            stream.flush()


def write_log(text: str) -> None:
    """Write to the descriptor of standard error, which is the log of a worker, whatever a model's
    code has made of `sys.stderr`.
    """
    with suppress(OSError):
        os.write(2, text.encode(errors="backslashreplace"))


def log_error(error: BaseException) -> None:
    """Write the traceback of an error, as `write_log` does."""
    write_log("".join(traceback.format_exception(error)))


class _CleanStream(io.TextIOWrapper):
    """A stream of text that changes no terminal."""

    def write(self, text: str, /) -> int:
        super().write(clean_text(text))
        return len(text)


class _LastingFile(io.FileIO):
    """A file whose writes never fail; a later one succeeds where a full disk has space again."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes
