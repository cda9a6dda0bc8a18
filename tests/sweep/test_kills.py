"""A driver that is killed at any moment loses nothing and doubles nothing, in the folder and in MLflow."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import fake_python
import pytest
from checkout import ROOT
from processes import assert_gone

from sweeper.core.record import Record

SWEEPS, KILLS = 5, 10  # kills of each sweep
TRIALS = 6
LONGEST_S = 3.5  # from the start to the kill; a run that is not killed takes somewhat longer
WORK = """
take("device"); time.sleep(random.random() / 20); take("nothing"); time.sleep(random.random() / 20)
take("alone"); time.sleep(random.random() / 10)
"""


def start(folder: Path, prepare: int) -> subprocess.Popen[bytes]:
    python = fake_python.write(folder / "python", WORK)
    sizes = ",".join(str(size + 1) for size in range(TRIALS))
    grid = ["-m", "model=resnet18", f"batch_size={sizes}", "device=cpu", f"worker.python={python}", "measure=quick"]
    grid.append(f"scheduler.prepare={prepare}")
    return subprocess.Popen(
        [sys.executable, "-m", "sweeper", *grid, "sweep=killed"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def records(folder: Path) -> dict[str, str]:
    """Digests of the records by trial; reading them is a check of its own."""
    found = {}
    for path in sorted((folder / "runs" / "killed").glob("*/record.json")):
        record = Record.loads(path.read_text())
        assert record.trial_id not in found
        assert record.status == "ok", record.message
        found[record.trial_id] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def workers(folder: Path) -> list[int]:
    """Processes that run the fake interpreter of this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has just ended
            if str(folder / "python").encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def runs_in_mlflow(folder: Path) -> tuple[list[str], list[str]]:
    """Names of the parents, and trial ids of the children."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/runs/mlflow.db")
    experiment = client.get_experiment_by_name("sweeper")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    kinds = [(run.data.tags["sweeper.kind"], run.data.tags.get("trial_id", run.info.run_name)) for run in runs]
    return [name for kind, name in kinds if kind == "sweep"], sorted(name for kind, name in kinds if kind == "trial")


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, SWEEPS))])
def test_killed_at_random_moments_and_resumed(tmp_path: Path, seed: int) -> None:
    moments, prepare = random.Random(seed), 1 + seed % 3
    kept: dict[str, str] = {}
    for _ in range(KILLS):
        driver = start(tmp_path, prepare)
        time.sleep(moments.uniform(0, LONGEST_S))
        driver.send_signal(signal.SIGKILL)
        driver.communicate()
        for pid in workers(tmp_path):
            assert_gone(pid)
        now = records(tmp_path)
        assert kept.items() <= now.items(), "a record was lost or measured again"
        kept = now
    driver = start(tmp_path, prepare)
    output, _ = driver.communicate(timeout=120)
    assert driver.returncode == 0, output.decode()
    found = records(tmp_path)
    assert kept.items() <= found.items()
    assert len(found) == TRIALS
    assert runs_in_mlflow(tmp_path) == (["killed"], sorted(found))
