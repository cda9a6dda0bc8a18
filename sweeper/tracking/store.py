"""The way to MLflow's store: where it is, how long to wait for it, and what its failures mean.

Place in the flow: `tracking` opens a client here. Whatever goes wrong on the way is a TrackingError, and within 10 s.
"""

from __future__ import annotations

import functools
import logging
import multiprocessing
import os
import re
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sweeper.core import paths
from sweeper.core.errors import remove_password

if TYPE_CHECKING:
    from mlflow import MlflowClient

# Taken where the user has set nothing. MLflow's own 7 retries of up to 120 s each would block a sweep for minutes; with
# these a server that takes a call and never answers costs 8 s.
# https://mlflow.org/docs/latest/api_reference/python_api/mlflow.environment_variables.html
ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "4",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}

# mlflow imports these where they are installed, and does without them where they are not, as mlflow-skinny shows. Runs
# and artifacts never need them, and they take a third of the memory: docs/decisions/mlflow-without-pandas.md.
NOT_NEEDED = ("pandas", "pyarrow")
# mlflow tries to import these for each call over http, some of them several times, and Python looks through its whole
# path each time for what is not there: 1 ms of a call's 6.
TRIED_EACH_CALL = ("dbruntime", "IPython", "pyspark")

T = TypeVar("T")


class TrackingError(Exception):
    """MLflow did not answer, or not as it should; the text says where and why."""


def default_uri(runs: Path = paths.RUNS) -> str:
    """The store that is used when the user names none."""
    return f"sqlite:///{(runs / 'mlflow.db').absolute()}"


def sqlite_file(uri: str) -> Path | None:
    """The file behind a `sqlite:///` URI."""
    match = re.fullmatch(r"sqlite(?:\+\w+)?:///([^?]+)(?:\?.*)?", uri)
    return Path(match[1]).absolute() if match else None


def artifact_location(uri: str, runs: Path = paths.RUNS) -> str | None:
    """Where a new experiment keeps files; None: the server decides. With a bare database MLflow would take ./mlruns."""
    file = sqlite_file(uri)
    if file is not None:
        return (file.parent / "mlartifacts").as_uri()
    database = uri.startswith(("postgresql", "mysql", "mssql"))
    return (runs / "mlartifacts").absolute().as_uri() if database else None


def connect(uri: str, first: Callable[[MlflowClient], T]) -> T:
    """Open the store and make the first calls. Raises TrackingError when that fails or a server takes too long."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        client_class = _client_class()
    except ImportError as error:
        raise TrackingError(f"mlflow cannot be imported: {error}") from error
    for name in ("alembic", "urllib3.connectionpool"):  # migrations and single retries are nothing to tell users
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # a traceback beside the TrackingError
    file = sqlite_file(uri)
    with explained(uri):
        if uri.startswith("http://"):
            _take_a_connection_for_each_call()
        if uri.startswith("http"):
            _look_no_further_for(TRIED_EACH_CALL)
        if file is None:
            return _in_time(lambda: first(client_class(uri)))
        _require_database(file)
        return first(client_class(uri))


@functools.cache
def _take_a_connection_for_each_call() -> None:
    """`mlflow server` answers 40 ms late on a connection that has been used, and in 4 on one that has not.

    Its uvicorn leaves Nagle's algorithm on where it has several workers, which is the default; the client's delayed
    acknowledgement does the rest: https://github.com/Kludex/uvicorn/issues/3149. A server behind TLS stands behind a
    proxy without that, and a connection costs more there.
    """
    try:
        from mlflow.tracking.request_header.abstract_request_header_provider import RequestHeaderProvider
        from mlflow.tracking.request_header.registry import _request_header_provider_registry
    except ImportError:  # a version in which these have moved is slower, nothing else
        return

    class NewConnections(RequestHeaderProvider):
        def in_context(self) -> bool:
            return True

        def request_headers(self) -> dict[str, str]:
            return {"Connection": "close"}

    _request_header_provider_registry.register(NewConnections)  # type: ignore[no-untyped-call]


def _look_no_further_for(packages: Iterable[str]) -> None:
    """Importing one of these that is not installed fails at once, for as long as this process lives: nobody installs
    packages into a report or a sweep that runs.
    """
    for name in packages:
        if name not in sys.modules and find_spec(name) is None:
            sys.modules[name] = None  # type: ignore[assignment]  # how Python marks what is not there


def _client_class() -> type[MlflowClient]:
    try:
        with _as_if_not_installed(NOT_NEEDED):
            from mlflow import MlflowClient
    except ImportError:  # a version that cannot do without: once more, from the beginning
        for name in [name for name in sys.modules if name.partition(".")[0] == "mlflow"]:
            del sys.modules[name]
        from mlflow import MlflowClient
    return MlflowClient


@contextmanager
def _as_if_not_installed(packages: Iterable[str]) -> Iterator[None]:
    """Importing one of these packages raises ImportError meanwhile, unless it is imported already."""
    hidden = [name for name in packages if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None is how Python marks what is not there
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


@contextmanager
def explained(uri: str) -> Iterator[None]:
    """Turn what MLflow raises for a store that is down, wrong or not writable into TrackingError."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError
    from urllib3.exceptions import HTTPError

    try:
        yield
    except (MlflowException, SQLAlchemyError, HTTPError, sqlite3.Error, OSError, ImportError) as error:
        # OSError: also what requests raises. ImportError: the driver of a database.
        text = next(iter(str(error).splitlines()), "") or type(error).__name__
        cause = re.search(r"\(Caused by \w+\(['\"](.+)['\"]\)\)", text)
        where = remove_password(uri)
        raise TrackingError(f"{where}: {remove_password(cause[1] if cause else text)[:300]}") from error
    except TrackingError as error:
        raise TrackingError(f"{remove_password(uri)}: {error}") from error


def _in_time(action: Callable[[], T]) -> T:
    """Run `action`, but no longer than one call with its retries may take.

    No setting of MLflow bounds a name server that is silent, or a database, which is tried for 100 s.
    """
    tries = int(os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"]) + 1
    limit_s = float(os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"]) * tries + 1
    pool = ThreadPool(1)  # of daemon threads: one that hangs keeps no program from ending
    try:
        return pool.apply_async(action).get(limit_s)
    except multiprocessing.TimeoutError as error:
        raise TimeoutError(f"no answer within {limit_s:g} s") from error
    finally:
        pool.terminate()


def _require_database(file: Path) -> None:
    """Create the database if need be. Raises sqlite3.Error for another kind of file: MLflow would try for 100 s."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.exists():
        _create_database(file)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA user_version")


def _create_database(file: Path) -> None:
    """Create MLflow's tables under another name: a kill between them leaves a file that MLflow cannot open again."""
    from mlflow import MlflowClient

    with tempfile.TemporaryDirectory(dir=file.parent, prefix=f".{file.name}.") as folder:
        draft = Path(folder) / file.name
        MlflowClient(f"sqlite:///{draft}").search_experiments(max_results=1)
        try:
            file.hardlink_to(draft)
        except FileExistsError:
            return  # somebody else was first
        except OSError:
            draft.rename(file)  # a file system without hard links
