"""Sweeps through a real Ray: one that the sweep starts for itself, and a cluster of two nodes that
is there already.
"""

from __future__ import annotations

import importlib.util
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import ray_cluster
from checkout import SEARCH_PATH, Run
from real_sweeps import FAST, Start, custom, records, rows, run_six

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray")]
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("hydra_plugins.hydra_ray_launcher") is None,
    reason="hydra-ray-launcher is not installed: pip install hydra-ray-launcher",
)
RAY = ["-m", "hydra/launcher=ray"]
ON_CPUS = ["hydra.launcher.ray.remote.num_gpus=0", "hydra.launcher.ray.init.num_cpus=2"]


@pytest.fixture(scope="module")
def variables() -> Iterator[Mapping[str, str]]:
    with ray_cluster.apart() as variables:
        yield variables


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[list[str], Mapping[str, str]]]:
    """Overrides and environment variables for a cluster whose nodes know nothing of these tests."""
    with ray_cluster.apart() as variables, ray_cluster.cluster(variables) as address:
        path = f"runtime_env.env_vars.PYTHONPATH={SEARCH_PATH}"
        yield (
            [f"hydra.launcher.ray.init.{item}" for item in (f"address={address}", path)],
            variables,
        )


@needs_ray
def test_six_trials_on_a_ray_of_their_own_and_a_killed_worker_is_one_row(
    variables: Mapping[str, str], run_module: Run, tmp_path: Path
) -> None:
    run_six(run_module, tmp_path, "hydra/launcher=ray", *ON_CPUS, **variables)


@needs_ray
def test_existing_cluster_runs_what_is_left_on_both_nodes_at_once(
    cluster: tuple[list[str], Mapping[str, str]], run_module: Run, tmp_path: Path
) -> None:
    """The two trials that wait for each other come first; each needs a GPU, and a node has one."""
    joining, variables = cluster
    command, grid = [*RAY, *joining, "sweep=two", "tracking=none", *FAST], "precision=fp32,bf16"
    first = run_module("sweeper", *command, *custom("mlp"), grid, **variables)
    assert first.returncode == 0, first.stdout + first.stderr
    kept = {path: path.read_bytes() for path in (tmp_path / "runs/two").glob("*/record.json")}

    result = run_module(
        "sweeper", *command, *custom("meets_another_node", "killed", "mlp"), grid, **variables
    )
    assert "sweep two: 4 trials to run" in result.stdout, result.stdout + result.stderr
    assert result.returncode == 1, result.stdout + result.stderr
    assert len(kept) == 2
    assert {path: path.read_bytes() for path in kept} == kept
    statuses = [record.status for record in records(tmp_path, "two").values()]
    assert sorted(statuses) == ["crashed"] * 2 + ["ok"] * 4
    assert len(rows(tmp_path, "two", "speedups")) == 6


@needs_ray
def test_lost_task_is_a_crashed_row_and_the_others_are_waited_for(
    cluster: tuple[list[str], Mapping[str, str]], run_module: Run, tmp_path: Path
) -> None:
    joining, variables = cluster
    models = custom("takes_its_task_down", "mlp", "dict_and_loss")
    result = run_module(
        "sweeper", *RAY, *joining, *models, "sweep=lost", "tracking=none", *FAST, **variables
    )
    assert result.returncode == 1, result.stdout + result.stderr
    found = {
        name: (record.status, record.message) for name, record in records(tmp_path, "lost").items()
    }
    message = "the job of hydra/launcher=ray ended without a record; its own log says why"
    assert found.pop("takes_its_task_down/fp32") == ("crashed", message)
    assert set(found.values()) == {("ok", None)}
    assert len(found) == 2


@needs_ray
def test_interrupted_driver_ends_its_tasks_and_keeps_what_they_finished(
    variables: Mapping[str, str],
    start: Start,
    tmp_path: Path,
) -> None:
    driver = start(
        *RAY, *ON_CPUS, *custom("hangs", "mlp"), "sweep=ended", "tracking=none", *FAST, **variables
    )
    while not list((tmp_path / "runs/ended").glob("*mlp*/record.json")):
        assert driver.poll() is None, driver.communicate()
        time.sleep(0.1)
    driver.send_signal(signal.SIGTERM)
    output, _ = driver.communicate(timeout=60)
    assert driver.returncode == 130, output
    assert {name: record.status for name, record in records(tmp_path, "ended").items()} == {
        "mlp/fp32": "ok"
    }
    assert len(rows(tmp_path, "ended", "speedups")) == 1


@needs_ray
@pytest.mark.parametrize(
    "argument", ["no_such_key=1", "address=auto"], ids=["unknown argument", "no cluster there"]
)
def test_what_ray_does_not_take_is_said_before_anything_is_written(
    variables: Mapping[str, str], argument: str, run_module: Run, tmp_path: Path
) -> None:
    given = [
        f"hydra.launcher.ray.init.{argument}",
        *custom("mlp"),
        "sweep=none",
        "tracking=none",
        *FAST,
    ]
    result = run_module("sweeper", *RAY, *given, **variables)
    assert result.returncode == 2, result.stdout + result.stderr
    assert "sweeper: hydra.launcher.ray.init={" in result.stderr
    if argument != "address=auto":
        assert "no_such_key" in result.stderr.splitlines()[-1]
    assert not (tmp_path / "runs").exists()


def test_missing_installation_is_said_where_anything_would_run(
    run_module: Run, tmp_path: Path
) -> None:
    """As in an environment without the package: Python is told that there is no such module."""
    (tmp_path / "without_ray.py").write_text(
        "import runpy, sys\n"
        "sys.modules['hydra_plugins.hydra_ray_launcher'] = None\n"
        "runpy.run_module('sweeper', run_name='__main__', alter_sys=True)\n"
    )
    result = run_module("without_ray", *RAY, *custom("mlp"), "sweep=none", *FAST)
    assert result.returncode == 2, result.stdout + result.stderr
    assert (
        result.stderr
        == "sweeper: hydra/launcher=ray needs hydra-ray-launcher: pip install hydra-ray-launcher\n"
    )
    assert not (tmp_path / "runs").exists()
    result = run_module("without_ray", *RAY, *custom("mlp"), "sweep=none", *FAST, "dry_run=true")
    assert result.returncode == 0, result.stdout + result.stderr
