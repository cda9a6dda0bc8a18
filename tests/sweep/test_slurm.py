"""Sweeps through a real SLURM: a cluster of one node on loopback, two jobs at a time."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
import slurm_cluster
from checkout import Run
from real_sweeps import FAST, custom, records, run_six

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.xdist_group("slurm"),
    pytest.mark.skipif(slurm_cluster.missing() is not None, reason=str(slurm_cluster.missing())),
]
SLURM = [
    "hydra/launcher=slurm",
    "hydra.launcher.gpus_per_node=null",
    "hydra.launcher.array_parallelism=2",
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    with ExitStack() as stack:
        try:
            variables = stack.enter_context(slurm_cluster.cluster(tmp_path_factory.mktemp("slurm")))
        except TimeoutError as error:  # e.g. in a container that may not do what slurmd wants
            pytest.skip(f"SLURM is installed and does not start: {error}")
        yield variables


@pytest.mark.slow
def test_six_trials_as_array_jobs_and_a_killed_worker_is_one_row(
    cluster: Mapping[str, str], run_module: Run, tmp_path: Path
) -> None:
    run_six(run_module, tmp_path, *SLURM, **cluster)
    asked = ["squeue", "-h", "-t", "all", "-o", "%F %j %A"]
    said = subprocess.run(
        asked, env={**os.environ, **cluster}, capture_output=True, text=True, check=True
    ).stdout
    jobs = [line.split() for line in said.splitlines() if line.split()[1] == "sweeper"]
    assert len(jobs) == 6
    assert len({array for array, *_ in jobs}) == 1, "one array"


@pytest.mark.slow
def test_cancelled_job_is_a_crashed_row_and_the_others_are_waited_for(
    cluster: Mapping[str, str], run_module: Run, tmp_path: Path
) -> None:
    """The first job ends itself through SLURM, as `scancel` or a failing node would; the other
    begins afterwards.
    """
    arguments = [
        *SLURM[:2],
        "hydra.launcher.array_parallelism=1",
        *custom("cancels_its_job", "mlp"),
        "tracking=none",
    ]
    result = run_module("sweeper", "-m", *arguments, "sweep=gone", *FAST, **cluster)
    assert result.returncode == 1, result.stdout + result.stderr
    found = {
        name: (record.status, record.message) for name, record in records(tmp_path, "gone").items()
    }
    assert found["mlp/fp32"] == ("ok", None)
    assert found["cancels_its_job/fp32"][0] == "crashed"


def test_device_has_to_be_said(cluster: Mapping[str, str], run_module: Run, tmp_path: Path) -> None:
    result = run_module("sweeper", "-m", *SLURM, *custom("mlp"), "sweep=none", **cluster)
    assert result.returncode == 2
    assert "say device=cuda or device=cpu" in result.stderr
    assert not (tmp_path / "runs").exists()
