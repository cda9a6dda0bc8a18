"""Which differences of a training count, on tensors that are made up."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from sweeper.core.record import Trajectory
from sweeper.worker.accuracy.rule import DifferentTensorsError
from sweeper.worker.accuracy.trajectory import COMPILED, EAGER, LONGER, MOVED, Differences

WEIGHT, BIAS, BUFFER = "gradient of weight", "gradient of bias", "change of buffer mean"
SHAPES = {"output 1": (8, 4), WEIGHT: (16, 4), BIAS: (16,), BUFFER: (4,)}
Change = Callable[[int, str, torch.Tensor], torch.Tensor]
DIRECTION = {name: torch.nn.functional.normalize(torch.ones(shape).flatten(), dim=0).view(shape)
             for name, shape in SHAPES.items()}  # fmt: skip


def noise(size: float, generator: torch.Generator) -> Change:
    return lambda _, __, tensor: (
        tensor * (1 + size * torch.randn(tensor.shape, generator=generator))
    )


def run(
    compiled: Change, tolerance: str = "full", size: float = 1e-6, steps: int = 60
) -> Trajectory:
    """Judge steps in which compiled code changes eager's tensors, which rounding moves by
    `size`.
    """
    generator = torch.Generator().manual_seed(0)
    course, moved = Differences(tolerance), noise(size, generator)
    for step in range(steps):
        eager = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
        arms = {
            EAGER: eager,
            COMPILED: {name: compiled(step, name, tensor) for name, tensor in eager.items()},
        }
        arms |= {
            arm: {name: moved(step, name, tensor) for name, tensor in eager.items()}
            for arm in MOVED
        }
        if tolerance == "reduced":
            arms[LONGER] = {name: moved(step, name, tensor) for name, tensor in eager.items()}
        course.add(arms)
    return course.judge()


def only(tensor: str, change: Change, otherwise: Change) -> Change:
    return lambda step, name, value: (change if name == tensor else otherwise)(step, name, value)


def test_rounding_passes() -> None:
    found = run(noise(1e-6, torch.Generator().manual_seed(1)))
    assert (found.passed, found.samples, found.reference) == (True, 60, "eager")
    assert found.value is not None
    assert found.limit is not None
    assert found.value < found.limit


def plant(kind: str) -> Change:
    """A fault of a kind within the noise of short formats, in one tensor."""
    right = noise(0.02, torch.Generator().manual_seed(1))
    wide = noise(0.2, torch.Generator().manual_seed(2))
    wrong: dict[str, tuple[str, Change]] = {
        "typical": (BIAS, wide),
        "often": (
            BIAS,
            lambda step, name, value: (wide if step % 15 == 0 else right)(step, name, value),
        ),
        "worst": (BIAS, lambda step, _, value: value * (9 if step == 7 else 1)),
        "drift": (
            WEIGHT,
            lambda step, name, value: right(step, name, value) + 0.16 * DIRECTION[name],
        ),
        "gain": (WEIGHT, lambda step, name, value: 0.985 * right(step, name, value)),
    }
    return only(*wrong[kind], right)


@pytest.mark.parametrize("kind", ["typical", "often", "worst", "drift", "gain"])
def test_each_kind_of_difference_is_found_within_the_noise_of_short_formats(kind: str) -> None:
    found = run(plant(kind), "reduced", 0.02)
    assert (found.passed, found.kind, found.worst) == (
        False,
        kind,
        WEIGHT if kind in ("drift", "gain") else BIAS,
    )


def test_noise_of_short_formats_passes() -> None:
    assert run(noise(0.02, torch.Generator().manual_seed(1)), "reduced", 0.02).passed is True


def test_compiled_code_that_is_nearer_to_the_longer_format_passes() -> None:
    """Eager rounds one way, and compiled code does not round at all."""
    generator = torch.Generator().manual_seed(0)
    course = Differences("reduced")
    for _ in range(60):
        exact = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
        eager = {name: tensor * 0.95 for name, tensor in exact.items()}
        course.add({EAGER: eager, COMPILED: exact, LONGER: exact, MOVED[0]: eager, MOVED[1]: eager})
    found = course.judge()
    assert (found.passed, found.reference) == (True, "longer")


def test_a_number_that_is_none_is_found_where_eager_has_one() -> None:
    found = run(
        only(
            BIAS,
            lambda step, _, value: value / (step != 3),
            noise(1e-6, torch.Generator().manual_seed(1)),
        )
    )
    assert (found.passed, found.worst, found.kind, found.value) == (False, BIAS, "worst", None)


def test_steps_in_which_eager_is_not_finite_do_not_count() -> None:
    generator = torch.Generator().manual_seed(0)
    course = Differences("full")
    for step in range(30):
        tensors = {
            name: torch.randn(shape, generator=generator) / (step != 3)
            for name, shape in SHAPES.items()
        }
        course.add(dict.fromkeys((EAGER, COMPILED, *MOVED), tensors))
    assert course.judge().passed is True


@pytest.mark.parametrize("finite", [0, 1, 19])
def test_where_eager_is_seldom_finite_nothing_is_known(finite: int) -> None:
    generator = torch.Generator().manual_seed(0)
    differences = Differences("full")
    for step in range(40):
        eager = {WEIGHT: torch.randn(16, 4, generator=generator) / (step < finite)}
        differences.add(
            {EAGER: eager, COMPILED: {WEIGHT: -eager[WEIGHT]}, MOVED[0]: eager, MOVED[1]: eager}
        )
    found = differences.judge()
    assert (found.passed, found.unknown) == (None, "eager gives no finite numbers")


def test_an_infinite_gradient_hides_no_other() -> None:
    generator = torch.Generator().manual_seed(0)
    differences = Differences("full")
    for _ in range(30):
        eager = {
            WEIGHT: torch.randn(16, 4, generator=generator),
            BIAS: torch.full((16,), torch.inf),
        }
        other = {WEIGHT: 1.1 * eager[WEIGHT], BIAS: eager[BIAS]}
        differences.add({EAGER: eager, COMPILED: other, MOVED[0]: eager, MOVED[1]: eager})
    found = differences.judge()
    assert (found.passed, found.worst) == (False, WEIGHT)


def test_a_gradient_that_is_tiny_beside_the_others_is_measured_against_them() -> None:
    generator = torch.Generator().manual_seed(0)
    course = Differences("full")
    for _ in range(30):
        eager = {
            WEIGHT: torch.randn(16, 4, generator=generator),
            BIAS: 1e-9 * torch.randn(16, generator=generator),
        }
        other = {**eager, BIAS: -eager[BIAS]}
        course.add({EAGER: eager, COMPILED: other, MOVED[0]: eager, MOVED[1]: eager})
    assert course.judge().passed is True


def test_few_steps_say_nothing() -> None:
    found = run(plant("typical"), steps=19)
    assert (found.passed, found.unknown) == (
        None,
        "19 calls of the module were compared, and 20 are needed",
    )


def test_other_tensors_are_refused() -> None:
    tensors = {WEIGHT: torch.ones(2)}
    for other in ({WEIGHT: torch.ones(3)}, {}, {**tensors, BIAS: torch.ones(1)}):
        with pytest.raises(DifferentTensorsError):
            Differences("full").add({EAGER: tensors, COMPILED: other})
