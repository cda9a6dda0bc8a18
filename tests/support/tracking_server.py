"""A real `mlflow server` on loopback, for the tests that need one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError

LIMIT_S = 120


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@dataclass(frozen=True)
class Server:
    """A running server and the group of its processes."""

    uri: str
    group: int

    @contextmanager
    def silent(self) -> Iterator[None]:
        """The server takes calls and does not answer."""
        os.killpg(self.group, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self.group, signal.SIGCONT)


@contextmanager
def mlflow_server(folder: Path, store: str | None = None) -> Iterator[Server]:
    """Serve `store`, by default a fresh one in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    address = f"http://127.0.0.1:{(port := free_port())}"
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(
            [
                *(
                    sys.executable,
                    "-m",
                    "mlflow",
                    "server",
                    "--host",
                    "127.0.0.1",
                    "--port",
                    str(port),
                    "--workers",
                    "1",
                ),
                *("--backend-store-uri", store or f"sqlite:///{folder / 'server.db'}"),
                *("--artifacts-destination", str(folder / "artifacts")),
            ],
            cwd=folder,
            env={
                **os.environ,
                "MLFLOW_DISABLE_TELEMETRY": "true",
                "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            },
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait(process, f"{address}/health", folder / "server.log")
        yield Server(address, process.pid)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Until the server is healthy."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        assert process.poll() is None, f"mlflow server ended:\n{log.read_text()[-2000:]}"
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (URLError, ConnectionError, TimeoutError):
            time.sleep(0.2)
    raise AssertionError(f"mlflow server does not answer at {url}:\n{log.read_text()[-2000:]}")
