"""A module with tensors alone going in and out, and what puts them back into the structure that
they came in.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree


class FlatModule(torch.nn.Module):
    """The module with tensors alone going in and out, in the order of torch's pytree, as traces and
    graphs take them.

    What else goes in or comes out (None, numbers) is as in the call that is traced or recorded.
    """

    def __init__(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self.module = module
        self.inputs = Structure((args, dict(kwargs)))
        self.output: Structure

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args, kwargs = self.inputs.fill(tensors)
        self.output = Structure(self.module(*args, **kwargs))
        return self.output.tensors


class Structure:
    """A structure of tensors and other values, taken apart."""

    def __init__(self, value: Any) -> None:
        self._leaves, self._spec = pytree.tree_flatten(value)
        self.tensors = tuple(leaf for leaf in self._leaves if isinstance(leaf, torch.Tensor))

    def fill(self, tensors: Iterable[torch.Tensor]) -> Any:
        """The structure with other tensors in their places."""
        following = iter(tensors)
        leaves = [
            next(following) if isinstance(leaf, torch.Tensor) else leaf for leaf in self._leaves
        ]
        return pytree.tree_unflatten(leaves, self._spec)
