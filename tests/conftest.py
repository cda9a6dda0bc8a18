"""Fixtures that several test modules share."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest

# The models are tiny, and threads that wait for each other take more of the CPU than their steps.
# It has to be set before torch is imported, and before `checkout` copies the environment.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# as in an environment that is activated, so that commands name it `python`
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

from checkout import SEARCH_PATH, Run
from forked_commands import Forks
from tracking_server import Server, mlflow_server

from sweeper.core.trial import Labels, Model, Trial

if TYPE_CHECKING:
    from mlflow import MlflowClient


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks at the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share a server, or a database of MLflow, run in one process: each takes seconds to
    start or to make.
    """
    for item in items:
        for shared in ("empty_database", "forks"):
            if shared in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.xdist_group(shared))


@pytest.fixture(scope="session", autouse=True)
def own_stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The stores that the developer has named are none of the tests' business, and theirs none of
    the developer's.
    """
    # Inductor tries out the vector instructions of the CPU in each new cache, which takes seconds.
    variables = {
        "XDG_STATE_HOME": str(tmp_path_factory.mktemp("state")),
        "TORCHINDUCTOR_VEC_ISA_OK": "1",
    }
    with mock.patch.dict(os.environ, variables):
        os.environ.pop("MLFLOW_TRACKING_URI", None)
        yield


@pytest.fixture
def trial() -> Trial:
    return Trial(
        Model("timm", "vit_tiny_patch16_224"),
        4,
        Labels("vit_tiny", "fp32", "vit", weight="fp32"),
        device="cpu",
    )


@pytest.fixture
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, so that `runs/` is a fresh one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's tables take two seconds to make, a copy none."""
    from sweeper.tracking.store import connect

    file = tmp_path_factory.mktemp("database") / "mlflow.db"
    connect(f"sqlite:///{file}", lambda client: client.search_experiments(max_results=1))
    return file


@pytest.fixture(scope="session")
def server(
    own_stores: None, empty_database: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server of MLflow for all tests; their sweeps have names of their own."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(empty_database, folder / "server.db")
    with mlflow_server(folder) as running:
        yield running


@pytest.fixture
def fresh_environment() -> Iterator[None]:
    """What the tracker sets for MLflow ends with the test."""
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture
def store(empty_database: Path, in_empty_folder: Path) -> MlflowClient:
    """The default store of the working directory."""
    from mlflow import MlflowClient

    from sweeper.tracking.store import default_uri

    (in_empty_folder / "runs").mkdir()
    shutil.copy(empty_database, in_empty_folder / "runs" / "mlflow.db")
    return MlflowClient(default_uri())


@pytest.fixture
def run_module(tmp_path: Path) -> Run:
    """`python -m MODULE ARGUMENTS` in an empty folder, with the factories of these tests
    importable.
    """

    def run(
        module: str, *arguments: str, timeout_s: float = 300, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": SEARCH_PATH, **variables}
        return subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory, own_stores: None) -> Iterator[Forks]:
    """One server for all tests of this process; it takes as long to start as one command."""
    running = Forks(SEARCH_PATH, tmp_path_factory.mktemp("forks"))
    yield running
    running.close()


@pytest.fixture
def run_forked(forks: Forks, tmp_path: Path) -> Run:
    """`run_module` for commands that end before they start anything, without their imports."""

    def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return forks.run(tmp_path, module, *arguments)

    return run
