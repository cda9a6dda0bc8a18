"""Records that `sweeper.sync` sends, and a real server that dies and comes back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from records import make_record, write_sweep
from tracked_runs import artifacts_of, client_of, everything, log, records_of, runs_of
from tracking_server import Server, free_port

from sweeper import sync
from sweeper.core.files import write_text
from sweeper.tracking.store import default_uri
from sweeper.tracking.tracker import Sent, Tracker

if TYPE_CHECKING:
    from mlflow import MlflowClient

pytestmark = pytest.mark.usefixtures("in_empty_folder", "fresh_environment")
RUNS = Path("runs")


def test_server_keeps_records_and_gives_them_back(server: Server) -> None:
    logged = [make_record("one"), make_record("two", status="timeout")]
    folder = write_sweep(RUNS, logged)
    write_text(folder / "report" / "report.md", "# tables")
    tracker = log(*logged, uri=server.uri)
    tracker.log_report([folder / "report" / "report.md"])
    tracker.finish()
    assert tracker.failure is None
    assert str(tracker.page).startswith("/#/experiments/")
    assert records_of(server.uri, "night") == logged
    client = client_of(server.uri)
    assert [
        run.data.params["model"] for run in runs_of(client, "trial", "metrics.speedup > 1")
    ] == ["one"]
    (parent,) = runs_of(client, "sweep")
    assert (parent.info.status, artifacts_of(client, parent, "report")) == (
        "FINISHED",
        ["report/report.md"],
    )


def test_what_a_dead_tracker_missed_is_sent_once_when_it_is_back(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    logged = [make_record("one", sweep="missed"), make_record("two", sweep="missed", status="oom")]
    write_sweep(RUNS, logged, "missed")
    dead = Tracker(f"http://127.0.0.1:{free_port()}", "missed")
    assert dead.catch_up() == Sent(0, 0)
    assert dead.failure is not None
    assert sync.main(["missed", "--tracking-uri", server.uri]) == 0
    sent, link = capsys.readouterr().out.splitlines()
    assert sent == "missed: 2 records sent, 0 were there already"
    assert link.startswith(f"MLflow: {server.uri}/#/experiments/")
    assert "viewStateShareKey=" in link
    before = everything(client_of(server.uri), "missed")
    assert sync.main(["missed", "--tracking-uri", server.uri]) == 0
    assert "missed: 0 records sent, 2 were there already" in capsys.readouterr().out
    after = everything(client_of(server.uri), "missed")
    assert after == before
    assert len(after) == 3
    assert records_of(server.uri, "missed") == logged


def test_server_that_falls_silent_in_mid_sweep_loses_and_doubles_nothing(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    logged = [make_record("one", sweep="silent"), make_record("two", sweep="silent")]
    write_sweep(RUNS, logged, "silent")
    tracker = Tracker(server.uri, "silent")
    assert tracker.log(logged[0])
    with server.silent():
        assert not tracker.log(logged[1])
        tracker.finish()
    assert "timeout" in str(tracker.failure)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    assert Tracker(server.uri, "silent").catch_up() == Sent(1, 1)
    assert Tracker(server.uri, "silent").catch_up() == Sent(0, 2)
    assert records_of(server.uri, "silent") == logged
    assert len(runs_of(client_of(server.uri), "trial", sweep="silent")) == 2


def test_sync_sends_retried_records_and_the_report(
    store: MlflowClient, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_sweep(RUNS, [make_record("one", status="oom"), make_record("two")])
    assert sync.main(["night"]) == 0
    write_sweep(RUNS, [make_record("one")])
    write_text(folder / "report" / "report.md", "# tables")
    assert sync.main(["night"]) == 0
    out = capsys.readouterr().out
    assert "1 records sent, 1 were there already" in out
    assert f"-m mlflow ui --backend-store-uri {default_uri()}\n" in out
    assert "        then open http://127.0.0.1:5000/#/experiments/" in out
    assert {run.data.tags["status"] for run in runs_of(store, "trial")} == {"ok"}
    (parent,) = runs_of(store, "sweep")
    assert artifacts_of(store, parent, "report") == ["report/report.md"]
    assert parent.info.status == "FINISHED"


@pytest.mark.parametrize(
    ("name", "expected"), [("nihgt", "nearest: night"), ("../night", "sweep=../night")]
)
def test_sync_names_the_nearest_sweeps(
    name: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_sweep(RUNS, [make_record()])
    assert sync.main([name]) == 2
    assert expected in capsys.readouterr().err


def test_a_message_that_is_no_text_stops_no_later_record(
    store: MlflowClient, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_sweep(RUNS, [make_record("a", status="crashed"), make_record("b")])
    path = next(folder.glob("a-*/record.json"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"message": "\ud800 \x1b[2J"}))
    assert sync.main(["night"]) == 0
    assert "2 records sent" in capsys.readouterr().out
    assert {run.data.tags["status"] for run in runs_of(store, "trial")} == {"crashed", "ok"}


def test_sync_reports_files_that_are_no_records(
    store: MlflowClient, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_sweep(RUNS, [make_record()])
    write_text(folder / "broken-0" / "record.json", "{")
    assert sync.main(["night"]) == 1
    streams = capsys.readouterr()
    assert "1 records sent" in streams.out
    assert "broken-0/record.json" in streams.err
    assert len(runs_of(store, "trial")) == 1
