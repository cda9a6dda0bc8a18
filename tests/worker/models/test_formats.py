"""Parameters have the precision's number format, or are cast to it on demand."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
import torch
from worker_runs import custom, private_cache, run

from sweeper.core.trial import Labels, Model, Precision, Trial
from sweeper.worker import models
from sweeper.worker.failures import EagerError, UnavailableError
from sweeper.worker.models.formats import FormatWatch, find_precision

assert private_cache  # a fixture that every test here uses
MLP = 16 * 16 + 16 + 16 * 4 + 4
BF16 = Precision(parameters="bfloat16")
FLOAT8 = replace(BF16, float8=True)


def cast(factory: str, **changes: object) -> Trial:
    trial = custom(factory, **changes)
    return replace(trial, model=replace(trial.model, cast=True))


@pytest.mark.parametrize(
    ("factory", "says"),
    [
        ("in_bfloat16", "100 % bfloat16"),
        ("in_float64", "100 % float64"),
        ("half_in_bfloat16", "50 % bfloat16, 50 % float32"),
    ],
)
def test_parameters_in_another_format_than_the_precision_are_an_error(
    factory: str, says: str
) -> None:
    outcome, _ = run(custom(factory))
    assert (outcome.status, outcome.phase) == ("eager_error", "building")
    assert says in str(outcome.message)
    assert "those of the precision float32; model.cast=true" in str(outcome.message)


@pytest.mark.compile
@pytest.mark.parametrize(
    ("trial", "parameters"),
    [
        pytest.param(custom("mlp"), {"float32": MLP}, marks=pytest.mark.slow),
        (cast("mlp"), {"float32": MLP}),
        (cast("in_bfloat16"), {"float32": MLP}),
        pytest.param(cast("in_float64"), {"float32": MLP}, marks=pytest.mark.slow),
        (cast("half_in_bfloat16"), {"float32": 512}),
        (custom("with_whole_numbers"), {"float32": 68, "int64": 3}),
        (custom("in_float64", precision=BF16), {"bfloat16": MLP}),
        pytest.param(custom("complex_layer"), {"complex64": 64}, marks=pytest.mark.slow),
        (cast("complex_layer"), {"complex64": 64}),
    ],
    ids=lambda value: f"{value.label}-{value.model.cast}" if isinstance(value, Trial) else None,
)
def test_formats_of_parameters_are_recorded(trial: Trial, parameters: dict[str, int]) -> None:
    outcome, _ = run(trial)
    assert outcome.status == "ok", outcome.message
    assert outcome.diagnostics is not None
    assert outcome.diagnostics.parameters == parameters


def test_cast_reaches_buffers_and_inputs_and_leaves_whole_numbers_alone() -> None:
    built = models.build(cast("noisy_cnn", precision=BF16), 0, torch.device("cpu"))
    norm = next(item for item in built.module.modules() if isinstance(item, torch.nn.BatchNorm2d))
    assert norm.running_mean is not None
    assert (norm.weight.dtype, norm.running_mean.dtype) == (torch.bfloat16, torch.bfloat16)
    assert norm.num_batches_tracked is not None
    assert norm.num_batches_tracked.dtype == torch.int64
    built = models.build(cast("in_float64"), 0, torch.device("cpu"))
    assert {batch.args[0].dtype for batch in (*built.batches, built.unseen)} == {torch.float32}


def test_complex_parameters_are_pairs_of_the_format() -> None:
    module = torch.nn.Linear(2, 2, dtype=torch.complex128)
    models.formats.require_format(module, torch.float64)
    with pytest.raises(EagerError, match=r"100 % complex128.*model\.cast=true"):
        models.formats.require_format(module, torch.float32)


def test_cast_is_a_trial_of_its_own_and_changes_no_other_id() -> None:
    trial = Trial(Model("timm", "resnet18"), 2, Labels("resnet18", "fp32"), device="cpu")
    assert replace(trial, model=replace(trial.model, cast=True)).id != trial.id
    assert "cast" not in trial.axes()["model"]


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_model_of_a_library_is_judged_like_a_factory(library: str) -> None:
    trial = Trial(
        Model(library, "squeezenet1_1" if library == "torchvision" else "resnet10t"),
        1,
        Labels("m", "fp32"),
    )
    with set_default_format(torch.float64), pytest.raises(EagerError, match="100 % float64"):
        models.build(replace(trial, device="cpu"), 0, torch.device("cpu"))


class set_default_format:  # noqa: N801  # a function to those who call it
    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype, self.before = dtype, torch.get_default_dtype()

    def __enter__(self) -> None:
        torch.set_default_dtype(self.dtype)

    def __exit__(self, *_error: object) -> None:
        torch.set_default_dtype(self.before)


class Float8Linear(torch.nn.Linear):
    """What the stand-in for torchao puts in the place of a linear layer."""


@pytest.fixture
def torchao(monkeypatch: pytest.MonkeyPatch) -> None:
    def convert_to_float8_training(module, module_filter_fn):
        for name, layer in list(module.named_modules()):
            if module_filter_fn(layer, name):
                layer.__class__ = Float8Linear
        return module

    package, float8 = ModuleType("torchao"), ModuleType("torchao.float8")
    package.__spec__ = ModuleSpec("torchao", None)
    float8.convert_to_float8_training = convert_to_float8_training  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchao", package)
    monkeypatch.setitem(sys.modules, "torchao.float8", float8)


def test_float8_without_torchao_is_unavailable_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torchao", None)
    outcome, _ = run(custom("mlp", precision=FLOAT8))
    assert (outcome.status, outcome.phase) == ("unavailable", "building")
    assert outcome.message == "precision.float8=true needs the package torchao: pip install torchao"


@pytest.mark.usefixtures("torchao")
def test_float8_converts_the_linear_layers_whose_sizes_it_can_take() -> None:
    built = models.build(custom("mlp", precision=FLOAT8), 0, torch.device("cpu"))
    layers = [layer for layer in built.module.modules() if isinstance(layer, torch.nn.Linear)]
    assert [(type(layer), tuple(layer.weight.shape)) for layer in layers] == [
        (Float8Linear, (16, 16)),
        (torch.nn.Linear, (4, 16)),
    ]
    assert {parameter.dtype for parameter in built.module.parameters()} == {torch.bfloat16}
    assert not [
        layer
        for layer in _modules(custom("mlp", precision=BF16))
        if isinstance(layer, Float8Linear)
    ]


def _modules(trial: Trial) -> list[torch.nn.Module]:
    return list(models.build(trial, 0, torch.device("cpu")).module.modules())


@pytest.mark.usefixtures("torchao")
def test_float8_without_a_layer_to_convert_is_an_error() -> None:
    with pytest.raises(ValueError, match="no linear layer has sizes that are multiples of 16"):
        models.formats.convert_to_float8(torch.nn.Linear(16, 4))


@pytest.mark.usefixtures("torchao")
@pytest.mark.parametrize(
    ("capability", "available"), [((8, 0), False), ((8, 9), True), ((9, 0), True)]
)
def test_float8_needs_a_gpu_that_multiplies_in_it(
    capability: tuple[int, int], available: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    if available:
        models.formats.require_float8(torch.device("cuda"))
    else:
        with pytest.raises(UnavailableError, match=r"compute capability 8\.9; this GPU has 8\.0"):
            models.formats.require_float8(torch.device("cuda"))


def test_formats_are_those_that_a_module_computes_in_whoever_asks_for_them() -> None:
    module, inputs = torch.nn.Linear(2, 2), torch.ones(1, 2)
    with FormatWatch() as watch:  # type: ignore[no-untyped-call]
        module(inputs)
    assert (watch.found, find_precision(module, None, watch.found)) == ("", Precision())
    with FormatWatch() as watch, torch.autocast("cpu", torch.bfloat16):  # type: ignore[no-untyped-call]
        module(inputs)
    assert find_precision(module, None, watch.found) == Precision(autocast="bfloat16")
    assert find_precision(module, torch.float16, watch.found) == Precision(autocast="float16")
    assert find_precision(module.bfloat16(), None, "bfloat16") == Precision("bfloat16")
