from __future__ import annotations

import math
from dataclasses import replace

import flag_docs
import pytest
from records import make_process, make_record, make_trial
from script_records import IMAGENET, make_loop, make_trained

from sweeper.analysis import meanings
from sweeper.analysis.derive import derive, predict_loop_speedup
from sweeper.analysis.flags import (
    CLOCKS_DIFFER,
    DOUBT,
    DOUBTS,
    FLAGS,
    MAX_CLOCK_DIFFERENCE,
    MAX_RECOMPILED,
    MOVES,
    OF_PROCESS,
    OF_TRIAL,
    RANKS,
    UNVERIFYING,
    find_disturbances,
    find_flags,
    is_resolved,
)
from sweeper.analysis.result import Result
from sweeper.analysis.stats import Estimate
from sweeper.core.record import (
    STATUSES,
    Accuracy,
    Attempt,
    Diagnostics,
    GpuState,
    HostState,
    PerArm,
    Process,
    Record,
    Round,
)
from sweeper.core.settings import Measure

MAX_SAYS = 100  # characters of a tooltip and of a line of the legend
QUIET = GpuState(
    PerArm(1980.0, 1980.0),
    PerArm(400.0, 410.0),
    PerArm(40.0, 41.0),
    slowdowns=(),
    other_processes=0,
)
RIGHT = Accuracy("float64", True)


def quiet(index: int = 0, **changes: object) -> Process:
    """A process that nothing is to be said of."""
    process = replace(
        make_process(index=index),
        warm_up_flat=True,
        accuracy=RIGHT,
        gpu=QUIET,
        host=HostState(0, 0, 0),
    )
    return replace(process, **changes)  # type: ignore[arg-type]


def flags(*processes: Process, measure: Measure | None = None, **changes: object) -> set[str]:
    record = replace(make_record(), processes=processes or (quiet(), quiet(1)), **changes)  # type: ignore[arg-type]
    return set(find_flags(record, derive(record), measure or Measure()))


def test_quiet_trial_has_no_flag() -> None:
    assert flags() == set()


@pytest.mark.parametrize(
    ("flag", "changes"),
    [
        ("unsteady", {"warm_up_flat": False}),
        ("unsteady", {"rounds": (Round("AB", 0.2, 0.1), Round("BA", 0.2, 0.106))}),
        ("recompiled", {"rounds": (Round("AB", 0.2, None, "recompiled"), Round("BA", 0.2, 0.1))}),
        ("shared_gpu", {"gpu": replace(QUIET, other_processes=1)}),
        ("throttled", {"gpu": replace(QUIET, slowdowns=("thermal",))}),
        ("gpu_unobserved", {"gpu": None}),
        ("gpu_unobserved", {"gpu": replace(QUIET, slowdowns=None)}),
        ("gpu_unobserved", {"gpu": replace(QUIET, other_processes=None)}),
        ("clock_mismatch", {"gpu": replace(QUIET, clock_mhz=PerArm(1980.0, 1950.0))}),
        ("compile_contended", {"host": HostState(busy_while_compiling=0.11)}),
        ("host_busy", {"host": HostState(busy_while_measuring=0.11)}),
        ("host_busy", {"host": HostState(throttled_s=0.01)}),  # the rounds took 0.6 s
        ("accuracy_unverified", {"accuracy": Accuracy(None, None, "no reference")}),
        ("accuracy_unverified", {"accuracy": None}),
        ("unequal_settings", {"changed_settings": {"matmul_allow_tf32 after compiled": True}}),
    ],
)
def test_what_one_process_saw_flags_the_trial(flag: str, changes: dict[str, object]) -> None:
    assert flags(quiet(), quiet(1, **changes)) == {flag}


@pytest.mark.parametrize(
    "changes",
    [
        {"rounds": (Round("AB", 0.2, 0.1), Round("BA", 0.2, 0.104))},
        {"rounds": (Round("AB", 0.2, 0.1), Round("BA", 0.4, 0.4, "another process used the GPU"))},
        {"gpu": replace(QUIET, clock_mhz=PerArm(1980.0, 1965.0))},
        {"gpu": replace(QUIET, clock_mhz=PerArm())},
        {"gpu": None, "rounds": ()},
        {"host": None},
        {"host": HostState(0.09, 0.09, 0.001)},
        # eager against eager compiles nothing
        {"host": HostState(busy_while_compiling=0.5), "compile_s": None},
    ],
)
def test_what_stays_within_the_rules_is_not_flagged(changes: dict[str, object]) -> None:
    assert flags(quiet(**changes), quiet(1)) == set()


def test_a_cpu_has_no_gpu_to_observe() -> None:
    assert flags(quiet(gpu=None), quiet(1), trial=make_trial(device="cpu")) == set()


def test_eager_that_differs_from_itself_is_unverified_as_well() -> None:
    accuracy = Accuracy("float64", None, "eager differs from itself", nondeterministic=True)
    assert flags(quiet(accuracy=accuracy), quiet(1)) == {
        "eager_nondeterministic",
        "accuracy_unverified",
    }


CODE = {"code_fingerprint": "a", "autotuning_fingerprint": "x"}


@pytest.mark.parametrize("status", ["accuracy_mismatch", "crashed"])
def test_a_trial_that_failed_before_is_flagged_whatever_became_of_it(status: str) -> None:
    attempts = (Attempt(status, artifacts=("other-x",)),)
    assert flags(quiet(**CODE), quiet(1, **CODE), attempts=attempts) == {"failed_before"}
    assert flags(quiet(**CODE), quiet(1, **CODE), attempts=attempts, status="timeout") == {
        "failed_before"
    }


@pytest.mark.parametrize(
    ("status", "artifacts", "now", "unverified"),
    [
        ("accuracy_mismatch", ("a-x", "b-x"), CODE, True),
        ("accuracy_mismatch", ("b-x",), CODE, False),
        ("accuracy_mismatch", ("a-y",), CODE, False),
        ("accuracy_mismatch", (), CODE, False),
        ("accuracy_mismatch", ("a-x",), {}, False),
        ("accuracy_mismatch", (), {}, True),
        ("crashed", ("a-x",), CODE, False),
    ],
    ids=[
        "one of several",
        "other code",
        "tuned otherwise",
        "unknown then",
        "unknown now",
        "never known",
        "not wrong",
    ],
)
def test_code_that_gave_a_wrong_result_once_is_not_verified_by_a_right_one(
    status: str, artifacts: tuple[str, ...], now: dict[str, object], unverified: bool
) -> None:
    attempts = (Attempt(status, artifacts=artifacts), Attempt("timeout"))
    found = flags(quiet(**now), quiet(1, **now), attempts=attempts)
    assert found == {"failed_before", *(["accuracy_unverified"] if unverified else [])}


def test_a_trial_that_failed_again_is_not_called_unverified() -> None:
    attempts = (Attempt("accuracy_mismatch", artifacts=("a-x",)),)
    assert flags(quiet(**CODE), attempts=attempts, status="accuracy_mismatch") == {"failed_before"}


def test_every_flag_has_a_rule_and_every_status_and_flag_has_texts() -> None:
    with_rule = OF_PROCESS.keys() | OF_TRIAL.keys()
    assert FLAGS.keys() - with_rule == {"unresolved", "eager_moved"}
    assert with_rule < FLAGS.keys()
    assert tuple(meanings.STATUSES) == STATUSES
    assert {flag.rank for flag in FLAGS.values()} == RANKS.keys()
    assert {name for name, flag in FLAGS.items() if flag.rank == DOUBT} == DOUBTS
    disturbances = {name for name, flag in FLAGS.items() if flag.cause}
    assert disturbances == MOVES.keys()
    assert disturbances | UNVERIFYING == DOUBTS
    assert {"accuracy_unverified", "trains_differently"} == UNVERIFYING
    for meaning in (*meanings.STATUSES.values(), *FLAGS.values(), *meanings.CAUSES.values()):
        assert "`" not in meaning.says  # tooltips have no markup
        assert len(meaning.says) <= MAX_SAYS


def test_docs_on_flags_are_made_of_the_texts() -> None:
    assert flag_docs.FILE.read_text() == flag_docs.text(), "make golden"


def test_single_process() -> None:
    assert flags(quiet()) == {"single_process"}


def test_host_bound_from_the_median_over_processes() -> None:
    # A step takes 20 ms in eager and 10 ms compiled; the compiled device time leaves 8 % of it
    # waiting.
    waiting = {"device_time_s": PerArm(0.0199, 0.0092), "device_kernels": PerArm(10, 10)}
    assert flags(quiet(**waiting), quiet(1, **waiting)) == {"host_bound"}
    busy = {"device_time_s": PerArm(0.0199, 0.0096), "device_kernels": PerArm(10, 10)}
    assert flags(quiet(**busy), quiet(1, **busy)) == set()


@pytest.mark.parametrize(
    ("host_s", "little"),
    [(PerArm(0.0155, 0.0075), False), (PerArm(0.0165, 0.005), True), (PerArm(0.005, 0.0085), True)],
    ids=["below in both arms", "eager", "compiled"],
)
def test_little_headroom_of_the_worse_arm(host_s: PerArm, little: bool) -> None:
    known = {"host_step_s": host_s, "device_step_s": PerArm(0.02, 0.01)}
    assert flags(quiet(**known), quiet(1, **known)) == ({"little_headroom"} if little else set())


def test_a_host_bound_trial_has_no_headroom_to_warn_of() -> None:
    waiting = {"device_time_s": PerArm(0.0199, 0.0092), "device_kernels": PerArm(10, 10)}
    known = {
        **waiting,
        "host_step_s": PerArm(0.01, 0.0098),
        "device_step_s": PerArm(0.0199, 0.0092),
    }
    assert flags(quiet(**known), quiet(1, **known)) == {"host_bound"}


def test_several_artifacts_in_one_draw() -> None:
    prints = {"code_fingerprint": "a", "autotuning_fingerprint": "x"}
    assert flags(quiet(**prints), quiet(1, **prints)) == set()
    assert flags(quiet(**prints), quiet(1, **{**prints, "autotuning_fingerprint": "y"})) == {
        "several_artifacts"
    }
    assert (
        flags(quiet(**prints), quiet(1, draw=1, **{**prints, "autotuning_fingerprint": "y"}))
        == set()
    )


@pytest.mark.parametrize(("cached", "slower"), [(1.8, True), (1.95, False), (2.4, False)])
def test_a_step_from_a_cache_is_compared_with_the_one_that_was_compiled(
    cached: float, slower: bool
) -> None:
    processes = [
        replace(quiet(index), rounds=make_process(speedup).rounds)
        for index, speedup in enumerate((2.0, cached, cached))
    ]
    assert [process.cold for process in processes] == [True, False, False]
    assert ("slower_from_cache" in flags(*processes)) is slower


def test_facts_of_the_compiler() -> None:
    assert flags(diagnostics=Diagnostics(graphs_run_eager=1)) == {"partly_eager"}
    assert flags(diagnostics=Diagnostics(cudagraph_skips=("mutated inputs",))) == {
        "cudagraphs_skipped"
    }
    ran = {"attention_ran_eager": "cudnn", "attention_ran_compiled": ""}
    assert flags(diagnostics=Diagnostics(settings=ran)) == {"attention_differs"}
    assert (
        flags(diagnostics=Diagnostics(settings={**ran, "attention_ran_compiled": "cudnn"})) == set()
    )


@pytest.mark.parametrize(
    ("speedups", "unresolved"), [((2.0, 2.001, 2.0, 2.001, 2.0), False), ((2.0, 3.0), True)]
)
def test_target_that_was_not_reached(speedups: tuple[float, ...], unresolved: bool) -> None:
    processes = [
        replace(quiet(index), rounds=make_process(speedup, index=index).rounds)
        for index, speedup in enumerate(speedups)
    ]
    assert ("unresolved" in flags(*processes, measure=Measure(target=0.01))) is unresolved
    assert "unresolved" not in flags(*processes)


def test_blocks_on_a_cpu_may_scatter_twice_as_far() -> None:
    rounds = (Round("AB", 0.2, 0.1), Round("BA", 0.2, 0.109))
    record: Record = make_record(trial=make_trial(device="cpu"))
    record = replace(record, processes=(quiet(rounds=rounds, gpu=None), quiet(1, gpu=None)))
    assert find_flags(record, derive(record), Measure()) == ()


@pytest.mark.parametrize(
    ("flag", "changes"),
    [
        ("random_in_step", {"accuracy": replace(RIGHT, random_in_step=True)}),
        ("clock_mismatch", {"gpu": replace(QUIET, clock_mhz=PerArm(1950.0, 1980.0))}),
    ],
)
def test_what_else_one_process_saw(flag: str, changes: dict[str, object]) -> None:
    assert flags(quiet(), quiet(1, **changes)) == {flag}


def test_random_numbers_of_dropout_are_no_surprise() -> None:
    trial = make_trial()
    dropped = replace(trial, model=replace(trial.model, dropout=True))
    assert (
        flags(quiet(accuracy=replace(RIGHT, random_in_step=True)), quiet(1), trial=dropped) == set()
    )


def test_a_smaller_batch_and_a_program_without_kernels_are_flagged() -> None:
    assert flags(smaller_batch_size=8) == {"smaller_batch"}
    assert flags(diagnostics=Diagnostics(kernels=0)) == {"no_kernels"}
    assert flags(diagnostics=Diagnostics(kernels=1)) == set()


def test_limits_of_shares_are_still_allowed() -> None:
    """A tenth of the host, a hundredth of 0.6 s of rounds, four fifths of the device step time, a
    target as wide.
    """
    assert flags(quiet(host=HostState(0.10, 0.10, 0.006)), quiet(1)) == set()
    assert flags(quiet(host=HostState(throttled_s=0.0061)), quiet(1)) == {"host_busy"}
    rounds = (
        Round("AB", 0.125, 0.1),
        Round("BA", 0.125, None, "recompiled"),
        Round("BA", 0.125, 0.1),
    )
    assert flags(quiet(rounds=rounds), quiet(1)) == {"recompiled"}


LOOPS = {
    "PyTorch's ImageNet example": (IMAGENET, 1.287, True),
    "the rest of the loop takes as long": (make_loop((0.1, 0.2), (0.05, 0.15)), 0.2 / 0.15, False),
    "the loader is what takes the time": (
        make_loop((0.1, 0.2), (0.05, 0.19), (0.09, 0.13)),
        0.2 / 0.19,
        False,
    ),
    # on a GPU a script may wait for its loader while the device computes
    "waits that the device hides": (
        make_loop((0.1, 0.1), (0.06, 0.06), (0.06, 0.025)),
        0.1 / 0.06,
        False,
    ),
    "the loop gains more than its step": (make_loop((0.1, 0.1), (0.1, 0.05)), 1.0, True),
    "several shapes": (make_loop((0.1, 0.1), (0.05, 0.09), num_shapes=9), None, False),
}


@pytest.mark.parametrize("case", LOOPS)
def test_a_loop_that_its_step_and_its_loader_do_not_explain(case: str) -> None:
    process, predicted, unexplained = LOOPS[case]
    record = replace(make_trained(None, device="cuda"), processes=(process,))
    result = derive(record)
    assert predict_loop_speedup(result) == pytest.approx(predicted, rel=1e-3)
    assert ("unexplained" in find_flags(record, result, Measure())) is unexplained


def test_a_difference_within_the_intervals_needs_no_explanation() -> None:
    """Three processes whose loops lie further apart than the loop from what the step gives."""
    found = []
    for spread in (0.002, 0.2):
        processes = []
        for index, factor in enumerate((1 - spread, 1, 1 + spread)):
            process = make_loop((0.1, 0.1), (0.05, 0.058 * factor))
            processes.append(replace(process, index=index))
        record = replace(make_trained(None, device="cuda"), processes=tuple(processes))
        found.append("unexplained" in find_flags(record, derive(record), Measure()))
    assert found == [True, False]


def test_target_is_half_of_the_intervals_width() -> None:
    # t(4) = 2.776445
    speedup = Estimate(math.log(2.0), (0.01 / 2.776445) ** 2, degrees=4)
    result = Result(processes=5, draws=1, speedup=speedup)
    assert is_resolved(result, 0.0101)
    assert not is_resolved(result, 0.0099)
    assert not is_resolved(replace(result, speedup=Estimate(math.log(2.0))), 1.0)
    assert not is_resolved(replace(result, speedup=None), 1.0)


@pytest.mark.parametrize(
    ("flag", "changes", "share"),
    [
        ("clock_mismatch", {"gpu": replace(QUIET, clock_mhz=PerArm(1980.0, 1800.0))}, 0.10),
        ("clock_mismatch", {"gpu": replace(QUIET, clock_mhz=PerArm(1800.0, 2000.0))}, 0.10),
        ("clock_mismatch", {"gpu": None}, 0.0),
        ("throttled", {"gpu": replace(QUIET, clock_mhz=PerArm(1980.0, 1800.0))}, 0.10),
        ("throttled", {}, MAX_CLOCK_DIFFERENCE),
        # a fifth of the cores is gone, so what takes four fifths of a second takes a second
        ("host_busy", {"host": HostState(busy_while_measuring=0.2)}, 0.25),
        ("host_busy", {"host": HostState(throttled_s=0.12)}, 0.25),  # the rounds took 0.6 s
        ("host_busy", {"host": HostState(0.0, 0.1, 0.06)}, 0.25),
        ("host_busy", {"host": HostState(busy_while_measuring=1.0)}, 99.0),
        ("host_busy", {"host": HostState(0.0, 0.2, 0.1), "rounds": ()}, 0.25),
        ("host_busy", {"host": None}, 0.0),
        ("recompiled", {}, MAX_RECOMPILED),
        ("shared_gpu", {}, math.inf),
        ("unequal_settings", {}, math.inf),
    ],
)
def test_a_disturbance_may_move_a_speedup_by_a_share_that_the_process_tells(
    flag: str, changes: dict[str, object], share: float
) -> None:
    assert MOVES[flag](quiet(**changes)) == pytest.approx(share)


def test_disturbances_have_the_share_of_the_process_that_they_moved_most() -> None:
    clocks = (PerArm(1980.0, 1950.0), PerArm(1980.0, 1800.0), PerArm(1980.0, 1980.0))
    processes = tuple(
        quiet(index, gpu=replace(QUIET, clock_mhz=clock)) for index, clock in enumerate(clocks)
    )
    found = ("clock_mismatch", "recompiled")
    record = replace(make_record(), processes=processes, flags=found)
    assert find_disturbances(record) == pytest.approx({"clock_mismatch": 0.10, "recompiled": 0.05})


def test_context_what_is_not_verified_and_unknown_flags_disturb_nothing() -> None:
    disturbing = {name for name, flag in FLAGS.items() if flag.cause}
    others = (*(FLAGS.keys() - disturbing), "a_flag_of_a_later_version")
    assert find_disturbances(replace(make_record(), flags=others)) == {}


def test_without_processes_nobody_knows_how_far_a_disturbance_moved_it() -> None:
    record = replace(make_record(), processes=(), flags=("throttled",))
    assert find_disturbances(record) == {"throttled": math.inf}


@pytest.mark.parametrize("flag", [name for name, flag in FLAGS.items() if flag.cause])
def test_a_flag_that_disturbs_moves_a_speedup_by_something(flag: str) -> None:
    """What raises each flag above."""
    raised = {
        "clock_mismatch": {"gpu": replace(QUIET, clock_mhz=PerArm(1980.0, 1950.0))},
        "host_busy": {"host": HostState(throttled_s=0.01)},
    }
    assert MOVES[flag](quiet(**raised.get(flag, {}))) >= 0.01


@pytest.mark.parametrize(
    ("device_ms", "share"),
    [
        pytest.param((19.0, 9.9), 0.02 / 0.019 - 1 + CLOCKS_DIFFER, id="of eager's step"),
        pytest.param((19.9, 9.0), 0.01 / 0.009 - 1 + CLOCKS_DIFFER, id="of the compiled step"),
        pytest.param((20.1, 10.1), CLOCKS_DIFFER, id="nothing"),
        pytest.param((10.0, 9.9), 1.0, id="more than they can have taken"),
        pytest.param((19.0, None), 1.0, id="not known"),
    ],
)
def test_others_on_the_host_take_what_the_device_leaves(
    device_ms: tuple[float | None, float | None], share: float
) -> None:
    """Steps take 20 and 10 ms. Half of the cores are taken, so a step may take twice as long."""
    device_s = PerArm(*(ms and ms / 1e3 for ms in device_ms))
    busy = quiet(host=HostState(busy_while_measuring=0.5), device_step_s=device_s)
    found = find_disturbances(replace(make_record(), processes=(busy,), flags=("host_busy",)))
    assert found == {"host_busy": pytest.approx(share)}


def test_others_on_the_host_may_slow_down_what_a_loop_does_beside_its_steps() -> None:
    record = make_trained(None, 0.01, device="cuda", flags=("host_busy",))
    busy = replace(
        record.processes[0],
        host=HostState(busy_while_measuring=0.5),
        device_step_s=PerArm(0.02, 0.01),
    )
    assert find_disturbances(replace(record, processes=(busy,))) == {"host_busy": 1.0}
