"""The number formats of a model's parameters: which there are, and whether they are the
precision's.
"""

import importlib.util
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sweeper.core.trial import Precision
from sweeper.worker.failures import EagerError, UnavailableError

from .batches import find_tensors, name_format

FLOAT8_MULTIPLE = 16  # of both sizes of a weight, which the products in float8 ask for


def count_parameters(module: torch.nn.Module) -> dict[str, int]:
    """How many numbers of each format the parameters hold, e.g. `{"float32": 25557032}`."""
    counts: Counter[str] = Counter()
    for parameter in module.parameters():
        counts[name_format(parameter.dtype)] += parameter.numel()
    return dict(counts)


class FormatWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees in which short format anything is computed meanwhile; the empty text: in none."""

    found = ""

    def __torch_dispatch__(
        self, function: Any, _types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        output = function(*arguments, **(options or {}))
        self.found = _find_short(find_tensors(output)) or self.found
        return output


def read_autocast(device: torch.device) -> torch.dtype | None:
    """Read the format of autocast that is on now; None where it is off."""
    if torch.is_autocast_enabled(device.type):
        return torch.get_autocast_dtype(device.type)
    return None


def find_precision(
    module: torch.nn.Module, autocast: torch.dtype | None, computed: str
) -> Precision:
    """The precision of a module that somebody else calls, under `autocast` or computing in a short
    format by itself.
    """
    short = _find_short(module.parameters())
    if autocast:
        computed = name_format(autocast)
    elif short:
        computed = ""
    return Precision(short or "float32", computed or None)


def _find_short(tensors: Iterable[torch.Tensor]) -> str | None:
    formats = {name_format(tensor.dtype) for tensor in tensors}
    return next((name for name in ("bfloat16", "float16") if name in formats), None)


def require_float8(device: torch.device) -> None:
    """Raise UnavailableError where torchao is missing, or the GPU has no matrix products in
    float8.
    """
    if importlib.util.find_spec("torchao") is None:
        raise UnavailableError(
            "precision.float8=true needs the package torchao: pip install torchao"
        )
    if device.type != "cuda":
        return
    found = torch.cuda.get_device_capability(device)
    if found < (8, 9):  # the first GPUs whose matrix products take float8
        raise UnavailableError(
            "precision.float8=true needs compute capability 8.9; "
            f"this GPU has {found[0]}.{found[1]}"
        )


def convert_to_float8(module: torch.nn.Module) -> torch.nn.Module:
    """Have torchao replace the linear layers by its own, which compute in float8 from the same
    parameters.

    Layers whose sizes float8 cannot take are left out, as in
    https://docs.pytorch.org/ao/stable/workflows/training.html Raises ValueError where no layer is
    left.
    """
    from torchao.float8 import convert_to_float8_training

    def fits(layer: torch.nn.Module, _name: str) -> bool:
        if not isinstance(layer, torch.nn.Linear):
            return False
        return all(size % FLOAT8_MULTIPLE == 0 for size in layer.weight.shape)

    if not any(fits(layer, name) for name, layer in module.named_modules()):
        raise ValueError(
            "precision.float8=true: no linear layer has sizes that are multiples of "
            f"{FLOAT8_MULTIPLE}"
        )
    return convert_to_float8_training(module, module_filter_fn=fits)  # type: ignore[no-any-return]


def require_format(module: torch.nn.Module, dtype: torch.dtype) -> None:
    """Raise EagerError unless floating-point parameters are of `dtype`, and complex ones pairs of
    it.

    There are no pairs of bfloat16: there, torch takes complex64. Whole numbers are not judged.
    """
    counts = {
        name: count
        for name, count in count_parameters(module).items()
        if name.startswith(("float", "bfloat", "complex"))
    }
    wanted = name_format(dtype)
    if counts.keys() <= {wanted, name_format(dtype.to_complex())}:
        return
    total = sum(counts.values())
    shares = [f"{100 * count / total:.3g} % {name}" for name, count in sorted(counts.items())]
    raise EagerError(
        f"the parameters of the model are {', '.join(shares)}, those of the precision {wanted}; "
        f"model.cast=true casts parameters, buffers and inputs to {wanted}"
    )
