"""ladder.csv, and what follows from it in the other tables, worked out by hand from records made by
hand.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from records import make_process, make_record, make_trial, write_sweep

from sweeper.core.ladder import RUNGS, climb
from sweeper.core.record import Record
from sweeper.core.trial import Trial
from sweeper.loading.entries import load
from sweeper.report.build import write_report
from sweeper.report.contents import Report
from sweeper.report.findings import Findings
from sweeper.report.tables.ladder import make_table

A = 0.01  # processes are this far above and below their mean, in logs
T2 = 4.302652729911275  # Student's t of 95 % with 2 degrees of freedom
HALF = T2 * math.sqrt(2) * A  # of the interval of a ratio of two such means of two processes
STEPS_S = {
    "eager": 0.020,
    "channels_last": 0.016,
    "fused": 0.010,
    "cudnn_benchmark": 0.0125,
    "graphed": 0.011,
    "default": 0.008,
    "reduce-overhead": 0.005,
    "max-autotune": 0.00625,
}


def make_rung(
    rung: str, plain: Trial | None = None, step_s: float | None = None, eager_s: float = 0.02
) -> Record:
    """A trial of two processes, A above and below its step time; of an eager rung both arms have
    that time.
    """
    trial = climb(plain or make_trial(), rung)
    time_s = step_s or STEPS_S[rung]
    eager_s = time_s if trial.mode == "eager" else eager_s
    record = make_record(trial=trial)
    factors = (math.exp(-A), math.exp(A))
    processes = (
        make_process(eager_s / time_s, index=index, eager_s=eager_s * factor)
        for index, factor in enumerate(factors)
    )
    return replace(record, processes=tuple(processes))


def make_failure(rung: str, status: str, plain: Trial | None = None) -> Record:
    return make_record(trial=climb(plain or make_trial(), rung), status=status, message="no")


def write(folder: Path, records: Sequence[Record]) -> Report:
    return write_report([write_sweep(folder, records)], folder / "out")


def rows_of(report: Report, table: str = "ladder") -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(report.tables[table].csv())))


def number(row: dict[str, str], name: str) -> float:
    return float(row[name])


def test_each_rung_stands_against_eager_as_built_and_against_the_one_before(tmp_path: Path) -> None:
    rows = rows_of(write(tmp_path, [make_rung(rung) for rung in RUNGS]))
    assert [row["rung"] for row in rows] == [
        "eager",
        "eager + channels_last",
        "eager + fused optimizer",
        "eager + cudnn.benchmark",
        "eager + CUDA graph by hand",
        "compile default",
        "compile reduce-overhead",
        "compile max-autotune",
    ]
    first, second, third = rows[:3]
    assert (first["speedup"], first["speedup_low"], first["before"]) == ("1.0", "", "")
    assert number(second, "step_ms") == pytest.approx(16)
    assert number(second, "speedup") == pytest.approx(1.25)
    assert number(second, "speedup_low") == pytest.approx(1.25 * math.exp(-HALF))
    assert number(second, "speedup_high") == pytest.approx(1.25 * math.exp(HALF))
    assert third["before"] == "eager + channels_last"
    assert number(third, "speedup") == pytest.approx(2.0)
    assert number(third, "speedup_over_before") == pytest.approx(1.6)
    assert number(third, "speedup_over_before_high") == pytest.approx(1.6 * math.exp(HALF))
    assert number(rows[3], "speedup_over_before") == pytest.approx(0.8)


def test_the_strongest_eager_stands_beside_the_plain_speedup_in_every_compiled_row(
    tmp_path: Path,
) -> None:
    plain = make_record(trial=make_trial(), speedups=[2.5])  # 20 ms / 8 ms, without any one-liner
    report = write(tmp_path, [plain, *(make_rung(rung) for rung in RUNGS)])
    assert {row["strongest_eager"] for row in rows_of(report)} == {"eager + fused optimizer"}
    found = {
        (row["mode"], row["variant"]): row
        for row in rows_of(report, "speedups")
        if row["strongest_eager"]
    }
    assert sorted(found) == [
        ("default", ""),
        ("default", "free one-liners"),
        ("max-autotune", "free one-liners"),
        ("reduce-overhead", "free one-liners"),
    ]
    best = found["reduce-overhead", "free one-liners"]
    assert number(best, "speedup") == pytest.approx(4.0)
    assert number(best, "speedup_over_strongest_eager") == pytest.approx(2.0)
    assert number(best, "speedup_over_strongest_eager_low") == pytest.approx(2 * math.exp(-HALF))
    alone = found["default", ""]
    assert number(alone, "speedup_over_strongest_eager") == pytest.approx(1.25)
    assert alone["speedup_over_strongest_eager_low"] == ""  # a single process
    text = (tmp_path / "out/report.md").read_text()
    assert (
        "the strongest eager is eager + fused optimizer, 2.00 \\[1.88, 2.13\\] times as fast as "
        "eager as built; beyond "
        "it torch.compile gives 2.00 \\[1.88, 2.13\\] (compile reduce-overhead, 4.00 \\[3.76, "
        "4.25\\] over eager as "
        "built)"
    ) in text


@pytest.mark.parametrize("count", [1, 2])
def test_the_report_says_where_rungs_ran_on_several_gpus(tmp_path: Path, count: int) -> None:
    places = [{"device": {"uuid": f"GPU-{number % count}"}} for number in range(len(RUNGS))]
    records = [
        replace(make_rung(rung), environment=place)
        for rung, place in zip(RUNGS, places, strict=True)
    ]
    write(tmp_path, records)
    assert (
        "The rungs of resnet50 ran on several GPUs." in (tmp_path / "out/report.md").read_text()
    ) is (count == 2)


def test_the_conclusion_names_the_doubts_of_the_rungs_that_it_compares(tmp_path: Path) -> None:
    flags = {
        "fused": ("single_process", "unsteady"),
        "default": ("throttled",),
        "reduce-overhead": ("host_busy",),
    }
    write(tmp_path, [replace(make_rung(rung), flags=flags.get(rung, ())) for rung in RUNGS])
    text = (tmp_path / "out/report.md").read_text()
    doubts = (
        "doubts: eager + fused optimizer (unsteady), compile reduce-overhead (eager_moved, "
        "host_busy)"
    )
    assert doubts in text.replace("\\", "")
    assert "compile default (throttled)" not in text


def test_a_rung_that_failed_is_a_row_and_the_next_stands_against_the_last_that_worked(
    tmp_path: Path,
) -> None:
    records = [make_rung(rung) for rung in RUNGS if rung not in ("fused", "graphed")]
    rows = rows_of(
        write(
            tmp_path,
            [*records, make_failure("graphed", "compile_error"), make_failure("fused", "oom")],
        )
    )
    failed = rows[4]
    assert (failed["status"], failed["step_ms"], failed["speedup"]) == ("compile_error", "", "")
    assert (failed["before"], rows[5]["before"]) == (
        "eager + cudnn.benchmark",
        "eager + cudnn.benchmark",
    )
    assert rows[3]["before"] == "eager + channels_last"
    assert {row["strongest_eager"] for row in rows} == {"eager + cudnn.benchmark"}


def test_a_smaller_batch_is_another_step(tmp_path: Path) -> None:
    records = [make_rung(rung) for rung in RUNGS]
    records[2] = replace(records[2], smaller_batch_size=16)
    rows = rows_of(write(tmp_path, records))
    assert (rows[2]["status"], rows[2]["speedup"], rows[3]["before"]) == (
        "oom with batch 32",
        "",
        "eager + channels_last",
    )


def say(folder: Path, records: Sequence[Record]) -> str:
    return write(folder, records).verdict.sentences[0]


def make_ladder(rungs: Sequence[str] = RUNGS, plain: Trial | None = None) -> list[Record]:
    """Rungs that agree on the step time of eager with all one-liners."""
    return [make_rung(rung, plain, eager_s=STEPS_S["cudnn_benchmark"]) for rung in rungs]


def test_the_verdict_says_what_is_torch_compiles(tmp_path: Path) -> None:
    assert say(tmp_path, make_ladder()) == (
        "Over eager as built, resnet50 gains 2.00x without torch.compile (eager + fused "
        "optimizer), and another 2.00x "
        "with compile reduce-overhead."
    )


def test_the_verdict_of_one_ladder_says_which_mode_to_use(tmp_path: Path) -> None:
    sentences = write(tmp_path, make_ladder()).verdict.sentences
    assert sentences[1] == "Which mode: reduce-overhead."
    assert sentences[2].startswith("Sure: ")


def test_a_ladder_without_an_answer_leaves_the_word_to_the_recommendation(tmp_path: Path) -> None:
    sentences = write(tmp_path, make_ladder(("eager", "fused", "default"))).verdict.sentences
    assert sentences[0].startswith("In AMP resnet50: default, ")


def test_the_verdict_says_where_torch_compile_adds_nothing(tmp_path: Path) -> None:
    records = [make_rung(rung, step_s=0.0099 if rung == "default" else None) for rung in RUNGS[:6]]
    sentences = write(tmp_path, records).verdict.sentences
    assert "and torch.compile adds nothing to that (1.01x with compile default)" in sentences[0]
    # over the eager of its own trial
    assert not any("times eager's speed" in line for line in sentences)


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
    report = write(tmp_path, [*slower, make_failure("default", "compile_error")])
    text = (tmp_path / "out/report.md").read_text().replace("\\", "")
    assert "the strongest eager is eager; no compiled rung worked" in text
    assert not any("over eager as built" in line for line in report.verdict.sentences)


def test_the_verdict_has_the_means_of_many_ladders(tmp_path: Path) -> None:
    """Two gain 2 and 2, two gain 2 and 1.25."""
    rungs = {"a": RUNGS, "b": RUNGS, "c": RUNGS[:6], "d": RUNGS[:6]}
    records = [
        record for model, found in rungs.items() for record in make_ladder(found, make_trial(model))
    ]
    assert say(tmp_path, records) == (
        "Over eager as built, 4 ladders gain 2.00x without torch.compile, and another 1.58x with "
        "it (geometric means "
        "over the best rungs; 4 of them without doubt)."
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
        "it (geometric means "
        "over the best rungs; 3 of them without doubt; 1 more not verified)."
    )


def test_none_is_the_strongest_unless_all_that_apply_were_tried(tmp_path: Path) -> None:
    report = write(tmp_path, [make_rung(rung) for rung in RUNGS if rung != "graphed"])
    assert {row["strongest_eager"] for row in rows_of(report)} == {""}
    assert {row["speedup_over_strongest_eager"] for row in rows_of(report, "speedups")} == {""}
    assert "not every way to run eager was tried" in (tmp_path / "out/report.md").read_text()


def test_what_does_not_apply_need_not_be_tried(tmp_path: Path) -> None:
    plain = make_trial("bert", family="nlp")
    records = [make_rung(rung, plain) for rung in ("eager", "fused", "graphed", "default")]
    assert [row["strongest_eager"] for row in rows_of(write(tmp_path, records))] == [
        "eager + fused optimizer"
    ] * 4


def test_a_graph_whose_result_nobody_verified_is_not_the_strongest(tmp_path: Path) -> None:
    records = {rung: make_rung(rung) for rung in RUNGS}
    records["graphed"] = replace(make_rung("graphed", step_s=0.005), flags=("accuracy_unverified",))
    rows = rows_of(write(tmp_path, list(records.values())))
    assert {row["strongest_eager"] for row in rows} == {"eager + fused optimizer"}


def test_a_graph_is_the_strongest_where_no_step_of_the_model_can_be_verified(
    tmp_path: Path,
) -> None:
    records = {rung: replace(make_rung(rung), flags=("accuracy_unverified",)) for rung in RUNGS}
    records["graphed"] = replace(make_rung("graphed", step_s=0.005), flags=("accuracy_unverified",))
    rows = rows_of(write(tmp_path, list(records.values())))
    assert {row["strongest_eager"] for row in rows} == {"eager + CUDA graph by hand"}


def test_eager_arms_stand_for_eager_rungs_that_have_no_trial(tmp_path: Path) -> None:
    as_built = make_record(trial=make_trial(), speedups=[2.5])
    last = make_trial(optimizer_impl="fused")
    last = replace(last, model=replace(last.model, memory_format="channels_last"))
    fused = replace(make_record(trial=last), processes=(make_process(1.25, eager_s=0.01),))
    rows = rows_of(write(tmp_path, [as_built, fused]))
    assert [(row["rung"], float(row["step_ms"])) for row in rows] == [
        ("eager", pytest.approx(20)),
        ("eager + fused optimizer", pytest.approx(10)),
    ]


def test_arms_that_err_in_opposite_directions_cancel_out(tmp_path: Path) -> None:
    """A process whose arms lie A above and A below the mean says the mean itself."""
    records = [make_rung(rung) for rung in ("eager", "channels_last")]
    opposite = (
        make_process(math.exp(sign * 2 * A), index=index, eager_s=0.02 * math.exp(sign * A))
        for index, sign in enumerate((1, -1))
    )
    records[0] = replace(records[0], processes=tuple(opposite))
    row = rows_of(write(tmp_path, records))[1]
    t1 = 12.706204736174694  # the eager rung has no error, so one degree of freedom is left
    assert number(row, "speedup_high") == pytest.approx(1.25 * math.exp(t1 * A), rel=1e-6)


def test_device_time_is_that_of_both_arms_where_eager_is_timed_against_eager(
    tmp_path: Path,
) -> None:
    readings = {"eager_device_step_s": 0.010, "compiled_device_step_s": 0.012}
    entries = [
        replace(entry, result=replace(entry.result, readings=readings))
        for entry in load(
            [write_sweep(tmp_path, [make_rung(rung) for rung in ("eager", "fused", "default")])]
        ).entries
    ]
    found = make_table(Findings(entries))
    assert {row["rung"]: row["device_step_ms"] for row in found.rows} == {
        "eager": pytest.approx(11),
        "eager + fused optimizer": pytest.approx(11),
        "eager + cudnn.benchmark": pytest.approx(10),  # the eager arm of the compiled trial
        "compile default": pytest.approx(12),
    }


def test_without_another_way_to_run_eager_there_is_no_ladder(tmp_path: Path) -> None:
    report = write(tmp_path, [make_record(speedups=[2.0]), make_rung("eager")])
    assert rows_of(report) == []
    assert "torch.compile's" not in (tmp_path / "out/report.md").read_text()


def test_no_ladder_mixes_two_devices(tmp_path: Path) -> None:
    records = [make_rung(rung) for rung in ("eager", "channels_last", "default")]
    device = {"type": "cuda", "name": "NVIDIA A100"}
    others = [
        replace(make_rung(rung), environment={"device": device})
        for rung in ("graphed", "max-autotune")
    ]
    rows = rows_of(write(tmp_path, [*records, *others]))
    assert {row["mode"] for row in rows} == {"eager", "default"}
    assert {row["variant"] for row in rows} == {"gpu=NVIDIA H200"}


def test_the_page_draws_a_bar_for_each_rung(tmp_path: Path) -> None:
    from sweeper.report.page.ladder_figure import draw_ladders

    records = [make_rung(rung) for rung in RUNGS if rung != "graphed"]
    report = write(tmp_path, [*records, make_failure("graphed", "compile_error")])
    figure = draw_ladders(report.tables["ladder"].rows)
    (choice,) = figure.choices
    heights = {trace["name"]: trace["y"] for trace in choice.traces}
    assert heights["compile reduce-overhead"] == [pytest.approx(4.0)]
    assert list(heights)[:2] == ["eager", "eager + channels_last"]
    assert (
        "eager + CUDA graph by hand" not in heights or heights["eager + CUDA graph by hand"] == []
    )
    assert "experiment=ladder" in draw_ladders([]).missing
