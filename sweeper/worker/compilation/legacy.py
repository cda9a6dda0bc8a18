"""Torch's ways without Dynamo: `torch.jit.trace`, `torch.jit.script`, `torch.fx.symbolic_trace`.

A trace holds what its first inputs did, whatever the code says; scripting and symbolic tracing refuse what they cannot
read.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree


class LegacyModule:
    """A module that `backend` converts at its first call, with the inputs and in the contexts of that call."""

    def __init__(self, module: torch.nn.Module, backend: str) -> None:
        self._module, self._backend = module, backend
        self._converted: Callable[..., Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._converted is None:
            cached = torch.is_autocast_cache_enabled()
            torch.set_autocast_cache_enabled(False)  # a trace would keep the cached casts as constants
            try:
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", message="`torch.jit", category=DeprecationWarning)
                    self._converted = CONVERTERS[self._backend](self._module, args, kwargs)
            finally:
                torch.set_autocast_cache_enabled(cached)
        return self._converted(*args, **kwargs)


class _FlatModule(torch.nn.Module):
    """The module with tensors alone going in and out, in the order of torch's pytree: a trace takes nothing else.

    What else goes in or comes out (None, numbers) is as in the call that is traced.
    """

    def __init__(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        super().__init__()
        self.module = module
        self.inputs = _Structure((args, dict(kwargs)))
        self.output: _Structure

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args, kwargs = self.inputs.fill(tensors)
        self.output = _Structure(self.module(*args, **kwargs))
        return self.output.tensors


class _Structure:
    """A structure of tensors and other values, taken apart."""

    def __init__(self, value: Any) -> None:
        self._leaves, self._spec = pytree.tree_flatten(value)
        self.tensors = tuple(leaf for leaf in self._leaves if isinstance(leaf, torch.Tensor))

    def fill(self, tensors: tuple[torch.Tensor, ...]) -> Any:
        """The structure with other tensors in their places."""
        following = iter(tensors)
        leaves = [next(following) if isinstance(leaf, torch.Tensor) else leaf for leaf in self._leaves]
        return pytree.tree_unflatten(leaves, self._spec)


def _trace(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
    """Trace a module. Torch does not check it, on the same inputs again: sweeper's own check takes others."""
    flat = _FlatModule(module, args, kwargs)
    traced = torch.jit.trace(flat, flat.inputs.tensors, check_trace=False)  # type: ignore[no-untyped-call]
    structure = flat.output

    def run(*args: Any, **kwargs: Any) -> Any:
        output = traced(*_Structure((args, kwargs)).tensors)
        return structure.fill(output if isinstance(output, tuple) else (output,))

    return run


CONVERTERS: Mapping[str, Callable[..., Callable[..., Any]]] = {
    "jit_trace": _trace,
    "jit_script": lambda module, _args, _kwargs: torch.jit.script(module),
    "fx": lambda module, _args, _kwargs: torch.fx.symbolic_trace(module),
}
