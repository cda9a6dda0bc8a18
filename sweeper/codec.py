"""Frozen dataclasses to plain JSON values and back, so that every value between two stages can be saved and read.

Used by `trial` and `record`; standard library only.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping, Sequence
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

    Raises ValueError when `data` is no mapping, has a key that `cls` does not know, lacks one that it needs, or has a
    value of the wrong type.
    """
    if not isinstance(data, Mapping):
        raise ValueError(f"{cls.__name__}: expected an object, got {type(data).__name__}")
    decoders = _decoders(cls)  # type: ignore[arg-type]
    if unknown := data.keys() - decoders.keys():
        raise ValueError(
            f"{cls.__name__}: unknown key {', '.join(sorted(unknown))}; allowed: {', '.join(sorted(decoders))}"
        )
    try:
        return cls(**{name: decoders[name](value) for name, value in data.items()})
    except TypeError as error:  # a required field is missing, or a value has the wrong type
        raise ValueError(f"{cls.__name__}: {error}") from error


@functools.cache
def _decoders(cls: type) -> dict[str, Callable[[Any], Any]]:
    """How to read each field; worked out once, since resolving type hints costs more than all the rest."""
    hints = typing.get_type_hints(cls)
    return {field.name: _decoder(field.name, hints[field.name]) for field in dataclasses.fields(cls)}


def _decoder(name: str, hint: Any) -> Callable[[Any], Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        some, *others = [_decoder(name, option) for option in arguments if option is not type(None)]
        return lambda value: value if value is None or others else some(value)
    if dataclasses.is_dataclass(hint):
        return functools.partial(from_json, typing.cast(type, hint))
    if origin is tuple:
        item = _decoder(name, arguments[0])
        return lambda value: tuple(map(item, _checked(name, (list, tuple), value)))
    if origin is Mapping:
        return functools.partial(_checked, name, Mapping)
    allowed = {float: (float, int), int: int, str: str, bool: bool}.get(hint)
    return functools.partial(_checked, name, allowed) if allowed else lambda value: value


def _checked(name: str, allowed: Any, value: Any) -> Any:
    if not isinstance(value, allowed) or (isinstance(value, bool) and allowed is not bool):
        raise TypeError(f"{name}: {value!r:.40} has the wrong type")
    return value
