"""Stores that cannot be used: servers that are no MLflow, are down or never answer, and files that
are no database.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from records import make_record
from tracking_server import free_port

from sweeper.tracking.store import ENVIRONMENT
from sweeper.tracking.tracker import Tracker

pytestmark = pytest.mark.usefixtures("in_empty_folder", "fresh_environment")


def log(uri: str) -> Tracker:
    """Send a record there."""
    tracker = Tracker(uri, "night")
    tracker.log(make_record())
    return tracker


class _Wrong(BaseHTTPRequestHandler):
    """Answers every request with `status` and `body`, counts them, and keeps their header
    `Connection`.
    """

    status, body, requests, connection = 200, b"", 0, ""

    def answer(self) -> None:
        type(self).requests += 1
        type(self).connection = self.headers["Connection"]
        self.send_response(self.status)
        self.send_header("Retry-After", "3600")
        self.end_headers()
        self.wfile.write(self.body)

    do_GET = do_POST = answer  # noqa: N815 (names of the standard library)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def wrong_server(request: pytest.FixtureRequest) -> Iterator[tuple[str, type[_Wrong]]]:
    status, body = request.param
    handler = type("Handler", (_Wrong,), {"status": status, "body": body})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        threading.Thread(target=http.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}", handler
        http.shutdown()


@pytest.mark.parametrize(
    "wrong_server",
    [
        (200, b"<html>another service</html>"),
        (200, b"{}"),
        (404, b"no"),
        (401, b"log in"),
        (503, b"busy"),
    ],
    indirect=True,
    ids=["html", "other json", "not found", "unauthorized", "busy"],
)
def test_server_that_is_no_mlflow_is_asked_once_and_named(
    wrong_server: tuple[str, type[_Wrong]],
) -> None:
    uri, handler = wrong_server
    tracker = log(uri)
    assert uri in str(tracker.failure)
    asked, reason = handler.requests, tracker.failure
    tracker.log(make_record("other"))
    tracker.log_report([])
    tracker.finish()
    assert (handler.requests, tracker.failure) == (asked, reason)
    assert asked <= int(ENVIRONMENT["MLFLOW_HTTP_REQUEST_MAX_RETRIES"]) + 1


@pytest.mark.parametrize("wrong_server", [(404, b"no")], indirect=True)
def test_every_call_has_a_connection_of_its_own(wrong_server: tuple[str, type[_Wrong]]) -> None:
    """One that is used again is answered 40 ms later:
    https://github.com/Kludex/uvicorn/issues/3149.
    """
    uri, handler = wrong_server
    log(uri)
    assert handler.connection == "close"


def test_dead_port_is_a_short_reason_without_the_password() -> None:
    port = free_port()
    failure = str(log(f"http://me:secret@127.0.0.1:{port}").failure)
    assert failure.startswith(f"http://127.0.0.1:{port}: ")
    assert failure.endswith("Connection refused")
    assert "secret" not in failure


def test_server_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        tracker = log(f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert "timed out" in str(tracker.failure) or "timeout" in str(tracker.failure)


def test_name_server_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: threading.Event().wait())
    assert "no answer within 2 s" in str(log("http://mlflow.example:5000").failure)


def test_one_silent_call_costs_less_than_ten_seconds() -> None:
    tries = int(ENVIRONMENT["MLFLOW_HTTP_REQUEST_MAX_RETRIES"]) + 1
    assert int(ENVIRONMENT["MLFLOW_HTTP_REQUEST_TIMEOUT"]) * tries + 1 < 10


@pytest.mark.parametrize(
    "uri",
    ["htp://host", "mongodb://host/db", "sqlite:////proc/none/mlflow.db", "sqlite:///junk.db"],
)
def test_store_that_cannot_be_opened_is_a_failure(uri: str) -> None:
    Path("junk.db").write_text("this is no database" * 100)
    tracker = log(uri)
    assert tracker.failure is not None
    assert tracker.failure.startswith(uri)
