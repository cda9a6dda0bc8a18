"""What is computed from the profiler's answer; the profiler itself needs a GPU, see test_gpu.py."""

from __future__ import annotations

import pytest

from sweeper.worker.measurement.device_time import Busy, UnknownError, attention_kind, busy_per_step, union_s


@pytest.mark.parametrize(
    ("intervals", "seconds"),
    [
        ([], 0.0),
        ([(0, 2e9), (3e9, 4e9)], 3.0),
        ([(3e9, 4e9), (0, 2e9), (1e9, 3e9)], 4.0),  # two streams that overlap, in any order
        ([(0, 5e9), (1e9, 2e9)], 5.0),
    ],
)
def test_time_covered_by_intervals(intervals: list[tuple[float, float]], seconds: float) -> None:
    assert union_s(intervals) == pytest.approx(seconds)


def test_a_step_is_the_median_over_passes_of_five_steps() -> None:
    passes = [Busy(busy_s, 50, frozenset({"cudnn"})) for busy_s in (0.050, 0.051, 0.060)]
    assert busy_per_step(passes, 0.0103) == Busy(pytest.approx(0.0102), 10, frozenset({"cudnn"}))


@pytest.mark.parametrize(
    ("passes", "step_s", "why"),
    [
        ([Busy(0.0, 0)] * 2, 0.01, "saw no kernel"),
        ([Busy(0.05, 50), Busy(0.05, 51)], 0.01, "differ in their number"),
        ([Busy(0.05, 52)] * 2, 0.01, "differ in their number"),
        ([Busy(0.05, 50)] * 2, 0.0097, "in a step of 9.700 ms"),
    ],
)
def test_answers_that_cannot_be_used(passes: list[Busy], step_s: float, why: str) -> None:
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
