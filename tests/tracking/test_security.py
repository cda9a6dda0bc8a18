"""Folders and stores of somebody else: what `sync` and `report` do not do for them."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from records import make_record, write_sweep

from sweeper import sync
from sweeper.core.errors import ConfigError
from sweeper.core.files import write_text
from sweeper.core.paths import SweepPaths
from sweeper.core.record import Inspection
from sweeper.core.settings import Settings, Tracking
from sweeper.loading.sources import find_sources
from sweeper.report import __main__ as report
from sweeper.sweep import manifest
from sweeper.sweep.plan import Plan
from sweeper.tracking import known_stores
from sweeper.tracking.store import TrackingError, check_artifacts, default_uri, translate_errors
from sweeper.tracking.tracker import Tracker

if TYPE_CHECKING:
    from mlflow import MlflowClient

pytestmark = pytest.mark.usefixtures("in_empty_folder", "fresh_environment")
RUNS = Path("runs")


@pytest.fixture(autouse=True)
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The list of the stores that the user has named, which is not there yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "sweeper" / "stores"


@pytest.fixture
def thief() -> Iterator[tuple[str, list[str]]]:
    """A server, and the credentials that it was sent; its answers move the cursor of a terminal."""
    heard: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            heard.append(self.headers.get("Authorization", "none"))
            self.send_response(400)
            self.end_headers()
            self.wfile.write(
                json.dumps(
                    {"error_code": "X", "message": "\x1b[2Jgone\x07 at http://a:s3cret@h"}
                ).encode()
            )

        do_GET = do_POST = answer  # noqa: N815 (names of the standard library)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}", heard
        http.shutdown()


def write_strange_sweep(uri: str) -> Path:
    folder = write_sweep(RUNS, [make_record()])
    write_text(
        folder / "sweep.json",
        json.dumps({"invocations": [{"settings": {"tracking": {"uri": uri}}}]}),
    )
    return folder


def artifacts(store: MlflowClient, kind: str, folder: str | None = None) -> list[str]:
    experiment = store.get_experiment_by_name("sweeper")
    assert experiment is not None
    (run,) = store.search_runs([experiment.experiment_id], f"tags.`sweeper.kind` = '{kind}'")
    return sorted(file.path for file in store.list_artifacts(run.info.run_id, folder))


def test_a_server_that_only_the_folder_names_gets_nothing(
    thief: tuple[str, list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    uri, heard = thief
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "bob")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "s3cret")
    write_strange_sweep(uri.replace("//", "//evil:\x1b@"))
    assert sync.main(["night"]) == 2
    assert heard == []
    error = capsys.readouterr().err
    assert f"python -m sweeper.sync night --tracking-uri {uri}" in error
    assert "\x1b" not in error
    assert sync.main(["night", "--tracking-uri", uri]) == 1  # the user's own word
    assert heard[0].startswith("Basic")


def test_what_a_server_says_reaches_the_terminal_clean(
    thief: tuple[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    uri, _ = thief
    write_strange_sweep(uri)
    assert sync.main(["night", "--tracking-uri", uri]) == 1
    error = capsys.readouterr().err
    assert "gone" in error
    assert error.replace("\n", "").isprintable()
    assert "s3cret" not in error


def test_a_password_is_in_no_error() -> None:
    with pytest.raises(TrackingError) as caught, translate_errors("http://bob:my s3cret@host"):
        raise OSError("cannot reach http://bob:my s3cret@host/api")
    assert str(caught.value) == "http://host: cannot reach http://host/api"


def test_an_error_tells_what_the_database_said() -> None:
    said = (
        "(raised as a result of Query-invoked autoflush; consider "
        "...)\n(sqlite3.OperationalError) disk is full"
    )
    with pytest.raises(TrackingError, match="disk is full"), translate_errors("sqlite:///a.db"):
        raise OSError(said)


@pytest.mark.parametrize("names", ["command line", "environment"])
def test_a_store_that_the_user_has_named_is_asked_without_more_words(
    names: str,
    stores: Path,
    empty_database: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copy(empty_database, "other.db")
    uri = f"sqlite:///{Path('other.db').absolute()}"  # MLflow keeps stores by their address
    write_strange_sweep(uri)
    assert sync.main(["night"]) == 2
    if names == "environment":
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    else:
        assert sync.main(["night", "--tracking-uri", uri]) == 0
        assert stores.read_text() == f"sqlite:///{Path('other.db').absolute()}\n"
        assert [path.stat().st_mode & 0o777 for path in (stores, stores.parent)] == [0o600, 0o700]
    capsys.readouterr()
    assert sync.main(["night"]) == 0
    assert "other.db" in capsys.readouterr().out


def test_the_list_knows_stores_without_their_passwords_and_knows_each_once(stores: Path) -> None:
    for uri in ("http://bob:s3cret@host:1/", "http://host:1", "http://host:2"):
        known_stores.remember(uri)
    assert stores.read_text() == "http://host:1\nhttp://host:2\n"
    assert known_stores.is_known("http://eve@host:1")
    for uri in (
        "http://host:3",
        "http://host:1/x",
        "https://host:1",
        "http://host:1@evil",
        "http://host:1.evil",
    ):
        assert not known_stores.is_known(uri)


@pytest.mark.parametrize("how", ["writable by others", "a link", "sweeper", "state", "group"])
def test_a_list_that_somebody_else_can_write_counts_for_nothing(stores: Path, how: str) -> None:
    known_stores.remember("http://host")
    assert known_stores.is_known("http://host")
    if how == "a link":
        stores.symlink_to(stores.rename(stores.with_name("elsewhere")))
    elif how == "sweeper":
        stores.parent.chmod(0o777)
    elif how == "group":
        stores.parent.chmod(0o770)
    elif how == "state":
        stores.parents[1].chmod(0o733)
    else:
        stores.chmod(0o622)
    assert not known_stores.is_known("http://host")


def test_sync_says_that_the_environment_is_not_used(
    store: MlflowClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_sweep(RUNS, [make_record()])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://bob:s3cret@host")
    assert sync.main(["night"]) == 0
    error = capsys.readouterr().err
    assert "MLFLOW_TRACKING_URI is not used" in error
    assert "s3cret" not in error


def test_files_that_are_links_stay_here_and_are_named(
    store: MlflowClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "id_rsa").write_text("s3cret")
    record = replace(make_record(), inspection=Inspection("inspect"))
    folder = write_sweep(RUNS, [record])
    trial = SweepPaths(folder).trial(record.label, record.trial_id)
    write_text(trial.log(0), "log")
    write_text(trial.inspection / "summary.md", "summary")
    write_text(folder / "report" / "report.md", "report")
    trial.log(9).symlink_to(tmp_path / "id_rsa")
    os.mkfifo(trial.log(8))
    (trial.inspection / "code.py").symlink_to(tmp_path / "id_rsa")
    (folder / "report" / "report.html").symlink_to(tmp_path / "id_rsa")
    (folder / "report" / "all").symlink_to(tmp_path, target_is_directory=True)
    assert sync.main(["night"]) == 1
    assert artifacts(store, "trial") == ["inspect", "record.json", "worker-0.log"]
    assert artifacts(store, "trial", "inspect") == ["inspect/summary.md"]
    assert artifacts(store, "sweep", "report") == ["report/report.md"]
    lines = capsys.readouterr().err.splitlines()
    for name in ("worker-9.log", "worker-8.log", "code.py", "report.html", "all"):
        assert any(f"{name}: " in line and "not sent" in line for line in lines)


def make_link(path: Path) -> None:
    (path.parent.parent / "secret.json").write_text('{"invocations": [{"command": "s3cret"}]}')
    path.symlink_to(path.parent.parent / "secret.json")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (make_link, "a link, which is not followed"),
        (os.mkfifo, "not a regular file"),
        (lambda path: path.write_text('{"invocations": ' + "[" * 100_000), "nested too deeply"),
    ],
    ids=["link", "pipe", "nested"],
)
def test_a_strange_sweep_json_is_named_and_not_sent(
    store: MlflowClient,
    make: Callable[[Path], object],
    why: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = write_sweep(RUNS, [make_record()])
    make(folder / "sweep.json")
    assert sync.main(["night", "--tracking-uri", default_uri()]) == 0
    assert "sweep.json" not in artifacts(store, "sweep")
    assert report.main(["night"]) == 0
    (line,) = [
        line
        for line in (folder / "report" / "report.md").read_text().splitlines()
        if "sweep.json of " in line
    ]
    assert why in line
    with pytest.raises(ConfigError, match=f"sweep.json cannot be used: .*{why}"):
        manifest.add_invocation(SweepPaths(folder), Settings("night"), Plan((), ()), "cpu")


def test_a_log_that_is_too_large_stays_here(
    store: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sweeper.tracking.tracker.MAX_FILE_BYTES", 10)
    record = make_record()
    write_text(SweepPaths.of("night").trial(record.label, record.trial_id).log(0), "x" * 11)
    tracker = Tracker(None, "night")
    tracker.log(record)
    assert artifacts(store, "trial") == ["record.json"]
    (line,) = tracker.not_sent
    assert "11 bytes, more than 10" in line


@pytest.mark.parametrize(
    ("store", "experiment", "place", "allowed"),
    [
        ("http://host:1", "mlflow-artifacts:/1", "mlflow-artifacts:/1/r/artifacts", True),
        (
            "http://me:x@host:1/",
            "mlflow-artifacts://host:1/1",
            "mlflow-artifacts://host:1/1/r",
            True,
        ),
        ("http://host:1", "mlflow-artifacts://evil/1", "mlflow-artifacts://evil/1/r", False),
        ("sqlite:////srv/a.db", "mlflow-artifacts:/1", "mlflow-artifacts:/1/r", False),
        ("http://host:1", "http://host:1/x", "http://host:1/x/r", True),
        ("http://host:1", "http://host:2/x", "http://host:2/x/r", False),
        ("https://host", "http://host/x", "http://host/x/r", False),
        ("sqlite:////srv/a.db", "http://evil/x", "http://evil/x/r", False),
        ("http://host:1", "http://host:x/", "http://host:x/r", False),
        ("http://host:1", "s3://team/1", "s3://team/1/r", True),
        ("http://host:1", "s3://team/1", "s3://evil/1/r", False),
        ("http://host:1", "s3://team/1", "s3://team/10/r", False),
        ("http://host:1", "s3://team/1", "s3://team/1/../2/r", False),
        ("databricks", "dbfs:/x/1", "dbfs:/x/1/r", True),
        ("http://host:1", "dbfs:/x/1", "dbfs:/x/1/r", False),
        ("http://host:1", "file:///home/me/mlruns", "file:///home/me/mlruns/r", False),
        ("http://host:1", "/home/me/.ssh", "/home/me/.ssh/r", False),
        ("http://host:1", "sftp://evil/x", "sftp://evil/x/r", False),
        ("http://host:1", "runs:/x", "runs:/x/r", False),
        (
            "sqlite:////srv/runs/mlflow.db",
            "file:///srv/runs/mlartifacts",
            "file:///srv/runs/mlartifacts/r",
            True,
        ),
        (
            "sqlite:////srv/runs/mlflow.db",
            "file:///old/runs/mlartifacts",
            "file:///old/runs/mlartifacts/r",
            True,
        ),
        ("sqlite:////srv/runs/mlflow.db", "/srv/runs/own/1", "/srv/runs/own/1/r", True),
        ("sqlite:////srv/runs/mlflow.db", "file:///home/me/.ssh", "file:///home/me/.ssh/r", False),
        (
            "sqlite:////srv/runs/mlflow.db",
            "file:///srv/mlartifacts",
            "file:///srv/mlartifacts/%2e%2e/x",
            False,
        ),
        ("sqlite:////srv/runs/mlflow.db", "file://evil/mlruns", "file://evil/mlruns/r", False),
        (
            "postgresql://me:x@host/db",
            "file:///nfs/runs/mlartifacts",
            "file:///nfs/runs/mlartifacts/r",
            True,
        ),
        ("postgresql://me:x@host/db", "file:///srv", "file:///srv/r", False),
        ("file:///srv/tracking", "file:///srv/tracking/1", "file:///srv/tracking/1/r", True),
    ],
)
def test_files_go_to_places_of_the_store_only(
    store: str, experiment: str, place: str, allowed: bool
) -> None:
    with nullcontext() if allowed else pytest.raises(TrackingError, match="nothing goes there"):
        check_artifacts(store, experiment, place)


@pytest.mark.parametrize("place", ["file:///{}/elsewhere", "http://127.0.0.1:9/mlartifacts"])
def test_a_run_with_a_strange_place_for_files_is_neither_sent_to_nor_read(
    store: MlflowClient, tmp_path: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    record = make_record()
    folder = write_sweep(RUNS, [record])
    assert sync.main(["night"]) == 0
    write_text(tmp_path / "elsewhere" / "record.json", make_record(speedups=(9.0, 9.0)).dumps())
    with closing(sqlite3.connect("runs/mlflow.db")) as database:
        database.execute("UPDATE runs SET artifact_uri = ?", [place.format(tmp_path)])
        database.commit()
    write_text(
        folder / f"{record.label}-{record.trial_id}" / "record.json",
        make_record(status="oom").dumps(),
    )
    capsys.readouterr()
    assert report.main(["night", "--tracking-uri", default_uri(), "--out", "out"]) == 1
    assert "nothing goes there" in capsys.readouterr().err
    with closing(sqlite3.connect("runs/mlflow.db")) as database:  # a run that takes what comes
        database.execute("DELETE FROM metrics")
        database.execute("DELETE FROM latest_metrics")
        database.execute("DELETE FROM params")
        database.commit()
    assert sync.main(["night"]) == 1
    assert "nothing goes there" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["record.json"]


def test_the_name_of_a_run_leads_nowhere(store: MlflowClient) -> None:
    write_sweep(RUNS, [make_record()])
    assert sync.main(["night"]) == 0
    with closing(sqlite3.connect("runs/mlflow.db")) as database:
        database.execute("UPDATE runs SET name = '/etc/../x\x1b[2J'")
        database.execute("UPDATE tags SET value = '/etc/../x\x1b[2J' WHERE key = 'mlflow.runName'")
        database.commit()
    (source,) = find_sources(["night"], default_uri())
    for found in source.records():
        assert found.folder.parent == RUNS / "night"
        assert str(found.folder).isprintable()
        assert found.where.isprintable()


def test_sweep_json_has_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    uri = "http://bob:my s3cret@host:5000/?token=s3cret"
    monkeypatch.setattr(
        sys,
        "orig_argv",
        ["python", "-m", "sweeper", f"tracking.uri='{uri}'", "x=http://a:s3cret@b"],
    )
    paths = SweepPaths.of("night")
    manifest.add_invocation(
        paths, Settings("night", tracking=Tracking(uri=uri)), Plan((), ()), "cpu"
    )
    text = paths.sweep.read_text()
    assert "s3cret" not in text
    (invocation,) = json.loads(text)["invocations"]
    assert invocation["settings"]["tracking"]["uri"] == "http://host:5000/"
    assert "tracking.uri='\"'\"'http://host:5000/'\"'\"'" in invocation["command"]


def test_an_older_sweep_json_is_sent_without_its_password(store: MlflowClient) -> None:
    uri = 'http://bob:"my s3cret"@host'
    folder = write_sweep(RUNS, [make_record()])
    invocation = {
        "command": f"python -m sweeper tracking.uri={uri}",
        "settings": {"tracking": {"uri": uri}},
    }
    write_text(folder / "sweep.json", json.dumps({"invocations": [invocation]}))
    assert sync.main(["night", "--tracking-uri", default_uri()]) == 0
    (file,) = RUNS.glob("mlartifacts/**/sweep.json")
    assert "s3cret" not in file.read_text()


def test_a_report_is_not_written_through_a_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_sweep(RUNS, [make_record()])
    (tmp_path / "elsewhere").mkdir()
    (folder / "report").symlink_to(tmp_path / "elsewhere")
    assert report.main(["night"]) == 2
    assert "is a link" in capsys.readouterr().err
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert report.main(["night", "--out", str(folder / "report")]) == 0  # as the user says
