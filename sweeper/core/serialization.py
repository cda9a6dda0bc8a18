"""Frozen dataclasses to plain JSON values and back, so that every value between two stages can be saved and read."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
T = TypeVar("T")

PLAIN = frozenset({type(None), bool, int, float, str})  # the same in JSON
# The types of values that a field of a plain type takes.
ALLOWED: Mapping[Any, tuple[type, ...]] = {**{plain: (plain,) for plain in PLAIN}, float: (float, int)}


def to_json(value: Any) -> Any:
    """Convert dataclasses, mappings and sequences to dicts and lists; everything else stays as it is."""
    if type(value) in PLAIN:
        return value
    if defaults := _defaults(type(value)):  # type: ignore[arg-type]
        return {name: to_json(getattr(value, name)) for name in defaults}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return value


@functools.cache
def _defaults(cls: type) -> dict[str, Any]:
    """The default of each field of a dataclass, MISSING where it has none; empty for any other class."""
    known = fields(cls) if is_dataclass(cls) else ()
    return {one.name: one.default if one.default_factory is MISSING else one.default_factory() for one in known}


def drop_defaults(value: Any) -> Any:
    """Convert like `to_json`, without dataclass fields at their default, nested ones included."""
    if not (defaults := _defaults(type(value))):  # type: ignore[arg-type]
        return to_json(value)
    items = {name: getattr(value, name) for name in defaults}
    return {name: drop_defaults(item) for name, item in items.items() if item != defaults[name]}


def from_json(cls: type[T], data: Any) -> T:
    """Build the dataclass `cls` from what `to_json` gave.

    Raises ValueError when `data` is no mapping, has a key that `cls` does not know, lacks one that it needs, or has a
    value of the wrong type.
    """
    return typing.cast(T, _reader_of(cls)(data))  # type: ignore[arg-type]


@functools.cache
def _reader_of(cls: type) -> Callable[[Any], Any]:
    """Return a function that makes a `cls` from JSON; cached, since resolving type hints costs more than reading."""
    hints = typing.get_type_hints(cls)
    names = [field.name for field in fields(cls)]
    known = {name: (_plain(hints[name]), _reader(name, hints[name])) for name in names}
    # Reading a record would spend half of its time in the `__init__` of frozen classes. Classes with slots and without
    # `__post_init__` can do without it: their fields are set one by one.
    slots: dict[str, Any] = {name: getattr(getattr(cls, name, None), "__set__", None) for name in names}
    skip_init = not hasattr(cls, "__post_init__") and None not in slots.values()

    def read(data: Any) -> Any:
        if not isinstance(data, (dict, Mapping)):  # dict first: an abstract class takes longer to ask
            raise ValueError(f"{cls.__name__}: expected an object, got {type(data).__name__}")
        if not data.keys() <= known.keys():
            unknown = ", ".join(sorted(data.keys() - known.keys()))
            raise ValueError(f"{cls.__name__}: unknown key {unknown}; allowed: {', '.join(sorted(known))}")
        try:
            if len(data) < len(known) or not skip_init:
                return cls(**{name: known[name][1](value) for name, value in data.items()})
            built: Any = object.__new__(cls)
            for name, value in data.items():
                plain, convert = known[name]
                slots[name](built, value if type(value) in plain else convert(value))
            return built
        except TypeError as error:  # a required field is missing, or a value has the wrong type
            raise ValueError(f"{cls.__name__}: {error}") from error

    return read


def _plain(hint: Any) -> frozenset[type]:
    """The types of which a value is taken as it is; most values are."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return frozenset().union(*map(_plain, typing.get_args(hint)))
    return frozenset({dict} if typing.get_origin(hint) is Mapping else ALLOWED.get(hint, ()))


def _reader(name: str, hint: Any) -> Callable[[Any], Any]:
    """Return a function that makes the field from any other value, or raises."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        some, *others = [_reader(name, option) for option in arguments if option is not type(None)]
        return lambda value: value if value is None or others else some(value)
    if is_dataclass(hint):
        return _reader_of(typing.cast(type, hint))
    if origin is tuple:
        plain, item = _plain(arguments[0]), _reader(name, arguments[0])
        return lambda value: tuple(
            [found if type(found) in plain else item(found) for found in _checked(name, (list, tuple), value)]
        )
    allowed = (Mapping,) if origin is Mapping else ALLOWED.get(hint)
    return functools.partial(_checked, name, allowed) if allowed else lambda value: value


def get_mapping(value: object, *keys: str) -> Mapping[str, Any]:
    """Return the mapping under nested keys of a value of any shape; empty where there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _checked(name: str, allowed: Any, value: Any) -> Any:
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        raise TypeError(f"{name}: {value!r:.40} has the wrong type")
    return value
