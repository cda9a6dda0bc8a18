"""What to do when nobody reads a program's output any more, as behind `| head`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

CLOSED = 141  # the exit code that shells give a program that SIGPIPE has ended


def run_until_closed(main: Callable[[], int]) -> int:
    """Call `main` and return its exit code; end without a traceback where its output is closed meanwhile."""
    try:
        try:
            return main()
        finally:
            sys.stdout.flush()  # what is still in the buffer would fail when the interpreter ends
    except (BrokenPipeError, SystemExit) as error:
        # rich ends the program with exit code 1 when it meets a closed pipe.
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED
