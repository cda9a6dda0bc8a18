"""What ablations say of features, worked out by hand from records made by hand."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from records import make_process, make_record, make_trial, write_sweep
from reports import write_report

from sweeper.core.ablation import change
from sweeper.core.record import Accuracy, PerArm, Record
from sweeper.core.trial import Compile, Trial
from sweeper.loading.sources import SweepFolder
from sweeper.report.answers.ablations import NO_FEATURE, AblationAnswer
from sweeper.report.build import make_report
from sweeper.report.text.report import Report

PLAIN = make_trial(weight="amp")
CHECKED = Accuracy("float64", True, compiled_error=3e-3, eager_error=2e-3, bound=1e-2)


def make(
    feature: str | None,
    speedup: float = 2.0,
    status: str = "ok",
    plain: Trial = PLAIN,
    code: str = "",
    processes: int = 3,
    eager_s: float = 0.02,
) -> Record:
    """A trial whose processes agree within 0.1 %."""
    trial = change(plain, feature) if feature else plain
    record = make_record(trial=trial, status=status)
    if status != "ok":
        return record
    made = []
    for index in range(processes):
        process = make_process(speedup * (1 + index / 1000), index=index, eager_s=eager_s)
        made.append(replace(process, accuracy=CHECKED, code_fingerprint=code or str(feature)))
    return replace(record, processes=tuple(made))


def see_on_device(record: Record, speedup: float) -> Record:
    """The same trial with device times, which agree within 0.1 % in all its processes."""
    seen = []
    for process in record.processes:
        compiled_s = 0.016 / speedup * (1 + process.index / 1000)
        seen.append(replace(process, device_step_s=PerArm(0.016, compiled_s)))
    return replace(record, processes=tuple(seen))


def report_on(folder: Path, *records: Record) -> Report:
    return make_report([SweepFolder(write_sweep(folder, records))])


def find(folder: Path, *records: Record) -> AblationAnswer:
    (answer,) = report_on(folder, *records).findings.ablations
    return answer


def read_verdicts(answer: AblationAnswer) -> Mapping[str, str]:
    return {one.feature.title: one.verdict for one in answer.features if one.name}


def test_each_verdict(tmp_path: Path) -> None:
    answer = find(
        tmp_path,
        make(None),
        make("epilogue_fusion", 1.5),  # slower without it
        make("mix_order_reduction", 2.4),  # faster without it
        make("combo_kernels", 2.5),  # faster with it
        make("autotuned_gemm", 1.6),  # slower with it
        make("lowerings", status="compile_error"),
        make("memory_budget", status="oom"),
        make("decompositions", status="crashed"),
        make("precision_casts", status="timeout"),
        make("layout_optimization", 2.01),
        make("pattern_matcher", 2.0, code="None"),
        make("dynamic", status="interrupted"),
        make("cuda_graphs", 3.0, code="None"),  # the same code, in graphs
    )
    assert read_verdicts(answer) == {
        "memory budget of 0.5": "breaks",
        "lowerings": "needed",
        "mix-order reduction": "hurts",
        "max-autotune of GEMM": "hurts",
        "epilogue fusion": "pays",
        "combo kernels": "pays",
        "CUDA graphs": "pays",
        "decompositions": "not sure",
        "eager's precision casts": "not sure",
        "dynamic shapes": "not sure",
        "layout optimization": "no difference",
        "pattern matcher": "no effect",
    }
    assert answer.features[0].feature is NO_FEATURE


def test_a_ratio_is_of_the_step_without_the_feature_over_the_step_with_it(tmp_path: Path) -> None:
    answer = find(tmp_path, make(None), make("epilogue_fusion", 1.6), make("combo_kernels", 2.5))
    ratios = {one.feature.usual: one.speedup.ratio for one in answer.features if one.speedup}
    assert ratios == {"on": pytest.approx(1.25), "off": pytest.approx(1.25)}
    assert [one.error for one in answer.features] == [pytest.approx(1.5)] * 3


@pytest.mark.parametrize(("device", "expected"), [("cpu", 1.25), ("cuda", 0.625)])
def test_on_a_cpu_each_step_is_beside_its_own_eager_step(
    tmp_path: Path, device: str, expected: float
) -> None:
    """Other work slows down all of the feature's trial by two."""
    plain = replace(PLAIN, device=device)
    slowed = make("combo_kernels", 2.5, eager_s=0.04, plain=plain)
    answer = find(tmp_path, make(None, plain=plain), slowed)
    (estimate,) = (one.speedup for one in answer.features if one.name)
    assert estimate.ratio == pytest.approx(expected)


def test_the_time_of_the_device_decides_but_of_a_feature_that_is_no_code(tmp_path: Path) -> None:
    """The host of the default was slow, so by wall clock every feature gains."""
    default = see_on_device(make(None, 1.0), 2.0)
    fusion = see_on_device(make("combo_kernels", 1.3), 2.5)
    alike = see_on_device(make("memory_budget", 1.3), 2.0)
    graphs = see_on_device(make("cuda_graphs", 3.0), 2.0)
    answer = find(tmp_path, default, fusion, alike, graphs)
    assert read_verdicts(answer) == {
        "combo kernels": "pays",
        "memory budget of 0.5": "no difference",
        "CUDA graphs": "pays",
    }
    ratios = {one.feature.title: one.speedup for one in answer.features if one.name}
    shown = {name: round(speedup.ratio, 3) for name, speedup in ratios.items() if speedup}
    assert shown == {"combo kernels": 1.25, "memory budget of 0.5": 1.0, "CUDA graphs": 3.0}


def test_wall_time_decides_where_the_time_of_the_device_is_not_known_of_both(
    tmp_path: Path,
) -> None:
    answer = find(tmp_path, make(None, 1.0), see_on_device(make("combo_kernels", 3.0), 1.0))
    assert read_verdicts(answer) == {"combo kernels": "pays"}


def test_what_is_better_is_set_and_several_were_not_measured_together(tmp_path: Path) -> None:
    records = [make(None), make("mix_order_reduction", 2.4), make("memory_budget", 2.5)]
    told = find(tmp_path, *records).explain()
    assert told.startswith(
        "mix-order reduction hurts (0.83 [0.83, 0.84]); memory budget of 0.5 pays"
    )
    assert (
        "set torch._functorch.config.activation_memory_budget = 0.5; torch.compile(model, "
        "options={'triton.mix_order_reduction': False}); what they give together was not measured: "
        "run the command again with feature=null "
        "compile.options.triton.mix_order_reduction=false compile.memory_budget=0.5"
    ) in told


@pytest.mark.parametrize(
    ("status", "flags", "says"),
    [
        ("ok", (), "'combo_kernels': True}); what they give together: 1.50 [1.50, 1.50]"),
        ("oom", (), "pays (1.25 [1.25, 1.25]); set one of them alone (together: oom)"),
        ("ok", ("accuracy_unverified",), "set one of them alone (together: unverified)"),
    ],
)
def test_what_settings_give_together_is_said_once_it_was_measured(
    tmp_path: Path, status: str, flags: Sequence[str], says: str
) -> None:
    one, other = make("epilogue_fusion", 2.4), make("combo_kernels", 2.5)
    both = change(one.trial, "combo_kernels")
    both = replace(both, labels=PLAIN.labels)
    together = replace(make(None, 3.0, status, both), flags=tuple(flags))
    assert find(tmp_path, make(None), one, other, together).explain().endswith(says)


def test_settings_that_mend_a_default_together_are_ok(tmp_path: Path) -> None:
    default = make(None, status="compile_error")
    records = [make("epilogue_fusion"), make("combo_kernels")]
    both = replace(change(records[0].trial, "combo_kernels"), labels=PLAIN.labels)
    told = find(tmp_path, default, *records, make(None, plain=both)).explain()
    assert told.startswith(
        "epilogue fusion breaks (compile_error with it); combo kernels needed (compile_error "
        "without it); set torch.compile(model, options={"
    )
    assert told.endswith("what they give together: ok")


def test_an_override_has_the_name_that_the_command_line_takes(tmp_path: Path) -> None:
    plain = replace(PLAIN, compile=Compile(wrapper="outside"))
    better = [make(name, 2.5, plain=plain) for name in ("combo_kernels", "dynamic")]
    told = find(tmp_path, make(None, plain=plain), *better).explain()
    assert told.endswith(
        "feature=null compile.dynamic=true compile.options.combo_kernels=true "
        "parallel.compile=outside"
    )


def test_one_that_is_better_needs_no_other_run(tmp_path: Path) -> None:
    plain = replace(PLAIN, mode="max-autotune", compile=Compile(options={"max_fusion_size": 8}))
    answer = find(tmp_path, make(None, plain=plain), make("dynamic", 2.5, plain=plain))
    assert answer.explain().endswith(
        "set torch.compile(model, dynamic=True, "
        "options=torch._inductor.list_mode_options('max-autotune') | {'max_fusion_size': 8})"
    )


@pytest.mark.parametrize("status", ["crashed", "timeout", "interrupted", "unavailable"])
def test_a_default_that_the_machine_ended_blames_no_feature(tmp_path: Path, status: str) -> None:
    answer = find(tmp_path, make(None, status=status), make("lowerings"), make("combo_kernels"))
    assert set(read_verdicts(answer).values()) == {"not sure"}
    assert answer.explain().endswith("not sure about combo kernels, lowerings; nothing to set")


def test_a_default_that_is_wrong_is_mended_by_leaving_out_what_breaks_it(tmp_path: Path) -> None:
    default = make(None, status="accuracy_mismatch")
    answer = find(tmp_path, default, make("mix_order_reduction"), make("lowerings", status="oom"))
    assert answer.explain() == (
        "mix-order reduction breaks (accuracy_mismatch with it); not sure about lowerings (oom); "
        "set torch.compile(model, options={'triton.mix_order_reduction': False})"
    )


def test_what_is_not_verified_or_needs_a_smaller_batch_is_not_worth_having(tmp_path: Path) -> None:
    unverified = replace(make("combo_kernels", 2.5), flags=("accuracy_unverified",))
    smaller = replace(make("mix_order_reduction", 9.0), smaller_batch_size=16)
    assert find(tmp_path, make(None), unverified, smaller).explain() == (
        "mix-order reduction needed (oom without it); combo kernels pays (1.25 [1.25, 1.25]); "
        "nothing to set"
    )


@pytest.mark.parametrize(
    ("failed", "verdict"),
    [
        ({"status": "accuracy_mismatch"}, "no effect"),
        ({"status": "oom"}, "no effect"),
        ({"smaller_batch_size": 1, "processes": ()}, "not sure"),
    ],
)
def test_a_feature_with_the_code_of_a_default_that_failed_later_mends_nothing(
    tmp_path: Path, failed: Mapping[str, object], verdict: str
) -> None:
    feature = make("combo_kernels", code="None", processes=1)
    untimed = [replace(process, rounds=()) for process in feature.processes]
    default = replace(make(None), **failed)  # type: ignore[arg-type]
    answer = find(tmp_path, default, replace(feature, processes=tuple(untimed)))
    assert read_verdicts(answer) == {"combo kernels": verdict}
    assert "no setting is known that computes correctly" in answer.explain()


def test_a_setting_that_is_no_faster_than_eager_is_not_advised(tmp_path: Path) -> None:
    none = "no setting is known that computes correctly and is faster than eager"
    wrong, slow = make(None, status="accuracy_mismatch"), make("lowerings", 0.04)
    told = find(tmp_path / "alone", wrong, slow).explain()
    assert told == f"lowerings breaks (accuracy_mismatch with it); {none}"
    told = find(tmp_path / "slow", make(None, 0.5), make("combo_kernels", 0.8)).explain()
    assert told == f"combo kernels pays (1.60 [1.60, 1.60]); {none}"
    told = find(tmp_path / "other", wrong, slow, make("combo_kernels", 1.2)).explain()
    assert told.endswith("set torch.compile(model, options={'combo_kernels': True})")


def test_a_model_on_which_nothing_differs_says_so(tmp_path: Path) -> None:
    """Twenty times, with steps that scatter by 1 % as draws do."""
    for number in range(20):
        records = [make(None)]
        for place, feature in enumerate(("epilogue_fusion", "combo_kernels", "dynamic")):
            records.append(make(feature, 2.0 * (1 + ((number * 7 + place * 3) % 5 - 2) / 200)))
        told = find(tmp_path / str(number), *records).explain()
        assert told == "no feature that was tried makes a difference; nothing to set"


@pytest.mark.parametrize(
    ("speedup", "eager_s"),
    [(2.0, 0.022), (2.2, 0.022)],
    ids=["speedups agree", "compiled steps agree"],
)
def test_trials_are_alike_only_in_speedup_and_step(
    tmp_path: Path, speedup: float, eager_s: float
) -> None:
    moved = make("combo_kernels", speedup, eager_s=eager_s)
    answer = find(tmp_path, make(None), moved, make("dynamic", 2.02, eager_s=0.0202))
    verdicts = {"combo kernels": "not sure", "dynamic shapes": "no difference"}
    assert read_verdicts(answer) == verdicts


def test_one_process_tells_less(tmp_path: Path) -> None:
    gpu = find(tmp_path / "gpu", make(None), make("combo_kernels", 2.6, processes=1))
    assert read_verdicts(gpu) == {"combo kernels": "pays"}
    plain = replace(PLAIN, device="cpu")
    cpu = find(
        tmp_path / "cpu",
        make(None, plain=plain, processes=1),
        make("combo_kernels", 2.6, plain=plain, processes=1),
        make("lowerings", 0.5, plain=plain, processes=1),
    )
    assert read_verdicts(cpu) == {"lowerings": "pays", "combo kernels": "not sure"}


def test_without_the_default_there_is_no_ablation(tmp_path: Path) -> None:
    assert report_on(tmp_path, make("combo_kernels")).findings.ablations == []


def test_ablations_are_named_by_what_they_differ_in(tmp_path: Path) -> None:
    fp32 = make_trial(precision="fp32")
    records = []
    for plain in (PLAIN, fp32):
        records += [make(None, plain=plain), make("combo_kernels", 2.5, plain=plain)]
    said = report_on(tmp_path, *records).verdict.sentences
    names = {line.partition(":")[0] for line in said if line.startswith("Ablation")}
    assert names == {"Ablation of resnet50 amp", "Ablation of resnet50 fp32"}


def test_features_are_no_modes_to_choose_and_in_no_mean(tmp_path: Path) -> None:
    report = report_on(tmp_path, make(None), make("combo_kernels", 9.0))
    (answer,) = report.findings.answers
    assert answer.gain == pytest.approx(2.0, rel=0.01)
    assert len(report.findings.model_points.points) == 1
    assert report.verdict.sentences[0].startswith("Ablation of resnet50: combo kernels pays")


def test_ablation_csv(tmp_path: Path) -> None:
    records: Sequence[Record] = [make(None), make("epilogue_fusion", 1.0), make("combo_kernels")]
    write_report([write_sweep(tmp_path, records)], tmp_path / "out")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out/ablation.csv").read_text())))
    assert float(rows[1]["step_without_over_with"]) == pytest.approx(2.0)
    keys = ("feature", "by_default", "verdict", "compile_cold_s", "trial_id")
    assert [tuple(row[key] for key in keys) for row in rows] == [
        ("", "", "", "3.0", records[0].trial_id),
        ("epilogue fusion", "on", "pays", "3.0", records[1].trial_id),
        ("combo kernels", "off", "no difference", "3.0", records[2].trial_id),
    ]
    text = (tmp_path / "out/report.md").read_text()
    assert "Which features of the compiler pay" in text
    assert "Ablation of resnet50: epilogue fusion pays" in text
