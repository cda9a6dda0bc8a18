"""What ladders say of torch.compile, worked out by hand from records made by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from ladder_records import STEPS_S, A, make_failure, make_rung
from records import make_process, make_record, make_trial, write_sweep
from reports import load

from sweeper.core.ladder import RUNGS
from sweeper.core.record import Record
from sweeper.core.trial import Trial
from sweeper.loading.sources import SweepFolder
from sweeper.report.answers.findings import Findings
from sweeper.report.answers.ladders import Rung
from sweeper.report.build import make_report
from sweeper.report.page.ladder_figure import draw_ladders
from sweeper.report.tables.ladder import LadderTable
from sweeper.report.text.report import Report


def report_on(folder: Path, records: Sequence[Record]) -> Report:
    return make_report([SweepFolder(write_sweep(folder, records))])


def find_rungs(folder: Path, records: Sequence[Record]) -> Sequence[Rung]:
    return LadderTable().items(report_on(folder, records).findings)


def name_strongest(rungs: Sequence[Rung]) -> str | None:
    """Name the strongest eager of the only ladder."""
    (ladder,) = {rung.ladder for rung in rungs}
    return ladder.strongest.title if ladder.strongest else None


def name_before(rung: Rung) -> str | None:
    return rung.before.title if rung.before else None


def test_a_rung_that_failed_has_no_figures_and_the_next_stands_against_the_last_that_worked(
    tmp_path: Path,
) -> None:
    records = [make_rung(rung) for rung in RUNGS if rung not in ("fused", "graphed")]
    failures = [make_failure("graphed", "compile_error"), make_failure("fused", "oom")]
    rungs = find_rungs(tmp_path, [*records, *failures])
    failed = rungs[4]
    assert (failed.step.status, failed.step.time, failed.speedup, failed.over_before) == (
        "compile_error",
        None,
        None,
        None,
    )
    assert [name_before(rung) for rung in rungs[3:6]] == [
        "eager + channels_last",
        "eager + cudnn.benchmark",
        "eager + cudnn.benchmark",
    ]
    assert name_strongest(rungs) == "eager + cudnn.benchmark"


def test_a_smaller_batch_is_another_step(tmp_path: Path) -> None:
    records = [make_rung(rung) for rung in RUNGS]
    records[2] = replace(records[2], smaller_batch_size=16)
    rungs = find_rungs(tmp_path, records)
    assert (rungs[2].step.status, rungs[2].speedup, name_before(rungs[3])) == (
        "oom with batch 32",
        None,
        "eager + channels_last",
    )


def test_what_does_not_apply_need_not_be_tried(tmp_path: Path) -> None:
    plain = make_trial("bert", family="nlp")
    records = [make_rung(rung, plain) for rung in ("eager", "fused", "graphed", "default")]
    rungs = find_rungs(tmp_path, records)
    assert (len(rungs), name_strongest(rungs)) == (4, "eager + fused optimizer")


def test_a_graph_whose_result_was_not_verified_is_not_the_strongest(tmp_path: Path) -> None:
    records = {rung: make_rung(rung) for rung in RUNGS}
    records["graphed"] = replace(make_rung("graphed", step_s=0.005), flags=("accuracy_unverified",))
    rungs = find_rungs(tmp_path, list(records.values()))
    assert name_strongest(rungs) == "eager + fused optimizer"


def test_a_graph_is_the_strongest_where_no_step_of_the_model_can_be_verified(
    tmp_path: Path,
) -> None:
    records = {rung: replace(make_rung(rung), flags=("accuracy_unverified",)) for rung in RUNGS}
    records["graphed"] = replace(make_rung("graphed", step_s=0.005), flags=("accuracy_unverified",))
    rungs = find_rungs(tmp_path, list(records.values()))
    assert name_strongest(rungs) == "eager + CUDA graph by hand"


def test_eager_arms_stand_for_eager_rungs_that_have_no_trial(tmp_path: Path) -> None:
    as_built = make_record(trial=make_trial(), speedups=[2.5])
    last = make_trial(optimizer_impl="fused")
    last = replace(last, model=replace(last.model, memory_format="channels_last"))
    fused = replace(make_record(trial=last), processes=(make_process(1.25, eager_s=0.01),))
    first, second = find_rungs(tmp_path, [as_built, fused])
    assert (first.title, second.title) == ("eager", "eager + fused optimizer")
    assert first.step.time is not None
    assert second.step.time is not None
    assert (first.step.time.ratio, second.step.time.ratio) == pytest.approx((0.020, 0.010))


def test_arms_that_err_in_opposite_directions_cancel_out(tmp_path: Path) -> None:
    """A process whose arms lie A above and A below the mean says the mean itself."""
    records = [make_rung(rung) for rung in ("eager", "channels_last")]
    opposite = (
        make_process(math.exp(sign * 2 * A), index=index, eager_s=0.02 * math.exp(sign * A))
        for index, sign in enumerate((1, -1))
    )
    records[0] = replace(records[0], processes=tuple(opposite))
    speedup = find_rungs(tmp_path, records)[1].speedup
    assert speedup is not None
    interval = speedup.interval()
    assert interval is not None
    t1 = 12.706204736174694  # the eager rung has no error, so one degree of freedom is left
    assert interval.high == pytest.approx(1.25 * math.exp(t1 * A), rel=1e-6)


def test_device_time_is_that_of_both_arms_where_eager_is_timed_against_eager(
    tmp_path: Path,
) -> None:
    readings = {"eager_device_step_s": 0.010, "compiled_device_step_s": 0.012}
    records = [make_rung(rung) for rung in ("eager", "fused", "default")]
    entries = [
        replace(entry, result=replace(entry.result, readings=readings))
        for entry in load([write_sweep(tmp_path, records)]).entries
    ]
    assert {rung.title: rung.device_step_s for rung in LadderTable().items(Findings(entries))} == {
        "eager": pytest.approx(0.011),
        "eager + fused optimizer": pytest.approx(0.011),
        "eager + cudnn.benchmark": pytest.approx(0.010),  # the eager arm of the compiled trial
        "compile default": pytest.approx(0.012),
    }


def test_no_ladder_mixes_two_devices(tmp_path: Path) -> None:
    records = [make_rung(rung) for rung in ("eager", "channels_last", "default")]
    device = {"type": "cuda", "name": "NVIDIA A100"}
    others = [
        replace(make_rung(rung), environment={"device": device})
        for rung in ("graphed", "max-autotune")
    ]
    rungs = find_rungs(tmp_path, [*records, *others])
    assert {rung.entry.record.trial.mode for rung in rungs} == {"eager", "default"}
    assert {rung.variant for rung in rungs} == {"gpu=NVIDIA H200"}


def say(folder: Path, records: Sequence[Record]) -> str:
    return report_on(folder, records).verdict.sentences[0]


def make_ladder(rungs: Sequence[str] = RUNGS, plain: Trial | None = None) -> list[Record]:
    """Rungs that agree on the step time of eager with all one-liners."""
    return [make_rung(rung, plain, eager_s=STEPS_S["cudnn_benchmark"]) for rung in rungs]


def test_the_verdict_says_what_is_torch_compiles(tmp_path: Path) -> None:
    assert say(tmp_path, make_ladder()) == (
        "Over eager as built, resnet50 gains 2.00x without torch.compile (eager + fused "
        "optimizer), and another 2.00x with compile reduce-overhead."
    )


def test_the_verdict_of_one_ladder_says_which_mode_to_use(tmp_path: Path) -> None:
    sentences = report_on(tmp_path, make_ladder()).verdict.sentences
    assert sentences[1].startswith("In AMP resnet50: compile reduce-overhead: 2.50x [")


def test_a_ladder_without_an_answer_leaves_the_word_to_the_recommendation(tmp_path: Path) -> None:
    sentences = report_on(tmp_path, make_ladder(("eager", "fused", "default"))).verdict.sentences
    assert sentences[0].startswith("In AMP resnet50: compile default: ")


def gain_nothing() -> list[Record]:
    """A ladder whose compiled rung is 1.01 times as fast as the strongest eager."""
    compiled = make_rung("default", step_s=0.0099, eager_s=STEPS_S["cudnn_benchmark"])
    return [*make_ladder(RUNGS[:5]), compiled]


def test_the_verdict_says_where_torch_compile_adds_nothing(tmp_path: Path) -> None:
    sentences = report_on(tmp_path, gain_nothing()).verdict.sentences
    assert "and torch.compile adds nothing to that (1.01x with compile default)" in sentences[0]


def test_where_torch_compile_adds_nothing_no_sentence_says_to_compile(tmp_path: Path) -> None:
    """Over the eager of its own trial, which is slower than the strongest, it gains 1.26x."""
    sentences = report_on(tmp_path, gain_nothing()).verdict.sentences
    assert not any("compile default: " in line for line in sentences)


def test_the_verdict_says_the_doubts_of_the_rungs_that_it_compares(tmp_path: Path) -> None:
    doubts = {"fused": "throttled", "reduce-overhead": "throttled", "default": "host_bound"}
    flagged = [
        replace(record, flags=(doubts[rung],) if rung in doubts else ())
        for rung, record in zip(RUNGS, make_ladder(), strict=True)
    ]
    assert say(tmp_path, flagged).endswith(
        "and another 2.00x with compile reduce-overhead; flagged throttled."
    )


def test_without_a_compiled_rung_that_worked_the_strongest_eager_alone_is_named(
    tmp_path: Path,
) -> None:
    """Eager as built is the fastest here."""
    slower = [make_rung(rung, step_s=0.02 if rung == "eager" else 0.025) for rung in RUNGS[:5]]
    report = report_on(tmp_path, [*slower, make_failure("default", "compile_error")])
    (answer,) = report.findings.ladders
    assert answer.explain() == "the strongest eager is eager; no compiled rung worked"
    assert not any("over eager as built" in line for line in report.verdict.sentences)


def test_the_verdict_has_the_means_of_many_ladders(tmp_path: Path) -> None:
    """Two gain 2 and 2, two gain 2 and 1.25."""
    rungs = {"a": RUNGS, "b": RUNGS, "c": RUNGS[:6], "d": RUNGS[:6]}
    records = [
        record for model, found in rungs.items() for record in make_ladder(found, make_trial(model))
    ]
    assert say(tmp_path, records) == (
        "Over eager as built, 4 ladders gain 2.00x without torch.compile, and another 1.58x with "
        "it (geometric means over the best rungs; 4 of them undisturbed)."
    )


def test_a_ladder_that_is_not_verified_is_in_no_mean(tmp_path: Path) -> None:
    """The last one gains 8 times as much."""
    records = [record for model in "abc" for record in make_ladder(RUNGS, make_trial(model))]
    fast = [
        replace(make_rung(rung, make_trial("d"), step_s=0.0001), flags=("accuracy_unverified",))
        for rung in RUNGS[1:]
    ]
    said = say(tmp_path, [*records, make_rung("eager", make_trial("d")), *fast])
    assert said == (
        "Over eager as built, 3 ladders gain 2.00x without torch.compile, and another 2.00x with "
        "it (geometric means over the best rungs; 3 of them undisturbed; 1 more not verified)."
    )


def test_the_page_draws_a_bar_for_each_rung(tmp_path: Path) -> None:
    records = [make_rung(rung) for rung in RUNGS if rung != "graphed"]
    report = report_on(tmp_path, [*records, make_failure("graphed", "compile_error")])
    (drawing,) = draw_ladders(report.findings.ladders).drawings
    heights = {trace["name"]: trace["y"] for trace in drawing.traces}
    assert heights["compile reduce-overhead"] == [pytest.approx(4.0)]
    assert list(heights)[:2] == ["eager", "eager + channels_last"]
    assert "eager + CUDA graph by hand" not in heights
    assert "experiment=ladder" in draw_ladders([]).missing
