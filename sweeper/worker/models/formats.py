"""The number formats of a model's parameters: which there are, whether they are the precision's, and casting them."""

from __future__ import annotations

from collections import Counter

import torch

from sweeper.worker.failures import EagerError
from sweeper.worker.models.batches import cast_tensor


def count_parameters(module: torch.nn.Module) -> dict[str, int]:
    """How many numbers of each format the parameters hold, e.g. `{"float32": 25557032}`."""
    counts: Counter[torch.dtype] = Counter()
    for parameter in module.parameters():
        counts[parameter.dtype] += parameter.numel()
    return {_name(dtype): count for dtype, count in counts.items()}


def cast_module(module: torch.nn.Module, dtype: torch.dtype) -> None:
    """Cast floating-point and complex parameters and buffers in place."""
    module._apply(lambda tensor: cast_tensor(tensor, dtype))  # type: ignore[no-untyped-call]


def require_format(module: torch.nn.Module, dtype: torch.dtype) -> None:
    """Raise EagerError unless floating-point parameters are of `dtype`, and complex ones pairs of it.

    There are no pairs of bfloat16: there, torch takes complex64. Whole numbers are not judged.
    """
    formats = {parameter.dtype for parameter in module.parameters()}
    judged = {_name(item) for item in formats if item.is_floating_point or item.is_complex}
    if judged <= {_name(dtype), _name(dtype.to_complex())}:
        return
    counts = count_parameters(module)
    total = sum(counts[name] for name in judged)
    shares = ", ".join(f"{100 * counts[name] / total:.3g} % {name}" for name in sorted(judged))
    raise EagerError(
        f"the parameters of the model are {shares}, those of the precision {_name(dtype)}; "
        f"model.cast=true casts parameters, buffers and inputs to {_name(dtype)}"
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
