"""`connect` opens MLflow's store. Whatever goes wrong there is a TrackingError, within 10 s."""

from __future__ import annotations

import functools
import logging
import multiprocessing
import os
import re
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote, urlsplit

from sweeper.core.paths import RUNS
from sweeper.core.system.leftovers import make_prefix, remove_leftovers
from sweeper.core.text import printable
from sweeper.core.uris import remove_credentials, remove_passwords

if TYPE_CHECKING:
    from mlflow import MlflowClient

# Set where the user has set nothing. MLflow's own 7 retries of up to 120 s each would block a sweep
# for minutes. With these settings a server that takes a call and never answers costs 8 s.
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

# mlflow imports these packages where they are installed; mlflow-skinny shows that runs and
# artifacts do not need them. Hiding them keeps 70 of 190 MiB out of a driver:
# docs/decisions/mlflow-without-pandas.md.
NOT_NEEDED = ("pandas", "pyarrow")


T = TypeVar("T")


class TrackingError(Exception):
    """MLflow did not answer, or gave a wrong answer. The text says where and why."""


def default_uri() -> str:
    """Return the URI of the store that is used when the user names none."""
    return f"sqlite:///{(RUNS / 'mlflow.db').absolute()}"


def sqlite_file(uri: str) -> Path | None:
    """Return the file behind a `sqlite:///` URI, None for other URIs."""
    match = re.fullmatch(r"sqlite(?:\+\w+)?:///([^?]+)(?:\?.*)?", uri)
    return Path(match[1]).absolute() if match else None


def artifact_location(uri: str) -> str | None:
    """Return where a new experiment keeps its files. None: the server decides.

    With a bare database MLflow itself would take ./mlruns.
    """
    file = sqlite_file(uri)
    if file is None and not uri.startswith(("postgresql", "mysql", "mssql")):
        return None
    folder = file.parent if file else RUNS.absolute()
    return (folder / "mlartifacts").as_uri()


def check_artifacts(uri: str, experiment: str, artifacts: str) -> None:
    """Check where a run of the store at `uri` keeps its files. Raises TrackingError if nothing may
    be sent there.

    Whoever can write to a store can give its runs any address: that of another server, which would
    get records, logs and credentials, or of a folder on this machine. `experiment` is the address
    that the experiment gives its runs.
    """
    if not f"{artifacts.rstrip('/')}/".startswith(f"{experiment.rstrip('/')}/"):
        reason = f"outside of the experiment's {remove_credentials(experiment)}"
    elif not _is_place_of(uri, artifacts):
        reason = "which this store's runs have no reason to"
    else:
        return
    raise TrackingError(
        f"a run keeps its files at {remove_credentials(artifacts)}, {reason}; nothing goes there"
    )


def _is_place_of(uri: str, artifacts: str) -> bool:
    """Say whether a store at `uri` gives its runs such a place for files."""
    try:
        store, place = urlsplit(uri), urlsplit(artifacts)
        host, own_host = (place.hostname, place.port), (store.hostname, store.port)
    except ValueError:  # no port, no IPv6 address
        return False
    path = Path(unquote(place.path))
    is_server = store.scheme in ("http", "https")
    match place.scheme:
        case _ if ".." in path.parts:
            return False
        case "mlflow-artifacts":  # by way of the tracking server
            return is_server and (not place.netloc or host == own_host)
        case "http" | "https":
            return (place.scheme, *host) == (store.scheme, *own_host)
        case "dbfs":
            return uri.startswith("databricks")
        case "" | "file":  # a server cannot know the folders of this machine
            file = sqlite_file(uri)
            own = file.parent if file else Path(unquote(store.path)).absolute()
            is_local = file is not None or store.scheme in ("", "file")
            is_ours = is_local and path.is_relative_to(own)
            # our folder of artifacts, and MLflow's own
            named = "mlartifacts" in path.parts or "mlruns" in path.parts
            return place.hostname in (None, "localhost") and not is_server and (is_ours or named)
    # Object stores, whose libraries take the credentials for their own provider and send them
    # nowhere else.
    return place.scheme in ("s3", "gs", "wasbs", "abfss", "r2", "b2", "hdfs")


def connect(uri: str, first: Callable[[MlflowClient], T]) -> tuple[MlflowClient, T]:
    """Open the store: the client and the answer to the first calls.

    Raises TrackingError when the calls fail, or a server takes too long to answer them.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        client_class = _import_client()
    except ImportError as error:
        raise TrackingError(f"mlflow cannot be imported: {error}") from error
    # migrations and single retries are nothing to tell users
    for name in ("alembic", "urllib3.connectionpool"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # a traceback next to the TrackingError
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    file = sqlite_file(uri)

    def open_store() -> tuple[MlflowClient, T]:
        client = client_class(uri)
        return client, first(client)

    with translate_errors(uri):
        if uri.startswith("http://"):
            _close_connections_after_calls()
        if file is None:
            # No setting of MLflow limits the wait for a silent name server, or for a database,
            # which MLflow tries for 100 s: wait no longer than one call with its retries may take.
            tries = int(os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"]) + 1
            limit_s = float(os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"]) * tries + 1
            # of daemon threads: one that hangs keeps no program from ending
            with ThreadPool(1) as pool:
                try:
                    return pool.apply_async(open_store).get(limit_s)
                except multiprocessing.TimeoutError as error:
                    raise TimeoutError(f"no answer within {limit_s:g} s") from error
        if not file.exists():
            _create_database(file)
        # MLflow itself tries a file of another kind for 100 s
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("PRAGMA user_version")
        return open_store()


@functools.cache
def _close_connections_after_calls() -> None:
    """Open a new connection for each call: `mlflow server` answers 40 ms late on one that was used
    before.

    Sending 100 records takes 24 s this way and 40 s otherwise. The server's uvicorn leaves Nagle's
    algorithm on when it has several workers, which is the default, and the client delays its
    acknowledgements: https://github.com/Kludex/uvicorn/issues/3149. A server with TLS stands behind
    a proxy, which does not do this.
    """
    try:
        from mlflow.tracking.request_header.abstract_request_header_provider import (
            RequestHeaderProvider,
        )
        from mlflow.tracking.request_header.registry import _request_header_provider_registry
    except ImportError:  # a version of mlflow that has moved these is slower, nothing else
        return

    class CloseConnections(RequestHeaderProvider):
        def in_context(self) -> bool:
            return True

        def request_headers(self) -> dict[str, str]:
            return {"Connection": "close"}

    _request_header_provider_registry.register(CloseConnections)  # type: ignore[no-untyped-call]


def _import_client() -> type[MlflowClient]:
    """Import mlflow as if the packages that it does not need were not installed."""
    hidden = [name for name in NOT_NEEDED if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None is Python's mark for a missing module
    try:
        from mlflow import MlflowClient
    except ImportError:  # a version of mlflow that does need them
        for name in [name for name in sys.modules if name.partition(".")[0] == "mlflow"]:
            del sys.modules[name]
    finally:
        for name in hidden:
            del sys.modules[name]
    from mlflow import MlflowClient

    return MlflowClient


@contextmanager
def translate_errors(uri: str) -> Iterator[None]:
    """Turn whatever MLflow raises for a store that is down, wrong or not writable into a
    TrackingError.
    """
    try:
        yield
    except TrackingError as error:
        raise TrackingError(printable(f"{remove_credentials(uri)}: {error}")) from error
    # what a server answers may make MLflow raise anything
    except Exception as error:
        lines = str(error).splitlines()
        # without what SQLAlchemy puts first
        own = (line for line in lines if not line.startswith("(raised as a result of"))
        text = next(own, "") or type(error).__name__
        if cause := re.search(r"\(Caused by \w+\(['\"](.+)['\"]\)\)", text):
            text = cause[1]
        reason = remove_passwords(text, uri)[:300]
        raise TrackingError(printable(f"{remove_credentials(uri)}: {reason}")) from error


def _create_database(file: Path) -> None:
    """Create MLflow's tables under another name: a kill between two tables leaves a file that
    MLflow cannot open.
    """
    from mlflow import MlflowClient

    file.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(file.parent.glob(f".{file.name}.*"))
    with tempfile.TemporaryDirectory(
        dir=file.parent, prefix=make_prefix(f".{file.name}")
    ) as folder:
        draft = Path(folder) / file.name
        MlflowClient(f"sqlite:///{draft}").search_experiments(max_results=1)
        try:
            # where a rename would replace a database that another driver has made meanwhile
            file.hardlink_to(draft)
        except FileExistsError:
            return
        except OSError:  # a file system without hard links
            draft.rename(file)
