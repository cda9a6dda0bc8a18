"""What a program does with signals from its start; whole sweeps are in
tests/sweep/test_interrupts.py.
"""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys

import pytest
from checkout import ENVIRONMENT

from sweeper.core.system.exit_codes import INTERRUPTED
from sweeper.core.system.pipes import run_until_closed

HANDLED = """
import signal
from sweeper.core.system import interrupts
interrupts.install()
names = ("SIGINT", "SIGTERM", "SIGHUP")
print([name for name in names if signal.getsignal(signal.Signals[name]) != signal.SIG_IGN])
"""
WAITS = """
import os, signal
from sweeper.core.system import interrupts

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


NESTED = """
import os, signal
from sweeper.core.system import interrupts
interrupts.install()
with interrupts.allow():
    with interrupts.allow():
        pass
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        print("allowed still")
os.kill(os.getpid(), signal.SIGINT)
print("pending", interrupts.is_pending())
try:
    interrupts.release()
except KeyboardInterrupt:
    print("raised at the release", interrupts.is_pending())
defaults = (signal.default_int_handler, signal.SIG_DFL, signal.SIG_DFL)
numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
print(tuple(map(signal.getsignal, numbers)) == defaults)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
interrupts.release()
print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)
"""
AT_ONCE = """
import os, signal
from sweeper.core.system import interrupts
from sweeper.core.system.command_line import remember_sweep
interrupts.install()
remember_sweep("night")
for number in (signal.SIGINT, signal.SIGTERM):
    os.kill(os.getpid(), number)
print("two wait", flush=True)
os.kill(os.getpid(), signal.SIGINT)
print("never")
"""
HANGS_UP = """
import os, signal
from sweeper.core.system import interrupts
interrupts.install()
os.kill(os.getpid(), signal.SIGHUP)
os.write(1, b"out")
os.write(2, b"err")
"""


def start(
    program: str,
    *arguments: str,
    ignored: tuple[signal.Signals, ...] = (),
    stderr: int = subprocess.PIPE,
) -> subprocess.CompletedProcess[str]:
    """Run a program with the default actions of signals: those of this process may be ignored, as
    under nohup.
    """

    def prepare() -> None:
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)

    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(
        command,
        env=ENVIRONMENT,
        text=True,
        preexec_fn=prepare,
        stdout=subprocess.PIPE,
        stderr=stderr,
        check=False,
    )


def run(program: str, *ignored: signal.Signals) -> str:
    found = start(program, ignored=ignored)
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_ignored_signals_stay_ignored_and_termination_does_not() -> None:
    """As under nohup, and in the background of a script."""
    assert run(HANDLED) == "['SIGINT', 'SIGTERM', 'SIGHUP']\n"
    assert run(HANDLED, signal.SIGHUP) == "['SIGINT', 'SIGTERM']\n"
    assert run(HANDLED, signal.SIGINT) == "['SIGTERM', 'SIGHUP']\n"


def test_signals_are_raised_once_where_the_program_waits_or_asks() -> None:
    assert run(WAITS) == "held\nraised\nraised while waiting\n"


def test_interrupted_command_ends_without_a_traceback() -> None:
    def main() -> int:
        raise KeyboardInterrupt

    assert run_until_closed(main) == INTERRUPTED


def test_signals_are_allowed_until_the_outermost_wait_ends_and_released_to_what_python_does() -> (
    None
):
    assert run(NESTED) == "allowed still\npending True\nraised at the release False\nTrue\nTrue\n"


def test_third_signal_ends_the_program_at_once_and_says_how_to_go_on() -> None:
    found = start(AT_ONCE, "model=alexnet")
    assert (found.returncode, found.stdout) == (INTERRUPTED, "two wait\n")
    assert found.stderr.startswith("\nsweeper: ended at once; go on with: python -c ")
    assert found.stderr.endswith(" model=alexnet sweep=night\n")


def test_a_terminal_that_has_gone_gets_no_output_and_a_pipe_all_of_it() -> None:
    master, terminal = pty.openpty()
    found = start(HANGS_UP, stderr=terminal)
    assert (found.returncode, found.stdout) == (0, "out")
    os.set_blocking(master, False)
    with pytest.raises(BlockingIOError):
        os.read(master, 100)
    os.close(master)
    os.close(terminal)
