"""Verdicts on pairs of records made by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from comparisons import GIB, NOISY, WOBBLE, measured, on_device, pair
from records import make_record, make_script, make_trial

from sweeper.compare.pairs import Pair
from sweeper.compare.quantities import (
    COMPILE,
    COMPILED,
    COMPILED_DEVICE,
    EAGER,
    MEMORY,
    SPEEDUP,
)
from sweeper.compare.text import COLUMNS, is_worth_showing
from sweeper.compare.verdicts import Change, JudgedPair, judge
from sweeper.core.record import Latencies, Latency, PerArm, Record


def others(count: int = 4) -> list[Pair]:
    """Rows in which nothing changed, so that one row does not move the control."""
    return [pair(measured(f"model{index}"), measured(f"model{index}")) for index in range(count)]


def only(base: Record | None, head: Record | None, **settings: float) -> JudgedPair:
    """The row of this pair beside others that stand still."""
    return judge([pair(base, head), *others()], **settings).rows[0]


def change(row: JudgedPair, name: str) -> Change:
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
    assert (
        only(measured(compiled=0.002, **tiny), measured(compiled=0.0022, **tiny)).verdict == "SAME"
    )  # type: ignore[arg-type]


def test_noise_that_is_larger_than_the_change_is_unresolved() -> None:
    loud = (0.9, 1.1, 1.0, 1.05, 0.95)
    row = only(measured(wobble=loud), measured(compiled=1.03, wobble=loud))
    assert (row.verdict, row.reason) == (
        "UNRESOLVED",
        "the tests show neither a change nor equality within 2 %",
    )


SINGLE = "a single process on a side: no variance"
ONE_DRAW = "fewer than 3 draws on a side, and compiled code or autotuning may differ"
HOST_BOUND = "host-bound, with fewer than 5 processes on a side"


@pytest.mark.parametrize(("factor", "verdict"), [(1.06, "SLOWER"), (1 / 1.06, "FASTER")])
def test_a_single_process_shows_a_change_beyond_what_processes_differ_by(
    factor: float, verdict: str
) -> None:
    row = only(measured(wobble=[1.0]), measured(wobble=[1.0], compiled=factor))
    assert (row.verdict, row.reason) == (verdict, f"size uncertain ({SINGLE})")


@pytest.mark.parametrize("factor", [1.04, 1.0, 1 / 1.04])
def test_a_single_process_shows_no_smaller_change_and_no_equality(factor: float) -> None:
    row = only(measured(wobble=[1.0]), measured(compiled=factor))
    assert (row.verdict, row.reason) == ("UNRESOLVED", SINGLE)
    assert change(row, COMPILED.name).estimate is not None  # the change is shown all the same


@pytest.mark.parametrize("code", ["other", None])
def test_one_draw_of_other_code_shows_a_change_beyond_what_draws_differ_by(
    code: str | None,
) -> None:
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
            on_cpu(
                measured(wobble=(1.0, 1.012, 0.99), compiled=1.503, code="other"),
                "host_busy",
                "unsteady",
            ),
            ONE_DRAW,
        ),
        (
            on_cpu(measured(wobble=[1.0], compiled=2.4)),
            on_cpu(measured(wobble=[1.0], compiled=7.2)),
            SINGLE,
        ),
    ],
    ids=["+50.3 % in the default measure", "24 -> 72 ms in quick"],
)
def test_a_step_that_is_much_slower_on_a_cpu_is_slower(
    base: Record, head: Record, reason: str
) -> None:
    row = judge(
        [
            pair(base, head),
            *(pair(on_cpu(measured(name)), on_cpu(measured(name))) for name in "abcd"),
        ]
    ).rows[0]
    assert (row.verdict, row.reason) == ("SLOWER", f"size uncertain ({reason})")


def test_a_single_process_on_a_cpu_may_be_as_slow_by_the_host() -> None:
    one = on_cpu(measured(wobble=[1.0]))
    assert only(one, on_cpu(measured(wobble=[1.0], compiled=2.3))).verdict == "UNRESOLVED"


def test_a_single_process_whose_blocks_scatter_may_be_as_slow_by_the_host() -> None:
    slow = measured(wobble=[1.0], compiled=1.3)
    assert only(measured(wobble=[1.0]), slow).verdict == "SLOWER"
    assert only(measured(wobble=[1.0]), replace(slow, flags=("unsteady",))).verdict == "UNRESOLVED"


@pytest.mark.parametrize(
    ("eager", "verdict"), [(1.0, "SLOWER"), (1.15, "UNRESOLVED"), (0.85, "SLOWER")]
)
def test_a_size_must_hold_beside_the_eager_arm_of_the_same_trial(
    eager: float, verdict: str
) -> None:
    """Both arms took turns, so what slows down both is the host or the clock."""
    row = only(measured(wobble=[1.0]), measured(wobble=[1.0], compiled=1.15, eager=eager))
    assert row.verdict == verdict


@pytest.mark.parametrize("wobble", [WOBBLE, (*[1.0] * 8, 1.9)])
def test_a_session_that_moved_shows_a_change_beyond_what_hosts_differ_by(
    wobble: Sequence[float],
) -> None:
    still = [pair(measured(name), measured(name, compiled=1.05, eager=1.05)) for name in "abc"]
    for factor, verdict in ((1.4, "UNRESOLVED"), (1.6, "SLOWER")):
        head = measured("d", compiled=factor, eager=1.05, wobble=wobble)
        comparison = judge([*still, pair(measured("d", wobble=wobble), head)])
        assert comparison.control.moved
        assert [row.verdict for row in comparison.rows] == ["UNRESOLVED"] * 3 + [verdict]
    assert (
        comparison.rows[3].reason
        == "size uncertain (eager itself moved by +5.0 % (median over rows))"
    )


def test_two_processes_show_no_less_than_one() -> None:
    """On one degree of freedom three times the time is not significant beside five other rows."""
    still = [
        pair(measured(f"m{i}", wobble=(1.0, 1.02)), measured(f"m{i}", wobble=(1.02, 1.0)))
        for i in range(5)
    ]
    row = judge(
        [pair(measured(wobble=(1.0, 1.0)), measured(wobble=(0.95, 1.05), compiled=3.0)), *still]
    ).rows[0]
    assert (row.verdict, row.reason) == (
        "SLOWER",
        "size uncertain (not significant once all rows and clocks count)",
    )


def test_a_backend_that_races_no_kernels_needs_no_draws() -> None:
    trial = make_trial(backend="aot_eager")
    assert (
        only(
            measured(code=None, trial=trial), measured(compiled=1.5, code=None, trial=trial)
        ).verdict
        == "SLOWER"
    )


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
    """Three draws 3 % apart: thirty processes each would call that significant, three draws do
    not.
    """
    wobble = [luck * (1 + 1e-4 * index) for luck in (1.0, 1.03, 0.97) for index in range(10)]
    draws = [draw for draw in range(3) for _ in range(10)]
    base = measured(wobble=wobble, draws=draws, code="one")
    head = measured(compiled=1.03, wobble=wobble, draws=draws, code="other")
    assert only(base, head).verdict == "UNRESOLVED"


def host_bound(record: Record) -> Record:
    """The record with a compiled arm that waits for the host in half of its step."""
    busy = PerArm(0.02, 0.005)
    processes = (
        replace(item, device_time_s=busy, device_kernels=PerArm(10, 10))
        for item in record.processes
    )
    return replace(record, processes=tuple(processes))


def test_a_host_bound_row_needs_five_processes() -> None:
    few = (
        host_bound(measured(wobble=WOBBLE[:3])),
        host_bound(measured(compiled=1.4, wobble=WOBBLE[:3])),
    )
    row = only(*few)
    assert (row.verdict, row.reason) == ("UNRESOLVED", HOST_BOUND)
    assert change(row, EAGER.name).verdict == "SAME"  # only the compiled arm waits
    assert only(host_bound(measured()), host_bound(measured(compiled=1.4))).verdict == "SLOWER"
    for wobble in (WOBBLE[:3], [1.0]):
        far = only(
            host_bound(measured(wobble=wobble)), host_bound(measured(compiled=1.51, wobble=wobble))
        )
        assert (far.verdict, far.reason) == (
            "SLOWER",
            f"size uncertain ({HOST_BOUND if len(wobble) > 1 else SINGLE})",
        )


@pytest.mark.parametrize(
    ("wobble", "slower", "verdict"),
    [
        ([1.0], 1.6, "SLOWER"),
        ([0.9, 1.1], 1.6, "SLOWER"),  # by the interval of two processes the limit would be 93 %
        ([0.75, 1.25], 1.6, "UNRESOLVED"),  # 1.67 times apart, further than hosts are known to be
        ([0.75, 1.25], 1.8, "SLOWER"),
    ],
)
def test_few_processes_on_a_host_are_as_far_apart_as_they_show(
    wobble: list[float], slower: float, verdict: str
) -> None:
    base = host_bound(measured(wobble=wobble))
    head = host_bound(measured(compiled=slower, wobble=wobble))
    assert only(base, head).verdict == verdict


@pytest.mark.parametrize(
    ("wobble", "wall", "said"),
    [
        (WOBBLE, "SAME", "wall SAME, device SLOWER"),
        (
            NOISY,
            "UNRESOLVED",
            "wall UNRESOLVED (the tests show neither a change nor equality within 2 %), device "
            "SLOWER",
        ),
    ],
)
def test_a_device_that_is_slower_makes_the_row_slower(
    wobble: Sequence[float], wall: str, said: str
) -> None:
    """1.5 % of device time, which is more than its own margin of 1 % and less than the 2 % of wall
    clock.
    """
    base, head = (on_device(measured(wobble=wobble), device_s) for device_s in (0.0080, 0.00812))
    comparison = judge([pair(base, head), *others()])
    row = comparison.rows[0]
    assert (row.verdict, row.reason, comparison.regressed) == ("SLOWER", said, True)
    device = change(row, COMPILED_DEVICE.name)
    assert (change(row, COMPILED.name).verdict, device.verdict) == (wall, "SLOWER")
    assert device.estimate is not None
    assert device.estimate.ratio == pytest.approx(1.015)
    # what is asked for holds for both clocks
    assert only(base, head, min_effect=0.03).verdict == wall


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "SAME"), (1.005, "SAME"), (0.98, "FASTER")])
def test_a_device_that_is_not_slower_leaves_the_verdict_to_wall_clock(
    factor: float, verdict: str
) -> None:
    base, head = (on_device(measured(wobble=NOISY), 0.008 * by) for by in (1.0, factor))
    row = only(base, head)
    device = change(row, COMPILED_DEVICE.name)
    assert (row.verdict, device.verdict) == ("UNRESOLVED", verdict)


def test_a_step_that_is_faster_by_wall_clock_keeps_its_verdict_and_names_the_device() -> None:
    """As with CUDA graphs: the host waits no more, and the device copies inputs."""
    row = only(on_device(measured(), 0.006), on_device(measured(compiled=0.7), 0.00618))
    assert (row.verdict, row.note) == ("FASTER", "by device time it is SLOWER (+3.0 %)")
    assert (
        only(on_device(measured(), 0.006), on_device(measured(compiled=1.1), 0.00618)).reason
        is None
    )


@pytest.mark.parametrize("eager_s", [0.0199, 0.009], ids=["compiled waits", "both wait"])
def test_a_host_bound_row_of_few_processes_is_judged_by_its_device(eager_s: float) -> None:
    row = only(
        *(on_device(measured(wobble=WOBBLE[:3]), device_s, eager_s) for device_s in (0.005, 0.0052))
    )
    assert row.verdict == "SLOWER"
    assert (
        row.reason
        == "wall UNRESOLVED (host-bound, with fewer than 5 processes on a side), device SLOWER"
    )


def test_device_time_has_a_control_of_its_own() -> None:
    """Clocks fell by 3 %: eager's device time says so, and that of the compiled step is not
    judged.
    """
    rows = [
        pair(
            on_device(measured(name), 0.008), on_device(measured(name), 0.008 * 1.03, 0.019 * 1.03)
        )
        for name in "abcd"
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
        pair(
            on_device(measured(name), 0.008),
            on_device(measured(name, compiled=1.05, eager=1.05), 0.008),
        )
        for name in "abc"
    ]
    slower = pair(
        on_device(measured("d"), 0.008), on_device(measured("d", compiled=1.05, eager=1.05), 0.0083)
    )
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


def test_two_clocks_take_more_than_one_to_convince() -> None:
    """p values are doubled where device time is tested as well, since the row has two chances to be
    SLOWER.
    """
    wobble = (1.0, 1.02, 0.98)
    base, head = measured(wobble=wobble), measured(compiled=1.05, wobble=wobble)
    alone = change(judge([pair(base, head)]).rows[0], COMPILED.name)
    both = judge([pair(*(on_device(record, 0.0102) for record in (base, head)))]).rows[0]
    assert (alone.verdict, change(both, COMPILED.name).verdict) == ("SLOWER", "UNRESOLVED")
    assert change(both, COMPILED.name).p == pytest.approx(2 * (alone.p or 0))
    assert change(both, COMPILED_DEVICE.name).p == 1


def test_a_result_that_is_verified_on_one_side_alone_is_said() -> None:
    unverified = replace(measured(compiled=0.5), flags=("accuracy_unverified",))
    row = only(measured(), unverified)
    assert (row.verdict, row.note) == ("FASTER", "not verified in HEAD (accuracy_unverified)")
    assert only(unverified, unverified).note is None
    assert only(unverified, measured()).note == "not verified in BASE (accuracy_unverified)"


def test_a_wrong_result_is_not_fixed_by_one_that_nobody_verified() -> None:
    wrong, unverified = (
        make_record(status="accuracy_mismatch"),
        make_record(flags=("accuracy_unverified",)),
    )
    assert only(wrong, make_record()).verdict == "FIXED"
    row = only(wrong, unverified)
    assert (row.verdict, row.reason) == (
        "UNRESOLVED",
        "accuracy_mismatch while compiling in BASE, ok but not verified in HEAD "
        "(accuracy_unverified)",
    )


def test_a_smaller_batch_is_not_compared() -> None:
    row = only(measured(), replace(measured(compiled=0.5), smaller_batch_size=16))
    assert (row.verdict, row.reason) == (
        "UNRESOLVED",
        "out of memory: batch 32 in BASE, 16 in HEAD",
    )


def test_steps_that_were_waited_for_are_not_compared_with_those_that_were_not() -> None:
    latency = Latency(0.01, 0.01, 0.01, 10)
    head = measured()
    processes = tuple(
        replace(item, latencies=Latencies(latency, latency)) for item in head.processes
    )
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
    assert row.note == "the speedup is LOWER because eager changed (-10.0 %)"
    assert not comparison.regressed


def test_a_speedup_that_rose_because_eager_got_slower_is_said_to_be_no_gain() -> None:
    row = judge([pair(measured(), measured(eager=1.1)), *others()]).rows[0]
    assert (row.verdict, change(row, SPEEDUP.name).verdict, change(row, EAGER.name).verdict) == (
        "SAME",
        "HIGHER",
        "SLOWER",
    )
    assert row.note == "the speedup is HIGHER because eager changed (+10.0 %)"


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
    assert [change(row, SPEEDUP.name).verdict for row in comparison.rows] == [
        "SAME",
        "SAME",
        "SAME",
        "LOWER",
    ]
    assert not comparison.regressed
    assert comparison.rows[0].reason == "eager itself moved by +5.0 % (median over rows)"


@pytest.mark.parametrize("shift", [1.009, 1 / 1.009])
def test_a_change_must_hold_with_and_without_the_shift_of_the_session(shift: float) -> None:
    """1.5 % that a shift of 0.9 % makes 2.4 % is not 2 %, and 2.4 % that it makes 1.5 % is not
    either.
    """
    still = [pair(measured(name), measured(name, compiled=shift, eager=shift)) for name in "abc"]
    comparison = judge(
        [*still, pair(measured("d"), measured("d", compiled=1.015 * max(shift, 1.0), eager=shift))]
    )
    assert not comparison.control.moved
    assert comparison.rows[3].verdict == "UNRESOLVED"


def test_many_rows_take_more_than_one_row_to_convince() -> None:
    """p = 0.02 is enough for one row, and not for one among forty in which nothing happens."""
    wobble = (1.0, 1.03, 0.97)
    row = pair(measured(wobble=wobble), measured(compiled=1.09, wobble=wobble))
    alone = judge([row]).rows[0]
    among = judge([row, *([pair(measured(wobble=wobble), measured(wobble=wobble))] * 6)]).rows[0]
    assert (alone.verdict, among.verdict) == ("SLOWER", "UNRESOLVED")
    assert change(among, COMPILED.name).p == pytest.approx(
        7 * (change(alone, COMPILED.name).p or 0)
    )


@pytest.mark.parametrize(
    ("draws", "pooled"), [((0, 0, 0, 0, 0, 0), True), ((0, 0, 1, 1, 2, 2), False)]
)
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


def test_a_host_bound_row_is_pooled_with_its_like_alone() -> None:
    def scattered(size: float, device_s: float) -> Record:
        wobble = [1 + size * factor for factor in (-1.0, 0.9, 0.3, -0.2, 0.5, -0.4)]
        record = measured(wobble=wobble)
        device = PerArm(device_s, device_s)
        processes = [replace(one, device_step_s=device) for one in record.processes]
        return replace(record, processes=tuple(processes))

    def count_pooled(device_s: float) -> int:
        """Of seven calm rows and one whose device computes for so long."""
        rows = [pair(*[scattered(0.001 * size, 1.0)] * 2) for size in range(1, 8)]
        changes = judge([*rows, pair(*[scattered(0.008, device_s)] * 2)]).rows
        estimates = [change(row, COMPILED.name).estimate for row in changes]
        return sum(found is not None and found.degrees > 10.1 for found in estimates)

    assert (count_pooled(1.0), count_pooled(0.001)) == (8, 0)


def test_variances_of_two_processes_are_not_pooled() -> None:
    """One row among nine calm ones scatters by 4 %: their variance says nothing of its own."""
    calm = [
        pair(measured(f"m{i}", wobble=(1.0, 1.001)), measured(f"m{i}", wobble=(1.001, 1.0)))
        for i in range(9)
    ]
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
    contended = only(
        measured(draws=draws), measured(draws=draws, compile_s=40.0, flags=("compile_contended",))
    )
    assert change(contended, COMPILE.name).verdict == "UNRESOLVED"


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(1.4, "UNRESOLVED"), (1.6, "SLOWER"), (3.0, "SLOWER"), (0.6, "FASTER"), (0.7, "UNRESOLVED")],
)
def test_one_cold_compile_shows_a_change_beyond_what_sweeps_differ_by(
    factor: float, verdict: str
) -> None:
    row = only(measured(), measured(compile_s=30 * factor))
    found, reason = change(row, COMPILE.name), "one cold compile on a side"
    assert found.verdict == verdict
    assert found.reason == (reason if verdict == "UNRESOLVED" else f"size uncertain ({reason})")
    assert row.verdict == "SAME", "compile time is no regression"


def test_a_compile_time_is_not_judged_where_others_kept_the_processor_busy() -> None:
    found = change(
        only(measured(), measured(compile_s=90.0, flags=("compile_contended",))), COMPILE.name
    )
    assert (found.verdict, found.estimate.ratio) == ("UNRESOLVED", pytest.approx(3.0))
    assert found.reason is not None
    assert "compile_contended" in found.reason


@pytest.mark.parametrize(
    ("added", "verdict"),
    [(0.0, "UNRESOLVED"), (19 * 2**20, "UNRESOLVED"), (22 * 2**20, "MORE"), (-GIB / 2, "LESS")],
)
def test_a_single_process_shows_more_memory(added: float, verdict: str) -> None:
    row = only(
        measured(memory=GIB, wobble=[1.0], code="one"),
        measured(memory=GIB + added, wobble=[1.0], code="other"),
    )
    assert change(row, MEMORY.name).verdict == verdict
    assert row.verdict == "UNRESOLVED", "memory is no regression"


@pytest.mark.parametrize(
    ("base", "head", "share"),
    [
        (measured(wobble=[1.0]), measured(wobble=[1.0]), 0.05),
        (measured(wobble=[1.0]), measured(wobble=[1.0], compiled=1.03), 1.03 * 1.05 - 1),
        (measured(wobble=[1.0]), measured(wobble=[1.0], compiled=0.97), 0.97 * 1.05 - 1),
        (
            measured(wobble=[1.0], device="cpu"),
            measured(wobble=[1.0], device="cpu"),
            1.1 * 2.32 - 1,
        ),
    ],
    ids=["GPU", "slower", "faster", "CPU"],
)
def test_a_single_process_rules_out_what_its_margin_excludes(
    base: Record, head: Record, share: float
) -> None:
    row = only(base, head)
    assert row.verdict == "UNRESOLVED"
    assert change(row, COMPILED.name).ruled_out == pytest.approx(share)


def test_an_interval_rules_out_what_lies_above_it() -> None:
    row = only(measured(wobble=NOISY), measured(wobble=NOISY))
    step = change(row, COMPILED.name)
    assert row.verdict == "UNRESOLVED"
    assert step.interval is not None
    assert step.ruled_out == pytest.approx(step.interval.high - 1)


def test_one_draw_rules_out_what_lies_above_its_interval_and_what_draws_differ_by() -> None:
    step = change(only(measured(), measured(code="other")), COMPILED.name)
    assert step.interval is not None
    assert step.ruled_out == pytest.approx(1.05 * step.interval.high - 1)


@pytest.mark.parametrize(
    ("added", "verdict"), [(0.0, "SAME"), (2**20, "SAME"), (GIB, "MORE"), (-GIB / 2, "LESS")]
)
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
        ("oom", "ok", "FIXED", "oom while compiling in BASE"),
        ("interrupted", "ok", "UNRESOLVED", "interrupted while compiling in BASE"),
        ("oom", "oom", "UNRESOLVED", "oom while compiling in BASE, oom while compiling in HEAD"),
        (
            "oom",
            "timeout",
            "UNRESOLVED",
            "oom while compiling in BASE, timeout while compiling in HEAD",
        ),
        (None, "ok", "NEW", None),
        ("ok", None, "GONE", None),
        (None, "oom", "NEW", "oom while compiling in HEAD"),
    ],
)
def test_statuses(base: str | None, head: str | None, verdict: str, reason: str | None) -> None:
    records = [
        status and (measured() if status == "ok" else make_record(status=status))
        for status in (base, head)
    ]
    comparison = judge([pair(*records)])  # type: ignore[arg-type]
    assert (comparison.rows[0].verdict, comparison.rows[0].reason) == (verdict, reason)
    assert comparison.regressed == (verdict == "BROKE")


def test_no_pairs_are_no_regression() -> None:
    found = judge([])
    assert (found.rows, found.regressed, found.control.moved) == ((), False, False)


def test_a_row_in_which_the_device_alone_got_faster_is_shown() -> None:
    pairs = [
        pair(*(on_device(measured(name), 0.008 * by) for by in (1.0, factor)))
        for name, factor in (("faster", 0.95), ("still", 1.0))
    ]
    faster, still, *_ = judge([*pairs, *others()]).rows
    assert (faster.verdict, still.verdict) == ("SAME", "SAME")
    assert (is_worth_showing(faster), is_worth_showing(still)) == (True, False)


def test_a_script_has_no_batch_size() -> None:
    script = make_script("train.py", {})
    (row,) = judge([pair(script, script)]).rows
    (column,) = (column for column in COLUMNS if column.name == "batch_size")
    assert column.value(row) is None
