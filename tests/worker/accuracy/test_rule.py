"""The rules of size and direction on tensors whose verdict can be worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

pytestmark = pytest.mark.compile


def gradients(**values: float) -> list:
    """Gradients of four elements that all have the value given."""
    import torch

    return [
        (f"gradient of {name}", torch.full((4,), value, dtype=torch.float64))
        for name, value in values.items()
    ]


def judge(
    reference: list,
    eager: list,
    step: list,
    tolerance: str = "full",
    sizes: dict[str, float] | None = None,
    repeated: list | None = None,
    more: tuple[list, ...] = (),
):
    """The verdict on a step by one step of eager, `more` of them, and eager that ran again beside
    itself.
    """
    from sweeper.worker.accuracy import rule
    from sweeper.worker.measurement.capture import Keep, StepTensors

    truth = StepTensors(Keep().copy(reference), "float64", sizes or {})
    again = rule.compare(repeated, StepTensors(Keep().copy(eager), "eager")) if repeated else None
    bounds = rule.set_bounds(
        truth, [rule.compare(one, truth) for one in (eager, *more)], again, tolerance
    )
    return rule.judge(rule.compare(step, truth), bounds).accuracy


@pytest.mark.parametrize(
    ("noise", "weight", "passed"),
    [
        # thirty times as far as eager is, on a gradient of nothing but rounding
        (30e-9, 1.0, True),
        # the floor for noise: 1e-3 * the size of all gradients, which is sqrt(1 / 2)
        (1e-3, 1.0, False),
        (1e-9, 1.00005, True),
        (1e-9, 1.0002, False),  # tolerance of fp32 is 1e-4
    ],
)
def test_rule_of_size(noise: float, weight: float, passed: bool) -> None:
    found = judge(
        gradients(bias=0.0, weight=1.0),
        gradients(bias=1e-9, weight=1.0 + 1e-7),
        gradients(bias=noise, weight=weight),
    )
    assert found.passed is passed


@pytest.mark.parametrize(("error", "passed"), [(6e-8, True), (8e-8, False)])
def test_gradient_that_is_tiny_beside_the_others_has_a_tiny_floor(
    error: float, passed: bool
) -> None:
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
        # in many numbers at most MAX_MARGIN, 0.2, though eager is as far off as it is long
        (1.0, 1.19, True),
        (1.0, 1.21, False),
        (1.0, 2.0, False),
        (1.0, -1.0, False),
        (0.2, 1.14, True),  # three quarters of eager's error
        (0.2, 1.16, False),
        (0.02, 1.02, True),  # the least margin of reduced precision is 0.03
        (0.02, 1.04, False),
    ],
)
def test_rule_of_direction_within_the_errors_of_eager(
    error: float, factor: float, passed: bool
) -> None:
    found = judge(
        alternating(0.0, 1.0), alternating(error, 1.0), alternating(error, factor), "reduced"
    )
    assert found.passed is passed
    if not passed:
        assert found.projection is not None
        assert found.projection.compiled == pytest.approx(factor)


def test_direction_of_a_few_numbers_says_little() -> None:
    """Of four numbers the margin is 1.5 times the error, 3 / sqrt(4)."""
    for factor, passed in ((1.25, True), (1.35, False)):
        step = alternating(0.2, factor, 4)
        assert (
            judge(alternating(0.0, 1.0, 4), alternating(0.2, 1.0, 4), step, "reduced").passed
            is passed
        )


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
    truth = StepTensors(
        Keep().copy([(f"gradient of {name}", torch.ones(16)) for name in stages]), "float64"
    )
    found = rule.compare(
        [(f"gradient of {name}", -torch.ones(16)) for name in stages], truth, stages
    )
    assert found["gradients of blocks.1"].projection == -1
    assert found["gradients of stem"].elements == 32
    assert found["all gradients"].elements == 80


def test_change_is_measured_against_what_changed() -> None:
    """A buffer around 1.0 that moves by 1e-3: its last places, 1e-7, are no error of the change."""
    import torch

    def step(change: float) -> list:
        return [
            ("output", torch.ones(4)),
            ("change of buffer average", torch.full((4,), change, dtype=torch.float64)),
        ]

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
    from sweeper.worker.accuracy.mismatch import describe_mismatch

    right = judge(outputs(1.0, -math.inf), outputs(1.0, -math.inf), outputs(1.0, -math.inf))
    assert (right.passed, right.elements) == (True, 1)
    for other in (1.0, math.inf, math.nan):
        found = judge(outputs(1.0, -math.inf), outputs(1.0, -math.inf), outputs(1.0, other))
        assert found.passed is False
        assert describe_mismatch(found) == "output differs from float64 in NaN or infinity"


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
def test_what_should_be_finite_and_is_not_is_unverified(
    reference: list, eager: list, reason: str
) -> None:
    found = judge(reference, eager, eager)
    assert found.passed is None
    assert reason in str(found.unverified)


def test_gradient_that_is_infinite_in_eager_leaves_the_others_to_be_judged() -> None:
    """An overflow of float16 in both arms: the record can be written, and nothing is called
    wrong.
    """
    import torch

    truth = gradients(weight=1.0, other=1.0)
    eager = [
        (name, tensor * (torch.inf if name.endswith("other") else 1.0)) for name, tensor in truth
    ]
    found = judge(truth, eager, eager, "reduced")
    assert found.passed is None
    assert "eager gives NaN or infinity in all gradients" in str(found.unverified)
    numbers = (found.compiled_error, found.eager_error, found.bound, found.margin)
    assert all(value is None or math.isfinite(value) for value in numbers)


def test_nan_of_the_compiled_step_can_be_written() -> None:
    found = judge(
        alternating(0.0, 1.0), alternating(0.1, 1.0), alternating(math.nan, 1.0), "reduced"
    )
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
def test_signs_of_an_update_may_change_where_gradients_are_near_zero(
    flipped: int, passed: bool
) -> None:
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


def test_step_at_its_bound_is_right() -> None:
    """An output of ones, and a tolerance of 2^-13, which floating point has exactly."""
    from unittest import mock

    from sweeper.worker.accuracy import rule

    with mock.patch.dict(rule.TOLERANCE, full=2.0**-13):
        assert judge(
            outputs(1.0, 1.0), outputs(1.0, 1.0), outputs(1 + 2.0**-13, 1 + 2.0**-13)
        ).passed
        assert (
            judge(outputs(1.0, 1.0), outputs(1.0, 1.0), outputs(1 + 2.0**-12, 1.0)).passed is False
        )


def test_figures_kept_are_those_of_the_worst_tensor() -> None:
    truth, eager = gradients(a=1.0, b=1.0), gradients(a=1.0, b=1.0 + 1e-6)
    found = judge(truth, eager, gradients(a=1.0, b=1.0 + 3e-5))
    assert (found.worst, found.tensors, found.elements, found.unjudged) == (
        "gradient of b",
        3,
        8,
        0,
    )
    assert found.compiled_error == pytest.approx(3e-5)
    assert found.eager_error == pytest.approx(1e-6)
    assert found.bound == pytest.approx(1e-4)
    assert found.projection is not None
    assert (found.projection.eager, found.projection.compiled) == (
        pytest.approx(1 + 1e-6),
        pytest.approx(1 + 3e-5),
    )
    assert found.margin == pytest.approx(0.01)
    assert (found.passed, found.too_small, found.nondeterministic, found.reference) == (
        True,
        False,
        False,
        "float64",
    )
    exact = judge(truth, truth, truth)
    assert (exact.passed, exact.compiled_error, exact.eager_error) == (True, 0.0, 0.0)


@pytest.mark.parametrize(
    ("size", "length", "passed"),
    [(2.0, 0.25, True), (2.0, 0.24, False), (0.3, 0.08, True), (0.3, 0.07, False)],
)
def test_gradient_within_a_bound_that_lets_zeros_pass_has_a_least_size(
    size: float, length: float, passed: bool
) -> None:
    """Eager is as far off as it is long, without any of the reference lost. The least is a third of
    its smallest step, 1.04 long where the first is 1.41, or of the reference, if that is smaller.
    """
    truth, eager = alternating(0.0, size, 4), alternating(1.0, 1.0, 4)
    signs = [(name, tensor * length) for name, tensor in alternating(1.0, 1.0, 4)]
    # which says nothing of directions
    found = judge(truth, eager, signs, "reduced", more=(alternating(1.0, 0.3, 4),))
    assert (found.passed, found.too_small) == (passed, not passed)


@pytest.mark.parametrize(("tolerance", "share"), [("full", 1e-3), ("reduced", 0.03)])
def test_noise_of_a_gradient_may_be_a_share_of_all_gradients(tolerance: str, share: float) -> None:
    """Eager is off by all of a bias of four numbers, beside a weight of ones that has many more."""

    def step(bias: float) -> list:
        return [*gradients(bias=bias), *alternating(0.0, 1.0)]

    for factor, passed in ((0.98, True), (1.02, False)):
        assert judge(step(0.0), step(1e-6), step(factor * share), tolerance).passed is passed


@pytest.mark.parametrize(("moved", "nondeterministic"), [(5e-5, False), (2e-4, True)])
def test_eager_that_moves_by_more_than_the_tolerance_proves_nothing(
    moved: float, nondeterministic: bool
) -> None:
    right, wrong = outputs(1.0, 1.0), outputs(2.0, 2.0)
    for step in (right, wrong):
        found = judge(right, right, step, repeated=outputs(1.0 + moved, 1.0 + moved))
        assert found.nondeterministic is nondeterministic
        if nondeterministic:
            assert found.passed is None
            assert found.unverified == "eager differs from itself when it is run twice"
        else:
            assert found.passed is (step is right)


def test_single_gradients_of_eager_may_move() -> None:
    """All of them together may not."""
    truth = gradients(bias=1e-3, weight=1.0)
    found = judge(truth, truth, truth, repeated=gradients(bias=1.1e-3, weight=1.0))
    assert (found.passed, found.nondeterministic) == (True, False)
    assert judge(truth, truth, truth, repeated=gradients(bias=1e-3, weight=1.1)).nondeterministic


@pytest.mark.parametrize(("error", "judged"), [(0.33, True), (0.34, False)])
def test_outputs_that_are_too_far_off_are_nothing_to_judge_by(error: float, judged: bool) -> None:
    truth, eager = outputs(1.0, 1.0), outputs(1.0 + error, 1.0 + error)
    found = judge(truth, eager, eager, "reduced")
    assert found.passed is (True if judged else None)
    assert judged or found.unverified == "eager's output is too far from the reference to judge by"
    assert judge(truth, truth, truth, "reduced", more=(eager,)).passed is (True if judged else None)


def test_where_no_output_is_seen_the_loss_says_how_far_off_eager_is() -> None:
    import torch

    def step(value: float) -> list:
        return [("loss", torch.tensor(value)), ("change of buffer x", torch.ones(4))]

    found = judge(step(1.0), step(1.5), step(1.5), "reduced")
    assert found.unverified == "eager's loss is too far from the reference to judge by"
    assert judge(step(1.0), step(1.01), step(1.02), "reduced").passed
    assert judge(step(1.0), step(1.0), step(1.02), "reduced").passed is False


def test_every_step_of_eager_widens_the_bounds() -> None:
    truth, near, far = alternating(0.0, 1.0), alternating(0.0, 1.0), alternating(0.1, 1.05)
    step = alternating(0.2, 1.1)
    assert judge(truth, near, step, "reduced").passed is False
    for first, other in ((near, far), (far, near)):
        assert judge(truth, first, step, "reduced", more=(other,)).passed
    found = judge(truth, near, alternating(0.1, 1.2), "reduced", more=(far,))
    assert found.passed is False
    assert found.projection is not None
    assert (found.projection.eager, found.projection.compiled) == (
        pytest.approx(1.05),
        pytest.approx(1.2),
    )


def test_update_by_an_optimizer_may_be_off_by_three_tenths() -> None:
    import torch

    def step(error: float) -> list:
        return [
            ("gradient of weight", torch.ones(64)),
            ("change of weight", torch.full((64,), 1e-5 * (1 + error))),
        ]

    assert judge(step(0.0), step(0.0), step(0.09)).passed
    # of the direction, in which nothing is lost
    assert judge(step(0.0), step(0.0), step(0.11)).passed is False

    def across(error: float) -> list:
        signs = torch.ones(64)
        signs[::2] = -1
        return [
            ("gradient of weight", torch.ones(64)),
            ("change of weight", 1e-5 * (1 + error * signs)),
        ]

    assert judge(across(0.0), across(0.0), across(0.29)).passed
    assert judge(across(0.0), across(0.0), across(0.31)).passed is False


def test_update_that_follows_a_gradient_of_noise_is_not_judged() -> None:
    import torch

    def step(gradient: float, change: float) -> list:
        one = [(f"{kind} of weight", torch.ones(4)) for kind in ("gradient", "change")]
        return [
            *one,
            ("gradient of bias", torch.full((4,), gradient)),
            ("change of bias", torch.full((4,), change)),
        ]

    assert judge(step(0.0, 1.0), step(1e-9, 1.0), step(1e-9, -1.0)).passed
    assert judge(step(1.0, 1.0), step(1.0, 1.0), step(1.0, -1.0)).passed is False


@pytest.mark.parametrize(("error", "passed"), [(0.9e-4, True), (1.1e-4, False)])
def test_what_differs_by_more_than_the_tolerance_in_anything_but_a_gradient(
    error: float, passed: bool
) -> None:
    from sweeper.worker.accuracy import rule
    from sweeper.worker.measurement.capture import Keep, StepTensors

    for name, judged in (("output", True), ("all", True), ("gradient of a", False)):
        truth = StepTensors(Keep().copy([(name, outputs(1.0, 1.0)[0][1])]), "float64")
        comparison = rule.compare(
            [(name, outputs(1.0 + error, 1.0 + error)[0][1])], truth, {"a": "stage"}
        )
        comparison = {key: sums for key, sums in comparison.items() if key != "all gradients"}
        assert rule.differs(comparison, "full") is (judged and not passed)
        assert rule.differs(comparison, "reduced") is False


def test_steps_that_give_other_tensors_are_refused() -> None:
    import torch

    from sweeper.worker.accuracy import rule
    from sweeper.worker.measurement.capture import Keep, StepTensors

    truth = StepTensors(
        Keep().copy([("a", torch.ones(2)), ("b", torch.ones(2)), ("c", torch.ones(2))]), "float64"
    )
    for step, says in (
        ([("a", torch.ones(3))], r"a has shape \[3\], where the reference has \[2\]"),
        ([("x", torch.ones(3))], r"x has shape \[3\], where the reference has nothing"),
        ([("gradient of x", torch.ones(1))], "gradient of x has shape .* has nothing"),
        ([("a", torch.ones(2))], r"b is missing \(2 tensors that the reference has\)"),
    ):
        with pytest.raises(rule.DifferentTensorsError, match=says):
            rule.compare(step, truth)
    zeros = {"gradient of x": torch.zeros(1)}
    assert rule.compare({**truth.tensors, **zeros}.items(), truth).keys() == truth.tensors.keys()


def test_tensors_are_compared_in_parts_and_added() -> None:
    import torch

    from sweeper.worker.accuracy import chunks, rule
    from sweeper.worker.measurement.capture import Keep, StepTensors

    truth = StepTensors(
        Keep().copy([("output", torch.tensor([3.0, 1e30, 4.0], dtype=torch.float64))]), "float64"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "ROW", 2)
        patch.setattr(chunks, "MAX_ROWS", {"cpu": 1})
        sums = rule.compare(
            [("output", torch.tensor([3.0, 1e30, 8.0], dtype=torch.float64))], truth
        )["output"]
    # the number that is as good as infinite is left out
    assert sums == rule.Sums(16.0, 25.0, 73.0, 41.0, 2, 1)
    assert (sums.error, sums.projection) == (pytest.approx(math.sqrt(8)), pytest.approx(41 / 25))
    assert (sums.reference_size, sums.step_size) == (
        pytest.approx(math.sqrt(12.5)),
        pytest.approx(math.sqrt(36.5)),
    )
    assert math.isnan(rule.Sums().projection)
    assert rule.Sums().error == 0


@pytest.mark.parametrize(
    ("device", "autocast", "parameters", "convolves", "flags", "tolerance"),
    [
        ("cuda", None, "float32", True, ("highest", False), "full"),
        ("cuda", None, "float32", True, ("highest", True), "reduced"),
        ("cuda", None, "float32", True, ("highest", None), "reduced"),
        ("cuda", None, "float32", False, ("highest", True), "full"),
        ("cuda", None, "float32", False, ("high", False), "reduced"),
        ("cpu", None, "float32", True, ("high", True), "full"),
        ("cpu", "bfloat16", "float32", False, ("highest", False), "reduced"),
        ("cpu", None, "float16", False, ("highest", False), "reduced"),
    ],
)
def test_tolerance_is_reduced_where_a_format_of_the_step_is(
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    autocast: str | None,
    parameters: str,
    convolves: bool,
    flags: tuple[str, bool | None],
    tolerance: str,
) -> None:
    import torch
    from records import make_trial

    from sweeper.core.trial import Precision
    from sweeper.worker.accuracy import rule

    read = dict(zip(("float32_matmul_precision", "cudnn_allow_tf32"), flags, strict=True))
    monkeypatch.setattr(rule.torch_flags, "read", lambda: read)
    module = torch.nn.Sequential(torch.nn.Conv2d(1, 1, 1) if convolves else torch.nn.Linear(1, 1))
    trial = replace(make_trial(device=device), precision=Precision(parameters, autocast))
    assert rule.choose_tolerance(trial, module) == tolerance


def test_numbers_are_perturbed_by_half_a_last_place_of_the_format() -> None:
    from sweeper.core.trial import Precision
    from sweeper.worker.accuracy.rule import perturbation

    assert perturbation(Precision(autocast="bfloat16"), "full") == 1e-5
    assert perturbation(Precision(autocast="bfloat16"), "reduced") == 2.0**-9
    assert perturbation(Precision("bfloat16"), "reduced") == 2.0**-9
    assert (
        perturbation(Precision("float16"), "reduced")
        == perturbation(Precision(), "reduced")
        == 2.0**-12
    )


@pytest.mark.parametrize(
    ("projection", "share"),
    [(0.9, 0.0), (1.0, 0.0), (1.1, 0.0), (0.8, 0.5), (1.3, 1.0), (math.nan, math.inf)],
)
def test_share_of_a_margin_begins_at_the_ends_of_the_span(projection: float, share: float) -> None:
    from sweeper.worker.accuracy.rule import Span, Sums

    sums = Sums(differences=4.0, reference=1.0, products=projection, elements=1)
    assert Span(0.9, 1.1, 0.2, error=1.0).share(sums) == pytest.approx(share)


@pytest.mark.parametrize(("error", "share"), [(1.19, 0.0), (1.21, 3.0)])
def test_span_reaches_to_the_reference_for_a_step_that_is_as_near_as_eager(
    error: float, share: float
) -> None:
    from sweeper.worker.accuracy.rule import Span, Sums

    sums = Sums(differences=error**2, reference=1.0, products=1.0, elements=1)
    assert Span(0.6, 0.7, 0.1, error=1.0).share(sums) == pytest.approx(share)


@pytest.mark.parametrize(
    ("eager", "compiled", "passed"),
    [(0.74, 0.97, True), (0.74, 1.19, True), (0.74, 1.21, False), (0.74, 0.53, False)],
)
def test_step_that_is_nearer_to_the_reference_than_eager_is_right(
    eager: float, compiled: float, passed: bool
) -> None:
    found = judge(
        alternating(0.0, 1.0), alternating(0.8, eager), alternating(0.8, compiled), "reduced"
    )
    assert found.passed is passed


@pytest.mark.parametrize(("factor", "passed"), [(1.0, True), (1.5, False)])
def test_gradient_that_is_scaled_to_the_size_of_the_reference_has_its_errors_scaled_too(
    factor: float, passed: bool
) -> None:
    compiled = alternating(0.8 * factor, 0.6 * factor)
    found = judge(alternating(0.0, 1.0), alternating(0.8, 0.6), compiled, "reduced")
    assert found.passed is passed


def test_gradient_that_is_as_long_as_its_error_is_no_noise_for_its_size_but_for_its_update() -> (
    None
):
    """Powers of 2, whose root mean squares are exact, beside a weight of ones that has many more
    numbers.
    """

    def step(bias: float, change: float = 1.0) -> list:
        update = [
            (f"change of {name[len('gradient of ') :]}", tensor * change)
            for name, tensor in gradients(bias=1.0)
        ]
        return [*gradients(bias=bias), *update, *alternating(0.0, 1.0)]

    small = 2.0**-13
    # nine times eager's error, since it is tiny beside the weight's
    assert judge(step(small), step(2 * small), step(10.0 * small)).passed
    assert judge(step(small), step(2 * small), step(10.1 * small)).passed is False
    short = 2.0**-9
    assert judge(step(short), step(2 * short), step(short, -1.0)).passed
    assert judge(step(short), step(1.5 * short), step(short, -1.0)).passed is False


def test_outputs_a_third_of_their_size_off_are_too_far_off() -> None:
    found = judge(outputs(3.0, 3.0), outputs(4.0, 4.0), outputs(3.0, 3.0), "reduced")
    assert found.unverified == "eager's output is too far from the reference to judge by"


def test_small_tensors_are_not_too_small_and_nothing_has_no_share() -> None:
    from sweeper.worker.accuracy import rule
    from sweeper.worker.measurement.capture import Keep, StepTensors

    for step in (gradients(weight=0.01), gradients(weight=0.02)):
        found = judge(gradients(weight=0.01), gradients(weight=0.01), step)
        assert (found.passed, found.too_small) == (step[0][1][0] == 0.01, False)
    truth = StepTensors(Keep().copy(outputs(math.inf)), "float64")
    same = rule.compare(outputs(math.inf), truth)
    assert rule.judge(same, rule.set_bounds(truth, [same], None, "full")).share == 0


def test_loss_that_is_no_number_is_wrong() -> None:
    """A loss has no direction, and no bound is below what is not a number."""
    import torch

    def step(loss: float) -> list:
        return [("loss", torch.tensor(loss)), *gradients(weight=1.0)]

    for loss, passed in ((1.0, True), (math.nan, False), (math.inf, False)):
        found = judge(step(1.0), step(1.0), step(loss))
        assert (found.passed, found.worst) == (passed, "loss")


@pytest.mark.parametrize(("count", "passed"), [(999, True), (1000, False)])
def test_a_thousand_numbers_are_many(count: int, passed: bool) -> None:
    """Three quarters of eager's error are 0.45, of which many numbers may have 0.2."""
    step = alternating(0.6, 1.3, count)
    assert (
        judge(alternating(0.0, 1.0, count), alternating(0.6, 1.0, count), step, "reduced").passed
        is passed
    )


def test_first_step_of_eager_says_what_is_noise() -> None:
    """The others are moved: their errors widen bounds, and make no tensor smaller than its
    error.
    """

    def step(bias: float) -> list:
        return [*gradients(bias=bias), *alternating(0.0, 1.0)]

    exact, moved, wrong = step(0.0), step(1e-6), step(1e-5)
    assert judge(exact, exact, step(8.9e-6), more=(moved,)).passed
    assert judge(exact, exact, wrong, more=(moved,)).passed is False
    assert judge(exact, moved, wrong, more=(exact,)).passed


def test_first_step_of_eager_says_whose_direction_is_asked_for() -> None:
    """Of what is no gradient: the change of an input that eager has exactly, or as far off as it is
    long.
    """

    def step(error: float, factor: float) -> list:
        ((_, tensor),) = alternating(error, factor)
        return [*gradients(weight=1.0), ("change of input 0", tensor)]

    exact, far, double = step(0.0, 1.0), step(1.2, 1.0), step(0.0, 2.0)
    assert judge(exact, exact, double, "reduced", more=(far,)).passed is False
    assert judge(exact, far, double, "reduced", more=(exact,)).passed


def test_stages_are_those_of_the_longest_list() -> None:
    import torch

    from sweeper.worker.accuracy.rule import name_stages

    def layers(count: int) -> torch.nn.ModuleList:
        return torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False)) for _ in range(count)
        )

    module = torch.nn.ModuleDict(
        {"in": layers(3), "a_long_name": layers(1), "head": torch.nn.Linear(1, 1, bias=False)}
    )
    stages = {f"in.{index}.0.weight": f"in.{index}" for index in range(3)}
    assert name_stages(module) == stages | {
        "a_long_name.0.0.weight": "a_long_name",
        "head.weight": "head",
    }
    assert name_stages(layers(2)) == {"0.0.weight": "0", "1.0.weight": "1"}
    assert name_stages(torch.nn.ModuleDict({"a": torch.nn.Linear(1, 1, bias=False)})) == {
        "a.weight": "a"
    }


def halves(bias: float) -> list:
    """A bias of five numbers beside three that are 3: with a bias of 1.0 all of them have the size
    2.0.
    """
    import torch

    return [
        ("gradient of bias", torch.full((5,), bias)),
        ("gradient of weight", torch.full((3,), 3.0)),
    ]


@pytest.mark.parametrize(("least", "asked"), [(0.5, False), (0.4375, True)])
def test_gradient_of_the_least_size_says_nothing(
    monkeypatch: pytest.MonkeyPatch, least: float, asked: bool
) -> None:
    """By its direction, by its size, and by what follows from it."""
    import torch

    from sweeper.worker.accuracy import rule

    monkeypatch.setattr(rule, "LEAST_SIZE", least)

    def step(bias: float) -> list:
        return [*halves(bias), ("change of bias", torch.ones(5))]

    bounds = _bounds(step(1.0), _compare(step(1.5), step(1.0)))
    for name, kept in (
        ("gradient of bias", bounds.projections),
        ("gradient of bias", bounds.least_sizes),
        ("change of bias", bounds.bounds),
    ):
        assert (name in kept) is asked


def test_difference_of_just_the_tolerance_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    from sweeper.worker.accuracy import rule
    from sweeper.worker.measurement.capture import Keep, StepTensors

    monkeypatch.setitem(rule.TOLERANCE, "full", 2.0**-13)
    truth = StepTensors(Keep().copy(outputs(1.0, 1.0)), "float64")
    for error, more in ((2.0**-13, False), (2.0**-12, True)):
        moved = outputs(1.0 + error, 1.0 + error)
        assert rule.differs(rule.compare(moved, truth), "full") is more
        assert (
            judge(
                outputs(1.0, 1.0), outputs(1.0, 1.0), outputs(1.0, 1.0), repeated=moved
            ).nondeterministic
            is more
        )


def test_tensors_without_a_direction_leave_the_others_theirs() -> None:
    """A loss, an update that follows noise, a gradient that eager has nothing of, and one that is
    infinite.
    """
    import torch

    def step(weight: float, error: float = 0.0, lost: float = 1.0, infinite: float = 1.0) -> list:
        ((_, lost_gradient),) = alternating(error, lost, 64)
        update = torch.ones(4)
        return [
            ("loss", torch.tensor(1.0)),
            ("change of bias", update),
            ("gradient of lost", lost_gradient),
            ("gradient of infinite", torch.full((4,), infinite)),
            ("gradient of bias", torch.zeros(4)),
            *((name, tensor * weight) for name, tensor in alternating(0.0, 1.0)),
        ]

    for factor, beyond in ((1.005, 0.5), (1.02, 2.0)):
        eager = _compare(step(1.0, 1.2, 0.3, math.inf), step(1.0))
        spans = _bounds(step(1.0), eager).projections
        assert "gradient of weight" in spans
        assert not spans.keys() & {
            "loss",
            "change of bias",
            "gradient of lost",
            "gradient of infinite",
        }
        found = _compare(step(factor), step(1.0))["gradient of weight"]
        assert spans["gradient of weight"].share(found) == pytest.approx(beyond, rel=0.05)


def _compare(step: list, reference: list):
    from sweeper.worker.accuracy import rule
    from sweeper.worker.measurement.capture import Keep, StepTensors

    return rule.compare(step, StepTensors(Keep().copy(reference), "float64"))


def _bounds(reference: list, *eager):
    from sweeper.worker.accuracy import rule
    from sweeper.worker.measurement.capture import Keep, StepTensors

    return rule.set_bounds(StepTensors(Keep().copy(reference), "float64"), eager, None, "full")


def test_least_size_itself_is_not_too_small() -> None:
    """Eager is 3 long, so a third of it is 1; a bound of just the size of the reference lets zeros
    pass.
    """
    import torch

    from sweeper.worker.accuracy import rule

    def step(size: float) -> list:
        signs = torch.ones(4, dtype=torch.float64)
        signs[::2] = -1
        return [("gradient of weight", size * signs)]

    bounds = _bounds(step(4.0), _compare(step(3.0), step(4.0)))
    assert bounds.least_sizes == {}, "three times an error of 1 is less than 4"
    bounds = _bounds(step(3.0), _compare(step(2.0), step(3.0)))
    assert bounds.bounds["gradient of weight"] == 3.0
    assert bounds.least_sizes == dict.fromkeys(("gradient of weight", "all gradients"), 2 / 3)
    bounds = replace(bounds, least_sizes={"gradient of weight": 1.0}, projections={})
    for size, share, too_small in ((1.0, 1.0, False), (0.5, 2.0, True)):
        verdict = rule.judge(_compare(step(size), step(3.0)), bounds)
        assert (verdict.share, verdict.accuracy.too_small) == (share, too_small)


def test_share_is_that_of_the_furthest_tensor_though_another_is_nearer_to_the_cause() -> None:
    import torch

    from sweeper.worker.accuracy import rule

    def step(output: float, gradient: float) -> list:
        named = {"output": output, "gradient of weight": gradient}
        return [(name, torch.full((4,), by, dtype=torch.float64)) for name, by in named.items()]

    truth = step(1.0, 1.0)
    found = rule.judge(
        _compare(step(1 + 1.5e-4, 2.0), truth), _bounds(truth, _compare(truth, truth))
    )
    assert found.accuracy.worst == "output"
    assert found.share > 1000, "of a bound of 1e-4"


def test_what_proves_nothing_has_taken_no_share_of_a_bound() -> None:
    from sweeper.worker.accuracy import rule

    unchanged = [("change of input 0", outputs(0.0)[0][1])]
    verdict = rule.judge(
        _compare(unchanged, unchanged), _bounds(unchanged, _compare(unchanged, unchanged))
    )
    assert (verdict.accuracy.passed, verdict.share) == (None, 0.0)


def test_however_many_signs_may_change_an_update_has_nine_tenths_and_half_of_its_direction() -> (
    None
):
    import torch

    def step(error: float) -> list:
        ((name, gradient),) = alternating(error, 1.0)
        return [(name, gradient), ("change of weight", torch.full((4096,), 2.0))]

    for error, allowed, margin in (
        (0.01, 2 * math.sqrt(0.03), 0.1),
        (0.06, 2 * math.sqrt(0.18), 0.36),
        (0.9, 0.9, 0.5),
    ):
        bounds = _bounds(step(0.0), _compare(step(error), step(0.0)))
        assert bounds.bounds["change of weight"] == pytest.approx(2.0 * allowed)
        assert bounds.projections["change of weight"].margin == pytest.approx(margin)


def test_tolerance_is_a_share_of_the_size() -> None:
    from sweeper.worker.accuracy import rule

    for error, more in ((3e-4, False), (5e-4, True)):
        assert (
            rule.differs(_compare(outputs(4.0 + error, 4.0 + error), outputs(4.0, 4.0)), "full")
            is more
        )


def test_output_that_is_tiny_has_no_floor() -> None:
    """There is no other output beside which it would be tiny; the error has no direction."""

    def step(error: float) -> list:
        return [("output", 1e-6 * tensor) for _, tensor in alternating(error, 1.0)]

    assert judge(step(0.0), step(0.0), step(0.9e-4)).passed
    assert judge(step(0.0), step(0.0), step(1.1e-4)).passed is False


def test_only_gradients_have_a_least_size() -> None:
    def step(error: float) -> list:
        ((name, tensor),) = alternating(error, 1.0)
        return [(name, tensor), ("change of input 0", tensor)]

    assert _bounds(step(0.0), _compare(step(0.5), step(0.0))).least_sizes.keys() == {
        "gradient of weight",
        "all gradients",
    }


def test_change_of_a_buffer_that_is_tiny_beside_the_others_has_no_direction() -> None:
    import torch

    names = ("change of buffer a", "change of buffer b", "change of input 0")
    sizes = (1.0, 1e-4, 1e-4)
    step = [(name, torch.full((4,), size)) for name, size in zip(names, sizes, strict=True)]
    assert _bounds(step, _compare(step, step)).projections.keys() == {names[0], names[2]}


@pytest.mark.parametrize(("projection", "asked"), [(0.5, True), (0.4375, False)])
def test_half_of_the_reference_is_enough_for_a_direction(projection: float, asked: bool) -> None:
    bounds = _bounds(
        alternating(0.0, 1.0), _compare(alternating(0.0, projection), alternating(0.0, 1.0))
    )
    assert ("gradient of weight" in bounds.projections) is asked


def test_tensors_that_are_not_finite_are_counted_but_for_outputs() -> None:
    """Infinities of an output are meant."""
    import torch

    infinite = torch.tensor([1.0, math.inf])
    found = judge(*[[("output", infinite), *gradients(weight=1.0)]] * 3)
    assert (found.passed, found.unjudged, found.tensors) == (True, 0, 3)
    step = [
        ("output", torch.ones(2)),
        ("gradient of a", infinite),
        ("gradient of b", torch.ones(2)),
    ]
    found = judge(step, step, step)
    assert (found.passed, found.unjudged) == (None, 2), "the gradient, and all of them together"
