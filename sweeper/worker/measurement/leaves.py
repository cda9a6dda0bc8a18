"""The leaves of what a model returns or keeps: what stands in its containers and objects, by
field.
"""

import enum
import inspect
from collections import UserDict, UserList, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MemberDescriptorType, NoneType
from typing import Any, NamedTuple

import torch

NUMBERS = (bool, int, float, complex)
TEXTS = (
    str,
    bytes,
    bytearray,
    range,
    slice,
    NoneType,
    enum.Enum,
    torch.dtype,
    torch.device,
    torch.layout,
)
LEAVES = (torch.Tensor, torch.nn.Module, torch.Generator, type, set, frozenset)
MAX_INT = 2**63


class Leaves(NamedTuple):
    """What was found in a value."""

    tensors: list[tuple[str, torch.Tensor]]  # numbers of Python and arrays of numpy as well
    texts: dict[str, str]  # the type of everything else, or its value
    unseen: list[str]  # what nobody looked into


def read_leaves(name: str, value: object) -> Leaves:
    """Sort the leaves of a value by what can be compared of them."""
    leaves = Leaves([], {}, [])
    for place, leaf in walk(name, value):
        tensor = leaf if isinstance(leaf, torch.Tensor) else _read_number(leaf)
        text = _describe(leaf)
        if tensor is not None:
            leaves.tensors.append((place, tensor))
        if text is not None:
            leaves.texts[place] = text
        else:
            leaves.unseen.append(f"{place} ({type(leaf).__name__})")
    return leaves


def _describe(leaf: Any) -> str | None:
    """The format of a number and the value of everything else that can be compared; else None."""
    if isinstance(leaf, torch.Tensor):
        text = f"{leaf.dtype} {leaf.layout}".replace("torch.", "").removesuffix(" strided")
        is_plain = type(leaf) in (torch.Tensor, torch.nn.Parameter)
        return text if is_plain else f"{text} {type(leaf).__name__}"
    if isinstance(leaf, type):
        return f"{leaf.__module__}.{leaf.__qualname__}"
    if isinstance(leaf, (set, frozenset)):
        texts = [_describe_member(item) for item in leaf]
        return None if None in texts else repr(sorted(map(str, texts)))
    if _read_number(leaf) is not None:
        return "number of numpy" if type(leaf).__module__ == "numpy" else type(leaf).__name__
    return repr(leaf) if isinstance(leaf, (*TEXTS, int)) else None


def _describe_member(item: Any) -> str | None:
    """The value of what stands in a set; None for tensors too, since no place says which of them to
    compare.
    """
    if isinstance(item, NUMBERS):
        return repr(item)
    if isinstance(item, torch.Tensor) or _read_number(item) is not None:
        return None
    return _describe(item)


def _read_number(leaf: Any) -> torch.Tensor | None:
    """A number of Python or an array of numpy as a tensor; None for everything else."""
    if isinstance(leaf, enum.Enum) or (isinstance(leaf, int) and abs(leaf) >= MAX_INT):
        return None
    if isinstance(leaf, float):
        return torch.tensor(leaf, dtype=torch.float64)
    if type(leaf).__module__ == "numpy" and getattr(leaf, "dtype", leaf).kind in "biufc":
        return torch.as_tensor(leaf)
    return torch.tensor(leaf) if isinstance(leaf, NUMBERS) else None


def walk(name: str, value: Any, above: tuple[int, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every leaf with its name, and the type of each container and object; none is walked inside
    itself.
    """
    children = _list_children(value)
    if children is None:
        yield name, value
        return
    yield name, type(value)
    if id(value) not in above:
        for key, child in children:
            yield from walk(name + key, child, (*above, id(value)))


def _list_children(value: Any) -> Iterable[tuple[str, Any]] | None:
    """What stands in a container or object, by key, index or attribute; None for a leaf."""
    if isinstance(value, (*LEAVES, *TEXTS, *NUMBERS)):
        return None
    items: dict[Any, Any] | None = None
    if isinstance(value, Mapping):
        items = dict(value.items())
    elif isinstance(value, (Sequence, deque)):
        items = dict(zip(getattr(value, "_fields", range(len(value))), value, strict=True))
    if items is None and is_code(value):
        return None
    attributes = _read_attributes(value)
    if isinstance(value, (UserDict, UserList)):
        del attributes["data"]
    if items is None and not attributes and not hasattr(value, "__dict__"):
        return None
    named = {f".{key}": child for key, child in attributes.items()}
    named.update((_name_key(key), child) for key, child in (items or {}).items())
    return named.items()


def is_code(value: object) -> bool:
    """Whether it is a function or a module of Python, in which no state of a model stands."""
    return inspect.isroutine(value) or inspect.ismodule(value)


def _name_key(key: object) -> str:
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"


def _read_attributes(value: object) -> dict[str, Any]:
    """The attributes that an object has by itself, in its dictionary and its slots."""
    attributes = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        if "__slots__" not in vars(kind):
            continue
        for slot, member in vars(kind).items():
            if isinstance(member, MemberDescriptorType) and hasattr(value, slot):
                attributes[slot] = getattr(value, slot)
    return attributes
