"""Trials of an ablation: when a feature's code is timed, and how many processes it and its default
get.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from stand_in_worker import GOOD, folder

from sweeper.analysis.derive import derive
from sweeper.core.ablation import change
from sweeper.core.files import write_text
from sweeper.core.record import Record
from sweeper.core.settings import Settings
from sweeper.core.trial import Trial
from sweeper.execution.draft import Draft
from sweeper.execution.scheduler import PhaseBegan

CODED = """
made = replace(process(), accuracy=Accuracy("float64", True), code_fingerprint=CODE)
if ask().known.timed == CODE:
    made = replace(made, rounds=())
say(Outcome("ok", process=made))
"""


def write_default(trial: Trial, record: Record) -> None:
    write_text(folder(trial) / "record.json", record.dumps())


def test_code_of_the_default_is_not_timed_again(run, trial: Trial) -> None:
    write_default(trial, run("CODE = 'same'" + CODED))
    feature = change(trial, "epilogue_fusion")
    record = run("CODE = 'same'" + CODED, of=feature, processes=None)
    assert (record.status, record.message) == (
        "ok",
        "no effect: its code is that of the default, so it was not timed",
    )
    assert [process.rounds for process in record.processes] == [()]
    assert derive(record).speedup is None
    other = run("CODE = 'other'" + CODED, of=feature)
    assert (other.message, len(other.processes[0].rounds)) == (None, 1)


def test_no_worker_ends_untimed_unless_its_code_was_timed(run, trial: Trial) -> None:
    """Nor where a feature may do more than change the code."""
    untimed = "made = replace(process(), rounds=(), code_fingerprint='same')\n" + (
        "say(Outcome('ok', process=made))"
    )
    feature = change(trial, "epilogue_fusion")
    lie = "the worker's answer cannot be true: it is ok and has no round that counts"
    assert run(untimed, of=feature).message == lie
    write_default(trial, run("CODE = 'same'" + CODED))
    assert run(untimed, of=change(trial, "cuda_graphs")).message == lie


def test_code_of_the_default_is_timed_in_later_processes(run, trial: Trial) -> None:
    """What is autotuned may choose the default's kernels in another draw."""
    write_default(trial, run("CODE = 'same'" + CODED))
    body = "CODE = 'same' if a.index else 'other'" + CODED
    record = run(body, of=change(trial, "autotuned_gemm"), processes=2, draws=2)
    assert (record.status, record.message) == ("ok", None)
    assert [len(process.rounds) for process in record.processes] == [1] * 4


def test_the_code_of_a_default_is_that_of_its_first_process_that_has_some(
    run, trial: Trial
) -> None:
    write_default(trial, run("CODE = 'same' if a.index else ''" + CODED, processes=2))
    record = run("CODE = 'same'" + CODED, of=change(trial, "epilogue_fusion"))
    assert (record.message or "").startswith("no effect: its code")


@pytest.mark.parametrize(
    ("default", "speedups", "processes"),
    [
        ("2", "2.0", 1),  # as fast as the default
        ("2", "2.5", 2),  # faster
        ("2", "1.07", 2),  # much slower than the default, though hardly faster than eager
        # surely faster than eager, and neither alike nor faster than the default
        ("2", "2.1 2.12", 4),
        # the default, from 1.77 to 2.26, is too uncertain to tell
        ("1.9 2 2.1", "2.1 2.12", 2),
        # the interval holds the default, to which it would be alike if it were known to lie there
        ("1.965 2 2.035", "1.992 2.008", 3),
    ],
)
def test_a_feature_gets_processes_until_more_would_not_tell_it_from_the_default(
    run,
    trial: Trial,
    monkeypatch: pytest.MonkeyPatch,
    default: str,
    speedups: str,
    processes: int,
) -> None:
    on_gpu = replace(trial, device="cuda")
    monkeypatch.setenv("SPEEDUPS", default)
    write_default(on_gpu, run("CODE = 'one'" + CODED, of=on_gpu, processes=3))
    monkeypatch.setenv("SPEEDUPS", speedups)
    record = run("CODE = 'two'" + CODED, of=change(on_gpu, "combo_kernels"), processes=None)
    assert len(record.processes) == processes


@pytest.mark.parametrize(("ended", "processes"), [("2 2 2", 1), ("2.5 2.5 2.5", 2)])
def test_a_feature_that_began_before_its_default_ended_is_judged_by_all_of_its_processes(
    run, trial: Trial, monkeypatch: pytest.MonkeyPatch, ended: str, processes: int
) -> None:
    on_gpu = replace(trial, device="cuda")
    monkeypatch.setenv("SPEEDUPS", ended)
    whole = run("CODE = 'one'" + CODED, of=on_gpu, processes=3)
    default = Draft(on_gpu, Settings("s"))
    default.record = replace(whole, processes=whole.processes[:1], wall_s=None)
    phases = []

    def end_default(began: PhaseBegan) -> None:
        phases.append(began.phase)
        if began.phase == "waiting":
            default.record = whole

    monkeypatch.setenv("SPEEDUPS", "2")
    feature, body = change(on_gpu, "combo_kernels"), "CODE = 'two'" + CODED
    record = run(body, of=feature, default=default, on_phase=end_default, processes=None)
    assert len(record.processes) == processes
    assert phases.count("waiting") == 1, "until the default has ended"


@pytest.mark.parametrize("begins_anew", ["before", "while it compiles"])
def test_a_default_that_begins_anew_costs_its_features_nothing(
    run, trial: Trial, monkeypatch: pytest.MonkeyPatch, begins_anew: str
) -> None:
    """As one does that is repeated alone on its device, before a feature begins or meanwhile."""
    whole = run("CODE = 'same'" + CODED, processes=3)
    default = Draft(trial, Settings("s"))
    if begins_anew != "before":
        default.record = replace(whole, wall_s=None)

    def begin_anew(began: PhaseBegan) -> None:
        if began.phase == "compiling":
            default.begin()
        if began.phase == "waiting":
            default.record = whole

    body = f"""CODE = 'same'
known = ask().known
assert known.timed == {None if begins_anew == "before" else "same"!r}
say(Phase('compiling'))
made = replace(process(), accuracy=Accuracy('float64', True), code_fingerprint=CODE)
say(Outcome('ok', process=replace(made, rounds=()) if known.timed else made))
"""
    feature = change(trial, "combo_kernels")
    record = run(body, of=feature, default=default, on_phase=begin_anew, processes=1)
    assert record.status == "ok", record.message
    assert (record.message is None) is (begins_anew == "before")


def test_a_feature_that_is_all_code_is_told_apart_by_the_time_of_the_device(
    run, trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By wall clock neither feature is known to be as fast as the default."""
    on_gpu = replace(trial, device="cuda")
    monkeypatch.setenv("DEVICE_SPEEDUPS", "2")
    write_default(on_gpu, run("CODE = 'one'" + CODED, of=on_gpu, processes=2))
    monkeypatch.setenv("SPEEDUPS", "2.1 2.12")
    for feature, wanted in (("combo_kernels", 1), ("cuda_graphs", 4)):
        record = run("CODE = 'two'" + CODED, of=change(on_gpu, feature), processes=None)
        assert len(record.processes) == wanted


@pytest.mark.parametrize(("feature", "processes"), [("cuda_graphs", 5), ("combo_kernels", 3)])
def test_a_default_that_waits_for_its_host_gets_an_interval_where_wall_time_is_compared(
    run, trial: Trial, monkeypatch: pytest.MonkeyPatch, feature: str, processes: int
) -> None:
    monkeypatch.setenv("DEVICE_SPEEDUPS", "2.5")
    on_gpu = replace(trial, device="cuda")
    record = run("CODE = 'one'" + CODED, of=on_gpu, features=[feature], processes=None)
    assert derive(record).host_bound_arms == "compiled"
    assert len(record.processes) == processes


@pytest.mark.parametrize(
    ("features", "speedups", "processes"),
    [
        ([], "2 2.002", 2),  # surely faster than eager
        (["combo_kernels"], "2 2.002", 3),
        (["combo_kernels"], "2 2.05", 4),  # within 3.6 % after three
        (["combo_kernels"], "2 2.1", 5),
    ],
)
def test_a_default_gets_processes_until_a_feature_can_be_told_from_it(
    run,
    trial: Trial,
    monkeypatch: pytest.MonkeyPatch,
    features: list[str],
    speedups: str,
    processes: int,
) -> None:
    monkeypatch.setenv("SPEEDUPS", speedups)
    monkeypatch.setenv("DEVICE_SPEEDUPS", speedups)
    on_gpu = replace(trial, device="cuda")
    record = run("CODE = 'one'" + CODED, of=on_gpu, features=features, processes=None)
    assert len(record.processes) == processes


def test_a_feature_whose_default_failed_goes_on_as_any_trial_does(run, trial: Trial) -> None:
    on_gpu = replace(trial, device="cuda")
    write_default(on_gpu, run("say(Outcome('compile_error'))", of=on_gpu))
    record = run("CODE = 'two'" + CODED, of=change(on_gpu, "combo_kernels"), processes=None)
    assert len(record.processes) == 2


def test_a_feature_may_not_compile_for_ever_unless_the_user_says_how_long(
    run, trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sweeper.execution.trial_runner.MIN_COMPILE_LIMIT_S", 1)
    done = (
        "made = replace(process(), phases_s={'compiling': 0.3})\nsay(Outcome('ok', process=made))"
    )
    write_default(trial, run(f"time.sleep(0.3)\n{done}"))
    feature = change(trial, "combo_kernels")
    record = run(f"say(Phase('compiling')); time.sleep(60)\n{GOOD}", of=feature)
    limit = "still compiling after measure.phase_timeouts_s.compiling=2"
    assert (record.status, record.message) == ("timeout", limit)
    slow = f"say(Phase('compiling')); time.sleep(2.5)\n{GOOD}"
    assert run(slow, of=feature, phase_timeouts_s={"compiling": 60.0}).status == "ok"
