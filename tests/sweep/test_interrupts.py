"""Signals and dead terminals: how a sweep ends, or goes on, with workers that measure nothing."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import sqlite3
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import fake_python
import pytest
from checkout import SEARCH_PATH
from processes import assert_gone, find_workers, wait_for_handlers
from real_sweeps import Start
from records import make_record, write_sweep

from sweeper.core.record import Record

STAND_IN = """
import pathlib, time
pathlib.Path("importing").touch()
while not pathlib.Path("go").exists():
    time.sleep(0.05)
raise ImportError("a stand-in")
"""
WAITS = """
open("waiting", "w").close()
while not os.path.exists("go"):
    time.sleep(0.05)
"""
GO_ON = "interrupted; go on with: python -m sweeper "
MOMENTS = 20
LONGEST_S = 4.0  # from the first handler to the signal; a sweep takes about as long


def grid(folder: Path, body: str = "", *more: str) -> list[str]:
    python = fake_python.write(folder / "python", body)
    fixed = [
        "-m",
        "model=resnet18",
        "device=cpu",
        f"worker.python={python}",
        "measure=quick",
        "sweep=night",
    ]
    return [*fixed, "batch_size=1,2", *more]


def wait_for(file: Path, driver: subprocess.Popen[str]) -> None:
    while not file.exists():
        assert driver.poll() is None, driver.communicate()
        time.sleep(0.05)


def statuses(folder: Path) -> list[str]:
    paths = (folder / "runs/night").glob("*resnet18*/record.json")
    return sorted(Record.loads(path.read_text()).status for path in paths)


@pytest.mark.parametrize(
    "signals",
    [
        pytest.param([signal.SIGTERM], id="one"),
        pytest.param([signal.SIGINT, signal.SIGTERM], id="two", marks=pytest.mark.slow),
    ],
)
def test_interrupt_while_mlflow_is_imported_reports_what_is_kept(
    start: Start, tmp_path: Path, signals: list[signal.Signals]
) -> None:
    write_sweep(tmp_path / "runs", [make_record("vgg16")], "night")
    (tmp_path / "stand_in/mlflow").mkdir(parents=True)
    (tmp_path / "stand_in/mlflow/__init__.py").write_text(STAND_IN)
    driver = start(*grid(tmp_path), PYTHONPATH=f"{tmp_path}/stand_in{os.pathsep}{SEARCH_PATH}")
    wait_for(tmp_path / "importing", driver)
    for number in signals:
        driver.send_signal(number)
        time.sleep(0.2)
    (tmp_path / "go").touch()
    output, _ = driver.communicate(timeout=60)
    assert driver.returncode == 130, output
    assert "Traceback" not in output
    assert "\nIn AMP vgg16: " in output, "no report"
    assert output.splitlines()[-1].startswith(GO_ON)
    assert output.splitlines()[-1].endswith(" sweep=night batch_size=1,2")
    assert statuses(tmp_path) == []


@pytest.mark.slow
def test_interrupt_before_the_plan_reports_what_is_kept(start: Start, tmp_path: Path) -> None:
    """A user's package on the path stands in for any import that takes long."""
    write_sweep(tmp_path / "runs", [make_record("vgg16")], "night")
    (tmp_path / "stand_in/hydra").mkdir(parents=True)
    stand_in = STAND_IN.replace(
        'raise ImportError("a stand-in")',
        "import sys; sys.path.remove(str(pathlib.Path(__file__).parents[1])); del "
        "sys.modules['hydra']; import hydra",
    )
    (tmp_path / "stand_in/hydra/__init__.py").write_text(stand_in)
    driver = start(*grid(tmp_path), PYTHONPATH=f"{tmp_path}/stand_in{os.pathsep}{SEARCH_PATH}")
    wait_for(tmp_path / "importing", driver)
    driver.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    (tmp_path / "go").touch()
    output, _ = driver.communicate(timeout=60)
    assert driver.returncode == 130, output
    assert "Traceback" not in output
    assert "\nIn AMP vgg16: " in output, "no report"
    assert output.splitlines()[-1].startswith(GO_ON)
    assert not (tmp_path / "runs/night/sweep.json").exists(), "nothing has begun"


@pytest.mark.slow
def test_third_interrupt_ends_at_once(start: Start, tmp_path: Path) -> None:
    """Whatever the sweep waits for, such as an import that hangs."""
    (tmp_path / "mlflow").mkdir(parents=True)
    (tmp_path / "mlflow/__init__.py").write_text(STAND_IN)
    driver = start(*grid(tmp_path), PYTHONPATH=f"{tmp_path}{os.pathsep}{SEARCH_PATH}")
    wait_for(tmp_path / "importing", driver)
    for _ in range(3):
        driver.send_signal(signal.SIGINT)
        time.sleep(0.2)
    output, _ = driver.communicate(timeout=60)
    assert driver.returncode == 130, output
    assert output.splitlines()[-1].startswith(
        "sweeper: ended at once; go on with: python -m sweeper "
    )


def start_on(
    output: int, arguments: list[str], folder: Path, prepare: Callable[[], None]
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "sweeper", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": SEARCH_PATH},
        stdout=output,
        stderr=output,
        text=True,
        start_new_session=True,
        preexec_fn=prepare,
    )


def test_sweep_goes_on_when_its_terminal_is_gone(tmp_path: Path, empty_database: Path) -> None:
    """SIGHUP and EIO, as from a connection that breaks; MLflow has the sweep as finished."""
    from mlflow import MlflowClient

    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/mlflow.db").write_bytes(empty_database.read_bytes())
    ours, theirs = os.openpty()
    arguments = grid(tmp_path, WAITS)
    driver = start_on(
        theirs, arguments, tmp_path, lambda: fcntl.ioctl(theirs, termios.TIOCSCTTY, 0) and None
    )
    os.close(theirs)
    wait_for(tmp_path / "waiting", driver)
    os.close(ours)
    time.sleep(0.2)
    driver.send_signal(signal.SIGHUP)  # as a shell that ends says it once more
    (tmp_path / "go").touch()
    assert driver.wait(120) == 0
    assert statuses(tmp_path) == ["ok", "ok"]
    assert (tmp_path / "runs/night/report/report.md").exists()
    client = MlflowClient(f"sqlite:///{tmp_path}/runs/mlflow.db")
    experiment = client.get_experiment_by_name("sweeper")
    assert experiment is not None
    (parent,) = client.search_runs([experiment.experiment_id], "tags.`sweeper.kind` = 'sweep'")
    assert parent.info.status == "FINISHED"


@pytest.mark.slow
def test_hangup_leaves_a_pipe_its_output(start: Start, tmp_path: Path) -> None:
    """A file or a pipe is no terminal that could be gone."""
    driver = start(*grid(tmp_path, WAITS, "tracking=none"))
    wait_for(tmp_path / "waiting", driver)
    driver.send_signal(signal.SIGHUP)
    (tmp_path / "go").touch()
    output, _ = driver.communicate(timeout=120)
    assert driver.returncode == 0, output
    assert "[2/2]" in output


@pytest.mark.parametrize("kind", ["closed pipe", pytest.param("full disk", marks=pytest.mark.slow)])
def test_sweep_goes_on_when_its_output_is_dead(tmp_path: Path, kind: str) -> None:
    if kind == "full disk":
        output = os.open("/dev/full", os.O_WRONLY)
        reader = None
    else:
        reader, output = os.pipe()
    driver = start_on(output, grid(tmp_path, WAITS, "tracking=none"), tmp_path, lambda: None)
    os.close(output)
    wait_for(tmp_path / "waiting", driver)
    if reader is not None:
        os.close(reader)
    (tmp_path / "go").touch()
    assert driver.wait(120) == 0
    assert statuses(tmp_path) == ["ok", "ok"]
    assert (tmp_path / "runs/night/report/report.md").exists()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(MOMENTS))
def test_interrupted_at_a_random_moment(start: Start, tmp_path: Path, seed: int) -> None:
    moments = random.Random(seed)
    driver = start(*grid(tmp_path, "time.sleep(0.2)"))
    wait_for_handlers(driver)
    for _ in range(moments.choice([1, 1, 2])):
        time.sleep(moments.uniform(0, LONGEST_S) if driver.poll() is None else 0)
        driver.send_signal(moments.choice([signal.SIGINT, signal.SIGTERM]))
    output, _ = driver.communicate(timeout=60)
    assert "Traceback" not in output
    assert "Exception ignored" not in output
    if driver.returncode == 0:
        assert statuses(tmp_path) == ["ok", "ok"]
    else:
        assert driver.returncode == 130, output
        assert output.splitlines()[-1].startswith(GO_ON)
    for pid in find_workers(tmp_path / "python"):
        assert_gone(pid)
    if (database := tmp_path / "runs/mlflow.db").exists():
        with closing(sqlite3.connect(database)) as connection:
            assert connection.execute(
                "select count(*) from runs where status = 'RUNNING'"
            ).fetchone() == (0,)
