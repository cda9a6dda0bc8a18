from __future__ import annotations

import math
from dataclasses import replace

import pytest
from records import make_process, make_record

from sweeper.analysis.derive import (
    USUAL_GAP_S,
    derive,
    find_break_even,
    find_host_s,
    find_worst_accuracy,
    predict_speedup,
)
from sweeper.analysis.metrics import METRICS
from sweeper.analysis.result import Result
from sweeper.analysis.stats import Estimate, Interval, ratio_of
from sweeper.core.record import Accuracy, LoopRun, PerArm, Process, Record, Round, ScriptRun


def interval_of(result: Result) -> Interval:
    assert result.speedup is not None
    bounds = result.speedup.interval()
    assert bounds is not None
    return bounds


def record_of(*processes: Process, status: str = "ok") -> Record:
    return replace(make_record(), processes=processes, status=status)


@pytest.mark.parametrize(
    "status", ["accuracy_mismatch", "runtime_error", "oom", "timeout", "interrupted"]
)
def test_a_trial_that_is_not_ok_has_no_speedup(status: str) -> None:
    result = derive(record_of(make_process(), make_process(index=1), status=status))
    gains = (
        result.speedup,
        result.device_speedup,
        result.samples_per_s,
        result.speedup_min,
        result.host_bound_fraction,
    )
    assert gains == (None,) * 5
    assert result.break_even_steps == (None, None, None)
    assert (result.interval, result.step_s.compiled) == ("none", None)
    assert result.step_s.eager == pytest.approx(0.02), "the eager side was measured and is right"


def test_a_trial_without_processes_has_no_figures() -> None:
    result = derive(record_of())
    assert (result.processes, result.draws, result.interval) == (0, 0, "none")
    assert {
        result.speedup,
        result.eager_step,
        result.readings.get("compile_cold_s"),
        result.samples_per_s,
    } == {None}


def test_speedup_is_the_geometric_mean_over_processes() -> None:
    # Logs ln 2 and ln 8: mean ln 4, half the difference is ln 2, t(1) = 12.7062.
    result = derive(make_record(speedups=[2.0, 8.0]))
    assert ratio_of(result.speedup) == pytest.approx(4.0)
    assert result.interval == "processes"
    assert interval_of(result).low == pytest.approx(
        4.0 * math.exp(-12.706205 * math.log(2)), rel=1e-5
    )
    assert interval_of(result).high == pytest.approx(
        4.0 * math.exp(12.706205 * math.log(2)), rel=1e-5
    )


def test_one_process_has_a_speedup_and_no_interval() -> None:
    result = derive(make_record(speedups=[2.0]))
    assert result.speedup == Estimate(pytest.approx(math.log(2)), None, count=1)
    assert result.interval == "none"


def test_void_rounds_do_not_count() -> None:
    void = Round("AB", 100.0, 0.001, void="recompiled")
    process = make_process(2.0)
    result = derive(record_of(replace(process, rounds=(*process.rounds, void))))
    assert ratio_of(result.speedup) == pytest.approx(2.0)


def test_a_process_of_void_rounds_only_is_left_out() -> None:
    void = replace(make_process(9.0, index=1), rounds=(Round("AB", 1.0, 0.1, void="shared_gpu"),))
    result = derive(record_of(make_process(2.0), void))
    assert (ratio_of(result.speedup), result.processes) == (pytest.approx(2.0), 1)


def test_step_times_are_medians_over_rounds_and_geometric_means_over_processes() -> None:
    # 10 steps a block. Eager medians: 3 s / 10 and 12 s / 10, so sqrt(0.36) = 0.6 s; compiled 0.1
    # s; batch 32.
    rounds = tuple(Round("AB", eager_s, 1.0) for eager_s in (2.0, 3.0, 100.0))
    later = tuple(Round("BA", eager_s, 1.0) for eager_s in (12.0, 12.0))
    result = derive(
        record_of(
            replace(make_process(), rounds=rounds), replace(make_process(index=1), rounds=later)
        )
    )
    assert result.step_s.eager == pytest.approx(0.6)
    assert result.step_s.compiled == pytest.approx(0.1)
    assert result.samples_per_s == pytest.approx(320)


def test_three_draws_give_an_interval_over_draws() -> None:
    # Means of the logs of the draws, in units of ln 2: (1 + 3) / 2 = 2, 4, 6; mean 4, s^2 = 4, s^2
    # / 3 on 2 degrees.
    processes = [
        make_process(2.0**log, index=i, draw=draw)
        for i, (draw, log) in enumerate([(0, 1), (0, 3), (1, 4), (2, 6)])
    ]
    result = derive(record_of(*processes))
    half = 4.302653 * math.sqrt(4 / 3) * math.log(2)
    assert (result.interval, result.draws, result.processes) == ("draws", 3, 4)
    assert ratio_of(result.speedup) == pytest.approx(16)
    assert interval_of(result).low == pytest.approx(16 * math.exp(-half), rel=1e-5)
    assert interval_of(result).high == pytest.approx(16 * math.exp(half), rel=1e-5)


def test_two_draws_of_one_process_give_the_plain_interval_over_processes() -> None:
    result = derive(record_of(make_process(2.0), make_process(4.0, index=1, draw=1)))
    assert (result.interval, result.draws) == ("processes", 2)
    assert result.speedup == Estimate(
        pytest.approx(1.5 * math.log(2)), pytest.approx(math.log(2) ** 2 / 4), degrees=1, count=2
    )


def test_two_draws_of_several_processes_speak_of_these_draws() -> None:
    # In units of ln 2 draw 0 has 1 and 3, draw 1 has 5, 6 and 7: mean 22 / 5; squares within 2 + 2
    # over 5 - 2 degrees.
    logs = [(0, 1), (0, 3), (1, 5), (1, 6), (1, 7)]
    result = derive(
        record_of(
            *(make_process(2.0**log, index=i, draw=draw) for i, (draw, log) in enumerate(logs))
        )
    )
    half = 3.182446 * math.sqrt(4 / 3 / 5) * math.log(2)
    assert (result.interval, result.draws, result.processes) == ("processes", 2, 5)
    assert ratio_of(result.speedup) == pytest.approx(2 ** (22 / 5))
    assert interval_of(result).low == pytest.approx(2 ** (22 / 5) * math.exp(-half), rel=1e-5)
    assert interval_of(result).high == pytest.approx(2 ** (22 / 5) * math.exp(half), rel=1e-5)


def test_the_range_is_that_of_the_processes() -> None:
    result = derive(make_record(speedups=[2.0, 1.5, 3.0]))
    assert (result.speedup_min, result.speedup_max) == (pytest.approx(1.5), pytest.approx(3.0))
    assert derive(make_record(speedups=[2.0])).speedup_min is None


@pytest.mark.parametrize(
    ("compile_s", "eager_s", "speedup", "steps"),
    [
        (3.0, 0.02, 2.0, 300.0),
        (0.0, 0.02, 2.0, 0.0),
        (-0.1, 0.02, 2.0, 0.0),
        (3.0, 0.01, 1.0, None),
        (3.0, 0.01, 0.5, None),
        (None, 0.02, 2.0, None),
        (3.0, None, 2.0, None),
    ],
)
def test_break_even(
    compile_s: float | None, eager_s: float | None, speedup: float, steps: float | None
) -> None:
    assert find_break_even(compile_s, eager_s, Estimate(math.log(speedup))) == (
        None if steps is None else pytest.approx(steps),
        None,
        None,
    )


def test_break_even_follows_from_the_printed_speedup_and_its_bounds() -> None:
    # Eager takes 20 ms, the speedup is 4, so a step saves 15 ms: 3 s / 15 ms = 200 steps.
    result = derive(make_record(speedups=[3.9, 4.0, 4.0 * 4.0 / 3.9]))
    assert ratio_of(result.speedup) == pytest.approx(4.0)
    low, high = interval_of(result)
    assert result.break_even_steps == pytest.approx(
        (200, 3 / (0.02 - 0.02 / high), 3 / (0.02 - 0.02 / low))
    )
    assert result.break_even_warm_steps.value == pytest.approx(0.5 / 0.015)
    assert result.break_even_warm_steps.high == pytest.approx(0.5 / (0.02 - 0.02 / low))


def test_break_even_may_never_come_when_the_speedup_may_be_none() -> None:
    steps, low, high = derive(make_record(speedups=[1.0, 1.1, 1.05])).break_even_steps
    assert low is not None
    assert steps is not None
    assert low < steps
    assert high is None, "its interval holds 1"


def test_break_even_may_come_though_it_looks_as_if_it_never_did() -> None:
    steps, low, high = derive(make_record(speedups=[0.9, 1.0, 1.05])).break_even_steps
    assert (steps, high) == (None, None)
    assert low is not None


def test_a_single_process_has_a_break_even_without_bounds() -> None:
    result = derive(make_record(speedups=[2.0]))
    assert result.break_even_steps == (pytest.approx(300), None, None)


def test_cold_and_warm_compile_times_are_kept_apart() -> None:
    result = derive(make_record(speedups=[2.0, 2.0, 2.0]))
    assert (result.readings.get("compile_cold_s"), result.readings.get("compile_warm_s")) == (
        3.0,
        0.5,
    )
    assert (result.break_even_steps.value, result.break_even_warm_steps.value) == (
        pytest.approx(300),
        pytest.approx(50),
    )


def test_parts_of_compiling_and_first_steps_are_medians_of_cold_and_warm() -> None:
    processes = [
        replace(
            make_process(),
            compile_parts_s={"dynamo": 1.0, "inductor": 8.0},
            time_to_first_step_s=40.0,
        ),
        replace(
            make_process(index=1, draw=1, cold=True),
            compile_parts_s={"dynamo": 3.0},
            time_to_first_step_s=50.0,
        ),
        replace(
            make_process(index=2),
            compile_parts_s={"dynamo": 0.1, "autotuning": 9.0},
            time_to_first_step_s=12.0,
        ),
    ]
    result = derive(record_of(*processes))
    assert (result.readings.get("compile_dynamo_s"), result.readings.get("compile_inductor_s")) == (
        2.0,
        8.0,
    )
    assert (
        result.readings.get("compile_aot_autograd_s"),
        result.readings.get("compile_autotuning_s"),
    ) == (None, None)
    assert (result.readings.get("first_step_cold_s"), result.readings.get("first_step_warm_s")) == (
        45.0,
        12.0,
    )


def test_artifacts_are_different_programs() -> None:
    prints = [("a", "x"), ("a", "x"), ("a", "y"), ("b", None), (None, None)]
    processes = [
        replace(make_process(index=index), code_fingerprint=code, autotuning_fingerprint=tuned)
        for index, (code, tuned) in enumerate(prints)
    ]
    assert derive(record_of(*processes)).artifacts == 3
    assert derive(make_record()).artifacts is None


def waiting(
    process: Process, eager: float | None, compiled: float | None, kernels: int = 100
) -> Process:
    """The same with a device that waits for the host for these shares of the arms' steps, usual
    gaps apart.
    """
    arms = []
    for share, block_s in (
        (eager, process.rounds[0].eager_s),
        (compiled, process.rounds[0].compiled_s),
    ):
        step_s = (block_s or 0) / (process.steps_per_block or 1)
        arms.append(None if share is None else step_s * (1 - share) - kernels * USUAL_GAP_S)
    return replace(process, device_time_s=PerArm(*arms), device_kernels=PerArm(kernels, kernels))


@pytest.mark.parametrize(
    ("eager", "compiled", "arms", "fraction"),
    [
        (0.02, 0.04, None, 0.04),
        (0.02, 0.30, "compiled", 0.30),
        (0.30, 0.04, "eager", 0.30),
        (0.30, 0.40, "both", 0.40),
        (None, 0.40, "compiled", 0.40),
        (None, None, None, None),
        (-0.02, -0.01, None, 0.0),
    ],
)
def test_an_arm_is_host_bound_above_five_percent_of_waiting(
    eager: float | None, compiled: float | None, arms: str | None, fraction: float | None
) -> None:
    result = derive(record_of(waiting(make_process(), eager, compiled)))
    assert result.host_bound_arms == arms
    assert result.host_bound_fraction == (None if fraction is None else pytest.approx(fraction))


def test_with_a_device_step_time_an_arm_waits_for_the_rest_of_its_step() -> None:
    """Of 20 and 10 ms the device needs 19.2 and 9; where an arm lacks that, its busy time and usual
    gaps count.
    """
    known = replace(make_process(), device_time_s=PerArm(0.001, 0.001), device_kernels=PerArm(0, 0))
    result = derive(record_of(replace(known, device_step_s=PerArm(0.0192, 0.009))))
    assert (result.host_bound_arms, result.host_bound_fraction) == ("compiled", pytest.approx(0.1))
    half = derive(record_of(replace(known, device_step_s=PerArm(0.0192, None))))
    assert (half.host_bound_arms, half.host_bound_fraction) == ("compiled", pytest.approx(0.9))


def test_waiting_is_the_median_over_processes() -> None:
    shares = (0.0, 0.2, 0.9)
    result = derive(
        record_of(*(waiting(make_process(index=i), 0.0, share) for i, share in enumerate(shares)))
    )
    assert result.host_bound_fraction == pytest.approx(0.2)


def test_without_a_count_of_kernels_nothing_is_known_of_waiting() -> None:
    process = replace(make_process(), device_time_s=PerArm(0.001, 0.001))
    assert derive(record_of(process)).host_bound_fraction is None


@pytest.mark.parametrize(("count", "interval"), [(2, "none"), (4, "none"), (5, "processes")])
def test_a_host_bound_trial_has_an_interval_from_five_processes_on(
    count: int, interval: str
) -> None:
    result = derive(
        record_of(*(waiting(make_process(2.0 + i / 10, index=i), 0.0, 0.3) for i in range(count)))
    )
    assert result.interval == interval
    assert result.speedup is not None
    bounds = result.speedup.interval()
    assert (bounds is None) == (result.break_even_steps.low is None) == (interval == "none")
    assert (result.speedup_min, result.speedup_max) == (
        pytest.approx(2.0),
        pytest.approx(2.0 + (count - 1) / 10),
    )


def test_the_interval_of_a_host_bound_trial_is_students_and_may_leave_a_process_out() -> None:
    # In units of ln 2: 1, 1, 1, 1 and 2, mean 1.2, standard error 0.2, and t is 2.776 (of 4).
    processes = [
        waiting(make_process(speedup, index=i), 0.0, 0.3)
        for i, speedup in enumerate((2.0, 2.0, 2.0, 2.0, 4.0))
    ]
    speedup = derive(record_of(*processes)).speedup
    assert speedup is not None
    assert speedup.interval() == pytest.approx((2**0.6447, 2**1.7553), rel=1e-3)


def test_host_bound_draws_of_one_process_have_no_interval() -> None:
    processes = [waiting(make_process(2.0 + i, index=i, draw=i), 0.0, 0.3) for i in range(3)]
    assert derive(record_of(*processes)).interval == "none"


def test_device_speedups_have_an_interval_over_draws() -> None:
    # Device speedups 2, 4 | 8 | 16 in three draws; logs of the draws in units of ln 2: 1.5, 3, 4,
    # mean 17 / 6.
    draws = [(0, 2.0), (0, 4.0), (1, 8.0), (2, 16.0)]
    processes = [
        replace(make_process(index=i, draw=draw), device_step_s=PerArm(0.016, 0.016 / speedup))
        for i, (draw, speedup) in enumerate(draws)
    ]
    result = derive(record_of(*processes))
    assert result.device_speedup is not None
    assert result.device_speedup.ratio == pytest.approx(2 ** (17 / 6))
    assert (result.device_speedup.degrees, result.device_speedup.count) == (2, 3)


def test_printed_step_times_have_the_speedup_as_their_ratio() -> None:
    # medians of the arms would give 20 / 20
    times_s = [(0.02, 0.010), (0.09, 0.020), (0.01, 0.025)]
    processes = [
        make_process(eager / compiled, index=i, eager_s=eager)
        for i, (eager, compiled) in enumerate(times_s)
    ]
    result = derive(record_of(*processes))
    assert ratio_of(result.speedup) == pytest.approx(result.step_s.ratio)
    assert ratio_of(result.speedup) == pytest.approx((2.0 * 4.5 * 0.4) ** (1 / 3))


def test_device_interval_counts_the_draws_that_have_device_time() -> None:
    processes = [make_process(index=i, draw=i // 2) for i in range(6)]
    processes[:4] = [
        replace(processes[i], device_step_s=PerArm(0.016, 0.016 / (2 + i / 10))) for i in range(4)
    ]
    result = derive(record_of(*processes))
    assert result.interval == "draws"
    assert result.device_speedup is not None
    assert result.device_speedup.degrees == 2, "two processes within each of two draws"


def test_device_speedup_comes_from_step_times_of_both_arms() -> None:
    busy = replace(make_process(2.0), device_time_s=PerArm(0.6, 0.2))
    half_known = replace(make_process(2.0, index=1), device_step_s=PerArm(0.6, None))
    assert derive(record_of(busy, half_known)).device_speedup is None
    known = replace(busy, device_step_s=PerArm(0.62, 0.31))
    assert ratio_of(derive(record_of(known, half_known)).device_speedup) == pytest.approx(2.0)


def test_device_step_times_are_the_middle_of_the_processes_and_a_wrong_program_has_none() -> None:
    processes = [
        replace(make_process(index=i), device_step_s=PerArm(eager, 0.008))
        for i, eager in enumerate((1, 2, 9))
    ]
    record = record_of(*processes)
    named = {metric.csv_name: metric.column_value(derive(record)) for metric in METRICS}
    assert (named["eager_device_step_ms"], named["compiled_device_step_ms"]) == (2000.0, 8.0)
    wrong = derive(replace(record, status="accuracy_mismatch")).readings
    assert ("eager_device_step_s" in wrong, "compiled_device_step_s" in wrong) == (True, False)


def test_memory_is_the_median_of_what_was_measured() -> None:
    processes = [
        replace(make_process(index=i), memory_bytes=memory)
        for i, memory in enumerate([PerArm(100, 50), None, PerArm(300, None)])
    ]
    result = derive(record_of(*processes))
    assert (
        result.readings.get("eager_peak_memory_bytes"),
        result.readings.get("compiled_peak_memory_bytes"),
    ) == (
        200,
        50,
    )


def test_graph_breaks_are_counted_and_unknown_without_diagnostics() -> None:
    assert derive(make_record()).graph_breaks == 2
    assert derive(replace(make_record(), diagnostics=None)).graph_breaks is None


def test_a_step_takes_what_the_slower_of_host_and_device_takes() -> None:
    """The eager arm of 4 ms of its host and 10 ms of its device, over a compiled one of 10 ms."""
    assert [
        predict_speedup(0.004, 0.010, 0.0, 0.010, slowdown) for slowdown in (0.5, 1.0, 2.5, 4.0)
    ] == pytest.approx([1.0, 1.0, 1.0, 1.6])


@pytest.mark.parametrize(
    ("host_s", "step_s", "found_s"),
    [
        (0.007, 0.010, 0.007),
        (0.012, 0.0124, 0.012),
        (0.012, 0.0115, 0.0115),
        (0.034, 0.031, 0.031),
        (0.011, 0.013, 0.013),
    ],
)
def test_where_a_step_waits_for_its_host_its_time_is_the_host_s(
    host_s: float, step_s: float, found_s: float
) -> None:
    assert find_host_s(host_s, 0.010, step_s) == found_s


@pytest.mark.parametrize(
    ("host_slowdown", "speedup"),
    # 20 / 4 ms, 20 / 5.33, 21.33 / 10.67, 42.67 / 21.33
    [(0.5, 5.0), (1.0, 3.75), (2.0, 2.0), (4.0, 2.0)],
)
def test_a_slower_host_takes_from_the_speedup_what_the_device_gained(
    host_slowdown: float, speedup: float
) -> None:
    known = 0.032 / 3, 0.020, 0.016 / 3, 0.004
    assert predict_speedup(*known, host_slowdown) == pytest.approx(speedup)


def test_headroom_is_of_medians_over_processes() -> None:
    pairs = [(PerArm(0.009, 0.006), PerArm(0.02, 0.01)), (PerArm(0.010, 0.008), PerArm(0.02, 0.01))]
    pairs.append((PerArm(0.013, 0.030), PerArm(0.02, 0.01)))
    processes = [
        replace(make_process(index=index), host_step_s=host_s, device_step_s=device_s)
        for index, (host_s, device_s) in enumerate(pairs)
    ]
    result = derive(record_of(*processes))
    assert result.readings["eager_host_step_s"] == pytest.approx(0.010)
    assert result.host_share == PerArm(pytest.approx(0.5), pytest.approx(0.8))
    assert result.speedup_host_2x_faster == pytest.approx(2.0)
    assert result.speedup_host_2x_slower == pytest.approx(20 / 16)


@pytest.mark.parametrize(
    ("host_s", "device_s", "share"),
    [
        (PerArm(0.01, None), PerArm(0.02, 0.01), 0.5),
        (PerArm(0.01, 0.01), PerArm(0.02, None), 0.5),
        (PerArm(0.01, 0.01), None, None),
        (None, PerArm(0.02, 0.01), None),
    ],
)
def test_without_all_four_times_no_other_host_is_predicted(
    host_s: PerArm | None, device_s: PerArm | None, share: float | None
) -> None:
    # which does not stand in for it
    busy = {"device_time_s": PerArm(0.02, 0.01), "device_kernels": PerArm(10, 10)}
    result = derive(
        record_of(replace(make_process(), host_step_s=host_s, device_step_s=device_s, **busy))
    )
    assert result.host_share == PerArm(share, None)
    assert (result.speedup_host_2x_faster, result.speedup_host_2x_slower) == (None, None)


def test_a_wrong_program_has_no_host_time() -> None:
    process = replace(
        make_process(), host_step_s=PerArm(0.01, 0.004), device_step_s=PerArm(0.02, 0.01)
    )
    result = derive(record_of(process, status="accuracy_mismatch"))
    assert "compiled_host_step_s" not in result.readings
    assert (result.host_share, result.speedup_host_2x_slower) == (PerArm(), None)


@pytest.mark.parametrize(
    ("host_s", "faster", "slower"), [((0.03, 0.012), 2.0, 2.5), ((0.06, 0.04), 1.5, 1.5)]
)
def test_a_host_of_half_and_twice_the_time(
    host_s: tuple[float, float], faster: float, slower: float
) -> None:
    """Beside a device that needs 20 and 10 ms: of the first 20 / 10 and 60 / 24, of the second 30 /
    20 and 120 / 80.
    """
    waiting = make_process(host_s[0] / host_s[1], eager_s=host_s[0])
    process = replace(waiting, host_step_s=PerArm(*host_s), device_step_s=PerArm(0.02, 0.01))
    result = derive(record_of(process))
    assert result.speedup_host_2x_faster == pytest.approx(faster)
    assert result.speedup_host_2x_slower == pytest.approx(slower)


def test_reasons_for_what_is_missing_come_once_each_and_not_on_a_cpu() -> None:
    why = {"device_time_missing": "no profiler", "memory_missing": "no room"}
    processes = [replace(make_process(index=index), **why) for index in range(2)]  # type: ignore[arg-type]
    processes.append(replace(make_process(index=2), device_time_missing="other"))
    record = record_of(*processes)
    result = derive(record)
    assert (result.device_time_missing, result.memory_missing) == ("no profiler; other", "no room")
    on_cpu = derive(replace(record, trial=replace(record.trial, device="cpu")))
    assert (on_cpu.device_time_missing, on_cpu.memory_missing) == (None, None)
    known = [
        replace(one, memory_bytes=PerArm(1.0, 1.0), device_step_s=PerArm(0.02, 0.01))
        for one in processes
    ]
    found = derive(record_of(*known))
    assert (found.device_time_missing, found.memory_missing) == (None, None)
    half = derive(record_of(replace(processes[0], memory_bytes=PerArm(1.0, None))))
    assert half.memory_missing == "no room"


def test_worst_check_is_the_one_nearest_to_its_bound_or_furthest_beyond_it() -> None:
    def checked(*found: Accuracy) -> Accuracy | None:
        return find_worst_accuracy(
            record_of(*(replace(make_process(), accuracy=one) for one in found))
        )

    near, far = (
        Accuracy("f", True, compiled_error=0.9, bound=1.0),
        Accuracy("f", True, compiled_error=1.0, bound=2.0),
    )
    assert checked(far, near, far) == near
    failed = Accuracy("f", False, compiled_error=1.5, bound=2.0)  # by its direction
    assert checked(near, failed) == failed
    not_finite = Accuracy("f", False, compiled_error=None, bound=2.0)
    assert checked(failed, not_finite) == not_finite
    nothing = Accuracy("f", None)
    exact = Accuracy("f", True, compiled_error=0.0, bound=0.0)
    assert checked(nothing, exact) == exact
    assert checked(near, Accuracy("f", True, compiled_error=0.1, bound=0.0)) != near
    assert checked() is None


def test_throughput_is_of_the_batch_that_fitted_and_of_its_tokens() -> None:
    record = record_of(replace(make_process(), tokens_per_step=128.0))
    assert derive(record).samples_per_s == pytest.approx(3200)
    assert derive(replace(record, smaller_batch_size=8)).samples_per_s == pytest.approx(800)
    assert derive(record).tokens_per_s == pytest.approx(12800)
    assert derive(record_of(make_process())).tokens_per_s is None


def test_the_loop_of_a_script_is_eager_over_compiled() -> None:
    """20 ms and 16 ms per step, of which the loader takes 4 ms in eager; without a loader of torch
    nothing is known.
    """
    eager, compiled = LoopRun(100, 0.020, 0.004, 1.0), LoopRun(100, 0.016, None, 1.0)
    process = replace(make_process(), script=ScriptRun(loop_eager=eager, loop_compiled=compiled))
    result = derive(replace(make_record(), processes=(process,)))
    assert ratio_of(result.loop_speedup) == pytest.approx(1.25)
    assert result.readings["eager_loop_step_s"] == 0.020
    assert result.readings["compiled_loop_step_s"] == 0.016
    assert result.readings["eager_loader_share"] == pytest.approx(0.2)
    assert "compiled_loader_share" not in result.readings
