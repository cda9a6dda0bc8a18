"""The groups of the summary, and the means over them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from records import make_record, make_trial
from summary_records import (
    PRECISIONS,
    doubtful,
    findings_of,
    unverified,
    whole_of,
    with_busy_host,
    with_device,
)

from sweeper.analysis import stats
from sweeper.analysis.stats import Estimate
from sweeper.core.record import PerArm, Record
from sweeper.core.trial import Compile
from sweeper.report.answers.groups import (
    AMP,
    DEVICE,
    FP32,
    WEIGHTED,
    list_missing_precisions,
    list_unverified,
)


def ratio(estimate: Estimate | None) -> float | None:
    return estimate.ratio if estimate else None


def ends(estimate: Estimate | None) -> tuple[float, float] | None:
    bounds = estimate.interval() if estimate else None
    return (bounds.low, bounds.high) if bounds else None


def test_what_is_not_verified_is_in_no_mean_and_has_not_passed(
    tmp_path: Path,
) -> None:
    group = whole_of(findings_of(tmp_path, unverified()))
    assert (len(group.judged), len(group.passed), len(group.unverified)) == (3, 1, 2)
    assert [mean.count(group) for mean in (AMP, FP32, WEIGHTED, DEVICE)] == [1, 2, 1, 1]
    assert group.pass_rate == pytest.approx(1 / 3)
    means = [ratio(mean.estimate(group)) for mean in (AMP, FP32, WEIGHTED, DEVICE)]
    assert means == pytest.approx([4.0, 4.0, 3.5, 3.5])
    assert (group.weighted_failures_as_one, group.weighted_clipped) == pytest.approx((3.5, 3.5))


def test_a_new_model_is_predicted_from_verified_models_alone(tmp_path: Path) -> None:
    records = [
        make_record(name, precision, [2.0]) for name in "abcdef" for precision in ("amp", "fp32")
    ]
    strange = [
        make_record("g", name, [90.0], flags=("accuracy_unverified",)) for name in ("amp", "fp32")
    ]
    group = whole_of(findings_of(tmp_path, [*records, *strange]))
    assert group.weighted_new_model is not None
    interval = group.weighted_new_model.interval()
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((2.0, 2.0))


def test_with_nothing_verified_there_is_no_mean(tmp_path: Path) -> None:
    findings = findings_of(tmp_path, unverified()[4:])
    group = whole_of(findings)
    assert (len(group.passed), group.weighted, DEVICE.estimate(group), group.weighted_clipped) == (
        0,
        None,
        None,
        None,
    )
    assert group.weighted_failures_as_one is None, "it is neither a failure nor right"
    assert list(list_unverified(findings.groups)) == [
        "train, default, inductor: 1 model with a trial that is ok but not verified "
        "(accuracy_unverified): such a trial is in no mean, and its model counts as not passed: c "
        "(batch 32)"
    ]


def test_a_failure_is_not_unverified(tmp_path: Path) -> None:
    records = [*unverified()[:2], unverified()[2], make_record("b", "fp32", status="compile_error")]
    (point,) = whole_of(findings_of(tmp_path, records)).unverified
    assert point.name == "b (batch 32)"
    failed = [*unverified()[:2], make_record("b", "fp32", status="compile_error")]
    assert list(list_unverified(findings_of(tmp_path / "failed", failed).groups)) == []


@pytest.mark.parametrize(
    ("amp", "fp32", "sure"),
    [
        ((), (), (1, 1, 1, 1)),
        (("compile_contended", "single_process"), ("cudagraphs_skipped",), (1, 1, 1, 1)),
        (("attention_differs", "host_bound", "unsteady"), ("failed_before",), (1, 1, 1, 1)),
        (("throttled",), (), (1, 1, 1, 1)),
        (("shared_gpu",), (), (0, 0, 1, 0)),
        ((), ("unequal_settings",), (0, 1, 0, 0)),
        (("host_busy",), ("host_busy",), (0, 0, 0, 1)),
        (("accuracy_unverified",), (), (0, 0, 1, 0)),
    ],
    ids=[
        "no flag",
        "no doubt",
        "context",
        "moves it by less than the margin",
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
    records = [with_device(with_busy_host(record), 2.0) for record in records]
    group = whole_of(findings_of(tmp_path, records))
    means = (WEIGHTED, AMP, FP32, DEVICE)
    assert tuple(mean.count_sure(group) for mean in means) == sure


def test_the_device_mean_is_over_models_with_device_time(tmp_path: Path) -> None:
    known = [with_device(make_record("a", name), 4.0) for name in PRECISIONS]
    unknown = [make_record("b", name) for name in PRECISIONS]
    group = whole_of(findings_of(tmp_path, [*known, *unknown]))
    assert (WEIGHTED.count(group), DEVICE.count(group)) == (2, 1)
    assert ratio(DEVICE.estimate(group)) == pytest.approx(4.0)


def test_a_mean_is_over_doubtful_models_too_and_counts_those_without_doubt(tmp_path: Path) -> None:
    """A busy host disturbs the wall clock alone, and neighbours on the GPU disturb both clocks."""
    group = whole_of(findings_of(tmp_path, doubtful()))
    means = (AMP, FP32, WEIGHTED, DEVICE)
    assert [ratio(mean.estimate(group)) for mean in means] == pytest.approx([6.0, 4.0, 5.5, 5.5])
    assert [mean.count(group) for mean in means] == [3, 3, 3, 3]
    assert [mean.count_sure(group) for mean in means] == [1, 2, 1, 2]


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
    group = whole_of(findings_of(tmp_path, records))
    amp, fp32, weighted = (mean.estimate(group) for mean in (AMP, FP32, WEIGHTED))
    half = 12.706204736 * math.log(2)
    assert ratio(amp) == pytest.approx(2.0)
    assert ends(amp) == pytest.approx((2 * math.exp(-half), 2 * math.exp(half)))
    assert ends(fp32) == pytest.approx((math.exp(-half), math.exp(half)))
    half = stats.t_quantile(1369 / 1297) * math.sqrt(37 / 49) * math.log(2)
    assert ratio(weighted) == pytest.approx(1.75)
    assert ends(weighted) == pytest.approx((1.75 * math.exp(-half), 1.75 * math.exp(half)))
    assert ends(group.weighted_new_model) is None, "one model says nothing of the next"


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
    group = whole_of(findings_of(tmp_path, records))
    assert (WEIGHTED.count(group), DEVICE.count(group)) == (2, 1)
    assert ratio(DEVICE.estimate(group)) == pytest.approx(0.75 * 4 + 0.25 * 2)
    # Logs in units of ln 2, as above: variance of each mean 1; shares 3 / 3.5 and 0.5 / 3.5.
    half = stats.t_quantile(1369 / 1297) * math.sqrt(37 / 49) * math.log(2)
    found = ends(DEVICE.estimate(group))
    assert found == pytest.approx((3.5 * math.exp(-half), 3.5 * math.exp(half)))


@pytest.mark.parametrize("status", ["eager_error", "unavailable", "interrupted"])
def test_a_model_that_is_not_judged_leaves_the_denominator(tmp_path: Path, status: str) -> None:
    records = [
        make_record("a", "amp"),
        make_record("a", "fp32"),
        make_record("b", "amp", status=status),
        make_record("b", "fp32", status="compile_error"),
    ]
    group = whole_of(findings_of(tmp_path, records))
    assert (len(group.judged), len(group.passed), group.pass_rate) == (1, 1, 1.0)
    assert group.weighted_failures_as_one == pytest.approx(2.0)


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
    group = whole_of(findings_of(tmp_path, records))
    assert (len(group.judged), len(group.passed), group.pass_rate) == (2, 1, 0.5)
    assert ratio(group.weighted) == pytest.approx(4.0)
    assert group.weighted_failures_as_one == pytest.approx(2.0)


def test_groups_differ_by_variant_backend_and_workload(tmp_path: Path) -> None:
    records = [
        make_record(),
        make_record(optimizer="sgd"),
        make_record(backend="aot_eager"),
        make_record(workload="inference", optimizer="none"),
        make_record(compile=Compile(fullgraph=True)),
    ]
    keys = [group.key for group in findings_of(tmp_path, records).groups if group.is_whole]
    assert [(key.workload, key.backend, key.variant) for key in keys] == [
        ("inference", "inductor", ""),
        ("train", "aot_eager", ""),
        ("train", "inductor", ""),
        ("train", "inductor", "compile.fullgraph=true"),
        ("train", "inductor", "optimizer=sgd"),
    ]


def test_several_devices_have_groups_of_their_own(tmp_path: Path) -> None:
    groups = findings_of(tmp_path, [make_record(), make_record(device="cpu")]).groups
    assert {group.key.variant for group in groups} == {"device=cuda", "device=cpu"}


def test_two_precision_options_with_one_weight_in_different_groups_are_fine(tmp_path: Path) -> None:
    records = [
        make_record(precision="amp"),
        make_record("vgg16", "bf16", weight="amp", mode="max-autotune"),
    ]
    groups = findings_of(tmp_path, records).groups
    counts = {group.key.mode: AMP.count(group) for group in groups if group.is_whole}
    assert counts == {"default": 1, "max-autotune": 1}


def test_a_model_without_a_record_in_a_precision_is_named(tmp_path: Path) -> None:
    records = [make_record("a", "amp"), make_record("a", "fp32"), make_record("b", "amp")]
    findings = findings_of(tmp_path, records)
    assert len(whole_of(findings).passed) == 1
    assert list(list_missing_precisions(findings.groups)) == [
        "train, default, inductor: 1 of 2 models have no record in fp32 and count as not passed: b "
        "(batch 32)"
    ]


def test_without_a_weight_there_is_no_group(tmp_path: Path) -> None:
    assert findings_of(tmp_path, [make_record(precision="bf16")]).groups == []


def test_where_there_are_several_suites_each_has_a_group(tmp_path: Path) -> None:
    def of_suite(name: str, suite: str, speedup: float) -> Record:
        trial = make_trial(name)
        trial = replace(trial, labels=replace(trial.labels, suite=suite))
        return make_record(trial=trial, speedups=[speedup])

    records = [of_suite("a", "timm", 2.0), of_suite("b", "timm", 8.0), of_suite("c", "hf", 3.0)]
    found = {
        group.family: ratio(AMP.estimate(group)) for group in findings_of(tmp_path, records).suites
    }
    assert found == {"suite timm": pytest.approx(4.0), "suite hf": pytest.approx(3.0)}
    assert findings_of(tmp_path / "one", records[:2]).suites == []
