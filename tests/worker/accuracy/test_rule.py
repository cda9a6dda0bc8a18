"""The rules of size and direction on tensors whose verdict can be worked out by hand."""

from __future__ import annotations

import math

import pytest

pytestmark = pytest.mark.compile


def gradients(**values: float) -> list:
    """Gradients of four elements that all have the value given."""
    import torch

    return [(f"gradient of {name}", torch.full((4,), value, dtype=torch.float64)) for name, value in values.items()]


def judge(reference: list, eager: list, step: list, tolerance: str = "full", sizes: dict[str, float] | None = None):
    """The verdict on a step by one step of eager."""
    from sweeper.worker.accuracy import rule
    from sweeper.worker.measurement.capture import Keep, StepTensors

    truth = StepTensors(Keep().copy(reference), "float64", sizes or {})
    bounds = rule.set_bounds(truth, (rule.compare(eager, truth),), None, tolerance)
    return rule.judge(rule.compare(step, truth), bounds).accuracy


@pytest.mark.parametrize(
    ("noise", "weight", "passed"),
    [
        (30e-9, 1.0, True),  # thirty times as far as eager is, on a gradient of nothing but rounding
        (1e-3, 1.0, False),  # the floor for noise: 1e-3 * the size of all gradients, which is sqrt(1 / 2)
        (1e-9, 1.00005, True),
        (1e-9, 1.0002, False),  # tolerance of fp32 is 1e-4
    ],
)
def test_rule_of_size(noise: float, weight: float, passed: bool) -> None:
    found = judge(
        gradients(bias=0.0, weight=1.0), gradients(bias=1e-9, weight=1.0 + 1e-7), gradients(bias=noise, weight=weight)
    )
    assert found.passed is passed


@pytest.mark.parametrize(("error", "passed"), [(6e-8, True), (8e-8, False)])
def test_gradient_that_is_tiny_beside_the_others_has_a_tiny_floor(error: float, passed: bool) -> None:
    """Tolerance 1e-4, times 1e-3, times the size of all gradients, sqrt(1 / 2): 7.07e-8."""
    eager = gradients(bias=1e-6, weight=1.0)
    assert judge(eager, eager, gradients(bias=1e-6 + error, weight=1.0)).passed is passed


def alternating(error: float, factor: float, count: int = 4096) -> list:
    """`factor` times ones, with an error of this size that has nothing of them in it."""
    import torch

    signs = torch.ones(count, dtype=torch.float64)
    signs[::2] = -1
    return [("gradient of weight", factor + error * signs)]


@pytest.mark.parametrize(
    ("error", "factor", "passed"),
    [
        (1.0, 1.0, True),
        (1.0, 1.19, True),  # in many numbers at most MAX_MARGIN, 0.2, though eager is as far off as it is long
        (1.0, 1.21, False),
        (1.0, 2.0, False),
        (1.0, -1.0, False),
        (0.2, 1.14, True),  # three quarters of eager's error
        (0.2, 1.16, False),
        (0.02, 1.02, True),  # the least margin of reduced precision is 0.03
        (0.02, 1.04, False),
    ],
)
def test_rule_of_direction_within_the_errors_of_eager(error: float, factor: float, passed: bool) -> None:
    found = judge(alternating(0.0, 1.0), alternating(error, 1.0), alternating(error, factor), "reduced")
    assert found.passed is passed
    if not passed:
        assert found.projection is not None
        assert found.projection.compiled == pytest.approx(factor)


def test_direction_of_a_few_numbers_says_little() -> None:
    """Of four numbers the margin is 1.5 times the error, 3 / sqrt(4)."""
    for factor, passed in ((1.25, True), (1.35, False)):
        step = alternating(0.2, factor, 4)
        assert judge(alternating(0.0, 1.0, 4), alternating(0.2, 1.0, 4), step, "reduced").passed is passed


def test_gradients_of_a_stage_are_judged_together() -> None:
    """Of eight gradients in noise none says anything, all of a stage together do."""
    import torch

    from sweeper.worker.accuracy import rule
    from sweeper.worker.measurement.capture import Keep, StepTensors

    blocks = torch.nn.ModuleList(torch.nn.Linear(16, 16, bias=False) for _ in range(3))
    module = torch.nn.ModuleDict({"stem": torch.nn.Linear(4, 4), "blocks": blocks})
    stages = rule.name_stages(module)
    in_blocks = {f"blocks.{index}.weight": f"blocks.{index}" for index in range(3)}
    assert stages == {"stem.weight": "stem", "stem.bias": "stem"} | in_blocks
    truth = StepTensors(Keep().copy([(f"gradient of {name}", torch.ones(16)) for name in stages]), "float64")
    found = rule.compare([(f"gradient of {name}", -torch.ones(16)) for name in stages], truth, stages)
    assert found["gradients of blocks.1"].projection == -1
    assert found["gradients of stem"].elements == 32
    assert found["all gradients"].elements == 80


def test_change_is_measured_against_what_changed() -> None:
    """A buffer around 1.0 that moves by 1e-3: its last places, 1e-7, are no error of the change."""
    import torch

    def step(change: float) -> list:
        return [("output", torch.ones(4)), ("change of buffer average", torch.full((4,), change, dtype=torch.float64))]

    sizes = {"change of buffer average": 1.0}
    assert judge(step(1e-3), step(1e-3), step(1e-3 + 5e-8), sizes=sizes).passed
    assert judge(step(1e-3), step(1e-3), step(0.0), sizes=sizes).passed is False
    assert judge(step(0.0), step(0.0), step(5e-8), sizes=sizes).passed
    assert judge(step(0.0), step(0.0), step(1e-3), sizes=sizes).passed is False


def test_result_that_is_not_finite_fails_and_is_written_as_missing() -> None:
    found = judge(gradients(weight=1.0), gradients(weight=1.0), gradients(weight=math.nan))
    assert (found.passed, found.compiled_error) == (False, None)


def outputs(*values: float) -> list:
    import torch

    return [("output", torch.tensor(values))]


def test_infinity_that_is_meant_has_to_be_there() -> None:
    right = judge(outputs(1.0, -math.inf), outputs(1.0, -math.inf), outputs(1.0, -math.inf))
    assert (right.passed, right.elements) == (True, 1)
    for other in (1.0, math.inf, math.nan):
        assert judge(outputs(1.0, -math.inf), outputs(1.0, -math.inf), outputs(1.0, other)).passed is False


@pytest.mark.parametrize(
    ("reference", "eager", "reason"),
    [
        (outputs(1.0, math.nan), outputs(1.0, math.nan), "NaN or infinity in output"),
        (outputs(1.0, 2.0), outputs(1.0, math.nan), "eager gives NaN or infinity in output"),
        (outputs(-math.inf), outputs(-math.inf), "no finite"),
        (gradients(weight=math.inf), gradients(weight=math.inf), "the reference is not finite in"),
        (gradients(weight=math.nan), gradients(weight=math.nan), "NaN or infinity in"),
    ],
    ids=["nan", "nan in eager", "nothing finite", "infinite gradient", "nan gradient"],
)
def test_what_should_be_finite_and_is_not_is_unverified(reference: list, eager: list, reason: str) -> None:
    found = judge(reference, eager, eager)
    assert found.passed is None
    assert reason in str(found.unverified)


def test_gradient_that_is_infinite_in_eager_leaves_the_others_to_be_judged() -> None:
    """An overflow of float16 in both arms: the record can be written, and nothing is called wrong."""
    import torch

    truth = gradients(weight=1.0, other=1.0)
    eager = [(name, tensor * (torch.inf if name.endswith("other") else 1.0)) for name, tensor in truth]
    found = judge(truth, eager, eager, "reduced")
    assert found.passed is None
    assert "eager gives NaN or infinity in all gradients" in str(found.unverified)
    numbers = (found.compiled_error, found.eager_error, found.bound, found.margin)
    assert all(value is None or math.isfinite(value) for value in numbers)


def test_nan_of_the_compiled_step_can_be_written() -> None:
    found = judge(alternating(0.0, 1.0), alternating(0.1, 1.0), alternating(math.nan, 1.0), "reduced")
    assert found.passed is False
    assert found.projection is not None
    assert found.projection.compiled is None
    assert found.projection.eager == pytest.approx(1.0)


def test_inputs_that_did_not_change_prove_nothing() -> None:
    import torch

    unchanged = [("change of input 0", torch.zeros(4))]
    found = judge(unchanged, unchanged, unchanged)
    assert found.passed is None
    assert "no finite floating-point tensor" in str(found.unverified)


@pytest.mark.parametrize(("flipped", "passed"), [(0, True), (4, True), (32, False), (64, False)])
def test_signs_of_an_update_may_change_where_gradients_are_near_zero(flipped: int, passed: bool) -> None:
    """Of 64 numbers; eager's gradient is 5 % off, so some 15 % may have another sign."""
    import torch

    def step(gradient_error: float, count: int) -> list:
        signs = torch.ones(64, dtype=torch.float64)
        signs[::2] = -1
        update = torch.full((64,), 1e-5, dtype=torch.float64)
        update[:count] *= -1
        return [("gradient of weight", 1 + gradient_error * signs), ("change of weight", update)]

    assert judge(step(0.0, 0), step(0.05, 0), step(0.05, flipped), "reduced").passed is passed
    nothing = [("gradient of weight", torch.ones(64)), ("change of weight", torch.zeros(64))]
    assert judge(step(0.0, 0), step(0.05, 0), nothing, "reduced").passed is False


def test_eager_that_has_nothing_of_the_reference_says_nothing_about_directions() -> None:
    """As of deep nets in bfloat16 at a small batch, whose gradients are chaotic."""
    found = judge(alternating(0.0, 1.0), alternating(1.2, 0.3), alternating(1.2, -0.1), "reduced")
    assert found.passed
