"""The report that is read from MLflow: the tables of the folder, and what is wrong at the store is
said.
"""

from __future__ import annotations

import json
import shutil
import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from records import make_process, make_record, write_sweep
from tracking_server import Server, free_port

from sweeper.core.files import MAX_JSON_BYTES, write_text
from sweeper.core.record import Record
from sweeper.report.__main__ import main
from sweeper.tracking.reader import CHUNK_BYTES, MAX_AHEAD, map_concurrently, read_artifact
from sweeper.tracking.tracker import Tracker

TABLES = (
    "speedups.csv",
    "summary.csv",
    "failures.csv",
    "recommendations.csv",
    "causes.csv",
    "report.md",
)
RECORDS = (
    make_record(speedups=(2.0, 2.1)),
    make_record(precision="fp32", speedups=(1.4, 1.5)),
    replace(make_record("vgg16", precision="fp32"), processes=(make_process(1.1, eager_s=0.03),)),
    make_record("vgg16", status="oom", message="no memory"),
    make_record("alexnet", status="crashed", message="=1+1 | killed"),
)
INVOCATION = {
    "command": "python -m sweeper tracking.uri=http://me:secret@host:5000",
    "started": "2026-01-01T20:00:00+01:00",
    "settings": {"measure": {"processes": 3, "draws": 1, "rounds": 10}},
}


@pytest.fixture(autouse=True)
def fresh_environment(monkeypatch: pytest.MonkeyPatch, in_empty_folder: Path) -> None:
    """What the tracker sets for MLflow ends with the test; so does the working directory."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")


@pytest.fixture
def uri(empty_database: Path, tmp_path: Path) -> str:
    """A sqlite store of its own, away from `runs/`."""
    (tmp_path / "store").mkdir()
    shutil.copy(empty_database, tmp_path / "store" / "mlflow.db")
    return f"sqlite:///{tmp_path}/store/mlflow.db"


def send(
    uri: str, *records: Record, sweep: str = "night", plan: Sequence[Mapping[str, str]] = ()
) -> Path:
    """A sweep that ran here and sent everything but its plan, which stays here."""
    folder = write_sweep(Path("runs"), records, sweep)
    write_text(
        folder / "sweep.json",
        json.dumps({"sweep": "night", "invocations": [{**INVOCATION, "plan": plan}]}),
    )
    tracker = Tracker(uri, sweep)
    tracker.catch_up()
    tracker.finish()
    assert tracker.failure is None
    return folder


def tables(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in TABLES}


def artifacts(store: Path, name: str) -> list[Path]:
    return sorted(store.glob(f"mlartifacts/**/{name}"))


def test_tables_from_a_server_are_those_from_the_folder_byte_for_byte(server: Server) -> None:
    send(server.uri, *RECORDS, sweep="bytes")
    assert main(["bytes", "--out", "of-folder"]) == 0
    assert main(["bytes", "--tracking-uri", server.uri, "--out", "of-server"]) == 0
    assert tables(Path("of-server")) == tables(Path("of-folder"))
    assert b"started: 2026-01-01" in tables(Path("of-server"))["report.md"]


def test_tables_of_several_sweeps_that_did_not_run_here_go_where_they_would_have_gone(
    uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    send(uri, *RECORDS)
    send(uri, make_record("vgg11"), sweep="day")
    assert main(["night", "day"]) == 0
    of_folders = tables(Path("runs/night/report-with-day"))
    shutil.rmtree("runs")
    capsys.readouterr()
    assert main(["night", "day", "--tracking-uri", uri]) == 0
    assert tables(Path("runs/night/report-with-day")) == of_folders
    assert "tables: runs/night/report-with-day" in capsys.readouterr().out
    assert [path.name for path in Path("runs").iterdir()] == ["night"]


def test_a_sweep_named_twice_is_read_once(uri: str) -> None:
    send(uri, make_record())
    assert main(["night", "night", "--tracking-uri", uri, "--out", "out"]) == 0
    assert len(Path("out/speedups.csv").read_text().splitlines()) == 2


def test_no_password_and_no_plan_go_to_the_store(uri: str, tmp_path: Path) -> None:
    send(uri, make_record(), plan=[{"trial_id": "0" * 12, "label": "x"}])
    (file,) = artifacts(tmp_path / "store", "sweep.json")
    (invocation,) = json.loads(file.read_text())["invocations"]
    assert invocation["command"] == "python -m sweeper tracking.uri=http://host:5000"
    assert "plan" not in invocation


def test_of_two_runs_of_a_trial_the_newest_complete_one_is_reported(uri: str) -> None:
    """As a copied store, or two drivers that know nothing of each other, leave them behind."""
    from mlflow import MlflowClient

    send(uri, make_record(speedups=(3.0,)))
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("sweeper")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id], "tags.`sweeper.kind` = 'trial'")
    tags = {key: value for key, value in run.data.tags.items() if not key.startswith("mlflow.")}
    older, unfinished = make_record(speedups=(1.5,)), {**tags}
    del unfinished["sweeper.record"]
    copy = client.create_run(experiment.experiment_id, 1, tags, run_name=run.info.run_name)
    client.log_text(copy.info.run_id, older.dumps(), "record.json")
    client.set_terminated(copy.info.run_id, end_time=2)
    client.create_run(
        experiment.experiment_id, run.info.end_time + 10**6, unfinished, run_name=run.info.run_name
    )
    assert main(["night", "--tracking-uri", uri, "--out", "out"]) == 0
    assert speedups(Path("out")) == [pytest.approx(3.0)]


def speedups(folder: Path) -> list[float]:
    header, *rows = [line.split(",") for line in (folder / "speedups.csv").read_text().splitlines()]
    return [float(row[header.index("speedup")]) for row in rows]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "no record.json"),
        (b"{", "not JSON, or cut short"),
        (b"\xff", "not JSON, or cut short"),
        (b"[]", "not a"),
        (b" " * (MAX_JSON_BYTES + 1), "104,857,601 bytes, more than 104,857,600"),
    ],
    ids=["none", "cut", "binary", "list", "large"],
)
def test_a_run_without_a_readable_record_is_a_line_and_the_rest_is_reported(
    uri: str, tmp_path: Path, text: bytes | None, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = make_record("good"), make_record("bad", speedups=(7.0,))
    send(uri, good, bad)
    (file,) = [
        path
        for path in artifacts(tmp_path / "store", "record.json")
        if '"label": "bad' in path.read_text()
    ]
    if text is None:
        file.unlink()
    else:
        file.write_bytes(text)
    assert main(["night", "--tracking-uri", uri, "--out", "out"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{bad.label}-{bad.trial_id}, run ")
    assert reason in line
    assert speedups(Path("out")) == [pytest.approx(2.0)]


def test_artifact_of_a_server_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.store.artifact.http_artifact_repo import HttpArtifactRepository

    monkeypatch.setattr("sweeper.tracking.reader.MAX_JSON_BYTES", 3_000_000)

    class Endless(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                while True:
                    self.wfile.write(b" " * CHUNK_BYTES)

    with HTTPServer(("127.0.0.1", 0), Endless) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        repository = HttpArtifactRepository(f"http://127.0.0.1:{server.server_port}/artifacts")
        with pytest.raises(OSError, match=r"record\.json has more than 3,000,000 bytes"):
            read_artifact(repository, "record.json")
        server.shutdown()


def test_an_unknown_sweep_is_answered_with_the_nearest(
    uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["night", "--tracking-uri", uri]) == 2
    assert capsys.readouterr().err == f"night: no such sweep at {uri}; there are none\n"
    send(uri, make_record())
    assert main(["nihgt", "--tracking-uri", uri]) == 2
    assert capsys.readouterr().err == f"nihgt: no such sweep at {uri}; nearest: night\n"
    assert not Path("runs/nihgt").exists()


@pytest.mark.parametrize(
    ("name", "expected"), [("runs/night", "e.g. night"), ("mlflow.db", "sweep=mlflow.db")]
)
def test_what_is_no_name_of_a_sweep_is_explained(
    uri: str, name: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name, "--tracking-uri", uri]) == 2
    assert expected in capsys.readouterr().err


def test_a_store_that_is_not_there_is_not_created(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["night", "--tracking-uri", f"sqlite:///{tmp_path}/none.db"]) == 2
    assert capsys.readouterr().err == f"{tmp_path}/none.db does not exist\n"
    assert not (tmp_path / "none.db").exists()


def test_a_server_that_is_down_is_one_line_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    address = f"127.0.0.1:{free_port()}"
    assert main(["night", "--tracking-uri", f"http://me:secret@{address}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"http://{address}: ")
    assert line.endswith("Connection refused")


def test_a_server_that_never_answers_is_one_line_and_exit_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert main(["night", "--tracking-uri", f"http://127.0.0.1:{silent.getsockname()[1]}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "timed out" in line or "timeout" in line


def test_a_server_that_falls_silent_in_the_middle_is_one_line_and_nothing_is_written(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    send(server.uri, *RECORDS, sweep="half")
    with ExitStack() as stack:
        monkeypatch.setattr("sweeper.tracking.reader.CALLS_AT_ONCE", 1)

        def fall_silent(*_: object, **__: object) -> None:
            monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
            stack.enter_context(server.silent())
            raise OSError("gone")

        monkeypatch.setattr("sweeper.tracking.reader.read_artifact", fall_silent)
        assert main(["half", "--tracking-uri", server.uri, "--out", "out"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(server.uri)
    assert not Path("out").exists()


def test_calls_map_concurrently_keep_their_order_and_read_ahead_within_bounds() -> None:
    called: list[int] = []

    def call(number: int) -> int:
        called.append(number)
        return number

    results = map_concurrently(call, range(10 * MAX_AHEAD))
    assert next(results) == 0
    assert len(called) <= MAX_AHEAD + 1
    assert list(results) == list(range(1, 10 * MAX_AHEAD))


def test_what_a_call_map_concurrently_raises_ends_them() -> None:
    def call(number: int) -> int:
        if number == 3:
            raise OSError("gone")
        return number

    results = map_concurrently(call, range(10**9))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="gone"):
        next(results)
