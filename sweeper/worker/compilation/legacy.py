"""Torch's ways without Dynamo: `torch.jit.trace`, `torch.jit.script`, `torch.fx.symbolic_trace`.

A trace holds what its first inputs did, whatever the code says; scripting and symbolic tracing refuse what they cannot
read. Place in the flow: `compiler` makes a `Converted` for the compiled arm; its first call converts, as with
`torch.compile`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree


class Converted:
    """The module as the way `how` converts it: at its first call, with the inputs and in the contexts of that call."""

    def __init__(self, module: torch.nn.Module, how: str) -> None:
        self._module, self._how = module, how
        self._made: Callable[..., Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._made is None:
            with _as_it_is_now():
                self._made = WAYS[self._how](self._module, args, kwargs)
        return self._made(*args, **kwargs)


class _Flat(torch.nn.Module):
    """The module with tensors alone going in and out, in the order of torch's pytree: a trace takes nothing else.

    What else goes in or comes out (None, numbers) is as in the call that is traced.
    """

    def __init__(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        super().__init__()
        self.module = module
        self._inputs = _Form((args, dict(kwargs)))
        self.output: _Form

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args, kwargs = self._inputs.filled(tensors)
        output = self.module(*args, **kwargs)
        self.output = _Form(output)
        return self.output.tensors


class _Form:
    """A structure of tensors and other values, taken apart."""

    def __init__(self, value: Any) -> None:
        self._leaves, self._spec = pytree.tree_flatten(value)
        self.tensors = tuple(leaf for leaf in self._leaves if isinstance(leaf, torch.Tensor))

    def filled(self, tensors: tuple[torch.Tensor, ...]) -> Any:
        """The structure with other tensors in their places."""
        following = iter(tensors)
        leaves = [next(following) if isinstance(leaf, torch.Tensor) else leaf for leaf in self._leaves]
        return pytree.tree_unflatten(leaves, self._spec)


def _traced(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
    """Not checked by torch, which would run it again on the same inputs: sweeper's own check takes others."""
    flat = _Flat(module, args, kwargs)
    traced = torch.jit.trace(flat, _Form((args, dict(kwargs))).tensors, check_trace=False)  # type: ignore[no-untyped-call]
    form = flat.output

    def run(*args: Any, **kwargs: Any) -> Any:
        found = traced(*_Form((args, kwargs)).tensors)
        return form.filled(found if isinstance(found, tuple) else (found,))

    return run


def _scripted(module: torch.nn.Module, _args: tuple[Any, ...], _kwargs: Mapping[str, Any]) -> Callable[..., Any]:
    scripted: Callable[..., Any] = torch.jit.script(module)
    return scripted


def _symbolic(module: torch.nn.Module, _args: tuple[Any, ...], _kwargs: Mapping[str, Any]) -> Callable[..., Any]:
    return torch.fx.symbolic_trace(module)


WAYS = {"jit_trace": _traced, "jit_script": _scripted, "fx": _symbolic}


@contextmanager
def _as_it_is_now() -> Iterator[None]:
    """No cache of autocast, whose casts a trace would hold as constants; no word that torch.jit is deprecated."""
    cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="`torch.jit", category=DeprecationWarning)
            yield
    finally:
        torch.set_autocast_cache_enabled(cached)
