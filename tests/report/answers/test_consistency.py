from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from records import make_record, make_trial, write_sweep
from reports import load

from sweeper.core.record import Diagnostics, Latencies, Latency, Record
from sweeper.core.trial import Trial
from sweeper.report.__main__ import main
from sweeper.report.answers.consistency import find_mixtures


def with_environment(record: Record, torch: str = "2.13.0", gpu: str = "NVIDIA H200") -> Record:
    return replace(
        record, environment={"versions": {"torch": torch}, "device": {"type": "cuda", "name": gpu}}
    )


def notes(runs: Path, *records: Record) -> list[str]:
    return find_mixtures(
        load([write_sweep(runs, [record], f"s{i}") for i, record in enumerate(records)]).entries
    )


def test_what_is_alike_needs_no_line(tmp_path: Path) -> None:
    assert notes(tmp_path, make_record(), make_record("vgg16")) == []


def test_two_gpus_are_named_and_never_in_one_mean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweeps = [
        write_sweep(tmp_path, [with_environment(make_record(model, precision, [speedup]), gpu=gpu)
                               for precision in ("amp", "fp32")], name)
        for name, gpu, model, speedup in (
            ("a", "NVIDIA H200", "resnet50", 2.0),
            ("b", "NVIDIA L4", "vgg16", 4.0),
        )
    ]  # fmt: skip
    assert main([*map(str, sweeps), "--out", str(tmp_path / "out")]) == 0
    note = (
        "note: trials ran on different devices, which no mean mixes: gpu=NVIDIA H200, "
        "gpu=NVIDIA L4 (in variant)"
    )
    assert note in capsys.readouterr().out
    rows = csv.DictReader(io.StringIO((tmp_path / "out/summary.csv").read_text()))
    found = {
        row["variant"]: (row["models"], row["weighted"][:4])
        for row in rows
        if row["family"] == "all"
    }
    assert found == {"gpu=NVIDIA H200": ("1", "2.0"), "gpu=NVIDIA L4": ("1", "4.0")}
    chosen = csv.DictReader(io.StringIO((tmp_path / "out/recommendations.csv").read_text()))
    assert {row["variant"] for row in chosen} == {"gpu=NVIDIA H200", "gpu=NVIDIA L4"}


def test_versions_of_torch_in_one_mean_are_named(tmp_path: Path) -> None:
    found = notes(
        tmp_path,
        with_environment(make_record()),
        with_environment(make_record("vgg16"), torch="2.11.0"),
    )
    assert found == ["means hold trials of different versions of torch: 2.11.0, 2.13.0"]


def test_versions_that_were_asked_for_are_an_axis_and_need_no_line(tmp_path: Path) -> None:
    other = with_environment(make_record(python="/old/bin/python"), torch="2.11.0")
    assert notes(tmp_path, with_environment(make_record()), other) == []


def test_single_steps_beside_blocks_are_named(tmp_path: Path) -> None:
    one = Latency(0.02, 0.02, 0.02, 9)
    record = make_record("vgg16")
    waited = replace(
        record, processes=(replace(record.processes[0], latencies=Latencies(one, one)),)
    )
    assert notes(tmp_path, make_record(), waited) == [
        "means hold trials timed step by step (measure.clock=step) beside others"
    ]


def test_settings_that_differ_behind_equal_axes_are_named(tmp_path: Path) -> None:
    records = [
        replace(
            make_record(model, precision),
            diagnostics=Diagnostics(settings={"matmul_allow_tf32": tf32}),
        )
        for model, precision, tf32 in (("a", "amp", True), ("b", "amp", False), ("c", "fp32", True))
    ]
    assert notes(tmp_path, *records) == [
        "means hold trials with different settings: matmul_allow_tf32 (amp) False, True"
    ]


def test_one_liners_of_a_ladder_apply_to_some_models_and_need_no_line(tmp_path: Path) -> None:
    def notes_of(rung: str | None) -> list[str]:
        records = [
            replace(
                make_record(model, trial=mark(make_trial(model), rung)),
                diagnostics=Diagnostics(settings={"cudnn_benchmark": benchmark}),
            )
            for model, benchmark in (("resnet50", True), ("bert_base", False))
        ]
        return notes(tmp_path / str(rung), *records)

    def mark(trial: Trial, rung: str | None) -> Trial:
        return replace(trial, labels=replace(trial.labels, rung=rung))

    assert notes_of("default") == []
    assert notes_of(None) == [
        "means hold trials with different settings: cudnn_benchmark (amp) False, True"
    ]


def test_bad_records_are_lines_and_exit_1_and_the_rest_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a newer schema, cut short, somebody else's JSON, and a trial that has not ended, all in
    one sweep.
    """
    models = ("good", "newer", "cut", "foreign", "absent")
    sweep = write_sweep(tmp_path, [make_record(model) for model in models])
    record = {model: next(sweep.glob(f"{model}-*/record.json")) for model in models}
    record["newer"].write_text(
        json.dumps(json.loads(record["newer"].read_text()) | {"schema_version": 99})
    )
    record["cut"].write_text(record["cut"].read_text()[:200])
    record["foreign"].write_text('{"name": "left-pad", "version": "1.3.0"}')
    record["absent"].unlink()
    assert main([str(sweep)]) == 1
    printed = capsys.readouterr()
    said = printed.err.splitlines()
    assert len(said) == 4
    for model, reason in {
        "newer": "schema_version 99 is newer than",
        "cut": "not JSON, or cut short",
        "foreign": "not a record: no schema_version",
        "absent": "no record.json; the trial has not ended",
    }.items():
        assert any(f"/{model}-" in line and reason in line for line in said), model
    with (sweep / "report/speedups.csv").open() as file:
        assert [row["model"] for row in csv.DictReader(file)] == ["good"]
