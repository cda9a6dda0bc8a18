"""Which answer is given, and how sure it is, of records made by hand."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from records import GIB, make_process, make_record, make_trial, write_sweep
from reports import load

from sweeper.analysis.derive import derive
from sweeper.analysis.flags import DOUBTS, FLAGS
from sweeper.core.record import GpuState, PerArm, Record
from sweeper.loading.cross_trial import add_cross_trial_findings
from sweeper.loading.entries import Entry
from sweeper.report.answers.candidates import find_candidate, find_doubts
from sweeper.report.answers.decision import (
    COMPILE,
    NO_LIMITS,
    OPEN,
    STAY,
    Answer,
    Limits,
    choose,
    choose_all,
)


def answers_to(
    runs: Path, records: Sequence[Record], limits: Limits = NO_LIMITS
) -> Sequence[Answer]:
    entries = add_cross_trial_findings(load([write_sweep(runs, records)]).entries)
    return choose_all(entries, limits)


def only(runs: Path, *records: Record, limits: Limits = NO_LIMITS) -> Answer:
    (answer,) = answers_to(runs, records, limits)
    return answer


def with_costs(record: Record, compile_s: float, peak_gib: float | None = None) -> Record:
    """The record with another compile time, and a peak of the compiled arm beside 2 GiB of
    eager's.
    """
    memory = PerArm(2.0 * GIB, peak_gib * GIB) if peak_gib is not None else None
    processes = (
        replace(p, compile_s=compile_s if p.cold else 0.5, memory_bytes=memory)
        for p in record.processes
    )
    return replace(record, processes=tuple(processes))


def test_the_fastest_mode_is_taken_where_it_is_told_apart_from_the_others(tmp_path: Path) -> None:
    slow = make_record(speedups=[1.50, 1.51, 1.49])
    fast = make_record(speedups=[2.00, 2.02, 1.98], mode="reduce-overhead")
    answer = only(tmp_path, slow, fast)
    assert (answer.verdict, answer.recommended) == (COMPILE, "reduce-overhead")
    assert (answer.is_sure, answer.tied, answer.ruled_out) == (True, (), ())
    assert str(answer) == (
        "compile reduce-overhead: 2.00x [1.95, 2.05]; pays back after 301 steps (6 s)"
    )


def test_of_modes_that_cannot_be_told_apart_the_one_that_compiles_fastest_is_taken(
    tmp_path: Path,
) -> None:
    default = with_costs(make_record(speedups=[1.95, 2.05, 1.99]), 30)
    tuned = with_costs(make_record(speedups=[1.96, 2.07, 2.00], mode="max-autotune"), 300)
    answer = only(tmp_path, default, tuned)
    assert (answer.recommended, answer.tied) == ("default", ("max-autotune",))
    graphs = with_costs(make_record(speedups=[1.96, 2.07, 2.00], mode="reduce-overhead"), 29)
    assert only(tmp_path / "alike", default, graphs).recommended == "default", "the mildest"


@pytest.mark.parametrize(
    ("speedups", "verdict", "sure"),
    [
        ([1.20, 1.21, 1.19], COMPILE, True),
        ([1.5, 3.0, 2.0], OPEN, False),  # from 0.87 on
        ([1.01, 1.00, 0.99], STAY, True),
        ([0.28, 0.33, 0.3], STAY, True),  # a wide interval on one side
        ([1.05, 1.06, 1.04], OPEN, False),
        ([1.02], STAY, False),
        ([1.06], OPEN, False),
        ([1.08], COMPILE, False),
    ],
)
def test_both_ends_of_the_interval_must_give_the_answer(
    tmp_path: Path, speedups: list[float], verdict: str, sure: bool
) -> None:
    answer = only(tmp_path, make_record(speedups=speedups))
    assert (answer.verdict, answer.is_sure) == (verdict, sure)
    assert ("one process" in answer.why_unsure) == (len(speedups) == 1)


def test_an_open_answer_names_both_ends(tmp_path: Path) -> None:
    answer = only(tmp_path, make_record(speedups=[1.06]))
    assert str(answer) == (
        "open: default 1.06x may be 1.04x to 1.08x, and pays from 1.05x on; not sure: one process"
    )


def test_staying_eager_names_the_mode_that_came_nearest(tmp_path: Path) -> None:
    answer = only(
        tmp_path,
        make_record(speedups=[0.99, 1.01, 1.00]),
        make_record(speedups=[0.8, 0.81], mode="max-autotune"),
    )
    assert (answer.verdict, answer.recommended, answer.chosen) == (STAY, "stay eager", None)
    assert str(answer) == (
        "stay eager: default is less than 1.05x as fast as eager; measured 1.00x [0.98, 1.03]"
    )


def waits_for_the_host(record: Record, arm: str, device_s: PerArm | None = None) -> Record:
    """The device of this arm is busy for 4 ms of a step, of the other for nearly all of it."""
    eager_s, compiled_s = (
        record.processes[0].step_s(name) or 0.0 for name in ("eager", "compiled")
    )
    busy = PerArm(0.004, 0.999 * compiled_s) if arm == "eager" else PerArm(0.999 * eager_s, 0.004)
    processes = (
        replace(p, device_time_s=busy, device_kernels=PerArm(1, 1), device_step_s=device_s)
        for p in record.processes
    )
    return replace(record, processes=tuple(processes))


@pytest.mark.parametrize("arm", ["eager", "compiled"])
@pytest.mark.parametrize(("speedup", "verdict"), [(1.40, OPEN), (1.48, COMPILE), (0.70, STAY)])
def test_one_process_that_waits_for_the_host_has_a_wide_margin(
    tmp_path: Path, arm: str, speedup: float, verdict: str
) -> None:
    record = waits_for_the_host(make_record(speedups=[speedup]), arm)
    assert only(tmp_path, record).verdict == verdict


def test_of_modes_that_cannot_be_told_apart_a_faster_one_that_waits_for_nothing_is_taken(
    tmp_path: Path,
) -> None:
    waits = waits_for_the_host(make_record(speedups=[2.0]), "compiled")
    faster = make_record(speedups=[2.3], mode="reduce-overhead")
    answer = only(tmp_path, waits, faster)
    assert (answer.recommended, answer.tied) == ("reduce-overhead", ("default",))
    slower = make_record(speedups=[1.9], mode="reduce-overhead")
    answer = only(tmp_path / "slower", waits, slower)
    assert (answer.recommended, answer.tied) == ("default", ("reduce-overhead",))


@pytest.mark.parametrize(
    ("speedup", "device_s", "is_told"),
    [
        (1.9, 0.0079, True),
        (1.9, 0.0098, False),  # of 10.0 ms, as draws differ
        (1.9, 0.0120, False),  # the other order
        (1.61, 0.0079, False),  # the wall clock says nothing
    ],
)
def test_the_device_tells_modes_apart_that_wait_for_a_host_if_the_wall_clock_agrees(
    tmp_path: Path, speedup: float, device_s: float, is_told: bool
) -> None:
    """By wall clock alone 1.9x and 1.6x may be the same, since a host may add 36 %."""
    faster = make_record(speedups=[speedup], mode="max-autotune")
    faster = waits_for_the_host(faster, "eager", PerArm(0.016, device_s))
    slower = waits_for_the_host(make_record(speedups=[1.6]), "eager", PerArm(0.016, 0.0100))
    answer = only(tmp_path, with_costs(slower, 30), with_costs(faster, 300))
    names = {answer.recommended, *answer.tied}
    assert names == ({"max-autotune"} if is_told else {"max-autotune", "default"})


def test_of_modes_that_cannot_be_told_apart_a_sure_one_is_taken(tmp_path: Path) -> None:
    disturbed = make_record(speedups=[1.46, 1.47, 1.45], flags=("shared_gpu",))
    graphs = make_record(speedups=[1.50, 1.51, 1.49], mode="reduce-overhead")
    answer = only(tmp_path, disturbed, graphs)
    assert (answer.recommended, answer.tied) == ("reduce-overhead", ("default",))
    assert answer.is_sure
    alone = only(tmp_path / "alone", disturbed)
    assert (alone.recommended, alone.is_sure) == ("default", False)
    contended = with_costs(make_record(speedups=[1.28, 1.281], flags=("compile_contended",)), 30)
    tuned = with_costs(make_record(speedups=[1.28, 1.281], mode="max-autotune"), 600)
    of_job = only(tmp_path / "job", contended, tuned, limits=Limits(steps=1_000_000))
    assert of_job.recommended == "default", "the job ends sooner with it, however long it took"


def test_a_step_that_is_faster_as_measured_and_by_the_device_is_taken_unsure(
    tmp_path: Path,
) -> None:
    measured = make_record(speedups=[1.36])
    faster = waits_for_the_host(measured, "eager", PerArm(0.0125, 0.010))
    answer = only(tmp_path, faster)
    assert str(answer).startswith("default, unsure: 1.36x (0.98 to 1.89), 1.25x by the device; ")
    equal = waits_for_the_host(measured, "eager", PerArm(0.010, 0.010))
    assert only(tmp_path / "equal", equal).verdict == OPEN
    slower = waits_for_the_host(make_record(speedups=[0.9]), "eager", PerArm(0.0125, 0.010))
    assert only(tmp_path / "slower", slower).verdict == OPEN


def test_a_single_process_on_a_cpu_tells_little(tmp_path: Path) -> None:
    def on_cpu(speedup: float) -> Answer:
        record = make_record(trial=make_trial(device="cpu"), speedups=[speedup])
        return only(tmp_path / str(speedup), record)

    assert [on_cpu(speedup).verdict for speedup in (0.4, 2.0, 3.0)] == [STAY, OPEN, COMPILE]


def test_the_range_of_processes_counts_where_the_host_has_no_interval(tmp_path: Path) -> None:
    def bound(*speedups: float) -> Answer:
        record = waits_for_the_host(make_record(speedups=speedups), "eager")
        assert derive(record).interval == "none"
        return only(tmp_path / str(len(speedups)), record)

    assert (bound(2.0, 2.2, 1.9).verdict, bound(1.2, 1.0).verdict) == (COMPILE, OPEN)


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("speedup", [1.14, 1.16])
def test_a_host_has_room_beyond_the_interval_of_five_processes(
    tmp_path: Path, waits: bool, speedup: float
) -> None:
    # A quarter of 39 %: an answer is sure above 1.05 * 1.097 = 1.152.
    record = make_record(speedups=[speedup * factor for factor in (0.99, 1, 1, 1, 1.01)])
    answer = only(tmp_path, waits_for_the_host(record, "compiled") if waits else record)
    assert answer.why_unsure == (("few processes",) if waits and speedup == 1.14 else ())


def on_device(
    device: str, mode: str, backend: str = "inductor", compiled_device_s: float | None = None
) -> Record:
    """No faster than eager, in 20 ms; of the compiled step the device needs so many seconds, or
    nobody knows.
    """
    record = make_record(
        trial=make_trial(mode=mode, backend=backend, device=device), speedups=[1.0, 1.001]
    )
    step_s = PerArm(0.0199, compiled_device_s) if compiled_device_s else None
    return replace(
        record, processes=tuple(replace(p, device_step_s=step_s) for p in record.processes)
    )


@pytest.mark.parametrize(
    ("records", "not_tried"),
    [
        ([on_device("cuda", "default")], ("reduce-overhead",)),
        ([on_device("cuda", "default", compiled_device_s=0.015)], ("reduce-overhead",)),
        ([on_device("cuda", "default", compiled_device_s=0.0199)], ()),
        ([on_device("cuda", "default"), on_device("cuda", "reduce-overhead")], ()),
        ([on_device("cuda", "reduce-overhead")], ("default",)),
        ([on_device("cuda", "default", "cudagraphs")], ("default",)),
        ([on_device("cpu", "default")], ()),
        ([on_device("cpu", "default", "aot_eager")], ("default",)),
        ([on_device("cpu", "lite")], ("default",)),
        ([on_device("cpu", "reduce-overhead")], ()),
    ],
)
def test_modes_that_could_help_and_were_not_tried_are_listed(
    tmp_path: Path, records: list[Record], not_tried: tuple[str, ...]
) -> None:
    """Graphs help where the device waits for the host: at most from 20 ms to the 15 ms that the
    device needs.
    """
    answer = only(tmp_path, *records)
    assert (answer.verdict == COMPILE, answer.not_tried) == (False, not_tried)


def test_what_failed_is_ruled_out_with_its_status(tmp_path: Path) -> None:
    wrong = make_record(mode="max-autotune", status="accuracy_mismatch")
    answer = only(tmp_path, make_record(speedups=[1.5, 1.5]), wrong)
    assert (answer.recommended, answer.ruled_out) == (
        "default",
        ("max-autotune: accuracy_mismatch",),
    )


@pytest.mark.parametrize("status", ["compile_error", "timeout", "unavailable"])
def test_with_nothing_right_the_answer_says_what_failed(tmp_path: Path, status: str) -> None:
    answer = only(tmp_path, make_record(status=status, message="at line 3\nmore"))
    assert (answer.verdict, answer.is_sure, answer.best) == (OPEN, False, None)
    assert str(answer) == f"open: default: {status} while compiling: at line 3"


@pytest.mark.parametrize(
    ("phase", "said"),
    [
        ("eager", "while running eager steps"),
        ("reference", "while computing the reference"),
        ("measuring", "while measuring"),
    ],
)
def test_the_phase_in_which_a_trial_ended_is_said_in_words(
    tmp_path: Path, phase: str, said: str
) -> None:
    record = replace(
        make_record(status="interrupted"), phase=phase, message="the sweep was interrupted"
    )
    answer = only(tmp_path, record)
    assert str(answer) == f"open: default: interrupted {said}"


def test_a_backend_without_modes_has_its_own_name_and_a_control_no_say(tmp_path: Path) -> None:
    graphs = make_record(trial=make_trial(backend="cudagraphs"), speedups=[1.5])
    control = make_record(trial=make_trial(backend="eager"), speedups=[9.0])
    answer = only(tmp_path, graphs, control)
    assert answer.recommended == "cudagraphs"
    assert answer.ruled_out == ("eager: a control that compiles nothing",)


def test_a_mode_that_needs_a_smaller_batch_is_ruled_out(tmp_path: Path) -> None:
    smaller = replace(make_record(mode="max-autotune", speedups=[9.0]), smaller_batch_size=16)
    answer = only(tmp_path, make_record(), smaller)
    assert (answer.recommended, answer.batch_size, answer.ruled_out) == (
        "default",
        32,
        ("max-autotune: oom with batch 32",),
    )


def test_rows_differ_by_model_batch_workload_precision_and_variant(tmp_path: Path) -> None:
    records = [
        make_record(),
        make_record("vgg16"),
        make_record(batch_size=64),
        make_record(workload="inference", optimizer="none"),
        make_record(precision="fp32"),
        make_record(optimizer="sgd"),
        make_record(mode="eager", backend=None),
    ]
    assert len(answers_to(tmp_path, records)) == 6


def test_a_job_must_pay_back(tmp_path: Path) -> None:
    """A step saves 10 ms, or 12: 3 s are back after 300 steps, 60 s after 5000."""
    quick = make_record(speedups=[2.0, 2.0])
    slow = with_costs(make_record(speedups=[2.5, 2.5], mode="max-autotune"), 60)
    short = only(tmp_path / "a", quick, slow, limits=Limits(steps=270))
    assert (short.verdict, short.is_sure) == (STAY, True)
    assert short.total_eager_s == pytest.approx(270 * 0.02)
    assert short.why_not.startswith(
        "max-autotune pays back after 5,000 steps, and the job has 270; measured "
    )
    middle = only(tmp_path / "b", quick, slow, limits=Limits(steps=6000))
    assert (middle.recommended, middle.total_compiled_s) == (
        "default",
        pytest.approx(3 + 6000 * 0.01),
    )
    long = only(tmp_path / "c", quick, slow, limits=Limits(steps=1_000_000))
    assert (long.recommended, long.total_compiled_s) == ("max-autotune", pytest.approx(60 + 8000))


def test_a_compile_time_that_is_an_upper_bound_makes_a_job_unsure(tmp_path: Path) -> None:
    record = with_costs(make_record(speedups=[1.5, 1.5], flags=("compile_contended",)), 30)
    answer = only(tmp_path, record, limits=Limits(steps=10_000))
    assert answer.why_unsure == ("its compile time is an upper bound",)
    assert only(tmp_path / "b", record).is_sure


@pytest.mark.parametrize(
    "limits", [{"steps": 0}, {"steps": "20k"}, {"memory_gib": -1}, {"memory_gib": float("nan")}]
)
def test_limits_that_make_no_sense_are_refused(limits: dict[str, object]) -> None:
    with pytest.raises(
        ValueError, match=r"(steps|max_memory_gib)=.*: (a whole number of at least 1|GiB above 0)"
    ):
        Limits(**limits)  # type: ignore[arg-type]


def test_an_interrupted_retry_does_not_hide_what_was_measured(tmp_path: Path) -> None:
    folders = [write_sweep(tmp_path, [make_record(speedups=[1.5])], "a")]
    folders.append(write_sweep(tmp_path, [make_record(status="interrupted")], "b"))
    (answer,) = choose_all(load(folders).entries)
    assert answer.recommended == "default"


def test_with_a_limit_of_memory_what_needs_more_is_ruled_out(tmp_path: Path) -> None:
    default = with_costs(make_record(speedups=[1.5, 1.5]), 3, 1.5)
    graphs = with_costs(make_record(speedups=[2.0, 2.0], mode="reduce-overhead"), 3, 2.5)
    answer = only(tmp_path, default, graphs, limits=Limits(memory_gib=2.0))
    assert (answer.recommended, answer.ruled_out) == (
        "default",
        ("reduce-overhead: needs 2.5 GiB of 2",),
    )
    small = with_costs(make_record(speedups=[0.99, 1.03]), 3, 1.5)
    tight = only(tmp_path / "tight", small, limits=Limits(memory_gib=1.6))
    assert tight.recommended == "default", "eager itself does not fit"
    none = only(tmp_path / "none", default, graphs, limits=Limits(memory_gib=1.0))
    assert (none.verdict, none.why_not) == (OPEN, "neither eager nor a mode that is right fits")


@pytest.mark.parametrize("flag", sorted(DOUBTS))
def test_a_doubt_keeps_an_answer_and_makes_it_unsure(tmp_path: Path, flag: str) -> None:
    answer = only(tmp_path, make_record(speedups=[1.36, 1.37, 1.35], flags=(flag,)))
    small = ("clock_mismatch", "host_busy", "recompiled", "throttled")
    assert (answer.verdict, answer.is_sure) == (COMPILE, flag in small), "these move it by little"
    if flag not in small:
        assert (FLAGS[flag].cause or "unverified") in answer.why_unsure[0]


def test_a_clock_that_differs_counts_where_it_may_turn_the_answer(tmp_path: Path) -> None:
    def with_clocks(compiled_mhz: float, *speedups: float) -> Record:
        record = make_record(speedups=speedups, flags=("clock_mismatch",))
        gpu = GpuState(PerArm(1900.0, compiled_mhz), PerArm(), PerArm(), (), 0)
        processes = tuple(replace(process, gpu=gpu) for process in record.processes)
        return replace(record, processes=processes)

    assert only(tmp_path / "a", with_clocks(1938.0, 1.28, 1.281, 1.279)).is_sure, "2 % of 28"
    near = only(tmp_path / "b", with_clocks(2090.0, 1.10, 1.101, 1.099))
    assert near.why_unsure == ("disturbed: clocks that differ",)


def test_context_is_no_doubt(tmp_path: Path) -> None:
    flags = tuple(sorted(FLAGS.keys() - DOUBTS - {"compile_contended"}))
    assert only(tmp_path, make_record(speedups=[1.5, 1.51, 1.49], flags=flags)).is_sure


def entry(record: Record) -> Entry:
    return Entry(record, derive(record), Path("t"), record.trial.variant, record.flags)


def test_a_disturbance_smaller_than_the_interval_is_no_doubt() -> None:
    disturbed = entry(make_record(speedups=[1.5, 1.7, 1.6], flags=("throttled",)))
    assert find_doubts(replace(disturbed, disturbances={"throttled": 0.01})) == ()
    assert find_doubts(replace(disturbed, disturbances={"throttled": 0.5})) == ("throttled",)


def test_an_interval_that_disturbances_may_have_made_hides_none() -> None:
    scattered = entry(make_record(speedups=[0.2, 1.6, 1.5], flags=("throttled",)))
    assert find_doubts(replace(scattered, disturbances={"throttled": 0.01})) == ("throttled",)


@pytest.mark.parametrize("noise", [0.002, 0.05])
def test_where_nothing_is_faster_few_are_told_to_compile(noise: float) -> None:
    """300 models of three modes that are no faster than eager."""
    draw = random.Random(7)

    def record(mode: str) -> Record:
        processes = [
            make_process(
                math.exp(draw.gauss(0, noise)),
                index=i,
                eager_s=0.02 * math.exp(draw.gauss(0, noise)),
            )
            for i in range(3)
        ]
        return replace(make_record(mode=mode), processes=tuple(processes))

    modes = ("default", "reduce-overhead", "max-autotune")
    found = [choose([entry(record(mode)) for mode in modes], NO_LIMITS).verdict for _ in range(300)]
    assert found.count(COMPILE) <= 12


def test_more_processes_rarely_turn_a_sure_answer_into_its_opposite() -> None:
    draw = random.Random(3)
    turned = sure = 0
    for _ in range(400):
        middle, noise = math.exp(draw.uniform(-0.1, 0.2)), draw.choice([0.005, 0.02, 0.08])
        speedups = [middle * math.exp(draw.gauss(0, noise)) for _ in range(9)]
        few, all_ = (
            choose([entry(make_record(speedups=speedups[:number]))], NO_LIMITS)
            for number in (draw.randint(2, 4), 9)
        )
        sure += few.is_sure
        turned += few.is_sure and {few.verdict, all_.verdict} == {COMPILE, STAY}
    assert sure > 100
    assert turned <= 0.05 * sure


def test_a_disturbance_never_decides_less_than_its_size() -> None:
    draw = random.Random(5)
    for _ in range(300):
        number = draw.randint(1, 9)
        speedups = [draw.uniform(0.9, 1.6) * math.exp(draw.gauss(0, 0.02)) for _ in range(number)]
        plain = entry(make_record(speedups=speedups))
        gain = find_candidate(plain)
        assert gain is not None
        disturbed = replace(
            plain, flags=("throttled",), disturbances={"throttled": gain.gain.share / 2}
        )
        before, after = (choose([one], NO_LIMITS) for one in (plain, disturbed))
        assert (before.verdict, before.is_sure) == (after.verdict, after.is_sure)


@pytest.mark.parametrize(
    ("speedups", "why"), [([3.5, 9.0, 17.0], ("processes far apart",)), ([8.0, 8.5, 9.0], ())]
)
def test_an_interval_wider_than_the_margin_of_one_process_is_not_sure(
    tmp_path: Path, speedups: Sequence[float], why: Sequence[str]
) -> None:
    """Three processes of one program gave 8.23x [2.44, 27.69] on a CPU that others kept busy."""
    answer = only(tmp_path, make_record(trial=make_trial(device="cpu"), speedups=speedups))
    assert answer.best is not None
    assert answer.best.gain.low > 1.05
    assert answer.why_unsure == why
