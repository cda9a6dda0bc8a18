"""What is computed from the profiler's answer; the profiler itself needs a GPU, see test_gpu.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from torch.autograd import DeviceType  # type: ignore[attr-defined]

from sweeper.core.record import PerArm, Process, Round
from sweeper.worker.measurement import device_time, readings
from sweeper.worker.measurement.bench import Steps, complete
from sweeper.worker.measurement.device_time import (
    Busy,
    Gap,
    Pass,
    StepTime,
    UnknownError,
    Work,
    attention_kind,
    busy_per_step,
    find_exposed_s,
    find_gaps,
    own_gap_s,
    read_work,
    step_time,
)
from sweeper.worker.process_log import ProcessLog


@pytest.mark.parametrize(
    ("intervals", "seconds", "gaps"),
    [
        ([], 0.0, []),
        ([(0, 2e9), (3e9, 4e9)], 3.0, [1.0]),
        ([(3e9, 4e9), (0, 2e9), (1e9, 3e9)], 4.0, []),  # two streams that overlap, in any order
        ([(0, 5e9), (1e9, 2e9)], 5.0, []),
        ([(0, 5e9), (1e9, 2e9), (6e9, 7e9)], 6.0, [1.0]),  # the gap is behind the longer one
    ],
)
def test_busy_time_and_gaps(
    intervals: list[tuple[int, int]], seconds: float, gaps: list[float]
) -> None:
    busy_s, found = find_gaps(Work(*interval) for interval in intervals)
    assert busy_s == pytest.approx(seconds)
    assert [gap.length_s for gap in found] == pytest.approx(gaps)


@dataclass(frozen=True)
class Event:
    """An event as the profiler gives it; times in ns."""

    text: str
    start: int
    end: int
    correlation: int = 0
    device: object = DeviceType.CUDA
    annotation: bool = False

    def name(self) -> str:
        return self.text

    def start_ns(self) -> int:
        return self.start

    def end_ns(self) -> int:
        return self.end

    def correlation_id(self) -> int:
        return self.correlation

    def device_type(self) -> object:
        return self.device

    def is_user_annotation(self) -> bool:
        return self.annotation


def call(text: str, end: int, correlation: int) -> Event:
    return Event(text, end - 3_000, end, correlation, DeviceType.CPU)


def test_gaps_before_queued_kernels_are_told_from_gaps_in_which_the_device_waits() -> None:
    events = [
        call("cudaLaunchKernel", 10_000, 1),
        call("cuLaunchKernelEx", 15_000, 2),
        call("cudaMemcpyAsync", 60_000, 3),
        Event("gemm", 20_000, 50_000, 1),
        Event("triton_poi_fused_0", 51_000, 52_000, 2),  # launched 36 us before it began
        Event("Memcpy DtoD", 66_000, 70_000, 3),  # launched 6 us before
        Event("unlaunched", 72_000, 73_000, 4),  # nobody saw its launch
        Event("no id", 75_000, 76_000),
        Event("Optimizer.step", 0, 99_000, 2, DeviceType.CPU, annotation=True),
        # an operation; its id is another kind of number
        Event("aten::add", 0, 99_000, 3, DeviceType.CPU),
        Event("Optimizer.step", 0, 99_000, 0, annotation=True),
    ]
    work = read_work(events)
    assert {item.name for item in work} == {
        "gemm",
        "triton_poi_fused_0",
        "Memcpy DtoD",
        "unlaunched",
        "no id",
    }
    busy_s, gaps = find_gaps(work)
    assert busy_s == pytest.approx(37e-6)
    queued = [(round(gap.length_s * 1e9), gap.queued) for gap in gaps]
    assert queued == [(1_000, True), (14_000, False), (2_000, False), (2_000, False)]


def test_kernels_of_a_cuda_graph_share_its_launch() -> None:
    """The first follows the launch at once; those that begin more than 20 us later were queued."""
    kernels = [Event(f"k{i}", 35_000 + 10_000 * i, 44_000 + 10_000 * i, 7) for i in range(5)]
    _, gaps = find_gaps(read_work([call("cudaGraphLaunch", 30_000, 7), *kernels]))
    assert [gap.queued for gap in gaps] == [False, True, True, True]


def make_pass(*gaps: Gap, busy_s: float = 0.050) -> Pass:
    return Pass(busy_s, 50, gaps)


def refuse() -> float:
    pytest.fail("there was nothing to calibrate")


def test_a_gap_counts_up_to_the_first_quartile_of_queued_gaps() -> None:
    """Queued gaps of 1, 1, 1, 2, 2, ... us: their first quartile is 1 us. The wait of 3 ms counts 1
    us, too.
    """
    queued = [Gap(1e-6, True)] * 4 + [Gap(2e-6, True)] * 8
    others = [Gap(3e-3, False), Gap(0.5e-6, False)]
    found = step_time([make_pass(*queued, *others)], 0.012, 1, refuse)
    assert found == StepTime(pytest.approx((0.050 + 13.5e-6) / 5), pytest.approx(1e-6), "steps")


def test_queued_gaps_of_all_passes_count_and_the_step_is_the_median_over_passes() -> None:
    passes = [make_pass(*[Gap(1e-3, True)] * 4, busy_s=busy_s) for busy_s in (0.050, 0.051, 0.060)]
    assert step_time(passes, 0.012, 1, refuse) == StepTime(pytest.approx(0.055 / 5), 1e-3, "steps")


def test_with_few_queued_gaps_the_gap_is_calibrated() -> None:
    passes = [make_pass(*[Gap(9e-6, True)] * 9, *[Gap(1e-3, False)] * 41)]
    assert step_time(passes, 0.02, 1, lambda: 1.2e-6) == StepTime(
        pytest.approx((0.050 + 50 * 1.2e-6) / 5), 1.2e-6, "calibration"
    )


def test_a_device_that_needs_longer_than_the_step_took_was_not_measured_right() -> None:
    passes = [make_pass(*[Gap(1e-3, True)] * 10)]  # 60 ms in five steps
    assert step_time(passes, 0.0118, 1, refuse).step_s == pytest.approx(0.012)
    with pytest.raises(UnknownError, match=r"needs 12\.000 ms for a step of 11\.700 ms"):
        step_time(passes, 0.0117, 1, refuse)


def test_steps_of_several_sizes_are_counted_in_rounds_of_all_sizes() -> None:
    assert step_time([make_pass(busy_s=0.06)], 0.012, 3, lambda: 1e-6).step_s == pytest.approx(0.01)


def test_a_few_long_gaps_leave_the_quartile_as_it_is() -> None:
    assert own_gap_s([0.9e-6, 1e-6, 1.1e-6, 1.2e-6, 4e-3]) == pytest.approx(1e-6)


def test_a_step_is_the_median_over_passes_of_five_steps() -> None:
    passes = [Pass(busy_s, 50, (), frozenset({"cudnn"})) for busy_s in (0.050, 0.051, 0.060)]
    assert busy_per_step(passes, 0.0103) == Busy(pytest.approx(0.0102), 10, frozenset({"cudnn"}))


@pytest.mark.parametrize(
    ("passes", "step_s", "why"),
    [
        ([Pass(0.0, 0)] * 2, 0.01, "saw no kernel"),
        ([Pass(0.05, 50), Pass(0.05, 51)], 0.01, "differ in their number"),
        ([Pass(0.05, 52)] * 2, 0.01, "differ in their number"),
        ([Pass(0.05, 50)] * 2, 0.0097, "in a step of 9.700 ms"),
    ],
)
def test_answers_that_cannot_be_used(passes: list[Pass], step_s: float, why: str) -> None:
    with pytest.raises(UnknownError, match=why):
        busy_per_step(passes, step_s)


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", "cudnn"),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits", "flash"),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention", "memory_efficient"),
        ("triton_red_fused__log_softmax_0", None),
    ],
)
def test_kinds_of_attention_by_the_names_of_their_kernels(kernel: str, kind: str | None) -> None:
    assert attention_kind(kernel) == kind


PASSES = {
    "eager": [Pass(0.050, 50, [Gap(1e-6, True)] * 49)],
    "compiled": [Pass(0.040, 20, [Gap(3e-3, False)] * 4)],
}


def measure(
    monkeypatch: pytest.MonkeyPatch, calibrate: Callable[[], float], compiled_s: float
) -> Process:
    """The process of a session whose profiler gave PASSES; a compiled step takes `compiled_s`."""

    def profile_arms(*_: object) -> Steps[object]:
        yield from ()
        return PASSES

    monkeypatch.setattr(device_time, "profile_arms", profile_arms)
    monkeypatch.setattr(device_time, "calibrate_gap_s", calibrate)
    timed = Process(0, 0, True, steps_per_block=1, rounds=(Round("AB", 0.011, compiled_s),))
    notes = ProcessLog(lambda _: None, timed, None)  # type: ignore[arg-type]
    bench = SimpleNamespace(num_sizes=1)
    complete(readings.measure_device_time(bench, (None, None), notes))  # type: ignore[arg-type]
    return notes.process


def test_a_process_has_the_step_time_and_gap_of_each_arm_and_where_the_gap_is_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = measure(monkeypatch, lambda: 2e-6, 0.011)
    assert process.device_time_s == PerArm(pytest.approx(0.010), pytest.approx(0.008))
    assert process.device_step_s == PerArm(pytest.approx(0.0100098), pytest.approx(0.0080016))
    assert process.device_gap_s == PerArm(pytest.approx(1e-6), 2e-6)
    assert process.device_gap_source == {"eager": "steps", "compiled": "calibration"}
    assert process.device_time_missing is None


def test_the_reasons_of_both_arms_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise device_time.UnknownError("the profiler saw no kernel")

    monkeypatch.setattr(device_time, "busy_per_step", refuse)
    process = measure(monkeypatch, lambda: 2e-6, 0.011)
    assert (
        process.device_time_missing
        == "eager: the profiler saw no kernel; compiled: the profiler saw no kernel"
    )


def test_without_a_calibrated_gap_busy_time_stays_and_the_reason_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def calibrate() -> float:
        raise RuntimeError("no spin kernel")

    process = measure(monkeypatch, calibrate, 0.011)
    assert process.device_time_s == PerArm(pytest.approx(0.010), pytest.approx(0.008))
    assert process.device_step_s == PerArm(pytest.approx(0.0100098), None)
    assert process.device_gap_source == {"eager": "steps"}
    assert process.device_time_missing == (
        "compiled: few kernels were queued, and no gap could be calibrated: RuntimeError: no spin "
        "kernel"
    )


def test_kernels_of_nccl_are_collectives() -> None:
    kernels = [Event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 0, 9), Event("gemm", 2, 5)]
    assert find_exposed_s(read_work(kernels)) == pytest.approx(6e-9)
    assert find_exposed_s(read_work(kernels[1:])) is None


@pytest.mark.parametrize(
    ("collectives", "exposed_s"),
    [
        ([], None),
        ([(0, 2e9)], 0.0),  # within a kernel of another stream
        ([(1e9, 4e9)], 1.0),  # a second of it while nothing else runs
        ([(1e9, 4e9), (3.5e9, 4e9)], 1.0),
        ([(6e9, 8e9)], 2.0),
    ],
)
def test_what_collectives_take_that_nothing_overlaps(
    collectives: list[tuple[int, int]], exposed_s: float | None
) -> None:
    work = [Work(0, int(3e9)), Work(int(4e9), int(5e9))]
    for start, end in collectives:
        work.append(Work(int(start), int(end), name=device_time.COLLECTIVE))
    assert find_exposed_s(work) == (exposed_s if exposed_s is None else pytest.approx(exposed_s))
