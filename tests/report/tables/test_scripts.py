"""The table of scripts: what compiling gives over the whole training, in figures and in words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from records import make_process, make_record, write_sweep

from sweeper.core.libraries import SCRIPT
from sweeper.core.record import (
    MAX_VOID_ROUNDS,
    READ_LOADER,
    HostState,
    LoopRun,
    Process,
    Record,
    Round,
    ScriptRun,
)
from sweeper.core.trial import Labels, Model, Trial
from sweeper.loading.entries import Entry, load
from sweeper.loading.sources import SweepFolder
from sweeper.report.build import make_report, write_report
from sweeper.report.findings import Findings
from sweeper.report.formatting import name_common_axes
from sweeper.report.page.speedup_figures import describe_trial
from sweeper.report.table import Row
from sweeper.report.tables import recommendations
from sweeper.report.tables.decision import NO_LIMITS, Limits
from sweeper.report.tables.scripts import SPEC, conclude, list_findings

COMPILE_S = 40.0


def make_run(compiled_s: float, index: int = 0) -> Process:
    """A process whose eager loop takes 0.1 s per step."""
    script = ScriptRun(
        modules=("Net",),
        loop_eager=LoopRun(100, 0.1, None, 0.0),
        loop_compiled=LoopRun(100, compiled_s, None, 0.0),
    )
    return replace(
        make_process(index=index), compile_s=COMPILE_S if index == 0 else 1.0, script=script
    )


def make_trained(
    total_steps: int | None,
    *compiled_s: float,
    mode: str = "default",
    device: str = "cpu",
    path: str = "train.py",
    **changes: object,
) -> Record:
    labels = Labels("train.py", "own", total_steps=total_steps)
    trial = Trial(
        Model(SCRIPT, path), 1, labels, mode=mode, workload=SCRIPT, device=device, optimizer="none"
    )
    processes = tuple(make_run(step_s, index) for index, step_s in enumerate(compiled_s))
    return replace(make_record(trial=trial), processes=processes, **changes)  # type: ignore[arg-type]


@pytest.fixture
def read(tmp_path):
    def read_entry(record: Record) -> Entry:
        (entry,) = load([write_sweep(tmp_path, [record])]).entries
        return entry

    return read_entry


def row_of(entry: Entry) -> Row:
    (row,) = SPEC.make(Findings([entry])).rows
    return row


def conclude_on(*entries: Entry) -> list[str]:
    findings = Findings(entries)
    return conclude(SPEC.make(findings).rows, recommendations.SPEC.make(findings).rows)


SAID = {
    (
        10_000,
        0.08,
    ): "over 10,000 steps compiling saves 2 min 40 s: 40 s of compilation have paid back after "
    "2,000 steps",
    (
        1_000,
        0.08,
    ): "over 1,000 steps compiling loses 20 s: 40 s of compilation would pay back after 2,000 "
    "steps",
    (
        2_100,
        0.08,
    ): "over 2,100 steps compiling saves 2.00 s: 40 s of compilation have paid back after 2,000 "
    "steps",
    (
        10_000,
        0.11,
    ): "over 10,000 steps compiling loses 2 min 20 s: 40 s of compilation never pay back",
}


@pytest.mark.parametrize(("total_steps", "compiled_s"), SAID, ids=str)
def test_a_finding_says_what_compiling_gives_over_the_whole_training(
    read, total_steps, compiled_s
) -> None:
    entry = read(make_trained(total_steps, compiled_s))
    said = SAID[total_steps, compiled_s]
    assert next(list_findings(entry)) == said
    row = row_of(entry)
    assert row["total_steps"] == total_steps
    assert row["saved_s"] == pytest.approx(total_steps * (0.1 - compiled_s) - COMPILE_S)
    # a single process has no interval
    assert (row["saved_s_low"], row["saved_s_high"]) == (None, None)
    assert conclude_on(entry)[0].endswith(f"; {said.partition(':')[0]}")


def test_without_a_length_nothing_is_said_of_it(read) -> None:
    entry = read(make_trained(None, 0.08))
    row = row_of(entry)
    assert [row[name] for name in ("total_steps", "saved_s", "saved_s_low", "saved_s_high")] == [
        None
    ] * 4
    assert not any("over" in line for line in [*list_findings(entry), *conclude_on(entry)])


@pytest.mark.parametrize("status", ["runtime_error", "accuracy_mismatch"])
def test_a_script_that_is_not_ok_saves_nothing(read, status: str) -> None:
    entry = read(make_trained(10_000, 0.08, status=status, phase="measuring"))
    assert row_of(entry)["saved_s"] is None
    assert not any("over 10,000 steps" in line for line in list_findings(entry))


def test_the_interval_is_that_of_the_loop(read) -> None:
    entry = read(make_trained(10_000, 0.08, 0.0801, 0.0799))
    row, result = row_of(entry), entry.result
    for end in ("low", "high"):
        compiled_s = 0.1 / getattr(result, f"loop_speedup_{end}")
        assert row[f"saved_s_{end}"] == pytest.approx(10_000 * (0.1 - compiled_s) - COMPILE_S)
    assert row["saved_s_low"] < row["saved_s"] < row["saved_s_high"]
    assert "steps compiling saves 2 min 40 s (2 min 38 s to 2 min 42 s): " in next(
        list_findings(entry)
    )
    loses = read(make_trained(1_000, 0.11, 0.1101, 0.1099))
    assert "compiling loses 50 s (50 s to 50 s): " in next(list_findings(loses))


def test_an_interval_on_both_sides_of_zero_is_no_verdict(read) -> None:
    entry = read(make_trained(10_000, 0.1, 0.09, 0.09))
    row = row_of(entry)
    assert row["saved_s_low"] < 0 < row["saved_s_high"]
    said = next(list_findings(entry))
    assert said.startswith("over 10,000 steps compiling may save up to ")
    assert " or lose up to " in said


def test_a_compile_time_that_others_lengthened_is_an_upper_bound(read) -> None:
    record = make_trained(10_000, 0.08, flags=("compile_contended",))
    busy = replace(record.processes[0], host=HostState(busy_while_compiling=0.9))
    entry = read(replace(record, processes=(busy,)))
    assert ": at most 40 s of compilation have paid back" in next(list_findings(entry))


WAITS = {
    (0.02, 0.02): (
        "waits for its loader (8 workers) for 20 % of its time, which compiling does not shorten",
        "the loader takes 20 %, so no loop gains more than 5.00x",
    ),
    (0.001, 0.02): (
        "once compiled, the loop waits for its loader (8 workers) for 25 % of its time, which it "
        "did not in eager",
        "; once compiled, the loader takes 25 %",
    ),
    (0.001, 0.001): (None, None),
}


@pytest.mark.parametrize("loader_s", WAITS, ids=str)
def test_a_wait_for_the_loader_is_said_also_where_it_begins_once_compiled(
    read, loader_s: tuple[float, float]
) -> None:
    """Seconds per step that the loader takes of 0.1 in eager, and of 0.08 compiled."""
    record = make_trained(None, 0.08)
    loops = {
        f"loop_{arm}": LoopRun(100, step_s, wait_s, 0.0)
        for arm, step_s, wait_s in zip(("eager", "compiled"), (0.1, 0.08), loader_s, strict=True)
    }
    script = replace(record.processes[0].script or ScriptRun(), loader="8 workers", **loops)
    entry = read(replace(record, processes=(replace(record.processes[0], script=script),)))
    finding, conclusion = WAITS[loader_s]
    said, concluded = "; ".join(list_findings(entry)), conclude_on(entry)[0]
    if finding is None or conclusion is None:
        assert "loader" not in said + concluded
        return
    assert finding in said
    assert conclusion in concluded


def test_torchs_own_classes_are_replaced_since_their_compile_method_compiles_nothing(read) -> None:
    record = make_trained(None, 0.08)
    modules = {"modules": ("Net", "torch.nn.Sequential"), "called_at": ("train.py:3", "train.py:4")}
    script = replace(record.processes[0].script or ScriptRun(), **modules)
    entry = read(replace(record, processes=(replace(record.processes[0], script=script),)))
    changes = [line for line in list_findings(entry) if line.startswith("to compile")]
    assert changes == [
        "to compile: call .compile() on it before the loop: Net (train.py:3)",
        "to compile: replace it by torch.compile(model) before the loop: torch.nn.Sequential "
        "(train.py:4)",
    ]


@pytest.mark.parametrize(
    ("speedup", "compiled_s", "total_steps", "advice"),
    [
        (2.0, 0.08, None, "compile"),
        (2.0, 0.08, 10_000, "compile"),
        (2.0, 0.08, 100, "stay eager"),
        (2.0, 0.0999, None, "stay eager"),
        (0.9, 0.099, None, "stay eager"),
        (0.9, 0.08, None, "not known"),
    ],
)
def test_the_loop_decides_whether_to_compile(
    read, speedup: float, compiled_s: float, total_steps: int | None, advice: str
) -> None:
    """Loops of 1.25x and 1.00x; a loop that gains by more than its steps gains by chance."""
    record = make_trained(total_steps, compiled_s)
    process = replace(make_process(speedup), script=record.processes[0].script)
    if total_steps:
        process = replace(process, compile_s=COMPILE_S)
    (said,) = conclude_on(read(replace(record, processes=(process,))))
    assert re.match(rf"script train.py: {advice}(| \(.*\)); step {speedup:.2f}x, loop ", said), said


def test_one_line_recommends_one_mode_of_a_script(tmp_path) -> None:
    """The step of `default` gains most and the loop of `reduce-overhead`; what the table recommends
    is what is said.
    """
    faster = make_trained(None, 0.05, mode="reduce-overhead", device="cuda")
    slower = make_trained(None, 0.08, device="cuda")
    slower = replace(
        slower, processes=(replace(make_process(3.0), script=slower.processes[0].script),)
    )
    report = write_report([write_sweep(tmp_path, [faster, slower])], tmp_path / "out")
    (answer,) = report.tables["recommendations"].rows
    assert (answer["mode"], answer["speedup"]) == ("reduce-overhead", pytest.approx(2.0))
    assert answer["break_even_steps"] == pytest.approx(COMPILE_S / (0.1 - 0.05))
    assert "in its loop" in str(answer["reason"])
    assert {row["mode"]: row["speedup"] for row in report.tables["speedups"].rows} == {
        "reduce-overhead": pytest.approx(2.0),
        "default": pytest.approx(3.0),
    }
    said = [line for line in report.verdict.sentences if line.startswith("Script")]
    assert len(said) == 1
    assert said[0].startswith("Script train.py: compile with mode=reduce-overhead; step ")
    assert "loop 2.00x" in said[0]


def verdict_of(tmp_path, *records: Record, limits: Limits = NO_LIMITS) -> list[str]:
    return say([write_sweep(tmp_path, records)], limits)


def say(sweeps: Sequence[Path], limits: Limits = NO_LIMITS) -> list[str]:
    found = make_report([SweepFolder(folder) for folder in sweeps], limits).verdict.sentences
    return [line for line in found if line.startswith("Script")]


def test_scripts_of_one_name_have_a_sentence_each(tmp_path) -> None:
    records = [
        make_trained(None, 0.05, path="a/train.py"),
        make_trained(None, 0.11, path="b/train.py"),
    ]
    first, second = verdict_of(tmp_path, *records)
    assert first.startswith("Script train.py: compile; ")
    assert "loop 2.00x" in first
    assert "loop 0.91x" in second


def test_of_two_sweeps_the_sentence_has_the_figures_of_the_trial_that_counts(tmp_path) -> None:
    old, new = (make_trained(None, compiled_s) for compiled_s in (0.05, 0.09))
    (said,) = say([write_sweep(tmp_path, [old], "old"), write_sweep(tmp_path, [new], "new")])
    assert "loop 1.11x" in said


def test_eager_against_eager_is_no_answer_about_compiling(tmp_path) -> None:
    eager = make_trained(None, 0.1, mode="eager", device="cuda")
    (said,) = verdict_of(tmp_path, eager, make_trained(None, 0.14, device="cuda"))
    assert "loop 0.71x" in said
    failed = make_trained(None, 0.1, device="cuda", status="compile_error", phase="compiling")
    assert verdict_of(tmp_path / "failed", eager, failed) == [
        "Script train.py: stay eager (no mode gave a right result: compile_error)."
    ]


def test_a_length_of_the_report_is_not_that_of_the_command(tmp_path) -> None:
    """Compiling pays back after 2,000 steps: not within 1,000, and within the 10,000 of the
    command.
    """
    record = make_trained(10_000, 0.08)
    (said,) = verdict_of(tmp_path, record)
    assert said.startswith("Script train.py: compile; ")
    assert said.endswith("; over 10,000 steps compiling saves 2 min 40 s.")
    (said,) = verdict_of(tmp_path / "short", record, limits=Limits(steps=1_000))
    assert said.startswith(
        "Script train.py: stay eager (every mode that is right is beyond the limits given); "
    )
    assert "over" not in said


def test_one_break_even_is_in_every_table(tmp_path) -> None:
    """The medians of three processes have another ratio than the mean of their ratios."""
    report = write_report(
        [write_sweep(tmp_path, [make_trained(None, 0.05, 0.052, 0.06)])], tmp_path / "out"
    )
    found = [
        report.tables[name].rows[0]["break_even_steps"] for name in ("scripts", "recommendations")
    ]
    assert found[0] == pytest.approx(found[1])


def test_a_loop_is_not_compared_with_a_step(tmp_path) -> None:
    without = make_trained(None, 0.08, device="cuda")
    script = replace(
        without.processes[0].script or ScriptRun(), loop_eager=None, loop_compiled=None
    )
    without = replace(without, processes=(replace(make_process(3.0), script=script),))
    loop = make_trained(None, 0.08, mode="reduce-overhead", device="cuda")
    report = write_report([write_sweep(tmp_path, [without, loop])], tmp_path / "out")
    (answer,) = report.tables["recommendations"].rows
    assert answer["mode"] == "reduce-overhead"
    assert answer["ruled_out"] == ("default: its loop was not timed",)


def test_a_script_whose_rounds_were_all_void_says_nothing_of_the_compiler(tmp_path) -> None:
    record = make_trained(None, 0.08, status="runtime_error", phase="measuring")
    void = replace(
        record.processes[0], rounds=(Round("AB", 1.0, 1.0, READ_LOADER),) * MAX_VOID_ROUNDS
    )
    report = write_report(
        [write_sweep(tmp_path, [replace(record, processes=(void,))])], tmp_path / "out"
    )
    (row,) = report.tables["recommendations"].rows
    assert row["reason"] == "nothing could be compared: runtime_error"
    assert row["recommended"] is None


def test_a_script_shows_no_batch_size_since_it_decides_it(tmp_path) -> None:
    report = write_report([write_sweep(tmp_path, [make_trained(None, 0.08)])], tmp_path / "out")
    for name in ("speedups", "recommendations"):
        (row,) = report.tables[name].rows
        assert row["batch_size"] is None
    (row,) = report.tables["speedups"].rows
    assert name_common_axes([row]) == "script, inductor"
    assert "batch" not in describe_trial(row)


def test_a_script_beside_a_model_leaves_the_cell_of_the_batch_empty(tmp_path) -> None:
    sweep = write_sweep(tmp_path, [make_trained(None, 0.08), make_record(batch_size=8)])
    rows = write_report([sweep], tmp_path / "out").tables["speedups"].rows
    assert sorted((row["workload"], row["batch_size"]) for row in rows) == [
        ("script", None),
        ("train", 8),
    ]
    lines = [
        line
        for line in (tmp_path / "out/report.md").read_text().splitlines()
        if line.startswith("| train.py")
    ]
    assert lines
    assert not [line for line in lines if "| 1 |" in line]


@pytest.mark.parametrize(("recompiles", "said"), [(0, None), (1, "once in"), (7, "7 times in")])
def test_a_loop_that_compiles_while_it_is_timed_is_named(
    read, recompiles: int, said: str | None
) -> None:
    record = make_trained(None, 0.08)
    script = record.processes[0].script
    assert script is not None
    assert script.loop_compiled is not None
    script = replace(script, loop_compiled=replace(script.loop_compiled, recompiles=recompiles))
    entry = read(replace(record, processes=(replace(record.processes[0], script=script),)))
    found = [line for line in list_findings(entry) if line.startswith("the loop compiled")]
    assert found == (
        []
        if said is None
        else [f"the loop compiled {said} {script.loop_compiled.steps} steps, after the first steps"]
    )
