"""Four drivers that send to one fresh MLflow server at once: nothing is lost, nothing is there
twice.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import fake_python
import pytest
from checkout import ROOT, Run
from tracking_server import Server, mlflow_server

from sweeper.core.paths import SweepPaths
from sweeper.core.record import Record
from sweeper.tracking.reader import RunReader

DRIVERS, TRIALS = 4, 4
pytestmark = pytest.mark.slow
SWEEPS = [f"shared-{number}" for number in range(DRIVERS)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with mlflow_server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Path:
    """Where four sweeps of the same trials have run at the same time."""
    folder = tmp_path_factory.mktemp("drivers")
    python = fake_python.write(folder / "python")
    sizes = ",".join(str(size + 1) for size in range(TRIALS))
    grid = [
        "-m",
        "model=resnet18",
        f"batch_size={sizes}",
        "device=cpu",
        f"worker.python={python}",
        "measure=quick",
    ]
    command = [sys.executable, "-m", "sweeper", *grid, f"tracking.uri={server.uri}"]
    drivers = [
        subprocess.Popen(
            [*command, f"sweep={sweep}"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for sweep in SWEEPS
    ]
    for driver in drivers:
        output, _ = driver.communicate(timeout=300)
        assert driver.returncode == 0, output
        assert "nothing is lost, send it" not in output
    return folder


def test_one_experiment_one_run_a_sweep_and_one_a_trial(server: Server, folder: Path) -> None:
    from mlflow import MlflowClient
    from mlflow.entities import ViewType

    client = MlflowClient(server.uri)
    experiments = client.search_experiments(view_type=ViewType.ALL)
    assert sorted(item.name for item in experiments) == ["Default", "sweeper"]
    (experiment_id,) = (item.experiment_id for item in experiments if item.name == "sweeper")
    runs = client.search_runs([experiment_id], run_view_type=ViewType.ALL)
    assert Counter(run.info.lifecycle_stage for run in runs) == {"active": DRIVERS * (TRIALS + 1)}
    assert {run.info.status for run in runs} == {"FINISHED"}
    kinds = Counter((run.data.tags["sweep"], run.data.tags["sweeper.kind"]) for run in runs)
    assert kinds == {
        (sweep, kind): count
        for sweep in SWEEPS
        for kind, count in (("sweep", 1), ("trial", TRIALS))
    }
    trials = {(run.data.tags["sweep"], run.data.tags.get("trial_id")) for run in runs}
    assert len(trials) == len(runs)


@pytest.mark.parametrize("sweep", SWEEPS)
def test_every_record_is_at_the_server_as_it_is_on_disk(
    server: Server, folder: Path, sweep: str
) -> None:
    store = RunReader(server.uri)
    sent = [store.read(run, "record.json") for run in store.sweep(sweep).trials]
    written = [path.read_text() for path in SweepPaths.of(sweep, folder / "runs").records()]
    assert len(written) == TRIALS
    assert sorted(sent) == sorted(written)
    assert {Record.loads(text).sweep for text in sent} == {sweep}


@pytest.mark.usefixtures("folder")
def test_the_report_from_the_server_has_every_trial(
    server: Server, run_module: Run, tmp_path: Path
) -> None:
    finished = run_module("sweeper.report", *SWEEPS, "--tracking-uri", server.uri, "--out", "out")
    assert (finished.returncode, finished.stderr) == (0, "")
    header, *rows = [
        line.split(",") for line in (tmp_path / "out" / "speedups.csv").read_text().splitlines()
    ]
    assert Counter(row[header.index("sweep")] for row in rows) == dict.fromkeys(SWEEPS, TRIALS)
    assert {row[header.index("status")] for row in rows} == {"ok"}
