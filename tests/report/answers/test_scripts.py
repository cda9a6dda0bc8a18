"""What a report says of users' own scripts: what compiling gives over the whole training, and what
to do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from records import make_process, write_sweep
from reports import load
from script_records import COMPILE_S, IMAGENET, make_trained

from sweeper.analysis.stats import ratio_of
from sweeper.core.record import (
    MAX_VOID_ROUNDS,
    READ_LOADER,
    Diagnostics,
    GraphBreak,
    HostState,
    LoopRun,
    PerArm,
    RankRun,
    Record,
    Round,
    ScriptRun,
)
from sweeper.core.trial import Compile
from sweeper.loading.sources import SweepFolder
from sweeper.report.answers.decision import COMPILE, NO_LIMITS, OPEN, STAY, Answer, Limits
from sweeper.report.answers.findings import Findings
from sweeper.report.answers.scripts import ScriptAnswer, conclude
from sweeper.report.build import make_report

Read = Callable[[Record], ScriptAnswer]
WOBBLE = (1.0, 1.001, 0.999)  # three processes


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read_answer(record: Record) -> ScriptAnswer:
        (answer,) = Findings(load([write_sweep(tmp_path, [record])]).entries).scripts
        return answer

    return read_answer


def conclude_on(answer: ScriptAnswer) -> str:
    (line,) = conclude(Findings([answer.entry]).answers)
    return line


def choose(folder: Path, *records: Record) -> Answer:
    (answer,) = Findings(load([write_sweep(folder, records)]).entries).answers
    return answer


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
    read: Read, total_steps: int, compiled_s: float
) -> None:
    answer = read(make_trained(total_steps, compiled_s))
    said = SAID[total_steps, compiled_s]
    assert answer.findings[0] == said
    assert answer.total_steps == total_steps
    assert answer.saving is not None
    saved_s = total_steps * (0.1 - compiled_s) - COMPILE_S
    assert answer.saving.value_s == pytest.approx(saved_s)
    # a single process has no interval
    assert (answer.saving.low_s, answer.saving.high_s) == (None, None)
    # a single process on a CPU leaves the answer open
    assert conclude_on(answer).endswith(f"; {said.partition(':')[0]}, as measured")


def test_without_a_length_nothing_is_said_of_it(read: Read) -> None:
    answer = read(make_trained(None, 0.08))
    assert (answer.total_steps, answer.saving) == (None, None)
    assert not any("over" in line for line in [*answer.findings, conclude_on(answer)])


@pytest.mark.parametrize("status", ["runtime_error", "accuracy_mismatch"])
def test_a_script_that_is_not_ok_saves_nothing(read: Read, status: str) -> None:
    answer = read(make_trained(10_000, 0.08, status=status, phase="measuring"))
    assert answer.saving is None
    assert not any("over 10,000 steps" in line for line in answer.findings)


def test_the_interval_is_that_of_the_loop(read: Read) -> None:
    answer = read(make_trained(10_000, 0.08, 0.0801, 0.0799))
    saving, result = answer.saving, answer.entry.result
    assert saving is not None
    assert saving.low_s is not None
    assert saving.high_s is not None
    assert result.loop_speedup is not None
    bounds = result.loop_speedup.interval()
    assert bounds is not None
    for speedup, saved_s in zip(bounds, (saving.low_s, saving.high_s), strict=True):
        assert saved_s == pytest.approx(10_000 * (0.1 - 0.1 / speedup) - COMPILE_S)
    assert saving.low_s < saving.value_s < saving.high_s
    said = "steps compiling saves 2 min 40 s (2 min 38 s to 2 min 42 s): "
    assert said in answer.findings[0]
    loses = read(make_trained(1_000, 0.11, 0.1101, 0.1099))
    assert "compiling loses 50 s (50 s to 50 s): " in loses.findings[0]


def test_an_interval_on_both_sides_of_zero_is_no_verdict(read: Read) -> None:
    answer = read(make_trained(10_000, 0.1, 0.09, 0.09))
    assert answer.saving is not None
    assert (answer.saving.low_s or 0.0) < 0 < (answer.saving.high_s or 0.0)
    said = answer.findings[0]
    assert said.startswith("over 10,000 steps compiling may save up to ")
    assert " or lose up to " in said


def test_a_compile_time_that_others_lengthened_is_an_upper_bound(read: Read) -> None:
    record = make_trained(10_000, 0.08, flags=("compile_contended",))
    busy = replace(record.processes[0], host=HostState(busy_while_compiling=0.9))
    answer = read(replace(record, processes=(busy,)))
    assert ": at most 40 s of compilation have paid back" in answer.findings[0]


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
    read: Read, loader_s: tuple[float, float]
) -> None:
    """Seconds per step that the loader takes of 0.1 in eager, and of 0.08 compiled."""
    record = make_trained(None, 0.08)
    loops = {
        f"loop_{arm}": LoopRun(100, step_s, wait_s, 0.0)
        for arm, step_s, wait_s in zip(("eager", "compiled"), (0.1, 0.08), loader_s, strict=True)
    }
    script = replace(record.processes[0].script or ScriptRun(), loader="8 workers", **loops)
    answer = read(replace(record, processes=(replace(record.processes[0], script=script),)))
    finding, conclusion = WAITS[loader_s]
    said, concluded = "; ".join(answer.findings), conclude_on(answer)
    if finding is None or conclusion is None:
        assert "loader" not in said + concluded
        return
    assert finding in said
    assert conclusion in concluded


def test_processes_that_compile_different_code_are_named(read: Read) -> None:
    record = make_trained(None, 0.08)
    script = replace(
        record.processes[0].script or ScriptRun(),
        ranks=(RankRun(1, 0), RankRun(3, 2)),
        rank_spread=PerArm(0.01, 0.08),
    )
    answer = read(replace(record, processes=(replace(record.processes[0], script=script),)))
    assert answer.findings[-2:] == (
        "it trains in 2 processes, and a step takes as long as in the slowest rank: 8 % longer "
        "than in the fastest",
        "the ranks compiled different code: rank 0 1 graphs and 0 recompilations, rank 1 3 graphs "
        "and 2 recompilations",
    )


def test_what_ranks_need_on_the_device_is_told_by_arm(read: Read) -> None:
    record = make_trained(None, 0.08)
    peaks = PerArm(4 * 2.0**30, 3 * 2.0**30), PerArm(4.5 * 2.0**30, 3.25 * 2.0**30)
    ranks = tuple(RankRun(1, 0, peak) for peak in peaks)
    script = replace(record.processes[0].script or ScriptRun(), ranks=ranks)
    answer = read(replace(record, processes=(replace(record.processes[0], script=script),)))
    assert answer.findings[-2:] == (
        "peak memory of the eager step by rank: 4.00, 4.50 GiB",
        "peak memory of the compiled step by rank: 3.00, 3.25 GiB",
    )


def test_collectives_that_nothing_overlaps_are_told_by_arm(read: Read) -> None:
    record = make_trained(None, 0.08)
    script = replace(record.processes[0].script or ScriptRun(), ranks=(RankRun(1, 0),) * 2)
    seen = {"device_step_s": PerArm(0.1, 0.05), "exposed_s": PerArm(0.012, 0.009)}
    answer = read(replace(record, processes=(replace(record.processes[0], script=script, **seen),)))
    assert answer.findings[-1] == (
        "collectives that no computing overlaps take 12 % of the eager step and 18 % of the "
        "compiled step on the device"
    )


def test_what_the_compiler_does_not_see_whole_is_named(read: Read) -> None:
    record = make_trained(None, 0.08)
    script = record.processes[0].script or ScriptRun()
    entered = ("Net (train.py:4)", "Head (train.py:5)")
    script = replace(script, gone_round=("Net",), uncalled_share=0.94, entered=entered)
    split = "DDPOptimizer intentional graph-break (See Note [DDPOptimizer])."
    breaks = (
        GraphBreak(split, "distributed.py:0", 2),
        GraphBreak("print", "train.py:3", 1),
        GraphBreak("skipped", "/lib/torch/nn/parallel/distributed.py:1697", 2),
    )
    answer = read(
        replace(
            record,
            processes=(replace(record.processes[0], script=script),),
            diagnostics=Diagnostics(1, breaks),
        )
    )
    forward = (
        "the script calls forward of Net (train.py:4) and of Head (train.py:5), so only the "
        "modules inside are compiled: call the module instead"
    )
    assert forward in conclude_on(answer)
    assert answer.findings[-6:] == (
        "graph breaks in DistributedDataParallel itself, which the script cannot mend: what is "
        "compiled inside the wrapper has none of them",
        "graph breaks at train.py:3",
        "DDPOptimizer has split graphs at 2 places, so that their parts wait for no other part's "
        "gradients",
        forward,
        "compiled, but called past the compiler: Net",
        "94 % of the trained parameters are in no module that the script was seen to call, so what "
        "computes with them is eager in both arms",
    )


def test_torchs_own_classes_are_replaced_since_their_compile_method_compiles_nothing(
    read: Read,
) -> None:
    record = make_trained(None, 0.08)
    modules = {"modules": ("Net", "torch.nn.Sequential"), "called_at": ("train.py:3", "train.py:4")}
    script = replace(record.processes[0].script or ScriptRun(), **modules)
    answer = read(replace(record, processes=(replace(record.processes[0], script=script),)))
    changes = [line for line in answer.findings if line.startswith("to compile")]
    assert changes == [
        "to compile: before the loop, call .compile() on the Net that train.py:3 calls",
        "to compile: before the loop, put torch.compile(model) in place of the torch.nn.Sequential "
        "that train.py:4 calls",
    ]


@pytest.mark.parametrize(
    ("module", "wrapper", "change"),
    [
        (
            "Net in DistributedDataParallel",
            "inside",
            "call .compile() on the Net in DistributedDataParallel that train.py:3 calls",
        ),
        (
            "Net in DistributedDataParallel",
            "outside",
            "put torch.compile(model) in place of the torch.nn.DistributedDataParallel that "
            "train.py:3 calls",
        ),
        (
            "torch.nn.Linear in DistributedDataParallel",
            "inside",
            "put torch.compile(model) in place of the torch.nn.Linear in DistributedDataParallel "
            "that train.py:3 calls",
        ),
    ],
)
def test_the_line_to_change_is_inside_or_outside_the_wrapper(
    read: Read, module: str, wrapper: str, change: str
) -> None:
    record = make_trained(None, 0.08)
    script = replace(
        record.processes[0].script or ScriptRun(), modules=(module,), called_at=("train.py:3",)
    )
    answer = read(
        replace(
            record,
            trial=replace(record.trial, compile=Compile(wrapper=wrapper)),
            processes=(replace(record.processes[0], script=script),),
        )
    )
    assert f"to compile: before the loop, {change}" in answer.findings


STAYED_EAGER = "evaluation ran eager: it calls nothing that is compiled, unless with gradients"


@pytest.mark.parametrize(
    ("evaluations", "untrained", "said"),
    [
        (1, 0, [STAYED_EAGER]),
        (3, 16, ["evaluation is 1.50x as fast (3 in each arm)"]),
        (3, None, ["evaluation is 1.50x as fast (3 in each arm)"]),
        (2, 16, []),
        (0, 0, []),
    ],
)
def test_an_evaluation_has_a_speedup_of_its_own(
    read: Read, evaluations: int, untrained: int | None, said: list[str]
) -> None:
    record = make_trained(None, 0.08)
    seen = record.processes[0].script or ScriptRun()
    assert seen.loop_eager is not None
    assert seen.loop_compiled is not None
    found = {"evaluations": evaluations, "untrained": untrained}
    script = replace(
        seen,
        loop_eager=replace(seen.loop_eager, evaluation_s=0.3, **found),
        loop_compiled=replace(seen.loop_compiled, evaluation_s=0.2, **found),
    )
    answer = read(replace(record, processes=(replace(record.processes[0], script=script),)))
    assert [one for one in answer.findings if one.startswith("evaluation")] == said


@pytest.mark.parametrize(
    ("speedup", "compiled_s", "total_steps", "advice"),
    [
        (2.0, 0.08, None, "compile"),
        (2.0, 0.08, 10_000, "compile"),
        (2.0, 0.08, 100, "stay eager"),
        (2.0, 0.0999, None, "stay eager"),
        (0.9, 0.099, None, "stay eager"),
        (0.9, 0.08, None, "compile"),
    ],
)
def test_the_loop_decides_whether_to_compile(
    read: Read, speedup: float, compiled_s: float, total_steps: int | None, advice: str
) -> None:
    """Loops of 1.25x, 1.01x and 1.00x, whatever their steps gain."""
    record = make_trained(total_steps, *(compiled_s * wobble for wobble in WOBBLE))
    processes = (
        replace(
            make_process(speedup, index=index), script=process.script, compile_s=process.compile_s
        )
        for index, process in enumerate(record.processes)
    )
    said = conclude_on(read(replace(record, processes=tuple(processes))))
    gain = rf"loop {0.1 / compiled_s:.2f}x \[\d\.\d\d, \d\.\d\d\], step {speedup:.2f}x"
    forms = {
        "compile": rf"compile default: {gain}; pays back after [\d,]+ steps \(.*\)",
        "stay eager": rf"stay eager: default .*; measured {gain}",
    }
    assert re.match(f"script train.py: {forms[advice]}", said), said
    assert "unsure" not in said


@pytest.mark.parametrize("compiled_s", [0.08, 0.0999])
def test_one_process_of_a_loop_on_a_cpu_leaves_the_answer_open(
    read: Read, compiled_s: float
) -> None:
    said = conclude_on(read(make_trained(None, compiled_s)))
    assert said.startswith("script train.py: open: default loop ")
    assert said.endswith("; not sure: one process")


@pytest.mark.parametrize("compiled_s", [0.02, 1.0])
def test_loops_beside_neighbours_on_a_cpu_decide_nothing(read: Read, compiled_s: float) -> None:
    """Loops run one after the other, and each may have met the neighbours alone."""
    loops = (compiled_s * wobble for wobble in WOBBLE)
    said = conclude_on(read(make_trained(None, *loops, flags=("host_busy",))))
    assert said.startswith("script train.py: open: default loop ")
    assert "x may be off by any amount; not sure: disturbed: neighbours on the host" in said


def test_loops_beside_neighbours_say_what_else_is_known(read: Read, tmp_path: Path) -> None:
    """How long the compiler took, what was measured, and which mode they ruled out."""
    loops = [0.05 * wobble for wobble in WOBBLE]
    short = conclude_on(read(make_trained(20, *loops, flags=("host_busy",))))
    assert short.startswith("script train.py: stay eager: default pays back after 800 steps")
    long = conclude_on(read(make_trained(10_000, *loops, flags=("host_busy",))))
    assert re.search(r"over 10,000 steps compiling saves [\w ]+, as measured", long), long
    disturbed = make_trained(None, *loops, flags=("host_busy",))
    calm = make_trained(None, *(0.08 * wobble for wobble in WOBBLE), mode="reduce-overhead")
    answer = choose(tmp_path, disturbed, calm)
    assert answer.recommended == "reduce-overhead"
    assert answer.ruled_out == ("default: disturbed: neighbours on the host",)


def test_neighbours_of_a_loop_on_a_gpu_count_as_those_of_a_step(read: Read) -> None:
    loops = (0.05 * wobble for wobble in WOBBLE)
    said = conclude_on(read(make_trained(None, *loops, device="cuda", flags=("host_busy",))))
    assert said.startswith("script train.py: compile default: loop 2.00x ")


def test_one_line_recommends_one_mode_of_a_script(tmp_path: Path) -> None:
    """The step of `default` gains most and the loop of `reduce-overhead`; what the table recommends
    is what is said.
    """
    faster = make_trained(None, 0.05, mode="reduce-overhead", device="cuda")
    slower = make_trained(None, 0.08, device="cuda")
    slower = replace(
        slower, processes=(replace(make_process(3.0), script=slower.processes[0].script),)
    )
    report = make_report([SweepFolder(write_sweep(tmp_path, [faster, slower]))])
    (answer,) = report.findings.answers
    assert answer.chosen is not None
    assert (answer.recommended, answer.chosen.of_loop) == ("reduce-overhead", True)
    assert answer.gain == pytest.approx(2.0)
    steps = COMPILE_S / (0.1 - 0.05)
    assert answer.chosen.entry.result.break_even_steps.value == pytest.approx(steps)
    steps_alone = {
        script.entry.record.trial.mode: ratio_of(script.entry.result.speedup)
        for script in report.findings.scripts
    }
    assert steps_alone == {
        "reduce-overhead": pytest.approx(2.0),
        "default": pytest.approx(3.0),
    }
    said = [line for line in report.verdict.sentences if line.startswith("Script")]
    assert len(said) == 1
    assert said[0].startswith(
        "Script train.py: reduce-overhead, unsure: loop 2.00x (1.44 to 2.77), step 2.00x; "
        "pays back after 800 steps (1 min 20 s)"
    )


def verdict_of(tmp_path: Path, *records: Record, limits: Limits = NO_LIMITS) -> list[str]:
    return say([write_sweep(tmp_path, records)], limits)


def say(sweeps: Sequence[Path], limits: Limits = NO_LIMITS) -> list[str]:
    found = make_report([SweepFolder(folder) for folder in sweeps], limits).verdict.sentences
    return [line for line in found if line.startswith("Script")]


def test_scripts_of_one_name_have_a_sentence_each(tmp_path: Path) -> None:
    records = [
        make_trained(None, 0.05, 0.0501, 0.0499, path="a/train.py"),
        make_trained(None, 0.11, 0.1101, 0.1099, path="b/train.py"),
    ]
    first, second = verdict_of(tmp_path, *records)
    assert first.startswith("Script train.py: compile default: loop 2.00x [")
    assert second.startswith(
        "Script train.py: stay eager: default is less than 1.05x as fast as eager; "
        "measured loop 0.91x ["
    )


def test_of_two_sweeps_the_sentence_has_the_figures_of_the_trial_that_counts(
    tmp_path: Path,
) -> None:
    old, new = (make_trained(None, compiled_s) for compiled_s in (0.05, 0.09))
    (said,) = say([write_sweep(tmp_path, [old], "old"), write_sweep(tmp_path, [new], "new")])
    assert "loop 1.11x" in said


def test_eager_against_eager_is_no_answer_about_compiling(tmp_path: Path) -> None:
    eager = make_trained(None, 0.1, mode="eager", device="cuda")
    (said,) = verdict_of(tmp_path, eager, make_trained(None, 0.14, device="cuda"))
    assert "loop 0.71x" in said
    failed = make_trained(None, 0.1, device="cuda", status="compile_error", phase="compiling")
    assert verdict_of(tmp_path / "failed", eager, failed) == [
        "Script train.py: open: default: compile_error while compiling."
    ]


def test_a_length_of_the_report_is_not_that_of_the_command(tmp_path: Path) -> None:
    """Compiling pays back after 2,000 steps: not within 1,000, and within the 10,000 of the
    command.
    """
    record = make_trained(10_000, 0.08, 0.0801, 0.0799)
    (said,) = verdict_of(tmp_path, record)
    assert said.startswith("Script train.py: compile default: loop 1.25x [")
    assert said.endswith(
        "; over 10,000 steps compiling saves 2 min 40 s (2 min 38 s to 2 min 42 s)."
    )
    (said,) = verdict_of(tmp_path / "short", record, limits=Limits(steps=1_000))
    assert said.startswith("Script train.py: stay eager: default pays back after 2,000 steps")
    assert "pays back after 2,000 steps, and the job has 1,000; measured " in said
    assert "over" not in said


def test_a_loop_is_not_compared_with_a_step(tmp_path: Path) -> None:
    without = make_trained(None, 0.08, device="cuda")
    script = replace(
        without.processes[0].script or ScriptRun(), loop_eager=None, loop_compiled=None
    )
    without = replace(without, processes=(replace(make_process(3.0), script=script),))
    loop = make_trained(None, 0.08, 0.0801, 0.0799, mode="reduce-overhead", device="cuda")
    answer = choose(tmp_path, without, loop)
    assert answer.recommended == "reduce-overhead"
    assert answer.gain == pytest.approx(1.25)
    assert answer.ruled_out == ("default: its loop was not timed",)


def test_a_script_whose_loop_was_not_timed_is_answered_by_its_step(tmp_path: Path) -> None:
    record = make_trained(None, 0.08, device="cuda")
    process = replace(make_process(3.0), script=ScriptRun(modules=("Net",)))
    answer = choose(tmp_path, replace(record, processes=(process,)))
    assert str(answer).startswith("default, unsure: step 3.00x (2.94 to 3.06); pays back after")


def change_scripts(record: Record, **changes: Any) -> Record:
    """The record with these changes in what was seen of the script in each process."""
    processes = []
    for process in record.processes:
        script = replace(process.script or ScriptRun(), **changes)
        processes.append(replace(process, script=script))
    return replace(record, processes=tuple(processes))


def end_after(steps: int, record: Record) -> Record:
    """The record of a script that ended by itself after so many steps."""
    return change_scripts(record, length=steps)


def test_ranks_that_train_apart_are_in_the_verdict(tmp_path: Path) -> None:
    record = make_trained(None, 0.08, 0.0801, 0.0799)
    (said,) = verdict_of(tmp_path, change_scripts(record, apart="rank 1: layer.weight"))
    assert "its ranks train apart, in eager too" in said


def test_a_script_that_ended_before_compiling_paid_back_stays_eager(tmp_path: Path) -> None:
    """Compiling pays back after 2,000 steps, and sweeper has seen the script end after 96."""
    loops = (0.08, 0.0801, 0.0799)
    (said,) = verdict_of(tmp_path, end_after(96, make_trained(None, *loops)))
    assert said.startswith("Script train.py: stay eager: default pays back after 2,000 steps, and ")
    assert "and the job has 96; measured loop 1.25x [" in said
    assert "; over the script's own 96 steps compiling loses 38 s (38 s to 38 s)." in said
    (said,) = verdict_of(tmp_path / "long", end_after(10_000, make_trained(None, *loops)))
    assert said.startswith("Script train.py: compile default: loop 1.25x [")
    assert "; over the script's own 10,000 steps compiling saves 2 min 40 s (" in said


def test_a_length_that_the_user_names_goes_before_that_of_the_script(tmp_path: Path) -> None:
    record = end_after(96, make_trained(10_000, 0.08, 0.0801, 0.0799))
    answer = choose(tmp_path, record)
    assert (answer.verdict, answer.limits.steps) == (COMPILE, 10_000)
    folder = write_sweep(tmp_path / "asked", [record])
    (answer,) = Findings(load([folder]).entries, Limits(steps=1_000)).answers
    assert (answer.verdict, answer.limits.steps) == (STAY, 1_000)


def test_a_saving_that_is_too_small_does_not_speak_against_staying_eager(tmp_path: Path) -> None:
    record = make_trained(1_000_000, 0.0985, 0.0986, 0.0984)
    (said,) = verdict_of(tmp_path, record)
    assert said.startswith("Script train.py: stay eager: default is less than 1.05x as fast as ")
    assert "over 1,000,000 steps compiling saves 24 min" in said
    assert said.endswith("), less than 5 % of the time in eager.")


def test_a_loop_that_nothing_explains_is_named_with_both_figures(read: Read) -> None:
    record = make_trained(None, device="cuda", flags=("unexplained",))
    answer = read(replace(record, processes=(IMAGENET,)))
    said = "the loop's speedup is 1.11x, and its step and loader explain 1.29x: other work of the"
    assert [line for line in answer.findings if line.startswith(said)]
    quiet = read(replace(record, flags=(), processes=(IMAGENET,)))
    assert not any("explain" in line for line in quiet.findings)


def test_a_script_whose_rounds_were_all_void_says_nothing_of_the_compiler(tmp_path: Path) -> None:
    record = make_trained(None, 0.08, status="runtime_error", phase="measuring")
    void = replace(
        record.processes[0], rounds=(Round("AB", 1.0, 1.0, READ_LOADER),) * MAX_VOID_ROUNDS
    )
    answer = choose(tmp_path, replace(record, processes=(void,)))
    assert (answer.verdict, answer.best) == (OPEN, None)
    assert answer.why_not == "default: runtime_error while measuring"


@pytest.mark.parametrize(("recompiles", "said"), [(0, None), (1, "once in"), (7, "7 times in")])
def test_a_loop_that_compiles_while_it_is_timed_is_named(
    read: Read, recompiles: int, said: str | None
) -> None:
    record = make_trained(None, 0.08)
    script = record.processes[0].script
    assert script is not None
    assert script.loop_compiled is not None
    script = replace(script, loop_compiled=replace(script.loop_compiled, recompiles=recompiles))
    answer = read(replace(record, processes=(replace(record.processes[0], script=script),)))
    found = [line for line in answer.findings if line.startswith("the loop compiled")]
    assert found == (
        []
        if said is None
        else [f"the loop compiled {said} {script.loop_compiled.steps} steps, after the first steps"]
    )
