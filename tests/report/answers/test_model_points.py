"""Model points: which trials the summary takes its means over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from records import make_record, make_trial, write_sweep
from reports import load
from summary_records import findings_of

from sweeper.core.trial import Precision
from sweeper.report.answers.model_points import ModelPoint, collect


def speedup_of(point: ModelPoint) -> float:
    estimate = point.verified["amp"].speedup
    assert estimate is not None
    return estimate.ratio


def test_points_differ_by_batch_size_and_by_what_is_built(tmp_path: Path) -> None:
    small = make_trial("bert", family="nlp")
    records = [
        make_record("bert", family="nlp", batch_size=8),
        make_record("bert", family="nlp", batch_size=16),
        make_record(
            trial=replace(small, model=replace(small.model, image_size=64)),
        ),
    ]
    assert len(findings_of(tmp_path, records).model_points.points) == 3


def test_of_two_precision_options_with_one_weight_in_a_row_the_one_with_more_trials_counts(
    tmp_path: Path,
) -> None:
    records = [make_record("alexnet", "bf16", weight="amp"), make_record(), make_record("vgg16")]
    found = findings_of(tmp_path, records).model_points
    assert [point.name for point in found.points] == ["resnet50 (batch 32)", "vgg16 (batch 32)"]
    (note,) = found.notes
    assert (
        "inductor: 1 trial in precision=bf16 not in the summary: precision=amp carries the "
        "weight amp" in note
    )


def test_one_precision_option_with_two_meanings_in_a_row_counts_with_one_of_them(
    tmp_path: Path,
) -> None:
    trial = make_trial("vgg16")
    other = replace(trial, precision=Precision(autocast="float16"))
    found = findings_of(tmp_path, [make_record(), make_record(trial=other)]).model_points
    assert [point.name for point in found.points] == ["resnet50 (batch 32)"]
    (note,) = found.notes
    assert (
        "in precision=amp not in the summary: another setting of precision=amp carries the "
        "weight amp" in note
    )


def test_of_a_trial_in_two_sweeps_the_later_one_counts(tmp_path: Path) -> None:
    folders = [
        write_sweep(tmp_path, [make_record(speedups=[s])], name)
        for name, s in (("a", 2.0), ("b", 3.0))
    ]
    found = collect(load(folders).entries)
    (point,) = found.points
    assert speedup_of(point) == pytest.approx(3.0)
    assert found.notes == (
        "1 trial of a not in the summary: b has the same; to compare: python -m sweeper.compare "
        "a b",
    )


def test_one_trial_with_two_versions_of_torch_is_told_apart(tmp_path: Path) -> None:
    made = make_record()
    old, new = (
        replace(made, environment={**made.environment, "versions": {"torch": version}})
        for version in ("2.11", "2.13")
    )
    found = load(
        [
            write_sweep(tmp_path, [old], "a"),
            write_sweep(tmp_path, [new, make_record("vit_b16")], "b"),
        ]
    )
    assert [entry.variant for entry in found.entries] == [
        "torch=2.11",
        "torch=2.13",
        "torch=2.13.0",
    ]
    assert {entry.variant for entry in load([tmp_path / "b"]).entries} == {""}


def test_a_trial_that_backed_off_gives_way_to_one_that_was_asked_for(tmp_path: Path) -> None:
    asked, backed_off = (
        make_record(speedups=[2.0]),
        make_record(speedups=[3.0], flags=("smaller_batch",)),
    )
    folders = [write_sweep(tmp_path, [asked], "a"), write_sweep(tmp_path, [backed_off], "b")]
    (point,) = collect(load(folders).entries).points
    assert speedup_of(point) == pytest.approx(2.0)
