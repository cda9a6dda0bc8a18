from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from records import make_process, make_record, write_sweep
from reports import load, write_report
from rich.console import Console

from sweeper.core.record import Diagnostics, Record, Round
from sweeper.core.serialization import Json
from sweeper.loading.invocations import read_manifest
from sweeper.loading.sources import SweepFolder
from sweeper.report.answers.provenance import describe, name_amp_format
from sweeper.report.build import print_report

SETTINGS: dict[str, Json] = {
    "autocast": None,
    "grad_scaler": False,
    "dropout": False,
    "cudnn_allow_tf32": True,
}
AMP = {**SETTINGS, "autocast": "bfloat16"}


def with_settings(record: Record, **settings: Json) -> Record:
    return replace(record, diagnostics=Diagnostics(settings=settings))


def with_environment(
    record: Record, device: dict[str, Any] | None = None, **environment: Any
) -> Record:
    known = {"type": "cuda", "name": "NVIDIA H200", **(device or {})}
    return replace(record, environment={**record.environment, "device": known, **environment})


def facts(runs: Path, *records: Record) -> list[str]:
    return describe_facts(write_sweep(runs, records))


def describe_facts(folder: Path) -> list[str]:
    provenance = describe([read_manifest(SweepFolder(folder))], load([folder]).entries)
    return [fact.line for fact in provenance.facts]


def fact(runs: Path, name: str, *records: Record) -> str | None:
    return next(
        (
            line.removeprefix(f"{name}: ")
            for line in facts(runs, *records)
            if line.startswith(f"{name}: ")
        ),
        None,
    )


def test_a_sweep_json_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path, [make_record()])
    assert not [
        note for note in write_report([folder], tmp_path / "out").notes if "sweep.json" in note
    ]
    (folder / "sweep.json").write_text('{"sweep": "night", "invoc')
    (said,) = [
        note for note in write_report([folder], tmp_path / "out").notes if "sweep.json" in note
    ]
    assert said.startswith("sweep.json of night: not JSON, or cut short")


def test_a_record_that_says_little_has_few_facts(tmp_path: Path) -> None:
    assert facts(tmp_path, make_record()) == [
        "sweeps: night",
        "measured: 2 rounds",
        "device: NVIDIA H200",
        "versions: torch 2.13.0",
    ]


@pytest.mark.parametrize(
    ("asked", "had", "text"),
    [
        ([2], [2, 2], "processes 1, draws 1; 2 rounds"),
        ([4], [2, 2], "processes 1, draws 1; 2 rounds of 4 asked"),
        ([4], [2, 2, 4], "processes 1, draws 1; 2 to 4 rounds of 4 asked (2 in 2 of 3 processes)"),
        (
            [4, 10],
            [4, 4, 10],
            "processes 1, draws 1; 4 to 10 rounds of 4 or 10 asked (4 in 2 of 3 processes)",
        ),
        ([4], [], "processes 1, draws 1; 4 rounds asked"),
        ([], [2, 2, 1], "1 to 2 rounds (2 in 2 of 3 processes)"),
    ],
)
def test_rounds_are_said_as_they_were(
    tmp_path: Path, asked: list[int], had: list[int], text: str
) -> None:
    void = Round("AB", 9.0, 9.0, "recompiled")
    process = make_process()
    records = [
        replace(
            make_record(f"m{i}"),
            processes=(replace(process, rounds=(*(process.rounds * count)[:count], void)),),
        )
        for i, count in enumerate(had)
    ]
    failed = make_record("failed", status="oom")
    folder = write_sweep(tmp_path, [*records, failed])
    measures = [{"processes": 1, "draws": 1, "target": None, "rounds": count} for count in asked]
    (folder / "sweep.json").write_text(
        json.dumps({"invocations": [{"settings": {"measure": m}} for m in measures]})
    )
    assert f"measured: {text}" in describe_facts(folder)


def test_a_setting_with_one_value_is_said_once(tmp_path: Path) -> None:
    records = [
        with_settings(make_record(), **SETTINGS),
        with_settings(make_record(precision="fp32"), **SETTINGS),
    ]
    assert (
        fact(tmp_path, "settings", *records)
        == "autocast none; grad_scaler off; dropout off; cudnn_allow_tf32 on"
    )


def test_a_setting_that_the_precision_decides_says_which(tmp_path: Path) -> None:
    records = [
        with_settings(make_record(), **AMP),
        with_settings(make_record(precision="fp32"), **SETTINGS),
        with_settings(make_record(precision="bf16"), **SETTINGS),
        make_record("unknown"),
    ]
    found = fact(tmp_path, "settings", *records)
    assert found is not None
    assert found.split("; ")[0] in (
        "autocast bfloat16 (amp), none (bf16, fp32)",
        "autocast none (bf16, fp32), bfloat16 (amp)",
    )


def test_a_setting_that_models_decide_lists_its_values(tmp_path: Path) -> None:
    records = [
        with_settings(make_record(name), attention=kind)
        for name, kind in (("a", "sdpa"), ("b", None))
    ]
    assert fact(tmp_path, "settings", *records) == "attention sdpa or none"


def test_setting_that_some_records_lack_says_how_many_have_it(tmp_path: Path) -> None:
    records = [with_settings(make_record(name), dropout=False, optimizer_lr=1e-5) for name in "ab"]
    records += [with_settings(make_record("older"), dropout=False), make_record("without")]
    assert (
        fact(tmp_path, "settings", *records) == "dropout off; optimizer_lr 1e-05 in 2 of 3 records"
    )


def test_long_values_are_cut(tmp_path: Path) -> None:
    record = with_settings(make_record(), attention_ran_eager="cudnn", note="x" * 100)
    assert fact(tmp_path, "settings", record) == f"attention_ran_eager cudnn; note {'x' * 59}…"


@pytest.mark.parametrize(
    ("settings", "precision", "text"),
    [
        (AMP, "amp", "bfloat16 autocast without gradient scaler"),
        (
            AMP | {"autocast": "float16", "grad_scaler": True},
            "amp",
            "float16 autocast with gradient scaler",
        ),
        (
            SETTINGS,
            "bf16",
            "bfloat16 parameters, no autocast, without gradient scaler (precision=bf16)",
        ),
        ({}, "amp", None),
    ],
)
def test_what_was_weighted_as_amp_is_said_exactly(
    tmp_path: Path, settings: dict[str, Json], precision: str, text: str | None
) -> None:
    weighted = with_settings(make_record(precision=precision, weight="amp"), **settings)
    assert (
        fact(tmp_path, "amp", weighted, with_settings(make_record(precision="fp32"), **SETTINGS))
        == text
    )


def test_eager_against_eager_is_not_weighted(tmp_path: Path) -> None:
    record = with_settings(make_record(mode="eager", backend=None), **AMP)
    assert name_amp_format(load([write_sweep(tmp_path, [record])]).entries) == ""


def test_the_summary_names_what_was_weighted_as_amp(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_sweep(
        tmp_path, [with_settings(make_record(), **AMP), make_record(precision="fp32")]
    )
    report = write_report([folder], tmp_path / "out")
    summary = (
        (tmp_path / "out/report.md").read_text().split("## Summary")[1].split("## Speedups")[0]
    )
    assert "AMP: bfloat16 autocast without gradient scaler." in summary
    print_report(report, Console())
    assert "amp: bfloat16 autocast without gradient scaler\n" in capsys.readouterr().out


def test_driver_power_limit_and_commit_are_named_where_known(tmp_path: Path) -> None:
    known = with_environment(
        make_record(), {"driver": "580.95", "power_limit_w": 700.0}, commit="0123456789ab+"
    )
    other = with_environment(
        make_record("b"), {"driver": None, "power_limit_w": 550.5}, commit=None
    )
    found = facts(tmp_path, known, other)
    assert "driver: 580.95" in found
    assert {"power limit: 700 W, 550.5 W", "power limit: 550.5 W, 700 W"} & set(found)
    assert "commit: 0123456789ab+" in found


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (["max_autotune=True"], "1 setting differs from its default: max_autotune=True"),
        (["a=1", "b=2", "c=3", "d=4"], "4 settings differ from defaults: a=1, b=2, c=3 and 1 more"),
        ([f"a={'x' * 80}"], f"1 setting differs from its default: a={'x' * 57}…"),
        ([], None),
        (None, None),
        ("text", None),
    ],
)
def test_inductors_settings_that_are_not_defaults_are_counted(
    tmp_path: Path, config: object, text: str | None
) -> None:
    assert (
        fact(tmp_path, "inductor config", with_environment(make_record(), inductor_config=config))
        == text
    )
