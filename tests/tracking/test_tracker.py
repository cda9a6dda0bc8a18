"""Records in MLflow, in a real sqlite store."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from records import make_process, make_record, make_script, make_trial, write_sweep
from tracked_runs import artifacts_of, child, client_of, log, records_of, runs_of

from sweeper import sync
from sweeper.analysis.derive import derive
from sweeper.core.files import write_text
from sweeper.core.paths import SweepPaths
from sweeper.core.record import Inspection, Record
from sweeper.core.trial import Compile
from sweeper.tracking.runs import build_view
from sweeper.tracking.store import ENVIRONMENT, TrackingError, artifact_location, default_uri
from sweeper.tracking.tracker import Sent, Tracker

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

pytestmark = pytest.mark.usefixtures("in_empty_folder", "fresh_environment")
RUNS = Path("runs")
ENVIRONMENT_OF_CODE = {**os.environ, "PYTHONPATH": str(Path(sync.__file__).parent.parent)}


def test_first_use_creates_store_and_artifacts_under_runs_and_prints_nothing(
    in_empty_folder: Path,
) -> None:
    write_sweep(RUNS, [make_record()])
    code = "from sweeper.tracking.tracker import Tracker; print(Tracker(None, 'night').catch_up())"
    command = [sys.executable, "-c", code]
    process = subprocess.run(
        command, env=ENVIRONMENT_OF_CODE, capture_output=True, text=True, check=True
    )
    assert (process.stdout, process.stderr) == (f"{Sent(1, 0)}\n", "")
    assert sorted(path.name for path in in_empty_folder.iterdir()) == ["runs"]
    assert sorted(path.name for path in RUNS.iterdir()) == ["mlartifacts", "mlflow.db", "night"]
    run = child(client_of(default_uri()))
    assert run.info.artifact_uri.startswith((in_empty_folder / "runs" / "mlartifacts").as_uri())


def test_sweep_is_a_parent_run_and_trials_are_its_children(store: MlflowClient) -> None:
    logged = [
        make_record("resnet50"),
        make_record("alexnet", status="oom", message="no memory", flags=("a", "b")),
    ]
    log(*logged).finish()
    (parent,) = runs_of(store, "sweep")
    assert (parent.info.run_name, parent.info.status) == ("night", "FINISHED")
    children = {run.data.tags["trial_id"]: run for run in runs_of(store, "trial")}
    assert set(children) == {record.trial_id for record in logged}
    for record in logged:
        run = children[record.trial_id]
        assert run.info.run_name == record.label
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert (run.data.tags["status"], run.data.tags["flags"]) == (
            record.status,
            ";".join(record.flags),
        )
        assert run.info.end_time is not None
    assert children[logged[1].trial_id].data.tags["mlflow.note.content"] == "compiling: no memory"


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("ok", "FINISHED"),
        ("timeout", "FAILED"),
        ("unavailable", "FAILED"),
        ("interrupted", "KILLED"),
    ],
)
def test_status_of_the_run_follows_the_record(
    store: MlflowClient, status: str, expected: str
) -> None:
    log(make_record(status=status)).finish()
    assert child(store).info.status == expected
    (parent,) = runs_of(store, "sweep")
    assert parent.info.status == ("KILLED" if status == "interrupted" else "FINISHED")


def test_params_are_the_axes_and_versions(store: MlflowClient) -> None:
    options = {"triton.cudagraphs": True, "epilogue_fusion": False}
    trial = make_trial(
        batch_size=64, compile=Compile(scope="step", options=options), optimizer="sgd"
    )
    log(make_record(trial=trial))
    params = child(store).data.params
    assert params == {
        "model": "resnet50",
        "library": "torchvision",
        "family": "cnn",
        "workload": "train",
        "precision": "amp",
        "mode": "default",
        "backend": "inductor",
        "batch_size": "64",
        "variant": trial.variant,
        "optimizer": "sgd",
        "device": "cuda",
        "model.name": "resnet50",
        "precision.autocast": "auto",
        "precision.grad_scaler": "true",
        "compile.scope": "step",
        "compile.options.triton.cudagraphs": "true",
        "compile.options.epilogue_fusion": "false",
        "version.torch": "2.13.0",
    }


def test_a_script_has_no_batch_size_among_its_params() -> None:
    record = make_script("train.py", {})
    assert "batch_size" not in build_view(record, derive(record), "night", "0").params


def test_params_of_a_script_are_what_it_does_and_no_defaults_that_it_ignores() -> None:
    seen = {"optimizers": ("AdamW",), "dropout": True, "autocast": "bfloat16"}
    record = make_script("train.py", {}, **seen)
    params = build_view(record, derive(record), "night", "0").params
    names = ("optimizer", "model.dropout", "precision.autocast")
    assert [params[name] for name in names] == ["AdamW", "true", "bfloat16"]
    older = make_script("train.py", {})
    assert not {*names} & {*build_view(older, derive(older), "night", "0").params}


def test_hostile_param_names_and_long_values_are_cut_to_what_mlflow_takes(
    store: MlflowClient,
) -> None:
    options = {"a$b": "x" * 9000, **{f"option_{i}": i for i in range(150)}}
    tracker = log(
        make_record(trial=make_trial(compile=Compile(options=options)), message="m" * 20000)
    )
    assert tracker.failure is None
    params = child(store).data.params
    assert params["compile.options.a_b"] == "x" * 6000
    assert params["compile.options.option_149"] == "149"


def test_metrics_are_those_of_the_result_and_missing_ones_are_left_out(store: MlflowClient) -> None:
    log(make_record(speedups=(2.0, 2.0)))
    metrics = child(store).data.metrics
    assert metrics["speedup"] == pytest.approx(2.0)
    assert metrics["eager_step_s"] == pytest.approx(0.02)
    assert metrics["compile_cold_s"] == 3.0
    assert metrics["break_even_steps"] == pytest.approx(300)
    assert (metrics["graph_breaks"], metrics["recompiles"]) == (2, 0)
    assert not {"device_speedup", "eager_peak_memory_bytes"} & set(metrics)


def test_search_by_metric_finds_the_fast_trials(store: MlflowClient) -> None:
    log(
        make_record("fast", speedups=(1.5,)),
        make_record("slow", speedups=(0.8,)),
        make_record("gone", status="crashed"),
    )
    found = runs_of(store, "trial", "metrics.speedup > 1")
    assert [run.data.params["model"] for run in found] == ["fast"]


def test_artifacts_are_record_and_logs_and_the_report_on_the_parent(store: MlflowClient) -> None:
    record = make_record()
    folder = write_sweep(RUNS, [record])
    trial = SweepPaths(folder).trial(record.label, record.trial_id)
    trial.log(0).write_text("first process")
    trial.cache(0).mkdir()
    write_text(
        trial.inspection / "graph-0_0" / "dynamo_graph.py", "the inspection of another record"
    )
    report = [folder / "report" / "speedups.csv", folder / "report" / "figures"]
    write_text(report[0], "a,b")
    write_text(report[1] / "one.svg", "<svg/>")
    tracker = log(record)
    tracker.log_report(report)
    assert artifacts_of(store, child(store)) == ["record.json", "worker-0.log"]
    (parent,) = runs_of(store, "sweep")
    assert artifacts_of(store, parent, "report") == ["report/figures", "report/speedups.csv"]
    assert artifacts_of(store, parent, "report/figures") == ["report/figures/one.svg"]


def test_inspection_goes_with_the_record_that_names_it(store: MlflowClient) -> None:
    record = replace(make_record(), inspection=Inspection("inspect"))
    folder = write_sweep(RUNS, [record])
    inspection = SweepPaths(folder).trial(record.label, record.trial_id).inspection
    write_text(inspection / "summary.md", "# what the compiler did")
    write_text(inspection / "graph-0_0" / "forward" / "output_code.py", "call = None")
    assert Tracker(None, "night").catch_up() == Sent(1, 0)
    run = child(store)
    assert artifacts_of(store, run) == ["inspect", "record.json"]
    assert artifacts_of(store, run, "inspect") == ["inspect/graph-0_0", "inspect/summary.md"]
    assert artifacts_of(store, run, "inspect/graph-0_0/forward") == [
        "inspect/graph-0_0/forward/output_code.py"
    ]


def test_same_record_twice_is_sent_once(store: MlflowClient) -> None:
    record = make_record()
    tracker = log(record)
    first = child(store)
    assert not tracker.log(record)
    assert not Tracker(None, "night").log(record)
    assert child(store).to_dictionary() == first.to_dictionary()
    assert len(store.get_metric_history(first.info.run_id, "speedup")) == 1


def test_retry_uses_the_run_again(store: MlflowClient) -> None:
    failed = make_record(status="oom", message="no memory", flags=("shared_gpu",))
    log(failed)
    before = child(store).info.run_id
    retried = make_record(trial=failed.trial)
    log(retried)
    run = child(store)
    assert run.info.run_id == before
    assert (run.info.status, run.data.tags["status"], run.data.tags["flags"]) == (
        "FINISHED",
        "ok",
        "",
    )
    assert run.data.tags["mlflow.note.content"] == "speedup 2.00 over 1 process"
    log(make_record(trial=failed.trial, speedups=(1.5,)))
    assert child(store).info.run_id != before  # or its charts would show both
    assert child(store).data.metrics["speedup"] == pytest.approx(1.5)
    assert records_of(None, "night") == [make_record(trial=failed.trial, speedups=(1.5,))]


@pytest.mark.parametrize(
    "later",
    [
        pytest.param(make_record(status="crashed"), id="metrics are gone"),
        pytest.param(
            replace(make_record(), environment={"versions": {"torch": "2.14.0"}}),
            id="param changed",
        ),
        pytest.param(replace(make_record(), environment={}), id="param is gone"),
    ],
)
def test_retry_leaves_nothing_of_the_earlier_record_behind(
    store: MlflowClient, later: Record
) -> None:
    log(make_record())
    log(later)
    run = child(store)
    assert run.data.tags["status"] == later.status
    assert ("speedup" in run.data.metrics) == (later.status == "ok")
    assert run.data.params.get("version.torch") == dict(later.environment.get("versions", {})).get(
        "torch"
    )  # type: ignore[arg-type]
    assert records_of(None, "night") == [later]


def test_restarted_driver_finds_its_parent_again(store: MlflowClient) -> None:
    log(make_record("one")).finish()
    second = log(make_record("two"))
    (parent,) = runs_of(store, "sweep")
    assert parent.info.status == "RUNNING"
    second.finish()
    (parent,) = runs_of(store, "sweep")
    assert parent.info.status == "FINISHED"
    assert {run.data.tags["mlflow.parentRunId"] for run in runs_of(store, "trial")} == {
        parent.info.run_id
    }


def test_times_of_a_run_are_those_of_the_trial(store: MlflowClient) -> None:
    processes = tuple(
        replace(make_process(index=i), phases_s={"building": 1.0, "eager": 2.5}) for i in range(2)
    )
    record = replace(make_record(), processes=processes)
    write_sweep(RUNS, [record])
    file = SweepPaths.of("night").trial(record.label, record.trial_id).record
    os.utime(file, (1_700_000_000, 1_700_000_000))
    log(record)
    info = child(store).info
    assert (info.start_time, info.end_time) == (1_699_999_993_000, 1_700_000_000_000)


def test_copy_of_a_sweep_is_a_sweep_of_its_own(store: MlflowClient) -> None:
    write_sweep(RUNS, [make_record(sweep="night")], "copy")
    assert Tracker(None, "copy").catch_up() == Sent(1, 0)
    assert Tracker(None, "copy").catch_up() == Sent(0, 1)
    assert len(runs_of(store, "trial", sweep="copy")) == 1
    assert not runs_of(store, "trial", sweep="night")


def test_experiment_that_another_driver_creates_meanwhile_is_used(store: MlflowClient) -> None:
    found = "mlflow.MlflowClient.get_experiment_by_name"
    store.create_experiment("sweeper", artifact_location=artifact_location(default_uri()))
    experiment = store.get_experiment_by_name("sweeper")
    with mock.patch(found, side_effect=[None, experiment]):
        assert log(make_record()).failure is None
    assert child(store).data.tags["status"] == "ok"


def test_same_trial_of_two_sweeps_has_two_runs(store: MlflowClient) -> None:
    log(make_record())
    Tracker(None, "day").log(make_record(sweep="day"))
    assert len(runs_of(store, "trial")) == len(runs_of(store, "trial", sweep="day")) == 1
    assert len(runs_of(store, "sweep")) == len(runs_of(store, "sweep", sweep="day")) == 1


@pytest.mark.parametrize("call", ["log_artifacts", "set_terminated", "log_batch"])
def test_run_that_a_kill_left_half_written_is_completed(store: MlflowClient, call: str) -> None:
    record = make_record()
    write_text(SweepPaths.of("night").trial(record.label, record.trial_id).log(0), "log")
    with (
        mock.patch(f"mlflow.MlflowClient.{call}", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        log(record)
    assert "sweeper.record" not in child(store).data.tags
    assert log(record).failure is None
    run = child(store)
    assert (run.info.status, run.data.tags["status"]) == ("FINISHED", "ok")
    assert len(store.get_metric_history(run.info.run_id, "speedup")) == 1
    assert records_of(None, "night") == [record]


@pytest.mark.slow
def test_kill_while_the_database_is_made_does_not_spoil_it() -> None:
    code = "from sweeper.tracking.store import *; connect(default_uri(), print)"
    process = subprocess.Popen([sys.executable, "-c", code], env=ENVIRONMENT_OF_CODE)
    while not any(file.stat().st_size for file in RUNS.glob(".mlflow.db.*/mlflow.db")):
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (RUNS / "mlflow.db").exists()
    assert log(make_record()).failure is None
    assert records_of(None, "night") == [make_record()]
    assert not list(RUNS.glob(".mlflow.db.*"))


def test_runs_that_a_lost_answer_doubled_are_one_again(store: MlflowClient) -> None:
    log(make_record("one"), make_record("two"))
    for run in (*runs_of(store, "sweep"), *runs_of(store, "trial")):
        tags = {key: value for key, value in run.data.tags.items() if key != "sweeper.record"}
        store.create_run(run.info.experiment_id, tags=tags)
    assert len(runs_of(store, "trial")) == 4
    assert not log().log(make_record("one"))
    assert len(runs_of(store, "sweep")) == 1
    assert sorted(run.data.params["model"] for run in runs_of(store, "trial")) == ["one", "two"]


def test_runs_on_several_pages_are_all_found_and_doubles_go(
    store: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sweeper.tracking.runs.RUNS_PER_PAGE", 2)
    logged = [make_record(name) for name in ("a", "b", "c", "d", "e")]
    write_sweep(RUNS, logged)
    log(*logged)
    for run in runs_of(store, "trial")[:3]:
        tags = {key: value for key, value in run.data.tags.items() if key != "sweeper.record"}
        store.create_run(run.info.experiment_id, 1, tags)
    assert Tracker(None, "night").catch_up() == Sent(0, 5)
    assert len(runs_of(store, "trial")) == 5
    assert records_of(None, "night") == logged


@pytest.mark.usefixtures("store")
def test_a_search_that_takes_longer_than_a_call_may_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    # treated as a server is
    monkeypatch.setattr("sweeper.tracking.store.sqlite_file", lambda _: None)

    def slow(*_: object) -> Iterator[Run]:
        time.sleep(1.5)  # longer than the limit of the first answer
        yield from ()

    monkeypatch.setattr("sweeper.tracking.runs.search_runs", slow)
    assert log(make_record()).failure is None


@pytest.mark.parametrize(
    ("not_needed", "imported"),
    [
        pytest.param(("pandas", "pyarrow"), "False False", id="left out"),
        pytest.param(
            ("requests",),
            "True True",
            id="a version of mlflow that cannot do without",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_mlflow_is_imported_without_what_it_does_not_need(
    store: MlflowClient, not_needed: tuple[str, ...], imported: str
) -> None:
    write_sweep(RUNS, [make_record()])
    code = f"""
import sys
from sweeper.tracking import store
from sweeper.tracking.tracker import Tracker
store.NOT_NEEDED = {not_needed}
print(Tracker(None, "night").catch_up())
print("pandas" in sys.modules, "pyarrow" in sys.modules)
import pandas, requests
"""
    command = [sys.executable, "-c", code]
    process = subprocess.run(
        command, env=ENVIRONMENT_OF_CODE, capture_output=True, text=True, check=True
    )
    assert process.stdout.splitlines() == [str(Sent(1, 0)), imported]


@pytest.mark.usefixtures("store")
def test_records_come_back_as_they_were() -> None:
    logged = [
        make_record("b", speedups=(2.0, 1.5)),
        make_record("a", status="compile_error", message="no"),
    ]
    log(*logged)
    assert records_of(None, "night") == [logged[1], logged[0]]
    assert records_of(None, "unknown") == []


def test_reading_creates_no_store() -> None:
    with pytest.raises(TrackingError, match=r"mlflow\.db does not exist"):
        records_of(None, "night")
    assert not RUNS.exists()


def test_deleted_experiment_is_explained(store: MlflowClient) -> None:
    log(make_record())
    store.delete_experiment(store.get_experiment_by_name("sweeper").experiment_id)
    assert "mlflow experiments restore -x 1" in str(log(make_record("other")).failure)


@pytest.mark.usefixtures("store")
def test_user_settings_win_over_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")
    log(make_record())
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "60"
    assert (
        os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"]
        == ENVIRONMENT["MLFLOW_HTTP_REQUEST_MAX_RETRIES"]
    )


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("http://host:5000", None),
        ("databricks", None),
        ("sqlite:////data/my runs/a.db", "file:///data/my%20runs/mlartifacts"),
        ("postgresql+psycopg2://host/db", "{here}/runs/mlartifacts"),
    ],
)
def test_artifacts_lie_beside_the_database_and_a_server_has_its_own(
    uri: str, expected: str | None
) -> None:
    here = Path.cwd().as_uri()
    assert artifact_location(uri) == (expected and expected.format(here=here))


def started_at(seconds: int) -> str:
    """`sweep.json` of a sweep that began then."""
    started = dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat(timespec="seconds")
    return json.dumps({"sweep": "night", "invocations": [{"started": started}]})


@pytest.mark.usefixtures("store")
def test_run_of_a_sweep_that_ran_earlier_has_its_real_start_and_end() -> None:
    folder = write_sweep(RUNS, [make_record("one"), make_record("two")])
    write_text(folder / "sweep.json", started_at(1_700_000_000))
    for number, path in enumerate(sorted(folder.glob("*/record.json"))):
        os.utime(path, (0, 1_700_000_100 + number))
    tracker = Tracker(None, "night")
    assert tracker.catch_up() == Sent(2, 0)
    tracker.finish()
    (parent,) = runs_of(client_of(default_uri()), "sweep")
    assert (parent.info.start_time, parent.info.end_time) == (1_700_000_000_000, 1_700_000_101_000)


@pytest.mark.usefixtures("store")
def test_run_of_a_sweep_that_runs_now_is_there_before_the_first_record_and_ends_with_it() -> None:
    folder = write_sweep(RUNS, [])
    began_s = int(time.time()) - 60
    write_text(folder / "sweep.json", started_at(began_s))
    tracker = Tracker(None, "night")
    tracker.begin()
    client = client_of(default_uri())
    (parent,) = runs_of(client, "sweep")
    assert (parent.info.status, parent.info.start_time) == ("RUNNING", 1000 * began_s)
    assert "viewStateShareKey=" in str(tracker.page)
    before_ms = int(1000 * time.time())
    tracker.log(make_record())
    tracker.finish()
    (parent,) = runs_of(client, "sweep")
    assert parent.info.status == "FINISHED"
    assert parent.info.end_time >= before_ms


@pytest.mark.usefixtures("store")
def test_a_resumed_sweep_runs_again_in_the_same_run() -> None:
    log(make_record()).finish()
    client = client_of(default_uri())
    tracker = Tracker(None, "night")
    tracker.begin()
    assert [run.info.status for run in runs_of(client, "sweep")] == ["RUNNING"]
    tracker.finish()
    assert [run.info.status for run in runs_of(client, "sweep")] == ["FINISHED"]


@pytest.mark.usefixtures("store")
def test_link_names_a_state_that_the_experiment_keeps() -> None:
    tracker = log(make_record())
    experiment = client_of(default_uri()).get_experiment_by_name("sweeper")
    key = str(tracker.page).rpartition("=")[2]
    state = json.loads(experiment.tags[f"mlflow.sharedViewState.{key}"])
    assert state["searchFilter"] == "tags.sweep = 'night'"
    axes = {f"params.`{name}`" for name in ("mode", "backend", "precision", "batch_size")}
    shown = {"metrics.`speedup`", "tags.`status`", "tags.`answer`", "tags.`sure`"}
    assert axes | shown <= set(state["selectedColumns"])


@pytest.mark.usefixtures("store")
def test_names_of_runs_tell_modes_apart() -> None:
    modes = ("default", "reduce-overhead", "max-autotune")
    tracker = log(*(make_record(mode=mode) for mode in modes))
    names = {run.info.run_name for run in runs_of(client_of(tracker.uri), "trial")}
    assert len(names) == len(modes)
    for mode in modes:
        assert any(mode in name for name in names)
