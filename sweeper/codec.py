"""Frozen dataclasses to plain JSON values and back, so that every value between two stages can be saved and read.

Used by `trial` and `record`; standard library only.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
T = TypeVar("T")


def to_json(value: Any) -> Any:
    """Dataclasses, mappings and sequences as dicts and lists; everything else as it is."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return value


def without_defaults(value: Any) -> Any:
    """Like `to_json`, with every dataclass field that is at its default left out, nested ones included."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return to_json(value)
    kept = {}
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        if field.default_factory is not dataclasses.MISSING:
            default: Any = field.default_factory()
        else:
            default = field.default
        if item != default:
            kept[field.name] = without_defaults(item)
    return kept


def from_json(cls: type[T], data: Any) -> T:
    """Build the dataclass `cls` from what `to_json` gave.

    Raises ValueError when `data` is no mapping, or has a key that `cls` does not know or lacks one that it needs.
    """
    if not isinstance(data, Mapping):
        raise ValueError(f"{cls.__name__}: expected an object, got {type(data).__name__}")
    hints = typing.get_type_hints(cls)
    fields = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    if unknown := sorted(set(data) - fields):
        raise ValueError(f"{cls.__name__}: unknown key {', '.join(unknown)}; allowed: {', '.join(sorted(fields))}")
    try:
        return cls(**{name: _decode(hints[name], value) for name, value in data.items()})
    except TypeError as error:  # a required field is missing
        raise ValueError(str(error)) from error


def _decode(hint: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        nested = [option for option in arguments if dataclasses.is_dataclass(option)]
        return _decode(nested[0], value) if nested else value
    if dataclasses.is_dataclass(hint):
        return from_json(typing.cast(type, hint), value)
    if origin is tuple and isinstance(value, Sequence):
        return tuple(_decode(arguments[0], item) for item in value)
    return value
