"""What runs in MLflow show beside their records: key figures of a sweep, descriptions, points of
charts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from records import make_process, make_record, make_trial, write_sweep
from reports import write_report
from rich.console import Console
from script_records import make_trained

from sweeper import sync
from sweeper.core.paths import SweepPaths
from sweeper.core.record import Record, Round
from sweeper.core.text import escape_markdown
from sweeper.core.trial import Compile
from sweeper.loading.sources import SweepFolder
from sweeper.report.answers.groups import MEANS
from sweeper.report.build import make_report, print_verdict
from sweeper.report.text.mlflow_overview import overview
from sweeper.tracking.runs import (
    MAX_FIRST_STEPS,
    MAX_ROUNDS,
    MAX_TAG_CHARACTERS,
    MetricPoint,
    Overview,
    list_points,
)
from sweeper.tracking.tracker import Sent, Tracker

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run

pytestmark = pytest.mark.usefixtures("in_empty_folder", "fresh_environment")
RUNS = Path("runs")
BOTH = (
    make_record(speedups=(2.0, 2.0)),
    make_record(precision="fp32", speedups=(1.5, 1.5)),
    make_record("vgg16", status="compile_error"),
)
WEIGHTED = 0.75 * 2.0 + 0.25 * 1.5


def runs_of(client: MlflowClient, kind: str, query: str = "") -> list[Run]:
    experiment = client.get_experiment_by_name("sweeper")
    where = f"tags.`sweeper.kind` = '{kind}'{' and ' if query else ''}{query}"
    return list(client.search_runs([experiment.experiment_id], where)) if experiment else []


def parent(client: MlflowClient) -> Run:
    (run,) = runs_of(client, "sweep")
    return run


def child(client: MlflowClient) -> Run:
    (run,) = runs_of(client, "trial")
    return run


def finish(records: Sequence[Record]) -> Tracker:
    """What the driver does at the end of a sweep."""
    folder = write_sweep(RUNS, records)
    report = write_report([folder], SweepPaths(folder).report)
    tracker = Tracker(None, "night")
    tracker.catch_up()
    tracker.log_overview(overview(report))
    tracker.log_report(report.paths)
    tracker.finish()
    assert tracker.failure is None
    return tracker


def history(client: MlflowClient, run: Run, name: str) -> list[Metric]:
    return sorted(client.get_metric_history(run.info.run_id, name), key=lambda metric: metric.step)


def steps(client: MlflowClient, run: Run, name: str) -> list[tuple[int, float]]:
    return [(metric.step, pytest.approx(metric.value)) for metric in history(client, run, name)]


def test_parent_shows_the_key_figures_and_every_file_of_the_report(store: MlflowClient) -> None:
    finish(BOTH)
    run = parent(store)
    assert (
        run.data.metrics["weighted"]
        == run.data.metrics["weighted_default"]
        == pytest.approx(WEIGHTED)
    )
    assert run.data.metrics["geomean_amp"] == pytest.approx(2.0)
    assert run.data.metrics["geomean_fp32"] == pytest.approx(1.5)
    assert run.data.metrics["pass_rate"] == 0.5
    note = run.data.tags["mlflow.note.content"]
    assert "\n\n**weighted 0.75 AMP + 0.25 fp32: 1.88 over 1 model, all undisturbed; " in note
    assert "| all | 1 of 2 |" in note
    sent = {file.path for file in store.list_artifacts(run.info.run_id, "report")}
    assert sent == {f"report/{path.name}" for path in SweepPaths.of("night").report.iterdir()}


def test_the_description_of_a_sweep_begins_with_the_sentences_of_the_terminal(
    store: MlflowClient, capsys: pytest.CaptureFixture[str]
) -> None:
    finish(BOTH)
    print_verdict(make_report([SweepFolder(RUNS / "night")]), Console(width=500))
    lines = capsys.readouterr().out.splitlines()
    note = parent(store).data.tags["mlflow.note.content"]
    said = [line.removeprefix("- ") for line in note.partition("\n\n")[0].splitlines()]
    assert said[0] == "In AMP: compile 1 of 1 (1 sure), median 2.00x, pays back after 300 steps."
    assert said[-1] == "1 of 3 trials failed: 1 compile_error."
    printed = {escape_markdown(line.partition("; first ")[0].removesuffix(".")) for line in lines}
    assert {line.removesuffix(".") for line in said} <= printed


def tags_of(client: MlflowClient, name: str) -> dict[str, list[str]]:
    """The tag of each trial by its model and mode."""
    found = {}
    for run in runs_of(client, "trial"):
        key = f"{run.data.params['model']} {run.data.params['mode']}"
        found[key] = run.data.tags.get(name)
    return found


def test_trials_have_the_answer_for_their_model(store: MlflowClient) -> None:
    fast = make_record(speedups=(2.0, 2.02, 1.98))
    hasty = make_record(mode="reduce-overhead", speedups=(1.5,))
    control = make_record(mode="eager", backend=None)
    alone = make_record("vgg16", speedups=(1.0,))
    records = [fast, hasty, control, alone]
    finish(records)
    report = make_report([SweepFolder(RUNS / "night")])
    answers = {answer.trial.labels.model: answer for answer in report.findings.answers}
    said = {model: str(answer) for model, answer in answers.items()}
    assert said["resnet50"].startswith("compile default: 2.00x [")
    assert tags_of(store, "answer") == {
        "resnet50 default": said["resnet50"],
        "resnet50 reduce-overhead": said["resnet50"],
        "resnet50 eager": None,
        "vgg16 default": said["vgg16"],
    }
    assert tags_of(store, "sure") == {
        "resnet50 default": "true",
        "resnet50 reduce-overhead": "true",
        "resnet50 eager": None,
        "vgg16 default": "false",
    }


def test_an_answer_that_changes_is_sent_to_all_trials_of_its_model(store: MlflowClient) -> None:
    slow = make_record(speedups=(1.5, 1.51, 1.49))
    finish([slow])
    assert str(tags_of(store, "answer")["resnet50 default"]).startswith("compile default: 1.50x")
    finish([slow, make_record(mode="reduce-overhead", speedups=(2.0, 2.02, 1.98))])
    answers = tags_of(store, "answer")
    assert str(answers["resnet50 default"]).startswith("compile reduce-overhead: 2.00x")
    assert set(answers.values()) == {answers["resnet50 default"]}
    with mock.patch("mlflow.MlflowClient.log_batch") as log_batch:
        assert sync.main(["night"]) == 0
    assert not log_batch.called


def test_a_run_that_takes_the_place_of_another_has_the_answer(store: MlflowClient) -> None:
    finish([make_record(speedups=(2.0, 2.02, 1.98))])
    (before,) = runs_of(store, "trial")
    again = make_record(speedups=(2.0, 2.02, 1.98))
    finish([replace(again, environment={"versions": {"torch": "2.14.0"}})])
    after = child(store)
    assert before.info.run_id != after.info.run_id
    assert after.data.tags["answer"] == before.data.tags["answer"]


def test_several_modes_have_a_figure_each_and_none_without_a_name(store: MlflowClient) -> None:
    hasty = [
        make_record(precision=name, mode="reduce-overhead", speedups=(3.0,))
        for name in ("amp", "fp32")
    ]
    finish([*BOTH, *hasty])
    metrics = parent(store).data.metrics
    assert metrics["weighted_reduce-overhead"] == pytest.approx(3.0)
    assert metrics["weighted_default"] == pytest.approx(WEIGHTED)
    assert not {*(mean.name for mean in MEANS), "pass_rate"} & set(metrics)


def test_missing_figures_have_no_metric(store: MlflowClient) -> None:
    finish([make_record()])
    metrics = parent(store).data.metrics
    assert {"geomean_amp", "pass_rate"} <= set(metrics)
    assert not {"weighted", "geomean_fp32", "weighted_default"} & set(metrics)


def test_names_hold_what_differs_in_characters_that_mlflow_takes(store: MlflowClient) -> None:
    records = [
        make_record(mode="default", compile=Compile(options=options))
        for options in ({}, {"a$b": "x/../y" * 50}, {"a%b": "x/../y" * 50})
    ]
    finish(records)
    names = {name for name in parent(store).data.metrics if name.startswith("geomean_amp")}
    assert len(names) == 3
    assert "geomean_amp_default_base" in names


@pytest.mark.parametrize("then", ["another mode", "a failure"])
def test_figure_that_is_no_more_goes_with_its_parent_and_children_stay(
    store: MlflowClient, then: str
) -> None:
    finish(BOTH)
    before, children = parent(store), {run.info.run_id for run in runs_of(store, "trial")}
    more = (
        make_record(mode="reduce-overhead")
        if then == "another mode"
        else make_record(precision="fp32", status="oom")
    )
    finish([more])
    after = parent(store)
    assert "weighted" not in after.data.metrics
    assert after.info.run_id != before.info.run_id
    assert after.info.start_time == before.info.start_time
    assert {run.data.tags["mlflow.parentRunId"] for run in runs_of(store, "trial")} == {
        after.info.run_id
    }
    assert len(children - {run.info.run_id for run in runs_of(store, "trial")}) == (
        then == "a failure"
    )
    assert store.list_artifacts(after.info.run_id, "report")


def test_kill_while_the_parent_is_replaced_is_mended_by_sync(store: MlflowClient) -> None:
    finish(BOTH)
    children = {run.info.run_id for run in runs_of(store, "trial")}
    write_sweep(RUNS, [make_record(mode="reduce-overhead")])
    with (
        mock.patch("mlflow.MlflowClient.delete_run", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        sync.main(["night"])
    assert len(runs_of(store, "sweep")) == 2
    assert sync.main(["night"]) == 0
    run = parent(store)
    assert {item.data.tags["mlflow.parentRunId"] for item in runs_of(store, "trial")} == {
        run.info.run_id
    }
    assert children < {item.info.run_id for item in runs_of(store, "trial")}
    assert "weighted_default" in run.data.metrics
    assert "weighted" not in run.data.metrics


def test_sync_sends_all_of_it_once(store: MlflowClient) -> None:
    folder = write_sweep(RUNS, BOTH)
    write_report([folder], SweepPaths(folder).report)
    everything = []
    for _ in range(2):
        assert sync.main(["night"]) == 0
        runs = [*runs_of(store, "sweep"), *runs_of(store, "trial")]
        points = [
            len(store.get_metric_history(run.info.run_id, name))
            for run in runs
            for name in sorted(run.data.metrics)
        ]
        everything.append(([run.to_dictionary() for run in runs], points))
    assert everything[0] == everything[1]
    assert parent(store).data.metrics["weighted"] == pytest.approx(WEIGHTED)
    assert max(everything[0][1]) == 4  # rounds of two processes
    assert store.list_artifacts(parent(store).info.run_id, "report")


def test_figures_that_changed_are_sent_and_the_others_not_again(store: MlflowClient) -> None:
    finish(BOTH)
    finish([make_record(precision="fp32", speedups=(1.0, 1.0))])
    run = parent(store)
    assert run.data.metrics["weighted"] == pytest.approx(0.75 * 2 + 0.25)
    assert len(history(store, run, "weighted")) == 2
    assert len(history(store, run, "geomean_amp")) == 1


def test_description_that_somebody_wrote_stays_while_the_figures_do(store: MlflowClient) -> None:
    finish(BOTH)
    store.set_tag(parent(store).info.run_id, "mlflow.note.content", "our best night")
    assert sync.main(["night"]) == 0
    assert parent(store).data.tags["mlflow.note.content"] == "our best night"


def test_description_of_a_large_sweep_is_cut_to_what_mlflow_takes() -> None:
    families = [make_record(f"model_{i}", family=f"family_{i}") for i in range(120)]
    note = overview(make_report([SweepFolder(write_sweep(RUNS, families, "families"))])).note
    assert len(note) <= MAX_TAG_CHARACTERS
    assert "| all |" in note
    assert "family_7" not in note
    modes = [make_record(compile=Compile(options={"option": i})) for i in range(120)]
    note = overview(make_report([SweepFolder(write_sweep(RUNS, modes, "variants"))])).note
    assert len(note) <= MAX_TAG_CHARACTERS
    assert note.endswith("…")


def test_digest_of_an_overview_follows_figures_and_description() -> None:
    one = Overview({"weighted": 1.0}, "a", {})
    assert one.text == replace(one, metrics={"weighted": 1.0}).text
    others = (replace(one, metrics={"weighted": 1.5}), replace(one, note="b"))
    assert len({one.text, *(other.text for other in others)}) == 3


def test_child_has_a_point_for_each_round_and_each_first_step(store: MlflowClient) -> None:
    first = replace(make_process(2.0), first_steps_s=(3.0, 0.5))
    record = replace(make_record(), processes=(first, make_process(1.6, index=1)))
    write_sweep(RUNS, [record])
    assert Tracker(None, "night").catch_up() == Sent(1, 0)
    run = child(store)
    assert steps(store, run, "eager_step_ms") == [(0, 20), (1, 20), (2, 20), (3, 20)]
    assert steps(store, run, "compiled_step_ms") == [(0, 10), (1, 10), (2, 12.5), (3, 12.5)]
    assert steps(store, run, "round_speedup") == [(0, 2), (1, 2), (2, 1.6), (3, 1.6)]
    assert steps(store, run, "first_step_ms") == [(0, 3000), (1, 500)]


def test_void_rounds_and_missing_blocks_are_gaps() -> None:
    rounds = (
        Round("AB", 1.0, 0.5),
        Round("BA", 1.0, 0.5, void="recompiled"),
        Round("AB", 1.0, None),
    )
    record = replace(make_record(), processes=(replace(make_process(), rounds=rounds),))
    assert list_points(record) == (
        MetricPoint("eager_step_ms", 0, 100.0),
        MetricPoint("compiled_step_ms", 0, 50.0),
        MetricPoint("round_speedup", 0, 2.0),
        MetricPoint("eager_step_ms", 2, 100.0),
    )


def test_a_wrong_program_has_no_points_of_its_speed() -> None:
    record = replace(make_record(), status="accuracy_mismatch")
    assert {point.name for point in list_points(record)} == {"eager_step_ms"}


def test_points_of_a_trial_are_bounded(store: MlflowClient) -> None:
    process = make_process()
    process = replace(process, rounds=process.rounds * 200, first_steps_s=(1.0,) * 500)
    trial = make_trial(compile=Compile(options={f"option_{i}": i for i in range(150)}))
    record = replace(make_record(trial=trial), processes=(process, process))
    assert len(list_points(record)) == 3 * MAX_ROUNDS + MAX_FIRST_STEPS
    write_sweep(RUNS, [record])
    assert Tracker(None, "night").catch_up() == Sent(1, 0)
    assert len(history(store, child(store), "eager_step_ms")) == MAX_ROUNDS


def test_kill_between_points_and_tags_leaves_none_twice(store: MlflowClient) -> None:
    record = make_record()
    write_sweep(RUNS, [record])
    with (
        mock.patch(
            "mlflow.store.tracking.sqlalchemy_store.SqlAlchemyStore._set_tags",
            side_effect=KeyboardInterrupt,
        ),
        pytest.raises(KeyboardInterrupt),
    ):
        Tracker(None, "night").catch_up()
    assert Tracker(None, "night").catch_up() == Sent(1, 0)
    run = child(store)
    for name in ("speedup", "eager_step_ms", "round_speedup"):
        assert len({metric.step for metric in history(store, run, name)}) == len(
            history(store, run, name)
        )


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        pytest.param(
            make_record(speedups=(2.0, 2.0), flags=("host_busy", "unsteady")),
            "speedup 2.00 [2.00, 2.00] over 2 processes; host_busy, unsteady",
            id="ok",
        ),
        pytest.param(
            make_record(status="oom", message="<b>no</b> ![x](http://y)\n# more"),
            "compiling: &lt;b&gt;no&lt;/b&gt; \\!\\[x\\](http\\://y)\n\n    # more",
            id="what a message holds is no markup",
        ),
        pytest.param(make_record(status="timeout"), "", id="nothing to say"),
        pytest.param(
            make_trained(None, 0.08, 0.08),
            "loop 1.25, step 2.00 [2.00, 2.00] over 2 processes",
            id="of a script the loop first",
        ),
    ],
)
def test_description_of_a_trial(store: MlflowClient, record: Record, expected: str) -> None:
    write_sweep(RUNS, [record])
    Tracker(None, "night").catch_up()
    assert child(store).data.tags["mlflow.note.content"] == expected


def test_search_by_mode_and_speedup_and_flag(store: MlflowClient) -> None:
    records = [
        make_record("fast", speedups=(1.5,), flags=("host_bound", "single_process")),
        make_record("fast", mode="reduce-overhead", speedups=(1.9,)),
        make_record("slow", speedups=(1.1,)),
    ]
    write_sweep(RUNS, records)
    Tracker(None, "night").catch_up()
    (found,) = runs_of(store, "trial", "params.mode = 'default' and metrics.speedup > 1.2")
    assert found.info.run_name == records[0].label
    assert len(runs_of(store, "trial", "params.model = 'fast'")) == 2
    assert len(runs_of(store, "trial", "tags.flags LIKE '%host_bound%'")) == 1
