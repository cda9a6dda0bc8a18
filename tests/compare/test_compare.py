"""Verdicts on pairs of records made by hand, and the command on sweeps of them."""

from __future__ import annotations

import contextlib
import io
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from checkout import ENVIRONMENT, HEAVY
from records import make_process, make_record, make_trial, write_sweep

from sweeper.compare.__main__ import main
from sweeper.compare.changes import (
    describe_versions,
    list_device_changes,
    list_environment_changes,
    list_version_changes,
)
from sweeper.compare.pairs import Pair, Side, choose_values, make_side, match_sweeps, match_values
from sweeper.compare.quantities import COMPILE, COMPILED, COMPILED_BUSY, COMPILED_DEVICE, EAGER, MEMORY, SPEEDUP
from sweeper.compare.text import is_worth_showing, make_table
from sweeper.compare.verdicts import Change, Row, judge
from sweeper.core.record import Latencies, Latency, PerArm, Record
from sweeper.core.trial import Compile
from sweeper.tracking.tracker import Tracker

WOBBLE = (1.0, 1.001, 0.999, 1.0005, 0.9995)  # five processes
GIB = 2**30


def measured(
    model: str = "resnet50",
    compiled: float = 1.0,
    eager: float = 1.0,
    *,
    wobble: Sequence[float] = WOBBLE,
    draws: Sequence[int] | None = None,
    code: str | None = "code",
    compile_s: float = 30.0,
    memory: float = GIB,
    **changes: object,
) -> Record:
    """A trial with a process for each of `wobble`: a step takes 20 ms in eager, 10 ms compiled, times these factors."""
    draws = draws or [0] * len(wobble)
    processes = []
    for index, (factor, draw) in enumerate(zip(wobble, draws, strict=True)):
        cold = draw not in draws[:index]
        process = make_process(2 * eager / compiled / factor, index=index, draw=draw, cold=cold, eager_s=0.02 * eager)
        processes.append(
            replace(
                process,
                compile_s=compile_s * factor if cold else 1.0,
                code_fingerprint=code,
                autotuning_fingerprint=code and "winners",
                memory_bytes=PerArm(GIB, memory),
            )
        )
    record = make_record(model, **changes)  # type: ignore[arg-type]
    return replace(record, processes=tuple(processes))


def pair(base: Record | None, head: Record | None) -> Pair:
    return Pair(*(make_side(record) if record else None for record in (base, head)))


def others(count: int = 4) -> list[Pair]:
    """Rows in which nothing changed, so that one row does not move the control."""
    return [pair(measured(f"model{index}"), measured(f"model{index}")) for index in range(count)]


def only(base: Record | None, head: Record | None, **settings: float) -> Row:
    """The row of this pair beside others that stand still."""
    return judge([pair(base, head), *others()], **settings).rows[0]


def change(row: Row, name: str) -> Change:
    assert row.changes is not None
    return row.changes[name]


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(1.03, "SLOWER"), (1 / 1.03, "FASTER"), (1.0, "SAME"), (1.01, "SAME"), (1.0199, "UNRESOLVED")],
)
def test_the_compiled_step_decides(factor: float, verdict: str) -> None:
    row = only(measured(), measured(compiled=factor))
    assert row.verdict == verdict
    assert change(row, COMPILED.name).head == pytest.approx(0.01 * factor, rel=1e-3)


def test_figures_of_a_change_by_hand() -> None:
    base, head = measured(wobble=(1.0, 1.002)), measured(compiled=1.1, wobble=(1.0, 1.004))
    found = judge([pair(base, head)]).rows[0]
    step = change(found, COMPILED.name)
    assert step.base == pytest.approx(0.01 * math.sqrt(1.002))
    assert step.head == pytest.approx(0.011 * math.sqrt(1.004))
    assert step.estimate is not None
    # Welch: variances of the means are log(1.002)^2 / 4 and log(1.004)^2 / 4, on one degree each.
    parts = [math.log(1.002) ** 2 / 4, math.log(1.004) ** 2 / 4]
    assert step.estimate.variance == pytest.approx(sum(parts))
    assert step.estimate.degrees == pytest.approx(sum(parts) ** 2 / sum(part**2 for part in parts))
    assert step.unit == "processes"


def test_a_change_that_is_smaller_than_asked_for_is_none() -> None:
    assert only(measured(), measured(compiled=1.03), min_effect=0.05).verdict == "SAME"
    assert only(measured(), measured(compiled=1.01), min_effect=0.005).verdict == "SLOWER"


def test_a_change_of_a_few_microseconds_is_none() -> None:
    """10 % of a step of 20 us are 2 us: less than a kernel's launch."""
    tiny = {"eager": 0.002, "wobble": WOBBLE}
    assert only(measured(compiled=0.002, **tiny), measured(compiled=0.0022, **tiny)).verdict == "SAME"  # type: ignore[arg-type]


def test_noise_that_is_larger_than_the_change_is_unresolved() -> None:
    loud = (0.9, 1.1, 1.0, 1.05, 0.95)
    row = only(measured(wobble=loud), measured(compiled=1.03, wobble=loud))
    assert (row.verdict, row.reason) == ("UNRESOLVED", "shown is neither a change nor equality within 2%")


SINGLE = "a single process on a side: no variance"
ONE_DRAW = "fewer than 3 draws on a side, and compiled code or autotuning may differ"
HOST_BOUND = "host-bound, with fewer than 5 processes on a side"


@pytest.mark.parametrize(("factor", "verdict"), [(1.06, "SLOWER"), (1 / 1.06, "FASTER")])
def test_a_single_process_shows_a_change_beyond_what_processes_differ_by(factor: float, verdict: str) -> None:
    row = only(measured(wobble=[1.0]), measured(wobble=[1.0], compiled=factor))
    assert (row.verdict, row.reason) == (verdict, f"size uncertain ({SINGLE})")


@pytest.mark.parametrize("factor", [1.04, 1.0, 1 / 1.04])
def test_a_single_process_shows_no_smaller_change_and_no_equality(factor: float) -> None:
    row = only(measured(wobble=[1.0]), measured(compiled=factor))
    assert (row.verdict, row.reason) == ("UNRESOLVED", SINGLE)
    assert change(row, COMPILED.name).estimate is not None  # the change is shown all the same


@pytest.mark.parametrize("code", ["other", None])
def test_one_draw_of_other_code_shows_a_change_beyond_what_draws_differ_by(code: str | None) -> None:
    def of(factor: float) -> tuple[str, str | None]:
        row = only(measured(code=code and "code"), measured(compiled=factor, code=code))
        return row.verdict, row.reason

    assert of(1.0) == of(1.04) == ("UNRESOLVED", ONE_DRAW)
    assert of(1.06) == ("SLOWER", f"size uncertain ({ONE_DRAW})")


def test_noise_of_processes_adds_to_what_draws_may_differ_by() -> None:
    """Three processes with half a per cent between them: the interval reaches from 5.1 to 7 %."""
    wobble = (1.0, 1.005, 0.995)
    base = measured(wobble=wobble)
    assert only(base, measured(compiled=1.055, wobble=wobble, code="other")).verdict == "UNRESOLVED"
    assert only(base, measured(compiled=1.075, wobble=wobble, code="other")).verdict == "SLOWER"


def test_the_change_that_is_asked_for_holds_for_sizes_as_well() -> None:
    slow = measured(wobble=[1.0], compiled=1.08)
    assert only(measured(wobble=[1.0]), slow).verdict == "SLOWER"
    assert only(measured(wobble=[1.0]), slow, min_effect=0.1).verdict == "UNRESOLVED"


def on_cpu(record: Record, *flags: str) -> Record:
    trial = make_trial(record.trial.labels.model, device="cpu")
    return replace(record, trial=trial, trial_id=trial.id, flags=flags)


@pytest.mark.parametrize(
    ("base", "head", "reason"),
    [
        (
            on_cpu(measured(wobble=(1.0, 1.012, 0.99))),
            on_cpu(measured(wobble=(1.0, 1.012, 0.99), compiled=1.503, code="other"), "host_busy", "unsteady"),
            ONE_DRAW,
        ),
        (on_cpu(measured(wobble=[1.0], compiled=2.4)), on_cpu(measured(wobble=[1.0], compiled=7.2)), SINGLE),
    ],
    ids=["+50.3 % in the default measure", "24 -> 72 ms in quick"],
)
def test_a_step_that_is_much_slower_on_a_cpu_is_slower(base: Record, head: Record, reason: str) -> None:
    row = judge([pair(base, head), *(pair(on_cpu(measured(name)), on_cpu(measured(name))) for name in "abcd")]).rows[0]
    assert (row.verdict, row.reason) == ("SLOWER", f"size uncertain ({reason})")


def test_a_single_process_on_a_cpu_may_be_as_slow_by_the_host() -> None:
    one = on_cpu(measured(wobble=[1.0]))
    assert only(one, on_cpu(measured(wobble=[1.0], compiled=2.3))).verdict == "UNRESOLVED"


def test_a_single_process_whose_blocks_scatter_may_be_as_slow_by_the_host() -> None:
    slow = measured(wobble=[1.0], compiled=1.3)
    assert only(measured(wobble=[1.0]), slow).verdict == "SLOWER"
    assert only(measured(wobble=[1.0]), replace(slow, flags=("unsteady",))).verdict == "UNRESOLVED"


@pytest.mark.parametrize(("eager", "verdict"), [(1.0, "SLOWER"), (1.15, "UNRESOLVED"), (0.85, "SLOWER")])
def test_a_size_must_hold_beside_the_eager_arm_of_the_same_trial(eager: float, verdict: str) -> None:
    """Both arms took turns, so what slows down both is the host or the clock."""
    row = only(measured(wobble=[1.0]), measured(wobble=[1.0], compiled=1.15, eager=eager))
    assert row.verdict == verdict


def test_a_session_that_moved_shows_a_change_beyond_what_hosts_differ_by() -> None:
    still = [pair(measured(name), measured(name, compiled=1.05, eager=1.05)) for name in "abc"]
    for factor, verdict in ((1.4, "UNRESOLVED"), (1.6, "SLOWER")):
        comparison = judge([*still, pair(measured("d"), measured("d", compiled=factor, eager=1.05))])
        assert comparison.control.moved
        assert [row.verdict for row in comparison.rows] == ["UNRESOLVED"] * 3 + [verdict]
    assert comparison.rows[3].reason == "size uncertain (eager itself moved by +5.0 % (median over rows))"


def test_two_processes_show_no_less_than_one() -> None:
    """On one degree of freedom three times the time is not significant beside five other rows."""
    still = [pair(measured(f"m{i}", wobble=(1.0, 1.02)), measured(f"m{i}", wobble=(1.02, 1.0))) for i in range(5)]
    row = judge([pair(measured(wobble=(1.0, 1.0)), measured(wobble=(0.95, 1.05), compiled=3.0)), *still]).rows[0]
    assert (row.verdict, row.reason) == ("SLOWER", "size uncertain (not significant once all rows and clocks count)")


def test_a_backend_that_races_no_kernels_needs_no_draws() -> None:
    trial = make_trial(backend="aot_eager")
    assert only(measured(code=None, trial=trial), measured(compiled=1.5, code=None, trial=trial)).verdict == "SLOWER"


def test_three_draws_are_judged_over_their_means() -> None:
    draws, wobble = [0, 0, 1, 1, 2, 2], (1.0, 1.002, 1.004, 1.002, 0.999, 1.001)
    base = measured(wobble=wobble, draws=draws, code="one")
    head = measured(compiled=1.1, wobble=wobble, draws=draws, code="other")
    row = only(base, head)
    step = change(row, COMPILED.name)
    assert (row.verdict, step.unit) == ("SLOWER", "draws")
    assert step.estimate is not None
    assert step.estimate.degrees == pytest.approx(4)


def test_processes_of_three_draws_do_not_count_as_independent() -> None:
    """Three draws 3 % apart: thirty processes each would call that significant, three draws do not."""
    wobble = [luck * (1 + 1e-4 * index) for luck in (1.0, 1.03, 0.97) for index in range(10)]
    draws = [draw for draw in range(3) for _ in range(10)]
    base = measured(wobble=wobble, draws=draws, code="one")
    head = measured(compiled=1.03, wobble=wobble, draws=draws, code="other")
    assert only(base, head).verdict == "UNRESOLVED"


def test_a_host_bound_row_needs_five_processes() -> None:
    def host_bound(record: Record) -> Record:
        busy = PerArm(0.02, 0.005)
        processes = (replace(item, device_time_s=busy, device_kernels=PerArm(10, 10)) for item in record.processes)
        return replace(record, processes=tuple(processes))

    few = host_bound(measured(wobble=WOBBLE[:3])), host_bound(measured(compiled=1.4, wobble=WOBBLE[:3]))
    row = only(*few)
    assert (row.verdict, row.reason) == ("UNRESOLVED", HOST_BOUND)
    assert change(row, EAGER.name).verdict == "SAME"  # only the compiled arm waits
    assert only(host_bound(measured()), host_bound(measured(compiled=1.4))).verdict == "SLOWER"
    for wobble in (WOBBLE[:3], [1.0]):
        far = only(host_bound(measured(wobble=wobble)), host_bound(measured(compiled=1.51, wobble=wobble)))
        assert (far.verdict, far.reason) == ("SLOWER", f"size uncertain ({HOST_BOUND if len(wobble) > 1 else SINGLE})")


def on_device(
    record: Record, compiled_s: float, eager_s: float = 0.019, *, kind: str = "device_step_s", scatter: float = 0.001
) -> Record:
    """The record with a device time of both arms, which scatters over processes by this share."""
    processes = [
        replace(process, **{kind: PerArm(eager_s, compiled_s * (1 + scatter * (index % 2)))})  # type: ignore[arg-type]
        for index, process in enumerate(record.processes)
    ]
    return replace(record, processes=tuple(processes))


NOISY = (0.9, 1.1, 1.0, 1.05, 0.95)
KINDS = pytest.mark.parametrize("kind", ["device_step_s", "device_time_s"])


@KINDS
@pytest.mark.parametrize(
    ("wobble", "wall", "said"),
    [
        (WOBBLE, "SAME", "wall SAME, device SLOWER"),
        (NOISY, "UNRESOLVED", "wall UNRESOLVED (shown is neither a change nor equality within 2%), device SLOWER"),
    ],
)
def test_a_device_that_is_slower_makes_the_row_slower(kind: str, wobble: Sequence[float], wall: str, said: str) -> None:
    """1.5 % of device time, which is more than its own margin of 1 % and less than the 2 % of wall clock."""
    base, head = (on_device(measured(wobble=wobble), busy_s, kind=kind) for busy_s in (0.0080, 0.00812))
    comparison = judge([pair(base, head), *others()])
    row = comparison.rows[0]
    assert (row.verdict, row.reason, comparison.regressed) == ("SLOWER", said, True)
    device = change(row, COMPILED_DEVICE.name if kind == "device_step_s" else COMPILED_BUSY.name)
    assert (change(row, COMPILED.name).verdict, device.verdict) == (wall, "SLOWER")
    assert device.estimate is not None
    assert device.estimate.ratio == pytest.approx(1.015)
    assert only(base, head, min_effect=0.03).verdict == wall  # what is asked for holds for both clocks


@KINDS
@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "SAME"), (1.005, "SAME"), (0.98, "FASTER")])
def test_a_device_that_is_not_slower_leaves_the_verdict_to_wall_clock(kind: str, factor: float, verdict: str) -> None:
    base, head = (on_device(measured(wobble=NOISY), 0.008 * by, kind=kind) for by in (1.0, factor))
    row = only(base, head)
    device = change(row, COMPILED_DEVICE.name if kind == "device_step_s" else COMPILED_BUSY.name)
    assert (row.verdict, device.verdict) == ("UNRESOLVED", verdict)


def test_a_step_that_is_faster_by_wall_clock_keeps_its_verdict_and_names_the_device() -> None:
    """As with CUDA graphs: the host waits no more, and the device copies inputs."""
    row = only(on_device(measured(), 0.006), on_device(measured(compiled=0.7), 0.00618))
    assert (row.verdict, row.note) == ("FASTER", "by device time it is SLOWER (+3.0 %)")
    assert only(on_device(measured(), 0.006), on_device(measured(compiled=1.1), 0.00618)).reason is None


@pytest.mark.parametrize("eager_s", [0.0199, 0.009], ids=["compiled waits", "both wait"])
def test_a_host_bound_row_of_few_processes_is_judged_by_its_device(eager_s: float) -> None:
    few = [
        on_device(on_device(measured(wobble=WOBBLE[:3]), 0.005), busy_s, eager_s, kind="device_time_s")
        for busy_s in (0.005, 0.0052)
    ]
    few = [
        replace(item, processes=tuple(replace(p, device_kernels=PerArm(10, 10)) for p in item.processes))
        for item in few
    ]
    row = only(few[0], replace(few[1], processes=tuple(replace(p, device_step_s=None) for p in few[1].processes)))
    assert row.verdict == "SLOWER"
    assert row.reason == "wall UNRESOLVED (host-bound, with fewer than 5 processes on a side), device SLOWER"


def test_device_step_and_busy_time_are_never_compared_with_each_other() -> None:
    """BASE has both, HEAD has busy time alone, as earlier records do: 7 ms of 7 ms, and not of 8."""
    base = on_device(on_device(measured(), 0.008), 0.007, kind="device_time_s")
    row = only(base, on_device(measured(), 0.007, kind="device_time_s"))
    assert (row.verdict, change(row, COMPILED_BUSY.name).verdict) == ("SAME", "SAME")
    assert change(row, COMPILED_DEVICE.name).reason == "not measured on a side"
    apart = only(on_device(measured(), 0.008), on_device(measured(), 0.010, kind="device_time_s"))
    assert (apart.verdict, apart.reason) == ("SAME", None)


def test_the_device_step_counts_where_both_sides_have_it() -> None:
    """Busy for 2 % longer in a step that takes the device no longer: gaps became kernels."""
    base, head = (on_device(on_device(measured(), 0.008), busy_s, kind="device_time_s") for busy_s in (0.0070, 0.00714))
    row = only(base, head)
    assert (row.verdict, change(row, COMPILED_BUSY.name).verdict) == ("SAME", "SLOWER")
    (shown, *_) = make_table(judge([pair(base, head), *others()])).rows
    assert not is_worth_showing(shown), "no column has a change"


def test_device_time_has_a_control_of_its_own() -> None:
    """Clocks fell by 3 %: eager's device time says so, and that of the compiled step is not judged."""
    rows = [
        pair(on_device(measured(name), 0.008), on_device(measured(name), 0.008 * 1.03, 0.019 * 1.03)) for name in "abcd"
    ]
    comparison = judge(rows)
    control = comparison.controls["eager_device_step_s"]
    assert (control.shift, control.rows, control.moved) == (pytest.approx(math.log(1.03)), 4, True)
    assert not comparison.control.moved
    assert {row.verdict for row in comparison.rows} == {"SAME"}
    device = change(comparison.rows[0], COMPILED_DEVICE.name)
    assert (device.verdict, device.reason) == (
        "UNRESOLVED",
        "eager itself moved by +3.0 % (median over rows)",
    )


def test_a_slow_host_does_not_keep_device_time_from_being_judged() -> None:
    rows = [
        pair(on_device(measured(name), 0.008), on_device(measured(name, compiled=1.05, eager=1.05), 0.008))
        for name in "abc"
    ]
    slower = pair(on_device(measured("d"), 0.008), on_device(measured("d", compiled=1.05, eager=1.05), 0.0083))
    comparison = judge([*rows, slower])
    assert comparison.control.moved
    assert [row.verdict for row in comparison.rows] == ["UNRESOLVED"] * 3 + ["SLOWER"]


def test_device_time_needs_draws_where_the_code_differs_and_two_processes() -> None:
    row = only(on_device(measured(), 0.008), on_device(measured(code="other"), 0.0083))
    assert (row.verdict, change(row, COMPILED_DEVICE.name).reason) == ("UNRESOLVED", ONE_DRAW)
    one = only(on_device(measured(wobble=[1.0]), 0.008), on_device(measured(wobble=[1.0]), 0.0083))
    assert (one.verdict, change(one, COMPILED_DEVICE.name).verdict) == ("UNRESOLVED", "UNRESOLVED")


def test_a_device_that_is_much_slower_makes_the_row_slower_from_one_process_on() -> None:
    row = only(on_device(measured(wobble=[1.0]), 0.008), on_device(measured(wobble=[1.0]), 0.009))
    said = f"wall UNRESOLVED ({SINGLE}), device SLOWER, size uncertain ({SINGLE})"
    assert (row.verdict, row.reason) == ("SLOWER", said)


@KINDS
def test_two_clocks_take_more_than_one_to_convince(kind: str) -> None:
    """p values are doubled where device time is tested as well, since the row has two chances to be SLOWER."""
    wobble = (1.0, 1.02, 0.98)
    base, head = measured(wobble=wobble), measured(compiled=1.05, wobble=wobble)
    alone = change(judge([pair(base, head)]).rows[0], COMPILED.name)
    both = judge([pair(*(on_device(record, 0.0102, kind=kind) for record in (base, head)))]).rows[0]
    assert (alone.verdict, change(both, COMPILED.name).verdict) == ("SLOWER", "UNRESOLVED")
    assert change(both, COMPILED.name).adjusted_p == pytest.approx(2 * (alone.adjusted_p or 0))
    name = COMPILED_DEVICE.name if kind == "device_step_s" else COMPILED_BUSY.name
    assert change(both, name).adjusted_p == 1


def test_a_result_that_is_verified_on_one_side_alone_is_said() -> None:
    unverified = replace(measured(compiled=0.5), flags=("accuracy_unverified",))
    row = only(measured(), unverified)
    assert (row.verdict, row.note) == ("FASTER", "not verified in HEAD (accuracy_unverified)")
    assert only(unverified, unverified).note is None
    assert only(unverified, measured()).note == "not verified in BASE (accuracy_unverified)"


def test_a_wrong_result_is_not_fixed_by_one_that_nobody_verified() -> None:
    wrong, unverified = make_record(status="accuracy_mismatch"), make_record(flags=("accuracy_unverified",))
    assert only(wrong, make_record()).verdict == "FIXED"
    row = only(wrong, unverified)
    assert (row.verdict, row.reason) == (
        "UNRESOLVED",
        "accuracy_mismatch in BASE, ok but not verified in HEAD (accuracy_unverified)",
    )


def test_a_smaller_batch_is_not_compared() -> None:
    row = only(measured(), replace(measured(compiled=0.5), smaller_batch_size=16))
    assert (row.verdict, row.reason) == ("UNRESOLVED", "out of memory: batch 32 in BASE, 16 in HEAD")


def test_steps_that_were_waited_for_are_not_compared_with_those_that_were_not() -> None:
    latency = Latency(0.01, 0.01, 0.01, 10)
    head = measured()
    processes = tuple(replace(item, latencies=Latencies(latency, latency)) for item in head.processes)
    row = only(measured(), replace(head, processes=processes))
    assert (row.verdict, row.reason) == ("UNRESOLVED", "measure.clock=block in BASE, step in HEAD")


def test_a_speedup_that_fell_because_eager_got_faster_is_no_regression() -> None:
    comparison = judge([pair(measured(), measured(eager=0.9)), *others()])
    row = comparison.rows[0]
    assert (row.verdict, change(row, SPEEDUP.name).verdict, change(row, EAGER.name).verdict) == (
        "SAME",
        "LOWER",
        "FASTER",
    )
    assert row.note == "the speedup fell because eager got faster (-10.0 %)"
    assert not comparison.regressed


def test_a_speedup_that_rose_because_eager_got_slower_is_said_to_be_no_gain() -> None:
    row = judge([pair(measured(), measured(eager=1.1)), *others()]).rows[0]
    assert (row.verdict, change(row, SPEEDUP.name).verdict, change(row, EAGER.name).verdict) == (
        "SAME",
        "HIGHER",
        "SLOWER",
    )
    assert row.note == "the speedup rose because eager got slower (+10.0 %)"


@pytest.mark.parametrize(
    ("eager", "compiled", "verdict"),
    [
        (1.0, 0.9, "HIGHER"),
        (1.0, 1.1, "LOWER"),
        (1.1, 0.97, "HIGHER"),  # it got faster as well
        (0.9, 1.03, "LOWER"),
        (1.01, 0.985, "HIGHER"),  # eager did less than half of it
        (0.99, 1.015, "LOWER"),
    ],
)
def test_a_speedup_that_moved_because_the_compiled_step_did_has_no_note(
    eager: float, compiled: float, verdict: str
) -> None:
    row = only(measured(), measured(eager=eager, compiled=compiled))
    assert (change(row, SPEEDUP.name).verdict, row.note) == (verdict, None)


def test_a_session_in_which_eager_moved_judges_speedups_alone() -> None:
    slow = [pair(measured(name), measured(name, compiled=1.05, eager=1.05)) for name in "abc"]
    comparison = judge([*slow, pair(measured("d"), measured("d", compiled=1.3, eager=1.05))])
    assert comparison.control.moved
    assert comparison.control.shift == pytest.approx(math.log(1.05), abs=1e-6)
    assert {row.verdict for row in comparison.rows} == {"UNRESOLVED"}
    assert [change(row, SPEEDUP.name).verdict for row in comparison.rows] == ["SAME", "SAME", "SAME", "LOWER"]
    assert not comparison.regressed
    assert comparison.rows[0].reason == "eager itself moved by +5.0 % (median over rows)"


@pytest.mark.parametrize("shift", [1.009, 1 / 1.009])
def test_a_change_must_hold_with_and_without_the_shift_of_the_session(shift: float) -> None:
    """1.5 % that a shift of 0.9 % makes 2.4 % is not 2 %, and 2.4 % that it makes 1.5 % is not either."""
    still = [pair(measured(name), measured(name, compiled=shift, eager=shift)) for name in "abc"]
    comparison = judge([*still, pair(measured("d"), measured("d", compiled=1.015 * max(shift, 1.0), eager=shift))])
    assert not comparison.control.moved
    assert comparison.rows[3].verdict == "UNRESOLVED"


def test_many_rows_take_more_than_one_row_to_convince() -> None:
    """p = 0.02 is enough for one row, and not for one among forty in which nothing happens."""
    wobble = (1.0, 1.03, 0.97)
    row = pair(measured(wobble=wobble), measured(compiled=1.09, wobble=wobble))
    alone = judge([row]).rows[0]
    among = judge([row, *([pair(measured(wobble=wobble), measured(wobble=wobble))] * 6)]).rows[0]
    assert (alone.verdict, among.verdict) == ("SLOWER", "UNRESOLVED")
    assert change(among, COMPILED.name).adjusted_p == pytest.approx(7 * (change(alone, COMPILED.name).adjusted_p or 0))


@pytest.mark.parametrize(("draws", "pooled"), [((0, 0, 0, 0, 0, 0), True), ((0, 0, 1, 1, 2, 2), False)])
def test_variances_of_eight_rows_are_pooled_over_processes_and_not_over_draws(
    draws: Sequence[int], pooled: bool
) -> None:
    def scattered(size: float) -> Record:
        wobble = [1 + size * factor for factor in (-1.0, 0.9, 0.3, -0.2, 0.5, -0.4)]
        return measured(wobble=wobble, draws=draws)

    rows = [pair(scattered(0.001 * index), scattered(0.001 * index)) for index in range(1, 9)]
    for count in (7, 8):
        changes = [change(row, COMPILED.name) for row in judge(rows[:count]).rows]
        degrees = [item.estimate.degrees or 0 for item in changes if item.estimate]
        own = 4 if changes[0].unit == "draws" else 10  # Welch's, of two sides that scatter alike
        assert len(degrees) == count
        assert all((found > own + 0.1) == (pooled and count == 8) for found in degrees)


def test_variances_of_two_processes_are_not_pooled() -> None:
    """One row among nine calm ones scatters by 4 %: their variance says nothing of its own."""
    calm = [pair(measured(f"m{i}", wobble=(1.0, 1.001)), measured(f"m{i}", wobble=(1.001, 1.0))) for i in range(9)]
    loud = pair(measured(wobble=(1.0, 0.96)), measured(wobble=(1.02, 1.06)))
    row = judge([loud, *calm]).rows[0]
    estimate = change(row, COMPILED.name).estimate
    assert estimate is not None
    assert estimate.degrees == pytest.approx(2, abs=0.01)
    assert row.verdict == "UNRESOLVED"


def test_compile_time_is_judged_over_cold_processes() -> None:
    draws = [0, 1, 2, 3, 4]
    row = only(measured(draws=draws), measured(draws=draws, compile_s=40.0))
    assert (row.verdict, change(row, COMPILE.name).verdict) == ("SAME", "SLOWER")
    quick = only(measured(draws=draws, compile_s=2.0), measured(draws=draws, compile_s=2.5))
    assert change(quick, COMPILE.name).verdict == "SAME"  # half a second
    contended = only(measured(draws=draws), measured(draws=draws, compile_s=40.0, flags=("compile_contended",)))
    assert change(contended, COMPILE.name).verdict == "UNRESOLVED"
    one = only(measured(), measured(compile_s=60.0))
    assert change(one, COMPILE.name).reason == "one cold compile on a side"


@pytest.mark.parametrize(("added", "verdict"), [(0.0, "SAME"), (2**20, "SAME"), (GIB, "MORE"), (-GIB / 2, "LESS")])
def test_memory_counts_from_a_segment_of_the_allocator_on(added: float, verdict: str) -> None:
    row = only(measured(memory=GIB), measured(memory=GIB + added))
    assert change(row, MEMORY.name).verdict == verdict


@pytest.mark.parametrize(
    ("base", "head", "verdict", "reason"),
    [
        ("ok", "compile_error", "BROKE", "compile_error while compiling in HEAD"),
        ("ok", "accuracy_mismatch", "BROKE", "accuracy_mismatch while compiling in HEAD"),
        ("ok", "unavailable", "UNRESOLVED", "unavailable while compiling in HEAD"),
        ("ok", "interrupted", "UNRESOLVED", "interrupted while compiling in HEAD"),
        ("oom", "ok", "FIXED", "oom in BASE"),
        ("interrupted", "ok", "UNRESOLVED", "interrupted in BASE"),
        ("oom", "oom", "UNRESOLVED", "oom in both"),
        ("oom", "timeout", "UNRESOLVED", "oom in BASE, timeout in HEAD"),
        (None, "ok", "NEW", None),
        ("ok", None, "GONE", None),
        (None, "oom", "NEW", "oom"),
    ],
)
def test_statuses(base: str | None, head: str | None, verdict: str, reason: str | None) -> None:
    records = [status and (measured() if status == "ok" else make_record(status=status)) for status in (base, head)]
    comparison = judge([pair(*records)])  # type: ignore[arg-type]
    assert (comparison.rows[0].verdict, comparison.rows[0].reason) == (verdict, reason)
    assert comparison.regressed == (verdict == "BROKE")


def sides(*records: Record) -> list[Side]:
    return [make_side(record) for record in records]


def test_trials_match_by_content_and_interpreters_do_not_keep_them_apart() -> None:
    old = sides(measured(trial=make_trial(python="/old/bin/python")), measured("vgg16"))
    new = sides(measured(trial=make_trial(python="/new/bin/python")), measured("alexnet"))
    found = [
        (item.base and item.base.trial.python, item.head and item.head.trial.python) for item in match_sweeps(old, new)
    ]
    assert found == [("/old/bin/python", "/new/bin/python"), (None, None), (None, None)]
    assert [item.both is None for item in match_sweeps(old, new)] == [False, True, True]


def test_several_interpreters_in_a_sweep_match_by_their_own_names() -> None:
    both = sides(*(measured(trial=make_trial(python=name)) for name in ("/a", "/b")))
    assert [item.both and {side.trial.python for side in item.both} for item in match_sweeps(both, both)] == [
        {"/a"},
        {"/b"},
    ]
    new = sides(measured(trial=make_trial(python="/c")))
    assert [item.both for item in match_sweeps(both, new)] == [None, None, None]  # which of the two would it be?


@pytest.mark.parametrize(
    ("axis", "one", "other"),
    [
        ("worker.python", make_trial(), make_trial(python="/b")),
        ("mode", make_trial(), make_trial(mode="max-autotune")),
        ("backend", make_trial(backend="aot_eager"), make_trial()),
        ("compile.scope", make_trial(compile=Compile(scope="blocks")), make_trial()),
        ("compile.dynamic", make_trial(compile=Compile(dynamic=True)), make_trial(compile=Compile(dynamic=False))),
        ("compile.fullgraph", make_trial(compile=Compile(fullgraph=True)), make_trial()),
    ],
)
def test_two_values_of_an_axis_are_compared_within_a_sweep(axis: str, one: object, other: object) -> None:
    found = sides(*(measured(trial=trial) for trial in (one, other)), measured("vgg16"))  # type: ignore[arg-type]
    values = choose_values(found[:2], axis, ())
    pairs = match_values(found, axis, *values)
    assert sum(item.both is not None for item in pairs) == 1
    assert {side.trial.labels.model for item in pairs if item.both for side in item.both} == {"resnet50"}


def test_modes_are_compared_from_mild_to_aggressive() -> None:
    found = sides(*(measured(mode=mode) for mode in ("reduce-overhead", "default")))
    assert choose_values(found, "mode", ()) == ("default", "reduce-overhead")
    assert choose_values(found, "mode", ("reduce-overhead", "default")) == ("reduce-overhead", "default")


def test_what_changed_is_said_with_the_rows_that_it_is_true_for() -> None:
    base, head = measured(), measured()
    environment = {**base.environment, "versions": {"torch": "2.14.0", "timm": "1.0"}, "driver": "x"}
    pairs = [pair(base, replace(head, environment=environment)), pair(base, head)]
    lines = [version.line for version in list_version_changes(pairs)]
    assert lines == ["timm: none → 1.0 (1 row)", "torch: 2.13.0 → 2.14.0 (1 row)"]
    assert [version.line for version in list_version_changes(pairs[:1])] == [
        "timm: none → 1.0",
        "torch: 2.13.0 → 2.14.0",
    ]
    assert list_version_changes(pairs[1:]) == []
    quiet = replace(head, environment={**base.environment, "variables": {"TORCH_LOGS": "all"}})
    loud = replace(head, environment={**base.environment, "variables": {"TORCH_LOGS": ""}})
    assert list_environment_changes([pair(quiet, loud)]) == ["variable TORCH_LOGS: all → none"]


def upgraded(record: Record, **device: object) -> Record:
    """The record of the next torch, and of a device with these properties."""
    versions = {"torch": "2.14.0", "triton": "3.8.0", "cuda": "13.2"}
    found = {"type": "cuda", "name": "NVIDIA H200", **device}
    return replace(record, environment={"versions": versions, "device": found})


def test_versions_that_differ_are_named_first_and_in_each_row(tmp_path: Path) -> None:
    old = [replace(measured(model), environment=upgraded(measured(), driver="580").environment) for model in MODELS]
    versions = {"torch": "2.13.0", "triton": "3.8.0", "cuda": "13.2"}
    write_sweep(tmp_path / "runs", old, "old")
    new = [replace(record, environment={**record.environment, "versions": versions}) for record in old[:3]]
    new.append(upgraded(measured("vgg16"), driver="590"))
    write_sweep(tmp_path / "runs", new, "new")
    lines = compare(tmp_path, "old", "new").stdout.splitlines()
    assert lines[2:4] == ["GPU driver: 580 → 590 (1 row)", "torch: 2.14.0 → 2.13.0 (3 rows)"]
    assert "triton" not in "".join(lines)
    found = json.loads(compare(tmp_path, "old", "new", "--format", "json").stdout)
    assert found["versions"] == [
        {"name": "GPU driver", "base": "580", "head": "590", "rows": 1},
        {"name": "torch", "base": "2.14.0", "head": "2.13.0", "rows": 3},
    ]
    of_rows = {row["model"]: row["versions"] for row in found["rows"]}
    assert of_rows == {**dict.fromkeys(MODELS, "torch: 2.14.0 → 2.13.0"), "vgg16": "GPU driver: 580 → 590"}


def test_the_same_versions_are_not_spoken_of(tmp_path: Path) -> None:
    two_sweeps(tmp_path, [])
    assert "torch" not in compare(tmp_path, "old", "new").stdout
    found = json.loads(compare(tmp_path, "old", "new", "--format", "json").stdout)
    assert (found["versions"], {row["versions"] for row in found["rows"]}) == ([], {None})


def test_a_row_names_both_devices() -> None:
    assert describe_versions(pair(measured(), on("NVIDIA A100", measured()))) == "device: NVIDIA H200 → NVIDIA A100"


@pytest.mark.parametrize("known", [True, False])
def test_versions_of_the_commands_are_compared_where_records_have_none(tmp_path: Path, known: bool) -> None:
    """The interpreter of a command may be another one than a worker's, whose versions count."""
    for name, torch in (("old", "2.13.0"), ("new", "2.14.0")):
        records = [measured(model) for model in MODELS]
        records = records if known else [replace(record, environment={}) for record in records]
        write_sweep(tmp_path / "runs", records, name)
        text = json.dumps({"sweep": name, "invocations": [{"versions": {"torch": torch, "timm": "1.0"}}]})
        (tmp_path / "runs" / name / "sweep.json").write_text(text)
    found = json.loads(compare(tmp_path, "old", "new", "--format", "json").stdout)["versions"]
    change = {"name": "torch", "base": "2.13.0", "head": "2.14.0", "rows": None}
    assert found == ([] if known else [change])


def on(device: str, record: Record) -> Record:
    return replace(record, environment={**record.environment, "device": {"type": "cuda", "name": device}})


def test_other_devices_are_found_where_both_are_known() -> None:
    known, other = measured(), on("NVIDIA A100", measured())
    assert list_device_changes([pair(known, other)]) == ["device: NVIDIA H200 → NVIDIA A100 (1 row)"]
    assert list_device_changes([pair(known, replace(other, environment={}))]) == []


def test_devices_of_one_name_and_other_memory_are_others() -> None:
    sizes = [{"type": "cuda", "name": "NVIDIA A100", "memory_bytes": gib * 2**30} for gib in (40, 80)]
    small, large = (replace(measured(), environment={"device": device}) for device in sizes)
    assert list_device_changes([pair(small, large)]) == ["device: NVIDIA A100 40 GiB → NVIDIA A100 80 GiB (1 row)"]
    assert list_device_changes([pair(small, small)]) == []
    drivers = [{"type": "cuda", "name": "NVIDIA H100", "memory_bytes": gib * 2**30} for gib in (79.1, 79.65)]
    old, new = (replace(measured(), environment={"device": device}) for device in drivers)
    assert list_device_changes([pair(old, new)]) == []


def typed(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """As a user types it."""
    command = [sys.executable, "-m", "sweeper.compare", *arguments]
    return subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False)


def compare(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The same in this process, which takes a tenth of the time."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(arguments)
        except SystemExit as ended:
            code = int(ended.code or 0)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


MODELS = ("alexnet", "densenet", "resnet50", "vgg16")


def two_sweeps(folder: Path, head: Sequence[Record]) -> None:
    """`old` with four models, and `new` with `head` in place of the first of them."""
    write_sweep(folder / "runs", [measured(model) for model in MODELS], "old")
    taken = {record.trial_id for record in head}
    rest = [record for model in MODELS if (record := measured(model)).trial_id not in taken]
    write_sweep(folder / "runs", [*head, *rest], "new")


def test_nothing_changed_is_exit_0_and_rows_that_are_the_same_are_counted(tmp_path: Path) -> None:
    two_sweeps(tmp_path, [])
    found = typed(tmp_path, "old", "new")
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.splitlines()[-1] == "4 rows: 4 SAME"
    assert "alexnet" not in found.stdout
    assert "alexnet" in compare(tmp_path, "old", "new", "--all").stdout


def test_a_slower_step_and_a_broken_trial_are_exit_1_and_come_first(tmp_path: Path) -> None:
    broken = make_record("alexnet", status="compile_error", message="no kernel\nfor [this]")
    two_sweeps(tmp_path, [broken, measured("vgg16", compiled=1.05), measured("densenet", compiled=0.9)])
    found = compare(tmp_path, "old", "new")
    assert found.returncode == 1
    verdicts = [line.split()[0] for line in found.stdout.splitlines() if "amp" in line and "→" in line]
    assert verdicts == ["SLOWER", "FASTER"]
    assert "BROKE alexnet amp default: compile_error while compiling in HEAD: no kernel | for [this]" in found.stdout
    assert found.stdout.splitlines()[-1] == "4 rows: 1 SLOWER, 1 BROKE, 1 FASTER, 1 SAME"


@KINDS
def test_device_time_stands_beside_wall_clock(tmp_path: Path, kind: str) -> None:
    """Eager's device time moved by 0.5 % in each row, which is no reason against a change of 4 %."""
    for name, eager_s, compiled_s in (("old", 0.0190, 0.0080), ("new", 0.019095, 0.00832)):
        records = [on_device(measured(model, wobble=NOISY), 0.0080, eager_s, kind=kind) for model in MODELS[:3]]
        records.append(on_device(measured("vgg16", wobble=NOISY), compiled_s, eager_s, kind=kind))
        write_sweep(tmp_path / "runs", records, name)
    found = compare(tmp_path, "old", "new")
    assert found.returncode == 1
    (row,) = (line for line in found.stdout.splitlines() if line.startswith("SLOWER") and "→" in line)
    assert "+4.0 % SLOWER" in row
    said = (
        "SLOWER, wall UNRESOLVED (shown is neither a change nor equality within 2%), device SLOWER: vgg16 amp default"
    )
    assert said in found.stdout.splitlines()
    clock = {"device_step_s": "device step time", "device_time_s": "device busy time"}[kind]
    assert f"control: eager's {clock} moved by +0.5 % (median of 4 rows)" in found.stdout.splitlines()
    data = json.loads(compare(tmp_path, "old", "new", "--format", "json").stdout)
    name = {"device_step_s": "device_step_s", "device_time_s": "busy_s"}[kind]
    assert data["device_shifts"][f"eager_{name}"] == pytest.approx(0.005)
    (judged,) = (row for row in data["rows"] if row["model"] == "vgg16")
    assert judged[f"compiled_{name}_ratio"] == pytest.approx(1.04)
    assert (judged["verdict"], judged["compiled_step_s_verdict"]) == ("SLOWER", "UNRESOLVED")
    assert "device" in compare(tmp_path, "old", "new", "--format", "md").stdout


@pytest.mark.parametrize("head", [[make_record("alexnet", status="oom")], [measured("vgg16", compiled=1.05)]])
def test_each_regression_alone_is_exit_1(tmp_path: Path, head: Sequence[Record]) -> None:
    two_sweeps(tmp_path, head)
    assert typed(tmp_path, "old", "new").returncode == 1
    assert typed(tmp_path, "new", "old").returncode == 0  # the other way round it got better


def test_why_a_trial_is_unavailable_is_said_and_is_no_regression(tmp_path: Path) -> None:
    two_sweeps(tmp_path, [make_record("alexnet", status="unavailable", message="pip install it")])
    found = compare(tmp_path, "old", "new")
    assert found.returncode == 0
    assert "UNRESOLVED alexnet amp default: unavailable while compiling in HEAD: pip install it" in found.stdout


def test_new_and_gone_are_no_regression(tmp_path: Path) -> None:
    write_sweep(tmp_path / "runs", [measured("vgg16"), measured("alexnet")], "old")
    write_sweep(tmp_path / "runs", [measured("vgg16"), measured("resnet50")], "new")
    found = compare(tmp_path, "old", "new")
    assert found.returncode == 0
    assert found.stdout.splitlines()[-1] == "3 rows: 1 NEW, 1 GONE, 1 SAME"
    assert not [line for line in found.stdout.splitlines() if line.startswith(("NEW resnet50", "GONE alexnet"))]


def test_markdown_escapes_what_comes_from_records(tmp_path: Path) -> None:
    message = "<script>alert(1)</script> | [link](http://x)"
    two_sweeps(tmp_path, [make_record("alexnet", status="oom", message=message)])
    found = compare(tmp_path, "old", "new", "--format", "md")
    assert found.returncode == 1
    assert "<script>" not in found.stdout
    assert "&lt;script&gt;alert(1)&lt;/script&gt; \\| \\[link\\](http://x)" in found.stdout
    assert "**4 rows: 1 BROKE, 3 SAME**" in found.stdout


def test_json_and_csv_have_every_row(tmp_path: Path) -> None:
    two_sweeps(tmp_path, [measured("vgg16", compiled=1.05)])
    data = json.loads(compare(tmp_path, "old", "new", "--format", "json").stdout)
    assert (data["regressed"], data["eager_moved"], len(data["rows"])) == (True, False, 4)
    first = data["rows"][0]
    assert (first["model"], first["verdict"], first["compiled_step_s_unit"]) == ("vgg16", "SLOWER", "processes")
    assert first["compiled_step_s_ratio"] == pytest.approx(1.05)
    lines = compare(tmp_path, "old", "new", "--format", "csv").stdout.splitlines()
    assert len(lines) == 5
    assert lines[0].split(",")[:4] == ["verdict", "reason", "note", "model"]


def test_compile_time_and_memory_have_a_column_where_they_changed_or_all_is_asked_for(tmp_path: Path) -> None:
    two_sweeps(tmp_path, [measured("vgg16", memory=2 * GIB)])
    text = compare(tmp_path, "old", "new").stdout
    assert "1,024 → 2,048 MORE" in text
    assert "compile s" not in text
    assert text.splitlines()[-1] == "4 rows: 4 SAME"
    assert "30.0 → 30.0" in compare(tmp_path, "old", "new", "--all").stdout


def test_a_file_gets_the_format_and_the_terminal_the_text(tmp_path: Path) -> None:
    two_sweeps(tmp_path, [])
    found = compare(tmp_path, "old", "new", "--format", "md", "--out", "made/comment.md")
    assert found.stdout.splitlines()[-1] == "4 rows: 4 SAME"
    assert (tmp_path / "made/comment.md").read_text().startswith("## torch.compile: BASE old, HEAD new\n")


def test_other_devices_are_exit_2_unless_allowed(tmp_path: Path) -> None:
    two_sweeps(tmp_path, [on("NVIDIA A100", measured(model)) for model in MODELS])
    found = typed(tmp_path, "old", "new")
    assert (found.returncode, found.stdout) == (2, "")
    assert "device: NVIDIA H200 → NVIDIA A100 (4 rows)" in found.stderr
    assert "--allow-different-devices" in found.stderr
    allowed = compare(tmp_path, "old", "new", "--allow-different-devices")
    assert allowed.returncode == 0
    assert "device: NVIDIA H200 → NVIDIA A100 (4 rows)" in allowed.stdout


def test_two_interpreters_of_one_sweep(tmp_path: Path) -> None:
    records = [
        measured(compiled=factor, trial=make_trial(model, python=python))
        for python, factor in (("/new/python", 1.1), ("/old/python", 1.0))
        for model in MODELS
    ]
    write_sweep(tmp_path / "runs", records)
    forward = typed(tmp_path, "night", "--by", "worker.python", "/old/python", "/new/python")
    assert forward.returncode == 1
    assert forward.stdout.splitlines()[-1] == "4 rows: 4 SLOWER"
    assert "BASE: night, worker.python=/old/python" in forward.stdout
    alphabetical = compare(tmp_path, "night", "--by", "worker.python")
    assert alphabetical.stdout.splitlines()[-1] == "4 rows: 4 FASTER"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["old"], "two sweeps are compared"),
        (["old", "nwe"], "nearest: new"),
        (["old", "other"], "have no trial in common"),
        (["old", "--by", "precision"], "--by precision: allowed are worker.python, mode"),
        (["old", "--by", "backend"], "--by backend: all trials have backend inductor: there is nothing to compare"),
        (["modes", "--by", "mode"], "give BASE_VALUE and HEAD_VALUE of these: default, reduce-overhead, max-autotune"),
        (["old", "--by", "mode", "default", "eager"], "no trial has eager; there are: default"),
        (["old", "--by", "mode", "default"], "type SWEEP, or SWEEP BASE_VALUE HEAD_VALUE"),
        (["old", "new", "--min-effect", "2"], "a share above 0 and below 1"),
        (["old", "new", "--format", "pdf"], "invalid choice"),
        ([], "required"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_input_is_exit_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    two_sweeps(tmp_path, [])
    write_sweep(tmp_path / "runs", [measured("swin_t")], "other")
    modes = [measured(mode=mode) for mode in ("default", "reduce-overhead", "max-autotune")]
    write_sweep(tmp_path / "runs", modes, "modes")
    found = compare(tmp_path, *arguments)
    assert (found.returncode, found.stdout) == (2, "")
    assert message in found.stderr
    assert "Traceback" not in found.stderr


def test_a_record_that_cannot_be_read_is_exit_2_and_the_rest_is_compared(tmp_path: Path) -> None:
    two_sweeps(tmp_path, [])
    next((tmp_path / "runs/new").glob("vgg16-*/record.json")).write_text("{")
    found = compare(tmp_path, "old", "new")
    assert found.returncode == 2
    assert "not JSON, or cut short" in found.stderr
    assert found.stdout.splitlines()[-1] == "4 rows: 1 UNRESOLVED, 3 SAME"


def folder_of(sweep: Path, model: str) -> Path:
    return next(sweep.glob(f"{model}-*"))


@pytest.mark.parametrize(("lost", "side"), [("old", "BASE"), ("new", "HEAD")])
def test_a_trial_without_a_record_is_neither_gone_nor_new(tmp_path: Path, lost: str, side: str) -> None:
    """`trial.json` says nothing here; the folders' names do."""
    two_sweeps(tmp_path, [])
    sweep = tmp_path / "runs" / lost
    (folder_of(sweep, "vgg16") / "record.json").write_text("{}")
    for model in ("alexnet", "densenet"):
        (folder_of(sweep, model) / "record.json").unlink()
    found = compare(tmp_path, "old", "new")
    assert found.returncode == 2
    lines = found.stdout.splitlines()
    assert f"UNRESOLVED, its record in {side} cannot be read: vgg16 amp default" in lines
    assert f"UNRESOLVED, has not ended in {side}: alexnet amp default, densenet amp default" in lines
    assert lines[-1] == "4 rows: 3 UNRESOLVED, 1 SAME"
    rows = json.loads(compare(tmp_path, "old", "new", "--format", "json").stdout)["rows"]
    name = {"BASE": "base", "HEAD": "head"}[side]
    statuses = {row["model"]: row[f"{name}_status"] for row in rows}
    assert statuses == {"vgg16": "unreadable", "alexnet": "unfinished", "densenet": "unfinished", "resnet50": "ok"}


def test_a_trial_without_a_record_in_both_sweeps_is_known_by_what_its_workers_were_told(tmp_path: Path) -> None:
    two_sweeps(tmp_path, [])
    trial = make_trial("vgg16")
    for name in ("old", "new"):
        folder = folder_of(tmp_path / "runs" / name, "vgg16")
        (folder / "record.json").unlink()
        (folder / "trial.json").write_text(json.dumps({"trial": trial.to_json()}))
    (folder / "record.json").write_text("{")
    found = compare(tmp_path, "old", "new")
    reason = "UNRESOLVED, has not ended in BASE, its record in HEAD cannot be read: vgg16 amp default"
    assert reason in found.stdout.splitlines()
    assert found.stdout.splitlines()[-1] == "4 rows: 1 UNRESOLVED, 3 SAME"


@pytest.mark.parametrize("told", ["[]", "{", '{"trial": 3}', json.dumps({"trial": make_trial("swin_t").to_json()})])
def test_what_the_workers_were_told_counts_only_where_it_is_of_that_trial(tmp_path: Path, told: str) -> None:
    """After an out of memory it has the smaller batch."""
    two_sweeps(tmp_path, [])
    folder = folder_of(tmp_path / "runs/new", "vgg16")
    (folder / "record.json").unlink()
    (folder / "trial.json").write_text(told)
    found = compare(tmp_path, "old", "new")
    assert "UNRESOLVED, has not ended in HEAD: vgg16 amp default" in found.stdout.splitlines()
    assert found.stdout.splitlines()[-1] == "4 rows: 1 UNRESOLVED, 3 SAME"


def test_a_folder_that_is_no_trial_s_is_only_complained_of(tmp_path: Path) -> None:
    two_sweeps(tmp_path, [])
    (tmp_path / "runs/new/notes").mkdir()
    (tmp_path / "runs/new/notes/record.json").write_text("{")
    found = compare(tmp_path, "old", "new")
    assert (found.returncode, found.stdout.splitlines()[-1]) == (2, "4 rows: 4 SAME")
    assert "notes/record.json: not JSON" in found.stderr


def test_another_folder_with_the_record_of_the_trial_stands_for_it(tmp_path: Path) -> None:
    two_sweeps(tmp_path, [])
    folder = folder_of(tmp_path / "runs/new", "vgg16")
    shutil.copytree(folder, folder.with_name(f"a-{folder.name}"))
    (folder / "record.json").write_text("{")
    found = compare(tmp_path, "old", "new")
    assert (found.returncode, found.stdout.splitlines()[-1]) == (2, "4 rows: 4 SAME")


def test_a_trial_that_has_not_ended_keeps_its_interpreter_and_its_axes(tmp_path: Path) -> None:
    trials = [make_trial("vgg16", python=python) for python in ("/old/python", "/new/python")]
    records = [measured("resnet50", python=trial.python) for trial in trials]
    write_sweep(tmp_path / "runs", [*records, *(measured(trial=trial) for trial in trials)], "both")
    for name, record, trial in zip(("old", "new"), records, trials, strict=True):
        write_sweep(tmp_path / "runs", [record, measured(trial=trial)], name)
    for name in ("both", "new"):
        folder = next((tmp_path / "runs" / name).glob(f"*-{trials[1].id}"))
        (folder / "record.json").unlink()
        (folder / "trial.json").write_text(json.dumps({"trial": trials[1].to_json()}))
    for arguments in (["old", "new"], ["both", "--by", "worker.python", "/old/python", "/new/python"]):
        found = compare(tmp_path, *arguments)
        assert "UNRESOLVED, has not ended in HEAD: vgg16 amp default" in found.stdout
        assert found.stdout.splitlines()[-1] == "2 rows: 1 UNRESOLVED, 1 SAME"


def test_what_changed_counts_only_rows_with_records(tmp_path: Path) -> None:
    upgraded = []
    for model in MODELS:
        record = measured(model)
        upgraded.append(replace(record, environment={**record.environment, "versions": {"torch": "2.14.0"}}))
    two_sweeps(tmp_path, upgraded)
    (folder_of(tmp_path / "runs/new", "vgg16") / "record.json").unlink()
    assert "torch: 2.13.0 → 2.14.0" in compare(tmp_path, "old", "new").stdout.splitlines()


PUBLISHED = "nothing could be judged: measure both with measure=published (docs/comparing.md)"


@pytest.mark.parametrize(
    ("settings", "last"),
    [
        ({"wobble": [1.0]}, PUBLISHED),
        ({"code": None}, PUBLISHED),
        ({"wobble": (0.9, 1.1, 1.0, 1.05, 0.95)}, PUBLISHED),
        (
            {"wobble": (0.9, 1.1, 1.0), "draws": (0, 1, 2)},
            "nothing could be judged: measure both with measure=published measure.draws=5 (docs/comparing.md)",
        ),
        (
            {"status": "oom", "wobble": ()},
            "nothing could be judged: no trial was measured alike on both sides, and each row says why",
        ),
        ({}, None),
    ],
    ids=["one process", "one draw", "noise", "three draws", "nothing measured", "judged"],
)
def test_what_to_measure_where_nothing_could_be_judged(
    tmp_path: Path, settings: dict[str, object], last: str | None
) -> None:
    for name in ("old", "new"):
        write_sweep(tmp_path / "runs", [measured(model, **settings) for model in MODELS], name)  # type: ignore[arg-type]
    found = compare(tmp_path, "old", "new")
    assert found.returncode == (3 if last else 0)
    assert ("--allow-unresolved makes it 0" in found.stderr) == bool(last)
    assert compare(tmp_path, "old", "new", "--allow-unresolved").returncode == 0
    assert found.stdout.splitlines()[-1] == (last or "4 rows: 4 SAME")
    assert (last is None) == ("nothing could be judged" not in found.stdout)
    markdown = compare(tmp_path, "old", "new", "--format", "md").stdout
    assert (last is None) == ("nothing could be judged" not in markdown)
    assert json.loads(compare(tmp_path, "old", "new", "--format", "json").stdout)["nothing_judged"] == last


def test_where_eager_moved_speedups_may_still_be_judged(tmp_path: Path) -> None:
    write_sweep(tmp_path / "runs", [measured(model) for model in MODELS], "old")
    write_sweep(tmp_path / "runs", [measured(model, eager=1.05, compiled=1.05) for model in MODELS], "new")
    last = compare(tmp_path, "old", "new").stdout.splitlines()[-1]
    assert last.startswith("nothing could be judged but speedups, since eager itself moved: measure both again")
    for name, slower in (("old", 1.0), ("new", 1.05)):
        records = [on_device(measured(model, eager=slower, compiled=slower), 0.008) for model in MODELS]
        write_sweep(tmp_path / "other" / "runs", records, name)
    last = compare(tmp_path / "other", "old", "new").stdout.splitlines()[-1]
    assert last.startswith("nothing could be judged but speedups and device times, since eager itself moved: measure")


@pytest.mark.parametrize(("eager", "moved"), [(1.05, "rise where only eager got slower"), (0.95, "fall where only")])
def test_the_head_says_what_else_moves_speedups_where_the_control_moved(
    tmp_path: Path, eager: float, moved: str
) -> None:
    write_sweep(tmp_path / "runs", [measured(model) for model in MODELS], "old")
    write_sweep(tmp_path / "runs", [measured(model, eager=eager) for model in MODELS], "new")
    control = next(line for line in compare(tmp_path, "old", "new").stdout.splitlines() if line.startswith("control"))
    assert "a shift of the whole machine does not touch them, but they " + moved in control


def test_rows_that_are_unresolved_fail_where_that_is_asked_for(tmp_path: Path) -> None:
    two_sweeps(tmp_path, [measured("vgg16", code="other")])
    assert compare(tmp_path, "old", "new").returncode == 0
    found = compare(tmp_path, "old", "new", "--fail-unresolved")
    assert found.returncode == 1
    assert "--fail-unresolved: 1 row that both sides measured is UNRESOLVED" in found.stderr


@pytest.mark.parametrize(
    ("head", "arguments", "code"),
    [
        ([measured(model, wobble=[1.0]) for model in MODELS], [], 3),
        ([measured(model, wobble=[1.0]) for model in MODELS], ["--allow-unresolved"], 0),
        ([measured(model, wobble=[1.0]) for model in MODELS], ["--fail-unresolved"], 1),
        ([measured(model, wobble=[1.0], compiled=1.5 if model == "vgg16" else 1.0) for model in MODELS], [], 1),
        ([make_record(model, status="oom") for model in MODELS], ["--allow-unresolved"], 1),
        ([measured("swin_t", wobble=[1.0])], ["--allow-unresolved"], 2),
        ([measured(model) for model in MODELS], ["--allow-unresolved", "--fail-unresolved"], 2),
    ],
    ids=["3", "3 becomes 0", "any row", "1 before 3", "1 stays", "nothing in common stays 2", "one of the two"],
)
def test_exit_code_where_nothing_could_be_judged(
    tmp_path: Path, head: Sequence[Record], arguments: list[str], code: int
) -> None:
    write_sweep(tmp_path / "runs", [measured(model, wobble=[1.0]) for model in MODELS], "old")
    write_sweep(tmp_path / "runs", head, "new")
    assert compare(tmp_path, "old", "new", *arguments).returncode == code


@pytest.mark.parametrize("status", ["unavailable", "interrupted", "unfinished", "same"])
def test_only_rows_that_both_sides_measured_fail(tmp_path: Path, status: str) -> None:
    two_sweeps(tmp_path, [make_record("vgg16", status=status)] if status in ("unavailable", "interrupted") else [])
    if status == "unfinished":
        (folder_of(tmp_path / "runs/new", "vgg16") / "record.json").unlink()
    expected = 2 if status == "unfinished" else 0
    assert compare(tmp_path, "old", "new", "--fail-unresolved").returncode == expected


def test_a_place_that_cannot_be_written_is_exit_2_in_the_words_of_the_user(tmp_path: Path) -> None:
    two_sweeps(tmp_path, [])
    (tmp_path / "file").write_text("kept")
    (tmp_path / "folder").mkdir()
    for out, why in (("file/made.md", "exists"), ("folder", "Is a directory"), ("/proc/made.md", "")):
        found = compare(tmp_path, "old", "new", "--out", out)
        assert (found.returncode, found.stdout) == (2, "")
        assert found.stderr.startswith(f"--out {out} cannot be written: ")
        assert why in found.stderr
        assert len(found.stderr.splitlines()) == 1
        assert ".made.md." not in found.stderr
        assert ".folder." not in found.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder", "runs"]
    assert (tmp_path / "file").read_text() == "kept"


def test_settings_of_the_measurement_that_differ_are_said(tmp_path: Path) -> None:
    two_sweeps(tmp_path, [])
    for name, processes in (("old", 3), ("new", 5)):
        measure = {"processes": processes, "draws": 1}
        text = json.dumps({"sweep": name, "invocations": [{"settings": {"measure": measure}}]})
        (tmp_path / "runs" / name / "sweep.json").write_text(text)
    assert "measure.processes: 3 → 5" in compare(tmp_path, "old", "new").stdout.splitlines()


@pytest.mark.parametrize("arguments", [["old", "new"], ["--help"]], ids=" ".join)
def test_the_comparison_is_light(tmp_path: Path, arguments: list[str]) -> None:
    two_sweeps(tmp_path, [])
    code = f"""
import contextlib, sys
with contextlib.suppress(SystemExit):
    from sweeper.compare.__main__ import main
    main(sys.argv[1:])
print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
"""
    command = [sys.executable, "-c", code, *arguments]
    found = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert found.stderr.splitlines()[-1] == "[]"


def test_no_pairs_are_no_regression() -> None:
    found = judge([])
    assert (found.rows, found.regressed, found.control.moved) == ((), False, False)


def test_sweeps_are_compared_from_where_they_were_sent_to(
    empty_database: Path, in_empty_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    (in_empty_folder / "store").mkdir()
    shutil.copy(empty_database, in_empty_folder / "store" / "mlflow.db")
    uri = f"sqlite:///{in_empty_folder}/store/mlflow.db"
    two_sweeps(in_empty_folder, [measured("vgg16", compiled=1.05)])
    for name in ("old", "new"):
        tracker = Tracker(uri, name)
        tracker.catch_up()
        tracker.finish()
        assert tracker.failure is None
    assert main(["old", "new"]) == 1
    from_folders = capsys.readouterr()
    shutil.rmtree("runs")
    assert main(["old", "new", "--tracking-uri", uri]) == 1
    assert capsys.readouterr() == from_folders
    assert main(["old", "nwe", "--tracking-uri", uri]) == 2
    assert "nwe: no such sweep" in capsys.readouterr().err
