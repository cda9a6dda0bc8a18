"""Compiling a model's repeated blocks, each by itself, and leaving the rest eager: `compile.scope=blocks`.

Blocks of one class share what is compiled for them, so compiling takes a fraction of the time
(https://docs.pytorch.org/tutorials/recipes/regional_compilation.html).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch

from sweeper.worker.failures import NotCompiledError

Function = Callable[..., Any]


def find_repeated(module: torch.nn.Module) -> list[torch.nn.Module]:
    """The outermost modules of which one list or sequence has several, by class; layers without parts are left out.

    Of a ResNet these are the residual blocks of each stage, of a transformer its layers.
    """

    def walk(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
        children = [child for child in module.children() if any(True for _ in child.children())]
        is_list = isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential))
        counts = Counter(type(child) for child in children if is_list)
        for child in children:
            if counts[type(child)] > 1 and not isinstance(child, (torch.nn.ModuleList, torch.nn.Sequential)):
                yield child
            else:
                yield from walk(child)

    return list(dict.fromkeys(walk(module)))


def compile_blocks(module: torch.nn.Module, compile_: Callable[[Function], Function]) -> Function:
    """Compile the blocks of `module`, for calls through what this gives. Raises NotCompiledError when it has none.

    Called directly the module stays as it is, without the way through the compiler's wrapper, so that eager is eager.
    """
    pairs = [(block, compile_(block._call_impl)) for block in find_repeated(module)]
    if not pairs:
        raise NotCompiledError("the model has no repeated blocks; use compile.scope=model")

    def call(*arguments: Any, **options: Any) -> Any:
        try:
            for block, implementation in pairs:
                block.__dict__["_compiled_call_impl"] = implementation
            return module(*arguments, **options)
        finally:
            for block, _ in pairs:
                block.__dict__["_compiled_call_impl"] = None

    return call
