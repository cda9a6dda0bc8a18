"""Random signals at random processes of a sweep lose nothing and double nothing, in the folder and
in MLflow.
"""

from __future__ import annotations

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
from processes import Seen, assert_gone, find_workers, list_processes, wait_for_handlers

from sweeper.core.record import Record
from sweeper.core.system.exit_codes import BAD_INPUT, INTERRUPTED, NOT_OK, OK
from sweeper.tracking.runs import digest_record

SWEEPS, KILLS = 20, 10  # in `make slow`, and kills of each sweep there
TRIALS = 6
LONGEST_S = 3.5  # from the start, or the first worker, to the signal
WORK = """
take("device"); time.sleep(random.random() / 20); take("nothing"); time.sleep(random.random() / 20)
take("alone"); time.sleep(random.random() / 10)
"""


ENDINGS = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT]
HITS = [*ENDINGS, signal.SIGHUP, signal.SIGABRT, signal.SIGSEGV]


def start(folder: Path, prepare: int) -> subprocess.Popen[str]:
    python = fake_python.write(folder / "python", WORK)
    (folder / "tmp").mkdir(exist_ok=True)
    sizes = ",".join(str(size + 1) for size in range(TRIALS))
    grid = [
        "-m",
        "model=resnet18",
        f"batch_size={sizes}",
        "device=cpu",
        f"worker.python={python}",
        "measure=quick",
    ]
    grid.append(f"scheduler.prepare={prepare}")
    return subprocess.Popen(
        [sys.executable, "-m", "sweeper", *grid, "sweep=killed"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder / "tmp")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A test run in the background of a script has inherited that SIGINT is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def hit_at_random(driver: subprocess.Popen[str], python: Path, moments: random.Random) -> None:
    """Send a signal to a child of the driver half of the time, then one that ends the driver,
    unless it has ended.
    """
    wait_for_handlers(driver)
    if moments.random() < 0.5:  # a busy machine would hardly get beyond the start
        while driver.poll() is None and not find_workers(python):
            time.sleep(0.05)
    time.sleep(moments.uniform(0, LONGEST_S))
    children = {seen.pid: seen.command for seen in list_processes() if seen.parent == driver.pid}
    if children and moments.random() < 0.5:
        child = moments.choice(sorted(children))
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(child, moments.choice(HITS))
        if b"reaper" in children[child]:
            # until then nobody would end the workers that are stopped
            wait_for_another_reaper(driver, child)
        time.sleep(moments.uniform(0, 1))
    driver.send_signal(moments.choice(ENDINGS))


def wait_for_another_reaper(driver: subprocess.Popen[str], ended: int) -> None:
    def is_another(seen: Seen) -> bool:
        return seen.parent == driver.pid and seen.pid != ended and b"reaper" in seen.command

    deadline = time.monotonic() + 20
    while driver.poll() is None and not any(map(is_another, list_processes())):
        assert time.monotonic() < deadline, "the reaper was not started again"
        time.sleep(0.01)


def leftovers(folder: Path) -> list[Path]:
    """What a kill has left: temporary files and folders, and compile caches."""
    sweep = folder / "runs" / "killed"
    hidden = {*sweep.parent.glob(".*"), *sweep.glob(".*"), *sweep.glob("*/.*")} - {sweep / ".lock"}
    return [*(folder / "tmp").iterdir(), *hidden, *sweep.glob("*/cache-*")]


def ok_records(folder: Path) -> dict[str, Record]:
    """The ok records by trial; reading all of them is a check of its own."""
    found = [
        Record.loads(path.read_text())
        for path in (folder / "runs" / "killed").glob("*/record.json")
    ]
    by_trial = {record.trial_id: record for record in found}
    assert len(by_trial) == len(found)
    assert {record.status for record in found} <= {"ok", "crashed", "interrupted"}
    return {trial_id: record for trial_id, record in by_trial.items() if record.status == "ok"}


def runs_in_mlflow(folder: Path) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """Name and status of the parents, and the digest of the record that each trial's run shows."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/runs/mlflow.db")
    experiment = client.get_experiment_by_name("sweeper")
    assert experiment is not None
    parents, children = [], {}
    for run in client.search_runs([experiment.experiment_id]):
        tags = run.data.tags
        if tags["sweeper.kind"] == "sweep":
            parents.append((run.info.run_name, run.info.status))
        else:
            assert tags["trial_id"] not in children, "a trial has two runs"
            children[tags["trial_id"]] = tags["sweeper.record"]
    return parents, children


@pytest.mark.parametrize(
    ("seed", "kills"),
    [(0, 1), *(pytest.param(seed, KILLS, marks=pytest.mark.slow) for seed in range(1, SWEEPS + 1))],
)
def test_hit_at_random_moments_and_resumed(tmp_path: Path, seed: int, kills: int) -> None:
    moments, prepare = random.Random(seed), 1 + seed % 3
    kept: dict[str, Record] = {}
    for _ in range(kills):
        driver = start(tmp_path, prepare)
        hit_at_random(driver, tmp_path / "python", moments)
        output, _ = driver.communicate(timeout=120)
        assert "Traceback" not in output, output
        # 1: some trial has crashed. 2: the process that checks the trials was hit.
        assert driver.returncode in (OK, NOT_OK, BAD_INPUT, INTERRUPTED, -signal.SIGKILL), output
        for pid in find_workers(tmp_path / "python"):
            assert_gone(pid)
        now = ok_records(tmp_path)
        assert kept.items() <= now.items(), "a record was lost or measured again"
        kept = now
    driver = start(tmp_path, prepare)
    output, _ = driver.communicate(timeout=120)
    assert driver.returncode == OK, output
    found = ok_records(tmp_path)
    assert kept.items() <= found.items()
    assert len(found) == TRIALS
    assert leftovers(tmp_path) == []
    digests = {trial_id: digest_record(record) for trial_id, record in found.items()}
    assert runs_in_mlflow(tmp_path) == ([("killed", "FINISHED")], digests)
