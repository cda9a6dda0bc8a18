from __future__ import annotations

import math
from dataclasses import replace

import pytest
from records import make_process, make_record

from sweeper.record import PerArm, Process, Record, Round
from sweeper.result import break_even_steps, derive


def record_of(*processes: Process, status: str = "ok") -> Record:
    return replace(make_record(), processes=processes, status=status)


@pytest.mark.parametrize("status", ["accuracy_mismatch", "runtime_error", "oom", "timeout", "interrupted"])
def test_a_trial_that_is_not_ok_has_no_speedup(status: str) -> None:
    result = derive(record_of(make_process(), make_process(index=1), status=status))
    gains = (result.speedup, result.speedup_low, result.device_speedup, result.samples_per_s, result.break_even_steps)
    assert gains == (None,) * 5
    assert (result.interval, result.estimate, result.compiled_step_s) == ("none", None, None)
    assert result.eager_step_s == pytest.approx(0.02), "the eager side was measured and is right"


def test_a_trial_without_processes_has_no_figures() -> None:
    result = derive(record_of())
    assert (result.processes, result.draws, result.interval) == (0, 0, "none")
    assert {result.speedup, result.eager_step_s, result.compile_cold_s, result.samples_per_s} == {None}


def test_speedup_is_the_geometric_mean_over_processes() -> None:
    # Logs ln 2 and ln 8: mean ln 4, half the difference is ln 2, t(1) = 12.7062.
    result = derive(make_record(speedups=[2.0, 8.0]))
    assert result.speedup == pytest.approx(4.0)
    assert result.interval == "processes"
    assert result.speedup_low == pytest.approx(4.0 * math.exp(-12.706205 * math.log(2)), rel=1e-5)
    assert result.speedup_high == pytest.approx(4.0 * math.exp(12.706205 * math.log(2)), rel=1e-5)


def test_one_process_has_a_speedup_and_no_interval() -> None:
    result = derive(make_record(speedups=[2.0]))
    assert (result.speedup, result.speedup_low, result.speedup_high) == (pytest.approx(2.0), None, None)
    assert result.interval == "none"


def test_void_rounds_do_not_count() -> None:
    void = Round("AB", 100.0, 0.001, void="recompiled")
    process = make_process(2.0)
    assert derive(record_of(replace(process, rounds=(*process.rounds, void)))).speedup == pytest.approx(2.0)


def test_a_process_of_void_rounds_only_is_left_out() -> None:
    void = replace(make_process(9.0, index=1), rounds=(Round("AB", 1.0, 0.1, void="shared_gpu"),))
    result = derive(record_of(make_process(2.0), void))
    assert (result.speedup, result.processes) == (pytest.approx(2.0), 1)


def test_step_times_are_medians_over_rounds_and_processes() -> None:
    # 10 steps a block. Eager medians: 3 s / 10 and 6 s / 10, so 0.45 s; compiled 0.1 s; batch 32.
    rounds = tuple(Round("AB", eager_s, 1.0) for eager_s in (2.0, 3.0, 100.0))
    later = tuple(Round("BA", eager_s, 1.0) for eager_s in (6.0, 6.0))
    result = derive(record_of(replace(make_process(), rounds=rounds), replace(make_process(index=1), rounds=later)))
    assert result.eager_step_s == pytest.approx(0.45)
    assert result.compiled_step_s == pytest.approx(0.1)
    assert result.samples_per_s == pytest.approx(320)


def test_three_draws_give_an_interval_over_draws() -> None:
    # Means of the logs of the draws, in units of ln 2: (1 + 3) / 2 = 2, 4, 6; mean 4, s^2 = 4, s^2 / 3 on 2 degrees.
    processes = [
        make_process(2.0**log, index=i, draw=draw) for i, (draw, log) in enumerate([(0, 1), (0, 3), (1, 4), (2, 6)])
    ]
    result = derive(record_of(*processes))
    half = 4.302653 * math.sqrt(4 / 3) * math.log(2)
    assert (result.interval, result.draws, result.processes) == ("draws", 3, 4)
    assert result.speedup == pytest.approx(16)
    assert result.speedup_low == pytest.approx(16 * math.exp(-half), rel=1e-5)
    assert result.speedup_high == pytest.approx(16 * math.exp(half), rel=1e-5)


def test_two_draws_give_an_interval_over_processes() -> None:
    result = derive(record_of(make_process(2.0), make_process(4.0, index=1, draw=1)))
    assert (result.interval, result.draws) == ("processes", 2)


@pytest.mark.parametrize(
    ("compile_s", "eager_s", "compiled_s", "steps"),
    [
        (3.0, 0.02, 0.01, 300.0),
        (0.0, 0.02, 0.01, 0.0),
        (-0.1, 0.02, 0.01, 0.0),
        (3.0, 0.01, 0.01, None),
        (3.0, 0.01, 0.02, None),
        (None, 0.02, 0.01, None),
        (3.0, None, 0.01, None),
        (3.0, 0.02, None, None),
    ],
)
def test_break_even(
    compile_s: float | None, eager_s: float | None, compiled_s: float | None, steps: float | None
) -> None:
    assert break_even_steps(compile_s, eager_s, compiled_s) == (None if steps is None else pytest.approx(steps))


def test_cold_and_warm_compile_times_are_kept_apart() -> None:
    result = derive(make_record(speedups=[2.0, 2.0, 2.0]))
    assert (result.compile_cold_s, result.compile_warm_s) == (3.0, 0.5)
    assert (result.break_even_steps, result.break_even_warm_steps) == (pytest.approx(300), pytest.approx(50))


def test_device_speedup_comes_from_busy_time() -> None:
    busy = replace(make_process(2.0), device_time_s=PerArm(0.6, 0.2))
    half_known = replace(make_process(2.0, index=1), device_time_s=PerArm(0.6, None))
    assert derive(record_of(busy, half_known)).device_speedup == pytest.approx(3.0)
    assert derive(record_of(half_known)).device_speedup is None


def test_memory_is_the_median_of_what_was_measured() -> None:
    processes = [
        replace(make_process(index=i), memory_bytes=memory)
        for i, memory in enumerate([PerArm(100, 50), None, PerArm(300, None)])
    ]
    result = derive(record_of(*processes))
    assert (result.eager_peak_memory_bytes, result.compiled_peak_memory_bytes) == (200, 50)


def test_graph_breaks_are_counted_and_unknown_without_diagnostics() -> None:
    assert derive(make_record()).graph_breaks == 2
    assert derive(replace(make_record(), diagnostics=None)).graph_breaks is None
