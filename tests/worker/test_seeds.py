"""The test over seeds of steps that draw random numbers, and whether a step draws any. All seeds
are fixed.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from sweeper.worker.accuracy.generators import draws_random
from sweeper.worker.accuracy.permutation import (
    compare_spreads,
    correlate,
    find_largest,
    list_splits,
    rank,
)
from sweeper.worker.accuracy.rule import DifferentTensorsError
from sweeper.worker.accuracy.seeds import ALPHA, DIRECTION_STEPS, STEPS, SeedTest, SeedVerdict

CPU = torch.device("cpu")
Step = list[tuple[str, torch.Tensor]]
Run = Callable[[int], Step]


@pytest.mark.parametrize(("rate", "draws"), [(0.1, True), (1.0, False), (0.0, False)])
def test_functional_dropout_draws_unless_it_keeps_all_or_nothing(rate: float, draws: bool):
    assert draws_random(lambda: functional.dropout(torch.ones(8), rate), CPU) is draws


def test_dropout_in_evaluation_mode_draws_nothing():
    assert not draws_random(lambda: nn.Dropout(0.5).eval()(torch.ones(8)), CPU)


@pytest.mark.parametrize(("rate", "draws"), [(0.1, True), (0.0, False)])
def test_attention_draws_unless_its_rate_is_zero(rate: float, draws: bool):
    q = torch.ones(1, 1, 4, 8)
    assert (
        draws_random(lambda: functional.scaled_dot_product_attention(q, q, q, dropout_p=rate), CPU)
        is draws
    )


def test_numbers_of_python_and_numpy_count():
    numpy = pytest.importorskip("numpy")
    assert draws_random(random.random, CPU)
    assert draws_random(lambda: numpy.random.rand(), CPU)


def test_a_pure_step_draws_nothing():
    module = nn.Linear(4, 4)
    assert not draws_random(lambda: module(torch.ones(2, 4)).sum().backward(), CPU)


@pytest.mark.gpu
def test_dropout_on_a_gpu():
    device = torch.device("cuda", 0)
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    ones = torch.ones(8, device=device, requires_grad=True)
    assert draws_random(lambda: functional.dropout(ones, 0.1), device)
    assert not draws_random(lambda: functional.dropout(ones, 0.0), device)
    assert not draws_random(lambda: functional.dropout(ones, 0.1, training=False), device)


def test_the_real_split_comes_first_and_none_twice():
    splits = list_splits(8)
    assert splits[0].tolist() == [True] * 8 + [False] * 8
    assert (
        len(splits)
        == len({tuple(row) for row in torch.cat([splits, ~splits]).tolist()}) / 2
        == 6435
    )
    assert len(list_splits(2)) == 3


def test_the_correlation_is_that_of_student():
    stats = pytest.importorskip("scipy.stats")
    values = torch.randn(16, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    t = stats.ttest_ind(values[:8].numpy(), values[8:].numpy()).statistic
    found = correlate(values, list_splits(8))[0]
    assert torch.allclose(found.square(), torch.tensor(t**2 / (t**2 + 14)))


def test_a_single_p_value_is_that_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    values = torch.randn(16, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    values[:8] += 1
    arms = values[:8, 0].numpy(), values[8:, 0].numpy()
    exact = stats.permutation_test(
        arms, lambda a, b: abs(a.mean() - b.mean()), alternative="greater", n_resamples=20_000
    )
    statistics = correlate(values, list_splits(8))
    assert float(rank(statistics)) == pytest.approx(exact.pvalue)


def test_p_values_hold_for_all_tests_together():
    generator = torch.Generator().manual_seed(2)
    splits, trials = list_splits(5), 200
    least = []
    for _ in range(trials):
        statistics = correlate(
            torch.randn(10, 40, dtype=torch.float64, generator=generator), splits
        )
        least.append(float(rank(statistics).min()))
    assert sum(p <= 0.1 for p in least) / trials == pytest.approx(0.1, abs=0.06)


def test_an_arm_without_spread_stands_out():
    vectors = torch.randn(16, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    vectors[8:] = vectors[8]
    statistics = compare_spreads([vectors], list_splits(8))
    assert float(rank(statistics)) == pytest.approx(1 / 6435)


def test_no_tests_and_no_variation_give_no_finding():
    splits = list_splits(8)
    assert find_largest(compare_spreads([], splits)).tolist() == [0.0] * len(splits)
    assert float(correlate(torch.ones(16, 1, dtype=torch.float64), splits).max()) == 0.0


def judge(
    eager: Run,
    compiled: Run,
    precision: str = "full",
    rounding: Run | None = None,
    reliable: Run | None = None,
) -> SeedVerdict:
    test = SeedTest(precision, map(eager, range(DIRECTION_STEPS)))
    if rounding is not None:
        test.add_rounding(rounding(DIRECTION_STEPS - 1))
    for seed in range(100, 100 + STEPS):
        test.add("eager", eager(seed))
    for seed in range(200, 200 + STEPS):
        test.add("compiled", compiled(seed))
    for seed in range(300, 300 + STEPS) if reliable is not None else ():
        test.add("reliable", reliable(seed))
    return test.verdict()


def draw_step(seed: int, keep: float = 0.9, scale: float = 1.0, shift: float = 0.0) -> Step:
    """An output right after dropout, and a gradient; `shift` is the only difference of a loss that
    is not random.
    """
    generator = torch.Generator().manual_seed(seed)
    mask = (torch.rand(2000, generator=generator) < keep) / keep
    gradient = torch.linspace(1, 2, 500) + 0.3 * torch.randn(500, generator=generator)
    return [
        ("loss", torch.tensor(2.0 + shift)),
        ("output", mask),
        ("gradient of weight", scale * gradient),
    ]


def replace(step: Step, name: str, value: float) -> Step:
    return [
        (key, torch.full_like(tensor, value) if key == name else tensor) for key, tensor in step
    ]


def test_steps_of_one_distribution_pass():
    verdict = judge(draw_step, draw_step)
    assert verdict.passed is True
    assert verdict.unverified is None
    assert verdict.p is not None
    assert verdict.p > ALPHA


@pytest.mark.parametrize(
    ("compiled", "tensor", "statistic"),
    [
        (lambda seed: draw_step(seed, keep=0.8), "output", "zeros"),
        (lambda seed: draw_step(seed, scale=1.3), "gradient of weight", "coefficient"),
        (lambda seed: draw_step(seed, scale=-1.0), "gradient of weight", "coefficient"),
        (lambda _: draw_step(7), "output", "spread"),
        (lambda seed: draw_step(seed, shift=0.2), "loss", "coefficient"),
    ],
    ids=["keep rate", "x 1.3", "x -1", "one seed", "not random"],
)
def test_a_fault_is_found(compiled: Run, tensor: str, statistic: str):
    verdict = judge(draw_step, compiled)
    assert verdict.passed is False
    assert verdict.worst is not None
    assert verdict.p is not None
    assert verdict.p <= ALPHA
    assert (verdict.worst.tensor, verdict.worst.statistic) == (tensor, statistic)


def test_a_significant_difference_within_the_margin_is_no_fault():
    assert judge(draw_step, lambda seed: draw_step(seed, shift=0.015)).passed is True


def test_what_rounding_explains_is_no_fault():
    def rounded(seed: int) -> Step:
        return draw_step(seed, shift=0.1)

    assert judge(draw_step, rounded).passed is False
    assert judge(draw_step, rounded, rounding=rounded).passed is True


@pytest.mark.parametrize(
    ("error", "passed"),
    [(1e-5, True), (0.5, True), (-0.5, True), (2.0, False), (-2.0, False)],
    ids=["none", "half", "half, other sign", "more", "more, other sign"],
)
def test_less_rounding_than_eager_is_no_fault(error: float, passed: bool):
    """A gradient that is zero, and of which eager has `error` = 1."""

    def cancel(seed: int, error: float) -> Step:
        noise = 1 + 0.05 * torch.randn(2, generator=torch.Generator().manual_seed(seed))
        return [*draw_step(seed), ("gradient of bias", error * noise)]

    arms = (lambda seed: cancel(seed, 1.0), lambda seed: cancel(seed, error))
    assert judge(*arms).passed is False
    assert judge(*arms, reliable=lambda seed: cancel(seed, 1e-8)).passed is passed


@pytest.mark.parametrize(
    "compiled",
    [lambda seed: draw_step(seed, keep=0.8), lambda _: draw_step(7)],
    ids=["keep rate", "one seed"],
)
def test_a_longer_format_excuses_no_fault(compiled: Run):
    assert judge(draw_step, compiled, reliable=draw_step).passed is False


@pytest.mark.parametrize(("more", "passed"), [(1, True), (12, False)])
def test_a_zero_more_in_a_small_gradient_is_no_fault(more: int, passed: bool):
    def with_zeros(seed: int, zeros: int) -> Step:
        *others, (name, gradient) = draw_step(seed)
        gradient[:zeros] = 0
        return [*others, (name, gradient)]

    verdict = judge(lambda seed: with_zeros(seed, 1), lambda seed: with_zeros(seed, 1 + more))
    assert verdict.passed is passed


@pytest.mark.parametrize(("size", "passed"), [(1e-9, True), (0.5, False)])
def test_zeros_among_elements_that_are_nothing_but_rounding_are_no_fault(size: float, passed: bool):
    """The gradient of a bias of queries, keys and values: that of the keys is zero, and each kernel
    rounds it anew.
    """

    def with_keys(seed: int, zeros: int) -> Step:
        *others, (name, gradient) = draw_step(seed)
        keys = size * (1 + torch.randn(250, generator=torch.Generator().manual_seed(1000 + seed)))
        keys[torch.randperm(250, generator=torch.Generator().manual_seed(2000 + seed))[:zeros]] = 0
        return [*others, (name, torch.cat([gradient, keys]))]

    def right(seed: int) -> Step:
        return with_keys(seed, 1)

    verdict = judge(
        lambda seed: with_keys(seed, 10), right, reliable=lambda seed: with_keys(seed, 10)
    )
    assert verdict.passed is passed


def test_steps_that_differ_too_much_between_seeds_are_unverified():
    def wild(seed: int) -> Step:
        return [("output", torch.randn(3, generator=torch.Generator().manual_seed(seed)))]

    verdict = judge(wild, wild)
    assert verdict.passed is None
    assert "differ so much" in str(verdict.unverified)


def test_infinity_of_the_compiled_step_alone_is_a_fault():
    verdict = judge(draw_step, lambda seed: replace(draw_step(seed), "output", float("inf")))
    assert verdict.passed is False
    assert verdict.worst is not None
    assert verdict.worst.statistic == "not finite"


def test_nan_of_eager_is_unverified_in_an_output_and_unjudged_in_a_gradient():
    def output(seed: int) -> Step:
        return replace(draw_step(seed), "output", float("nan"))

    def gradient(seed: int) -> Step:
        return replace(draw_step(seed), "gradient of weight", float("nan"))

    assert judge(output, output).passed is None
    assert judge(gradient, gradient).unjudged == 1


def test_masked_logits_are_left_out():
    def masked(seed: int) -> Step:
        return [("output", torch.cat([draw_step(seed)[1][1], torch.tensor([float("-inf")])]))]

    assert judge(masked, masked).passed is True


def test_gradients_of_zero_pass_and_other_values_do_not():
    def zeros(seed: int) -> Step:
        return replace(draw_step(seed), "gradient of weight", 0.0)

    assert judge(zeros, zeros).passed is True
    assert judge(zeros, draw_step).passed is False


def test_other_tensors_are_refused():
    with pytest.raises(DifferentTensorsError, match="gradient of weight is missing"):
        judge(draw_step, lambda seed: draw_step(seed)[:2])
    with pytest.raises(DifferentTensorsError, match="more has shape"):
        judge(draw_step, lambda seed: [*draw_step(seed), ("more", torch.ones(1))])


class Masked(torch.autograd.Function):
    """Multiplies by one mask, and its gradient by another."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        x: torch.Tensor,
        mask: torch.Tensor,
        other: torch.Tensor,
    ):
        ctx.save_for_backward(other)
        return x * mask

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: torch.Tensor):
        return gradient * ctx.saved_tensors[0], None, None


def build_masked(other_mask: bool) -> tuple[nn.Module, Run]:
    """A model of which the backward pass may have masks of its own: every mean and every spread is
    right then too.
    """
    torch.manual_seed(0)
    layers = nn.ModuleList([nn.Linear(16, 64), nn.Linear(64, 4)])
    inputs, targets = torch.randn(32, 16), torch.randn(32, 4)

    def run(seed: int) -> Step:
        generator = torch.Generator().manual_seed(seed)
        masks = [(torch.rand(32, 64, generator=generator) < 0.8) / 0.8 for _ in range(2)]
        layers.zero_grad()
        hidden = Masked.apply(layers[0](inputs).relu(), masks[0], masks[other_mask])
        loss = functional.mse_loss(layers[1](hidden), targets)
        loss.backward()
        gradients = [
            (f"gradient of {name}", p.grad)
            for name, p in layers.named_parameters()
            if p.grad is not None
        ]
        return [("loss", loss.detach()), *gradients]

    return layers, run


@pytest.mark.parametrize("other_mask", [False, True])
def test_the_slope_shows_gradients_of_another_mask(other_mask: bool):
    module, eager = build_masked(False)
    test = SeedTest("full", map(eager, range(DIRECTION_STEPS)))
    take_arm(test, "eager", module, eager, 100)
    take_arm(test, "compiled", *build_masked(other_mask), 200)
    verdict = test.verdict()
    assert verdict.passed is not other_mask
    assert verdict.worst is not None
    assert (verdict.worst.statistic == "slope") is other_mask


def take_arm(test: SeedTest, arm: str, module: nn.Module, run: Run, first: int) -> None:
    values = {name: value.clone() for name, value in module.state_dict().items()}
    for seed in range(first, first + STEPS):
        test.add(arm, run(seed))
        assert test.displace(module)
        test.add_displaced_loss(run(seed)[0][1])
        module.load_state_dict(values)


def test_parameters_in_half_precision_are_not_displaced():
    module = nn.Linear(500, 1, bias=False).to(torch.bfloat16)
    test = SeedTest("reduced", map(draw_step, range(DIRECTION_STEPS)))
    test.add("eager", draw_step(100))
    before = module.weight.detach().clone()
    assert not test.displace(module)
    assert torch.equal(module.weight, before)
