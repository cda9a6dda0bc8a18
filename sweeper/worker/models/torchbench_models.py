"""The models of an installed TorchBench (https://github.com/pytorch/benchmark), by the names of
their folders.

`torchbenchmark.models.<name>.Model(test=, device=, batch_size=)` makes a model, `get_module()`
gives it with inputs for one call. The loss is the mean of the output, as in PyTorch's own harness,
benchmarks/dynamo/torchbench.py.

Try: `python -m sweeper model=torchbench/BERT_pytorch`
"""

import importlib
import importlib.util
from pathlib import Path
from typing import Any

import torch

from sweeper.core.trial import Model, Trial
from sweeper.worker.failures import UnavailableError

from . import Built, Examined, build_from_batches
from .batches import make_batch, mean_of_floats

FOLDERS = ("models", "canary_models")
INSTALL = (
    "git clone https://github.com/pytorch/benchmark, there `python install.py {name}` and `pip "
    "install -e .`, with the Python of the workers"
)
TESTS = {"train": "train", "inference": "eval"}  # TorchBench's words for a workload


def names() -> list[str] | None:
    return None if importlib.util.find_spec("torchbenchmark") is None else sorted(_find_folders())


def examine(trial: Trial) -> Examined:  # noqa: ARG001  # the same shape in every builder
    """Find nothing: the configuration rejects every setting that a TorchBench model cannot take."""
    return Examined()


def load(model: Model) -> None:
    """Import the model. Raises UnavailableError when TorchBench is missing, or a package that the
    model imports.
    """
    if importlib.util.find_spec("torchbenchmark") is None:
        raise UnavailableError(f"TorchBench is not installed: {INSTALL.format(name=model.name)}")
    _import_model_class(model.name)


def build(trial: Trial, device: torch.device) -> Built:
    """Build a model. Raises UnavailableError for a test, device or batch size that TorchBench does
    not implement.
    """
    name, model_class = trial.model.name, _import_model_class(trial.model.name)
    seed = torch.manual_seed  # which TorchBench replaces by a function with one fixed seed
    try:
        made = model_class(
            test=TESTS[trial.workload], device=device.type, batch_size=trial.batch_size
        )
        module, inputs = made.get_module()
    except NotImplementedError as error:
        hint = ""
        if not getattr(model_class, "ALLOW_CUSTOMIZE_BSIZE", True):  # it has one batch size
            setting = f"DEFAULT_{TESTS[trial.workload].upper()}_BSIZE"
            hint = f" (take batch_size={getattr(model_class, setting, None)})"
        raise UnavailableError(f"TorchBench's {name}: {error}{hint}") from error
    finally:
        torch.manual_seed = seed
    if (batch := make_batch(inputs)) is None:
        raise ValueError(
            f"TorchBench's {name}: get_module() gave no tensors as inputs but a "
            f"{type(inputs).__name__}"
        )
    return build_from_batches(module, [batch], mean_of_floats, device)


def _find_folders() -> dict[str, str]:
    """The import path of every model by its name."""
    package = importlib.util.find_spec("torchbenchmark")
    return {
        file.parent.name: f"torchbenchmark.{folder}.{file.parent.name}"
        for root in map(Path, (package and package.submodule_search_locations) or ())
        for folder in reversed(FOLDERS)
        for file in (root / folder).glob("*/__init__.py")
    }


def _import_model_class(name: str) -> Any:
    """Import a model's class. Raises UnavailableError when a package is missing that the model
    imports.
    """
    try:
        return importlib.import_module(_find_folders()[name]).Model
    except ModuleNotFoundError as error:
        raise UnavailableError(
            f"TorchBench's {name} needs more: {error}; {INSTALL.format(name=name)}"
        ) from error
