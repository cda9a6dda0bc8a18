from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from records import make_record, make_trial, write_sweep
from tables import differences

from sweeper.analysis import stats
from sweeper.core.record import PerArm, Record
from sweeper.core.trial import Compile
from sweeper.loading.entries import load
from sweeper.report import formatting
from sweeper.report.table import Row, Table
from sweeper.report.tables.groups import groups, list_missing_precisions, list_unverified
from sweeper.report.tables.summary import headline, summary
from sweeper.report.tables.units import Units, collect


def units_of(records: Sequence[Record], runs: Path) -> Units:
    return collect(load([write_sweep(runs, records)]).entries)


def summary_of(records: Sequence[Record], runs: Path) -> Table:
    return summary(groups(units_of(records, runs).units))


def row_of(table: Table, family: str = "all", **fixed: str) -> Row:
    return next(
        row
        for row in table.rows
        if row["family"] == family and all(row[k] == v for k, v in fixed.items())
    )


def families() -> list[Record]:
    """Worked out by hand, 0.75 for AMP and 0.25 for fp32; trials of one process, so that no geomean
    has an interval.

    model     family  AMP   fp32
    resnet50  cnn     2     1/4
    vgg16     cnn     8     4
    vit_b16   vit     1/2   compile_error
    bert      nlp     eager_error   8

    cnn: AMP (2 * 8)^(1/2) = 4, fp32 (1/4 * 4)^(1/2) = 1, weighted 0.75 * 4 + 0.25 * 1 = 3.25
    clipped: 1/4 becomes 1, fp32 (1 * 4)^(1/2) = 2, 0.75 * 4 + 0.25 * 2 = 3.5; no failures a new
    model: the models' own values are 0.75 * 2 + 0.25 * 1/4 = 1.5625 and 0.75 * 8 + 0.25 * 4 = 7, in
    the middle (1.5625 * 7)^(1/2) = 3.307189; s of their logs is ln(7 / 1.5625) / 2^(1/2) =
    1.060394, times (1 + 1/2)^(1/2) = 1.298712; t(1 degree) = 12.7062, so 3.307189 *
    exp(+-16.501696) = 2.25353e-7 and 4.85349e7 vit: a failure in one of two precisions: tried 1,
    passed 0; AMP 1/2 counts on its own; weighted needs both, so null; failures as one: 0.75 * 1/2 +
    0.25 * 1 = 0.625 nlp: an eager failure leaves the denominator: 0 of 0, pass rate null; fp32
    counts on its own: 8 all: tried 3 (without bert), passed 2; AMP (2 * 8 * 1/2)^(1/3) = 2; fp32
    (1/4 * 4 * 8)^(1/3) = 2; weighted over resnet50 and vgg16 as for cnn; failures as one over all
    but bert: AMP 2, fp32 (1/4 * 4 * 1)^(1/3) = 1, so 0.75 * 2 + 0.25 * 1 = 1.75 reduce-overhead has
    no trial in fp32, so no weighted mean, and passes in all that was asked for.
    """
    return [
        make_record("resnet50", "amp", [2.0]),
        make_record("resnet50", "fp32", [0.25]),
        make_record("vgg16", "amp", [8.0]),
        make_record("vgg16", "fp32", [4.0]),
        make_record("vit_b16", "amp", [0.5], family="vit"),
        make_record("vit_b16", "fp32", family="vit", status="compile_error"),
        make_record("bert", "amp", family="nlp", status="eager_error"),
        make_record("bert", "fp32", [8.0], family="nlp"),
        make_record("resnet50", "amp", [2.0], mode="reduce-overhead"),
        # None of these enters: no weight, or eager against eager.
        make_record("resnet50", "bf16", [64.0]),
        make_record("vgg16", "bf16", status="compile_error"),
        make_record("resnet50", "amp", [1.0], mode="eager", backend=None),
    ]


def test_summary_equals_the_table_worked_out_by_hand(tmp_path: Path) -> None:
    assert differences(summary_of(families(), tmp_path).csv(), "summary.csv") == []


def with_device(record: Record, speedup: float) -> Record:
    """The same with step times of the device."""
    step = PerArm(0.01 * speedup, 0.01)
    processes = tuple(replace(item, device_step_s=step) for item in record.processes)
    return replace(record, processes=processes)


def unverified() -> list[Record]:
    """Three models; of b the AMP trial is not verified, of c both are not.

    model  AMP  fp32  device AMP, fp32
    a      4    2     4, 2
    b      (9)  8     (9), 8
    c      (6)  (4)   none

    AMP 4 over a alone, fp32 (2 * 8)^(1/2) = 4 over a and b; weighted over a: 0.75 * 4 + 0.25 * 2 =
    3.5, as by device time.
    """
    flags = ("accuracy_unverified",)
    return [
        with_device(make_record("a", "amp", [4.0]), 4.0),
        with_device(make_record("a", "fp32", [2.0]), 2.0),
        with_device(make_record("b", "amp", [9.0], flags=flags), 9.0),
        with_device(make_record("b", "fp32", [8.0]), 8.0),
        make_record("c", "amp", [6.0], flags=flags),
        make_record("c", "fp32", [4.0], flags=flags),
    ]


def test_what_is_not_verified_is_in_no_mean_and_has_not_passed(tmp_path: Path) -> None:
    row = row_of(summary_of(unverified(), tmp_path))
    counts = (
        "models",
        "passed",
        "models_amp",
        "models_fp32",
        "models_weighted",
        "models_device",
        "unverified",
    )
    assert [row[name] for name in counts] == [3, 1, 1, 2, 1, 1, 2]
    assert row["pass_rate"] == pytest.approx(1 / 3)
    assert [row[name] for name in ("geomean_amp", "geomean_fp32")] == [
        pytest.approx(4.0),
        pytest.approx(4.0),
    ]
    means = ("weighted", "weighted_device", "weighted_failures_as_one", "weighted_clipped")
    assert [row[name] for name in means] == [pytest.approx(3.5)] * 4
    assert headline(row) == (
        "weighted 0.75 AMP + 0.25 fp32: 3.50 over 1 model, all without doubt; "
        "by device time 3.50 over 1 model, all without doubt"
    )


def test_a_new_model_is_predicted_from_verified_models_alone(tmp_path: Path) -> None:
    records = [
        make_record(name, precision, [2.0]) for name in "abcdef" for precision in ("amp", "fp32")
    ]
    strange = [
        make_record("g", name, [90.0], flags=("accuracy_unverified",)) for name in ("amp", "fp32")
    ]
    row = row_of(summary_of([*records, *strange], tmp_path))
    assert (row["weighted_new_model_low"], row["weighted_new_model_high"]) == (
        pytest.approx(2.0),
        pytest.approx(2.0),
    )


def test_with_nothing_verified_there_is_no_mean(tmp_path: Path) -> None:
    rows = groups(units_of(unverified()[4:], tmp_path).units)
    row = row_of(summary(rows))
    assert [
        row[name] for name in ("passed", "weighted", "weighted_device", "weighted_clipped")
    ] == [
        0,
        None,
        None,
        None,
    ]
    assert row["weighted_failures_as_one"] is None, "it is neither a failure nor right"
    assert headline(row) == (
        "weighted 0.75 AMP + 0.25 fp32: none, no model is ok and verified in a precision of weight "
        "amp or fp32"
    )
    assert list_unverified(rows) == [
        "train, default, inductor: 1 model with a trial that is ok but not verified "
        "(accuracy_unverified): "
        "such a trial is in no mean, and its model counts as not passed: c (batch 32)"
    ]


@pytest.mark.parametrize(
    ("amp", "fp32", "sure"),
    [
        ((), (), (1, 1, 1, 1)),
        (("compile_contended", "single_process"), ("cudagraphs_skipped",), (1, 1, 1, 1)),
        (("attention_differs",), (), (0, 0, 1, 0)),
        (("unsteady",), (), (0, 0, 1, 0)),
        ((), ("failed_before",), (0, 1, 0, 0)),
        (("host_bound",), ("host_busy",), (0, 0, 0, 1)),
        (("accuracy_unverified",), (), (0, 0, 1, 0)),
    ],
    ids=[
        "no flag",
        "no doubt",
        "another kernel",
        "in amp",
        "in fp32",
        "by wall clock alone",
        "not in the mean",
    ],
)
def test_each_mean_says_how_many_of_its_models_carry_no_doubt(
    tmp_path: Path, amp: tuple[str, ...], fp32: tuple[str, ...], sure: tuple[int, ...]
) -> None:
    records = [make_record("a", "amp", flags=amp), make_record("a", "fp32", flags=fp32)]
    row = row_of(summary_of([with_device(record, 2.0) for record in records], tmp_path))
    names = ("models_without_doubt", "models_amp_without_doubt", "models_fp32_without_doubt")
    assert tuple(row[name] for name in (*names, "models_device_without_doubt")) == sure


def test_a_device_mean_that_is_surer_says_so(tmp_path: Path) -> None:
    records = [make_record("a", name, flags=("host_bound",)) for name in ("amp", "fp32")]
    line = headline(row_of(summary_of([with_device(record, 2.0) for record in records], tmp_path)))
    assert line == (
        "weighted 0.75 AMP + 0.25 fp32: 2.00 over 1 model, none without doubt; "
        "by device time 2.00 over 1 model, all without doubt"
    )


def doubtful() -> list[Record]:
    """Three models, as fast by device time as by wall clock; two of them have a doubt.

    model  AMP  fp32  doubt
    a      4    2
    b      9    8     host_bound in AMP
    c      6    4     throttled in AMP and fp32

    Without doubt: a; by device time a and b, since host_bound concerns wall-clock time alone. AMP
    (4 * 9 * 6)^(1/3) = 6, fp32 (2 * 8 * 4)^(1/3) = 4, weighted 0.75 * 6 + 0.25 * 4 = 5.5.
    """
    speedups = {"a": (4.0, 2.0), "b": (9.0, 8.0), "c": (6.0, 4.0)}
    flags = {
        ("b", "amp"): ("host_bound",),
        ("c", "amp"): ("throttled",),
        ("c", "fp32"): ("throttled",),
    }
    return [
        with_device(
            make_record(name, precision, [speedup], flags=flags.get((name, precision), ())), speedup
        )
        for name, pair in speedups.items()
        for precision, speedup in zip(("amp", "fp32"), pair, strict=True)
    ]


def test_beside_each_mean_stands_how_many_models_are_without_doubt(tmp_path: Path) -> None:
    row = row_of(summary_of(doubtful(), tmp_path))
    means = ("geomean_amp", "geomean_fp32", "weighted", "weighted_device")
    assert [row[name] for name in means] == pytest.approx([6.0, 4.0, 5.5, 5.5])
    assert headline(row) == (
        "weighted 0.75 AMP + 0.25 fp32: 5.50 over 3 models, 1 without doubt; "
        "by device time 5.50 over 3 models, 2 without doubt"
    )


def test_people_see_the_device_mean_and_the_file_has_no_column_of_it(tmp_path: Path) -> None:
    table = summary_of(doubtful(), tmp_path)
    assert set(table.columns) == set(table.kinds) == set(table.csv().partition("\n")[0].split(","))
    assert len(table.columns) == 24
    assert metrics([row_of(table)])["weighted_device"] == pytest.approx(5.5)


@pytest.mark.parametrize(("name", "value"), [("AMP_SHARE", 0.76), ("FP32_SHARE", 0.24)])
def test_another_weight_gives_another_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: float
) -> None:
    monkeypatch.setattr(stats, name, value)
    assert differences(summary_of(families(), tmp_path).csv(), "summary.csv")


def test_intervals_for_these_models_come_from_the_processes(tmp_path: Path) -> None:
    # Logs in units of ln 2. AMP: processes 0 and 2, mean 1, variance of the mean 2 / 2 = 1 on 1
    # degree. fp32: processes -1 and 1, mean 0, variance of the mean 1 on 1 degree. Weighted: W =
    # 0.75 * 2 + 0.25 * 1 = 1.75; d log W = 1.5 / 1.75 * amp + 0.25 / 1.75 * fp32 = 6/7 amp + 1/7
    # fp32; variance 36/49 + 1/49 = 37/49; degrees (37/49)^2 / ((36/49)^2 + (1/49)^2) = 37^2 / (36^2
    # + 1) = 1369 / 1297.
    records = [
        make_record(precision="amp", speedups=[1.0, 4.0]),
        make_record(precision="fp32", speedups=[0.5, 2.0]),
    ]
    row = row_of(summary_of(records, tmp_path))
    half = 12.706204736 * math.log(2)
    assert row["geomean_amp"] == pytest.approx(2.0)
    assert row["geomean_amp_low"] == pytest.approx(2 * math.exp(-half))
    assert row["geomean_amp_high"] == pytest.approx(2 * math.exp(half))
    assert row["geomean_fp32_low"] == pytest.approx(math.exp(-half))
    half = stats.t_quantile(1369 / 1297) * math.sqrt(37 / 49) * math.log(2)
    assert row["weighted"] == pytest.approx(1.75)
    assert row["weighted_low"] == pytest.approx(1.75 * math.exp(-half))
    assert row["weighted_high"] == pytest.approx(1.75 * math.exp(half))
    assert row["weighted_new_model_low"] is None, "one model says nothing of the next"


def test_weighted_mean_of_device_speedups_over_the_models_that_have_them(tmp_path: Path) -> None:
    def busy(record: Record, *speedups: float) -> Record:
        pairs = zip(record.processes, speedups, strict=True)
        processes = tuple(
            replace(item, device_step_s=PerArm(0.01 * ratio, 0.01)) for item, ratio in pairs
        )
        return replace(record, processes=processes)

    records = [
        busy(make_record("a", "amp", [1.0, 1.0]), 2.0, 8.0),
        busy(make_record("a", "fp32", [1.0, 1.0]), 1.0, 4.0),
        make_record("b", "amp", [9.0]),
        busy(make_record("b", "fp32", [9.0]), 9.0),
    ]
    row = row_of(summary_of(records, tmp_path))
    assert (row["models_weighted"], row["models_device"]) == (2, 1)
    assert row["weighted_device"] == pytest.approx(0.75 * 4 + 0.25 * 2)
    # Logs in units of ln 2, as above: variance of each mean 1; shares 3 / 3.5 and 0.5 / 3.5.
    half = stats.t_quantile(1369 / 1297) * math.sqrt(37 / 49) * math.log(2)
    assert row["weighted_device_low"] == pytest.approx(3.5 * math.exp(-half))
    assert row["weighted_device_high"] == pytest.approx(3.5 * math.exp(half))
    assert headline(row).endswith(
        f"by device time {formatting.estimate(row, 'weighted_device')} over 1 model, all without "
        "doubt"
    )


@pytest.mark.parametrize("status", ["eager_error", "unavailable", "interrupted"])
def test_a_model_that_is_not_judged_leaves_the_denominator(tmp_path: Path, status: str) -> None:
    records = [
        make_record("a", "amp"),
        make_record("a", "fp32"),
        make_record("b", "amp", status=status),
        make_record("b", "fp32", status="compile_error"),
    ]
    row = row_of(summary_of(records, tmp_path))
    assert (row["models"], row["passed"], row["pass_rate"]) == (1, 1, 1.0)
    assert row["weighted_failures_as_one"] == pytest.approx(2.0)


@pytest.mark.parametrize(
    "status",
    [
        "accuracy_mismatch",
        "not_compiled",
        "compile_error",
        "runtime_error",
        "oom",
        "timeout",
        "crashed",
    ],
)
def test_a_failure_of_the_compiled_side_counts_as_one_and_as_not_passed(
    tmp_path: Path, status: str
) -> None:
    records = [
        make_record("a", "amp", [4.0]),
        make_record("a", "fp32", [4.0]),
        make_record("b", "amp", status=status),
        make_record("b", "fp32", status=status),
    ]
    row = row_of(summary_of(records, tmp_path))
    assert (row["models"], row["passed"], row["pass_rate"]) == (2, 1, 0.5)
    assert row["weighted"] == pytest.approx(4.0)
    assert row["weighted_failures_as_one"] == pytest.approx(2.0)


def test_units_differ_by_batch_size_and_by_what_is_built(tmp_path: Path) -> None:
    small = make_trial("bert", family="nlp")
    records = [
        make_record("bert", family="nlp", batch_size=8),
        make_record("bert", family="nlp", batch_size=16),
        make_record(
            trial=small.from_json(
                small.to_json() | {"model": small.to_json()["model"] | {"image_size": 64}}
            )
        ),
    ]
    assert row_of(summary_of(records, tmp_path))["models"] == 3


def test_rows_differ_by_variant_backend_and_workload(tmp_path: Path) -> None:
    records = [
        make_record(),
        make_record(optimizer="sgd"),
        make_record(backend="aot_eager"),
        make_record(workload="inference", optimizer="none"),
        make_record(compile=Compile(fullgraph=True)),
    ]
    rows = [row for row in summary_of(records, tmp_path).rows if row["family"] == "all"]
    assert [(row["workload"], row["backend"], row["variant"]) for row in rows] == [
        ("inference", "inductor", ""),
        ("train", "aot_eager", ""),
        ("train", "inductor", ""),
        ("train", "inductor", "compile.fullgraph=true"),
        ("train", "inductor", "optimizer=sgd"),
    ]


def test_devices_are_rows_of_their_own_when_there_are_several(tmp_path: Path) -> None:
    rows = summary_of([make_record(), make_record(device="cpu")], tmp_path).rows
    assert {row["variant"] for row in rows} == {"device=cuda", "device=cpu"}


def test_of_two_precision_options_with_one_weight_in_a_row_the_one_with_more_trials_counts(
    tmp_path: Path,
) -> None:
    records = [make_record("alexnet", "bf16", weight="amp"), make_record(), make_record("vgg16")]
    units = units_of(records, tmp_path)
    assert [unit.name for unit in units.units] == ["resnet50 (batch 32)", "vgg16 (batch 32)"]
    (note,) = units.notes
    assert (
        "inductor: 1 trial in precision=bf16 not in the summary: precision=amp carries the "
        "weight amp" in note
    )


def test_one_precision_option_with_two_meanings_in_a_row_counts_with_one_of_them(
    tmp_path: Path,
) -> None:
    trial = make_trial("vgg16")
    other = trial.from_json(trial.to_json() | {"precision": {"autocast": "float16"}})
    units = units_of([make_record(), make_record(trial=other)], tmp_path)
    assert [unit.name for unit in units.units] == ["resnet50 (batch 32)"]
    (note,) = units.notes
    assert (
        "in precision=amp not in the summary: another setting of precision=amp carries the "
        "weight amp" in note
    )


def test_two_precision_options_with_one_weight_in_different_rows_are_fine(tmp_path: Path) -> None:
    records = [
        make_record(precision="amp"),
        make_record("vgg16", "bf16", weight="amp", mode="max-autotune"),
    ]
    table = summary_of(records, tmp_path)
    assert (
        row_of(table, mode="default")["models_amp"]
        == row_of(table, mode="max-autotune")["models_amp"]
        == 1
    )


def test_of_a_trial_in_two_sweeps_the_later_one_counts(tmp_path: Path) -> None:
    folders = [
        write_sweep(tmp_path, [make_record(speedups=[s])], name)
        for name, s in (("a", 2.0), ("b", 3.0))
    ]
    units = collect(load(folders).entries)
    row = row_of(summary(groups(units.units)))
    assert (row["models"], row["geomean_amp"]) == (1, pytest.approx(3.0))
    assert units.notes == (
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
    row = row_of(summary(groups(collect(load(folders).entries).units)))
    assert row["geomean_amp"] == pytest.approx(2.0)


def test_a_model_without_a_record_in_a_precision_is_named(tmp_path: Path) -> None:
    records = [make_record("a", "amp"), make_record("a", "fp32"), make_record("b", "amp")]
    rows = groups(units_of(records, tmp_path).units)
    assert row_of(summary(rows))["passed"] == 1
    assert list_missing_precisions(rows) == [
        "train, default, inductor: 1 of 2 models have no record in fp32 and count as not passed: b "
        "(batch 32)"
    ]


def test_without_a_weight_there_is_no_row(tmp_path: Path) -> None:
    assert summary_of([make_record(precision="bf16")], tmp_path).rows == ()
