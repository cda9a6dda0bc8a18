"""The verdict: sentences, what failed, and how many lines of a terminal that takes."""

from __future__ import annotations

import io
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import archives
import pytest
from records import make_process, make_record, make_script, make_trial, write_sweep
from reports import load, report_on, write_report
from rich.cells import cell_len
from rich.console import Console

from sweeper.core.files import write_text
from sweeper.core.record import Accuracy, PerArm
from sweeper.report.answers.decision import Limits
from sweeper.report.answers.speedups import show_memory_change
from sweeper.report.build import print_verdict, suggest_next
from sweeper.report.text.report import Report
from sweeper.report.text.terminal import MAX_LINES
from sweeper.report.text.verdict import FirstFailure, Verdict

WIDTH, LINES_OF_VERDICT, LINES = 100, 12, 40
LINES_OF_MLFLOW = 2  # that a sweep prints last


def printed(report: Report) -> list[str]:
    """The lines of a terminal, long ones broken."""
    console = Console(
        file=io.StringIO(), width=WIDTH, force_terminal=True, color_system=None, _environ={}
    )
    print_verdict(report, console)
    assert isinstance(console.file, io.StringIO)
    lines = [
        *console.file.getvalue().splitlines(),
        *suggest_next(report, Path("runs/night/report"), "night"),
    ]
    height = [max(1, math.ceil(cell_len(line) / WIDTH)) for line in lines]
    return [
        part
        for line, count in zip(lines, height, strict=True)
        for part in [line, *[""] * (count - 1)]
    ]


def stored(tmp_path: Path, count: int) -> Report:
    """A report on so many trials of stored sweeps."""
    sweep = tmp_path / "night"
    names = ("h200-pt2-timm", "h200-pt2-huggingface")
    folders = [
        path.parent
        for name in names
        for path in archives.unpack(name, tmp_path).glob("*/record.json")
    ]
    for folder in sorted(folders)[:count]:
        shutil.move(folder, sweep / folder.name)
    return write_report([sweep], sweep / "report")


@pytest.mark.parametrize("count", [1, 12, 180])
def test_the_last_twelve_lines_of_a_terminal_are_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs/night").mkdir(parents=True)
    report = stored(Path("runs"), count)
    assert len(report.findings.entries) == count
    lines = printed(report)
    assert len(lines) + LINES_OF_MLFLOW <= LINES
    last = lines[-(LINES_OF_VERDICT - LINES_OF_MLFLOW) :]
    assert [line for line in last if line in report.verdict.sentences] == list(
        report.verdict.sentences
    )
    if count == 180:
        assert [line[:14] for line in report.verdict.sentences] == [
            "In AMP: compil",
            "In fp32: compi",
            "Not sure: one ",
        ]
    assert not any("weight" in line or "torch 2." in line for line in lines)
    if report.verdict.again:
        assert any(line.startswith("worth another run: ") for line in last)
    if report.verdict.first_failed:
        assert any(line.startswith(report.verdict.failed) for line in last)
        assert any("worker-0.log" in line for line in last)


def test_sentences_say_whether_which_and_how_sure(tmp_path: Path) -> None:
    fast = [
        make_record(name, speedups=[1.4], flags=("throttled",) if name == "a" else ())
        for name in "abc"
    ]
    slow = [make_record(name, "fp32", [0.4], device="cpu") for name in "abc"]
    open_ones = [make_record(name, "fp32", [1.02, 1.12, 1.07], device="cpu") for name in "de"]
    verified = make_record("f", speedups=[1.50, 1.51, 1.49])
    unverified = make_record("g", speedups=[1.60, 1.61, 1.59], flags=("accuracy_unverified",))
    failed = make_record("h", "bf16", status="oom")
    records = [*fast, *slow, *open_ones, verified, unverified, failed]
    assert set(report_on(tmp_path, records).verdict.sentences) == {
        "In AMP: compile 5 of 5 (1 sure), median 1.40x.",
        "In fp32: stay eager with 3 (none sure); 2 are open.",
        "In bf16: 1 could not be compared.",
        "Not sure: one process (6); the interval reaches both answers (2); unverified (1).",
    }


def test_long_sentences_leave_room_for_what_is_unsure_what_failed_and_what_to_run(
    tmp_path: Path,
) -> None:
    overrides = "model.args=--batch-size 64 --epochs 90 --workers 12 --label-smoothing 0.1 --ema"
    records = [make_record("bad", "own", workload="script", status="timeout", message="too slow")]
    for number in range(5):
        script = make_script(f"train_{number}.py", {8: 3})
        labels = replace(script.trial.labels, overrides=overrides)
        records.append(replace(script, trial=replace(script.trial, labels=labels)))
    lines = printed(report_on(tmp_path, records, "python -m sweeper -m model=script sweep=night"))
    for beginning in (
        "Script train_0.py ",
        "Not sure: one process (5).",
        "1 of 6 trials failed: 1 timeout; first bad ",
        "worth another run: 5 models, with commands in report.md",
    ):
        assert sum(line.startswith(beginning) for line in lines) == 1, beginning


def test_only_a_sweep_of_several_modes_compares_them(tmp_path: Path) -> None:
    modes = ("default", "reduce-overhead")
    records = [make_record(name, speedups=[1.4], mode=mode) for name in "ab" for mode in modes]
    faster = make_record("c", speedups=[1.6], mode="reduce-overhead")
    said = report_on(tmp_path / "several", [*records, faster]).verdict.sentences[1]
    assert said == "Modes to take: default for 2, reduce-overhead for 1."
    one = report_on(tmp_path / "one", records[::2])
    assert not any(line.startswith("Modes") for line in one.verdict.sentences)


def test_a_single_trial_has_a_sentence_of_its_own(tmp_path: Path) -> None:
    record = make_record(speedups=[2.0, 2.02, 1.98])
    assert report_on(tmp_path, [record]).verdict.sentences == (
        "In AMP resnet50: compile default: 2.00x [1.95, 2.05]; pays back after 301 steps (6 s).",
    )
    failed = report_on(
        tmp_path / "failed", [make_record(status="oom", message="out of memory\nat line 3")]
    )
    assert failed.verdict.sentences == (
        "In AMP resnet50: open: default: oom while compiling: out of memory.",
    )
    assert failed.verdict.failed == "1 of 1 trial failed: 1 oom"
    first = failed.verdict.first_failed
    assert first is not None
    assert (first.name, first.message) == ("resnet50 amp default", ""), "the answer has said it"
    assert first.log.endswith("worker-0.log")
    eager = make_record(trial=make_trial(mode="eager"), status="oom", message="out of memory")
    unanswered = report_on(tmp_path / "eager", [eager]).verdict.first_failed
    assert unanswered is not None
    assert unanswered.message == "out of memory"


@pytest.mark.parametrize(
    ("speedups", "said"),
    [
        ((0.9, 1.01), "in 2 trials: 0.90x to 1.01x"),
        ((1.01,), "in 1 trial: 1.01x"),
        ((1.001, 1.002), "in 2 trials: 1.00x"),
    ],
)
def test_eager_against_eager_has_a_sentence(
    tmp_path: Path, speedups: tuple[float, ...], said: str
) -> None:
    records = [make_record(f"m{speedup}", speedups=[speedup], mode="eager") for speedup in speedups]
    sentence = report_on(tmp_path, records).verdict.sentences[0]
    assert sentence == f"Eager against eager {said} by the wall clock."


def test_many_commands_are_in_the_files_alone(tmp_path: Path) -> None:
    records = [
        make_record(f"m{number}", precision, [1.0])
        for number in range(4)
        for precision in ("amp", "fp32")
    ]
    lines = printed(
        report_on(tmp_path, records, f"python -m sweeper -m model=glob(*) {'x' * 700}=1")
    )
    assert "worth another run: 4 models, with commands in report.md" in lines


def test_failures_of_all_kinds_leave_room_for_what_to_do_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = archives.unpack("cpu-statuses", Path("runs"))
    lines = printed(write_report([sweep], sweep / "report"))[-LINES_OF_VERDICT:]
    failed = next(line for line in lines if "11 of 26 trials failed: " in line)
    assert failed.startswith("1 planned trial has no record; 2 trials were interrupted; 11 of 26")
    assert "worth another run: 7 models, with commands in report.md" in lines


def test_what_is_not_verified_is_counted_by_answers(tmp_path: Path) -> None:
    modes = ("default", "reduce-overhead")
    flags = {"flags": ("accuracy_unverified",)}
    records = [make_record("a", speedups=[1.5, 1.5], mode=mode, **flags) for mode in modes]
    report = report_on(tmp_path, [*records, make_record("b", speedups=[1.5, 1.5])])
    assert report.verdict.sentences[-1] == "Not sure: unverified (1)."


def test_what_was_planned_and_has_no_record_is_counted_though_nothing_failed(
    tmp_path: Path,
) -> None:
    records = [make_record("resnet18", speedups=[1.5]), make_record("resnet34", speedups=[1.5])]
    folder = write_sweep(tmp_path, records[:1])
    plan = [{"trial_id": record.trial_id, "label": record.label} for record in records]
    write_text(
        folder / "sweep.json", json.dumps({"sweep": "night", "invocations": [{"plan": plan}]})
    )
    report = write_report([folder], folder / "report")
    assert "1 planned trial has no record" in printed(report)
    assert (
        "- 1 planned trial has no record." in (folder / "report/report.md").read_text().splitlines()
    )


def test_limits_are_said_where_modes_are_chosen_within_them(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path, [make_record("resnet18", speedups=[1.5])])
    report = write_report([folder], folder / "report", Limits(steps=3000, memory_gib=40.0))
    assert report.verdict.sentences[0] == "Modes are chosen for 3,000 steps, 40 GiB."


def test_names_and_messages_are_no_markup(tmp_path: Path) -> None:
    record = replace(make_record("[bold]x", status="crashed", message="[red]no[/]"), phase=None)
    assert any("[red]no[/]" in line for line in printed(report_on(tmp_path, [record])))


def test_the_doubts_of_another_mode_are_not_those_of_the_answer(tmp_path: Path) -> None:
    records = [
        make_record(speedups=[1.50, 1.51, 1.49]),
        make_record(speedups=[1.2, 1.21, 1.19], mode="reduce-overhead", flags=("shared_gpu",)),
    ]
    report = report_on(tmp_path, records)
    (answer,) = report.findings.answers
    assert (answer.recommended, answer.why_unsure) == ("default", ())
    assert report.verdict.sentences[-1].startswith("In AMP resnet50: compile default: ")


def test_small_gains_are_none(tmp_path: Path) -> None:
    records = [make_record(name, speedups=[1.03, 1.031, 1.029]) for name in "abc"]
    assert report_on(tmp_path, records).verdict.sentences == (
        "In AMP: stay eager with 3 (3 sure).",
    )


def test_an_open_answer_is_not_sure(tmp_path: Path) -> None:
    open_one = make_record("a", speedups=[1.00, 1.10, 1.05])
    stay = make_record("b", speedups=[1.0, 1.001, 0.999])
    sure = make_record("c", speedups=[1.4, 1.41, 1.39])
    report = report_on(tmp_path, [open_one, stay, sure])
    assert report.verdict.sentences == (
        "In AMP: compile 1 of 3 (1 sure), median 1.40x, pays back after 526 steps; "
        "stay eager with 1 (1 sure); 1 is open.",
        "Not sure: the interval reaches both answers (1).",
    )
    assert "a     open" in [line.rstrip() for line in printed(report)], "open says it, without a ?"


def test_a_few_models_have_the_steps_after_which_compiling_pays_back(tmp_path: Path) -> None:
    speedups = {"a": [1.4, 1.41, 1.39], "b": [2.0, 2.02, 1.98]}
    records = [make_record(name, speedups=given) for name, given in speedups.items()]
    (sentence,) = report_on(tmp_path, records).verdict.sentences
    assert sentence.endswith("median 1.70x, pays back after 301 to 526 steps.")


def test_a_single_answer_that_is_not_verified_says_so_once(tmp_path: Path) -> None:
    record = make_record(speedups=[2.0, 2.02, 1.98], flags=("accuracy_unverified",))
    (sentence,) = report_on(tmp_path, [record]).verdict.sentences
    assert sentence.startswith("In AMP resnet50: default, unsure: 2.00x [1.95, 2.05]; ")
    assert sentence.count("unverified") == 1


def test_a_single_answer_that_is_not_verified_says_why(tmp_path: Path) -> None:
    record = make_record(speedups=[2.0, 2.02, 1.98], flags=("accuracy_unverified",))
    accuracy = Accuracy(None, None, "eager differs from itself when it is run twice")
    processes = tuple(replace(process, accuracy=accuracy) for process in record.processes)
    sentences = report_on(tmp_path, [replace(record, processes=processes)]).verdict.sentences
    assert sentences[-1] == (
        "1 trial not verified: eager differs from itself when it is run twice."
    )


def test_models_are_counted_once_and_kept_apart_by_suite(tmp_path: Path) -> None:
    command = f"python -m sweeper -m model=glob(*) {'x' * 700}=1"
    records = [make_record(precision=precision, speedups=[1.0]) for precision in ("amp", "fp32")]
    other = make_trial("resnet50")
    of_suite = replace(
        other,
        labels=replace(other.labels, suite="torchbench"),
        model=replace(other.model, name="timm"),
    )
    lines = printed(
        report_on(tmp_path, [*records, make_record(trial=of_suite, speedups=[3.0])], command)
    )
    (line,) = (line for line in lines if "torchbench" in line)
    assert "default 3.00x" in line
    assert "try" not in line
    assert "worth another run: 1 model, with commands in report.md" in lines


def test_the_trial_of_the_log_is_named_where_its_message_has_no_room(tmp_path: Path) -> None:
    sentences = tuple(f"Sentence {number}." for number in range(MAX_LINES - 2))
    first = FirstFailure("b amp", "x" * 90, "a.log")
    verdict = Verdict(sentences, (), "2 of 3 trials failed: 2 oom", first)
    lines = printed(replace(report_on(tmp_path, [make_record()]), verdict=verdict))
    place = lines.index("2 of 3 trials failed: 2 oom; first b amp")
    assert lines[place + 1] == "  log: a.log"


def test_a_failure_without_a_message_ends_with_its_name(tmp_path: Path) -> None:
    lines = printed(report_on(tmp_path, [make_record("a"), make_record("b", status="oom")]))
    assert "1 of 2 trials failed: 1 oom; first b amp default" in lines


def test_an_interrupted_trial_has_not_failed(tmp_path: Path) -> None:
    stopped = make_record("a", status="interrupted")
    verdict = report_on(tmp_path / "alone", [stopped, make_record("b")]).verdict
    assert (verdict.failed, verdict.first_failed) == ("1 trial was interrupted", None)
    verdict = report_on(
        tmp_path / "both", [stopped, make_record("b", status="eager_error")]
    ).verdict
    assert verdict.failed == "1 trial was interrupted; 1 of 2 trials failed: 1 eager_error"
    assert verdict.first_failed is not None
    assert verdict.first_failed.name.startswith("b ")


@pytest.mark.parametrize(
    ("compiled", "shown"), [(999.0, "+0 %"), (1190.0, "+19 %"), (700.0, "-30 %")]
)
def test_a_change_of_memory_has_no_minus_zero(tmp_path: Path, compiled: float, shown: str) -> None:
    process = replace(make_process(), memory_bytes=PerArm(1000.0, compiled))
    folder = write_sweep(tmp_path, [replace(make_record(), processes=(process,))])
    (entry,) = load([folder]).entries
    assert show_memory_change(entry) == shown
