"""What a program does with signals from its start; whole sweeps are in tests/sweep/test_interrupts.py."""

from __future__ import annotations

import signal
import subprocess
import sys

from checkout import ENVIRONMENT

from sweeper.core.exit_codes import INTERRUPTED
from sweeper.core.pipes import run_until_closed

HANDLED = """
import signal
from sweeper.core import interrupts
interrupts.install()
print([name for name in ("SIGINT", "SIGTERM", "SIGHUP") if signal.getsignal(signal.Signals[name]) != signal.SIG_IGN])
"""
WAITS = """
import os, signal
from sweeper.core import interrupts

def items():
    os.kill(os.getpid(), signal.SIGINT)
    yield "waited"

interrupts.install()
os.kill(os.getpid(), signal.SIGTERM)
print("held")
try:
    interrupts.check()
except KeyboardInterrupt:
    print("raised")
interrupts.check()
try:
    print(*interrupts.receive(items()))
except KeyboardInterrupt:
    print("raised while waiting")
interrupts.check()
"""


def run(program: str, ignored: tuple[signal.Signals, ...] = ()) -> str:
    def prepare() -> None:
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)

    command = [sys.executable, "-c", program]
    return subprocess.check_output(command, env=ENVIRONMENT, text=True, preexec_fn=prepare)


def test_ignored_signals_stay_ignored_and_termination_does_not() -> None:
    """As under nohup, and in the background of a script."""
    assert run(HANDLED) == "['SIGINT', 'SIGTERM', 'SIGHUP']\n"
    assert run(HANDLED, (signal.SIGHUP,)) == "['SIGINT', 'SIGTERM']\n"
    assert run(HANDLED, (signal.SIGINT,)) == "['SIGTERM', 'SIGHUP']\n"


def test_signals_are_raised_once_where_the_program_waits_or_asks() -> None:
    assert run(WAITS) == "held\nraised\nraised while waiting\n"


def test_interrupted_command_ends_without_a_traceback() -> None:
    def main() -> int:
        raise KeyboardInterrupt

    assert run_until_closed(main) == INTERRUPTED
