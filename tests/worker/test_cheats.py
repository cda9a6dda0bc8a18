"""Models that try to look faster than they are, each in a worker of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import cheats
import pytest
from checkout import ENVIRONMENT, ROOT, SEARCH_PATH

NAMED = {  # what docs/security.md says of those that pass
    "eager_waits": "waits or idles in eager",
    "remembers": "right size",
    "patches_sweeper": "replaces functions of sweeper",
}
QUICK = ("on_the_stack",)
PROGRAM = """
import json, sys, worker_runs
from dataclasses import replace
from sweeper.core.serialization import to_json
trial = worker_runs.custom(sys.argv[1], "cheats", workload="inference", optimizer="none")
outcome, _ = worker_runs.run(trial, replace(worker_runs.MEASURE, rounds=6, block_s=0.05))
process, verified = outcome.process, outcome.process.accuracy
speedup = None
if process.step_s("compiled"):
    speedup = process.step_s("eager") / process.step_s("compiled")
right = bool(verified and verified.passed)
print(json.dumps([outcome.status, outcome.message, right, speedup]))
"""


@pytest.mark.compile
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow)
        for name in cheats.factories
    ],
)
def test_a_cheat_gives_no_verified_speedup_unless_it_is_named(name: str, tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, name],
        cwd=tmp_path,
        env={**ENVIRONMENT, "PYTHONPATH": SEARCH_PATH},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    status, message, is_right, speedup = json.loads(result.stdout.splitlines()[-1])
    passes = status == "ok" and is_right and speedup > 1.8
    assert passes == (name in NAMED), (status, message, is_right, speedup)


def test_there_are_enough_cheats_and_those_that_pass_are_named() -> None:
    assert len(cheats.factories) >= 25
    assert len(NAMED) <= 3
    security = (ROOT / "docs" / "security.md").read_text()
    assert [text for text in NAMED.values() if text not in security] == []
