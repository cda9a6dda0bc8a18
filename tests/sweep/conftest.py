"""Fixtures of the tests of whole sweeps."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkout import SEARCH_PATH
from real_sweeps import Start


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`python -m sweeper ARGUMENTS` in an empty folder, going on while the test does something;
    ended with the test.
    """
    drivers: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **variables: str) -> subprocess.Popen[str]:
        driver = subprocess.Popen(
            [sys.executable, "-m", "sweeper", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": SEARCH_PATH, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # A test run in the background of a script has inherited that SIGINT is ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        drivers.append(driver)
        return driver

    yield start
    for driver in drivers:
        driver.kill()
        driver.communicate()
