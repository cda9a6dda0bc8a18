"""What the parts of a module keep in plain attributes: tensors and random generators, in lists,
dicts and objects too.
"""

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import torch

from sweeper.worker.models.batches import is_plain

from .leaves import LEAVES, NUMBERS, is_code, walk

INTERNAL = frozenset(vars(torch.nn.Module()))
# with more leaves an attribute is no state of the module, but what owns it: Lightning's trainer
MAX_LEAVES = 10_000
Container = Any  # a list, dict or deque


class _Root(NamedTuple):
    """An attribute in which tensors or generators stand: the name of the part, and its own."""

    part: str
    key: str


class Attributes:
    """The attributes of a module's parts that hold tensors or generators, as they were when each
    was first found.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        registered = (*module.modules(), *module.parameters(), *module.buffers())
        self._registered = {id(item) for item in registered}
        self._values: dict[_Root, Any] = {}
        self._numbers: dict[str, dict[str, Any]] = {}  # by the name of the part
        self._contents: list[tuple[Container, Container]] = []
        self.generators: list[torch.Generator] = []
        self.find()

    def find(self, copies: bool = False) -> None:
        """Look for attributes that were not known before, as a first step makes them; `copies`
        takes copies, since a CUDA graph writes to its own tensors.
        """
        for part_name, part in self._module.named_modules():
            table = vars(part)
            numbers = {key: value for key, value in table.items() if isinstance(value, NUMBERS)}
            self._numbers.setdefault(part_name, numbers)
            for key in table.keys() - INTERNAL - numbers.keys():
                root = _Root(part_name, key)
                if root in self._values:
                    continue
                if copies and isinstance(value := table[key], torch.Tensor):
                    table[key] = value.detach().clone()
                self._add(root, table[key])

    def _add(self, root: _Root, value: Any) -> None:
        leaves = list(_walk(root, value))
        if len(leaves) == MAX_LEAVES:
            return
        generators = [leaf for _, leaf in leaves if type(leaf) is torch.Generator]
        self.generators += generators
        if generators or any(self._name_tensors(root, value)):
            self._values[root] = value
            self._contents += [(item, item.copy()) for item in _find_containers(value)]

    def name_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Name the tensors that are neither parameters nor buffers."""
        for root in self._values:
            yield from self._name_tensors(root, self._find_table(root).get(root.key))

    def _name_tensors(self, root: _Root, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
        for name, leaf in _walk(root, value):
            if id(leaf) in self._registered:
                continue
            if isinstance(leaf, torch.Tensor) and is_plain(leaf):
                yield f"attribute {name}", leaf
            elif isinstance(leaf, torch.nn.Module):  # hidden from the module, as a teacher may be
                for inner, tensor in (*leaf.named_parameters(), *leaf.named_buffers()):
                    yield f"attribute {name}.{inner}", tensor

    def _find_table(self, root: _Root) -> dict[str, Any]:
        return vars(self._module.get_submodule(root.part))

    def restore(self) -> None:
        """Put back what stood in the attributes, and the numbers beside them; tensors keep their
        values.
        """
        for root, value in self._values.items():
            self._find_table(root).update(self._numbers[root.part], **{root.key: value})
        for container, content in self._contents:
            container.clear()
            if isinstance(container, dict):
                container.update(content)
            else:
                container.extend(content)


def _walk(root: _Root, value: Any) -> Iterator[tuple[str, Any]]:
    return islice(walk(f"{root.part}.{root.key}".lstrip("."), value), MAX_LEAVES)


def _find_containers(value: Any) -> Iterator[Container]:
    """The lists, dicts and dictionaries of objects in a value, whose content a step may change;
    each once, by however many ways it is reached.
    """
    seen, left = set[int](), [value]
    while left:
        item = left.pop()
        if isinstance(item, LEAVES) or id(item) in seen or is_code(item):
            continue
        seen.add(id(item))
        content = item if isinstance(item, (list, dict, deque)) else getattr(item, "__dict__", None)
        if isinstance(content, (list, dict, deque)):
            yield content
            left += content.values() if isinstance(content, dict) else content
