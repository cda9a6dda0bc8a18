"""Frozen dataclasses to plain JSON values and back, so that every value between two stages can be
saved and read.

`parse_json` and `from_json` are the boundary to files and programs that may hold anything: what
they return has the types of its dataclass, finite numbers, bounded nesting, and text that a
terminal and UTF-8 can take.
"""

import functools
import json
import math
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, NamedTuple, NoReturn, TypeVar

from .errors import ConfigError
from .text import clean_text

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
T = TypeVar("T")
Reader = Callable[[Any], Any]  # of a JSON value

PLAIN = frozenset({type(None), bool, int, float, str})  # the same in JSON


class Between(NamedTuple):
    """The range of a number, or of each field of a dataclass: `Annotated[float, Between(0, 1)]`,
    both ends included.
    """

    low: float
    high: float


# Of numbers without a range of their own. Squares and ratios of such floats are finite.
LIMITS: Mapping[Any, Between] = {float: Between(-1e100, 1e100), int: Between(-(2**63), 2**63 - 1)}


def parse_json(text: str) -> Any:
    """Parse JSON, and clean its text as `clean_text` does. Raises ValueError for NaN and infinity,
    and deep nesting.
    """
    try:
        data = _DECODER.decode(text)
        # `json.dumps` writes as an escape what is not ASCII, so most records have nothing to look
        # at.
        return data if "\\" not in text and text.isascii() and "\x7f" not in text else _clean(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_text(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return value


def show_value(value: object) -> str:
    """Return a JSON value as an override has it: a text stands without its quotes."""
    return json.dumps(value).strip('"')


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number that JSON has")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def to_json(value: Any) -> Any:
    """Convert dataclasses, mappings, sequences and sets to dicts and lists; everything else stays
    as it is.
    """
    if type(value) in PLAIN:
        return value
    if defaults := _defaults(type(value)):  # type: ignore[arg-type]
        return {name: to_json(getattr(value, name)) for name in defaults}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, frozenset)):
        return [to_json(item) for item in value]
    return value


@functools.cache
def _defaults(cls: type) -> dict[str, Any]:
    """The default of each field of a dataclass, MISSING where it has none; empty for any other
    class.
    """
    known = fields(cls) if is_dataclass(cls) else ()
    return {
        one.name: one.default if one.default_factory is MISSING else one.default_factory()
        for one in known
    }


def drop_defaults(value: Any) -> Any:
    """Convert like `to_json`, without dataclass fields at their default, nested ones included."""
    if not (defaults := _defaults(type(value))):  # type: ignore[arg-type]
        return to_json(value)
    items = {name: getattr(value, name) for name in defaults}
    return {name: drop_defaults(item) for name, item in items.items() if item != defaults[name]}


def from_json(cls: type[T], data: Any) -> T:
    """Build the dataclass `cls` from what `to_json` gave.

    Keys that `cls` lists as RETIRED are left out: older files may have them. Raises ValueError when
    `data` is no mapping, has another key that `cls` does not know, lacks one that it needs, or has
    a value of the wrong type or out of range.
    """
    return typing.cast(T, _reader_of(cls)(data))  # type: ignore[arg-type]


@functools.cache
def _reader_of(cls: type) -> Reader:
    """Return a function that makes a `cls` from JSON; cached, since resolving type hints costs more
    than reading.
    """
    hints = typing.get_type_hints(cls, include_extras=True)
    known = {name: _reader(name, hint) for name, hint in hints.items()}
    retired = frozenset(getattr(cls, "RETIRED", ()))
    needs_init = hasattr(cls, "__post_init__")
    set_field = object.__setattr__

    def read(data: Any) -> Any:
        if type(data) is not dict:
            raise ValueError(f"{cls.__name__}: expected an object, got {type(data).__name__}")
        if not data.keys() <= known.keys():
            if unknown := ", ".join(sorted(data.keys() - known.keys() - retired)):
                raise ValueError(
                    f"{cls.__name__}: unknown key {unknown:.80}; "
                    f"allowed: {', '.join(sorted(known))}"
                )
            data = {name: value for name, value in data.items() if name in known}
        try:
            if needs_init or len(data) < len(known):
                return cls(**{name: known[name](value) for name, value in data.items()})
            # reading a record would spend half of its time in the `__init__` of frozen classes
            built: Any = object.__new__(cls)
            for name, value in data.items():
                set_field(built, name, known[name](value))
            return built
        except TypeError as error:  # a required field is missing, or a value has the wrong type
            raise ValueError(f"{cls.__name__}: {error}") from error

    return read


def _reader(name: str, hint: Any) -> Reader:
    """Return a function that makes the field from its value, or raises."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        hint, limits = arguments
        return _reader_among(name, limits) if hint is str else _reader_within(name, hint, limits)
    if origin in (typing.Union, types.UnionType):
        option, *others = [option for option in arguments if option is not type(None)]
        if others:  # `Json`
            return functools.partial(_check_json, name)
        read = _reader(name, option)
        return lambda value: None if value is None else read(value)
    if is_dataclass(hint):
        return _reader_of(typing.cast(type, hint))
    if origin in (tuple, Sequence):
        make, read = origin, _reader(name, arguments[0])
        if origin is Sequence:
            make = list
        return lambda value: make(map(read, _checked(name, list, value)))
    if origin in (dict, Mapping):
        read = _reader(name, arguments[1])
        return lambda value: {key: read(item) for key, item in _checked(name, dict, value).items()}
    if hint in LIMITS:
        return _reader_within(name, hint, LIMITS[hint])
    return functools.partial(_checked, name, hint)


def _reader_within(name: str, hint: Any, limits: Between) -> Reader:
    """Return a reader of numbers, or of a dataclass of numbers, that raises for one that is out of
    range.
    """
    low, high = limits
    allowed = {hint, int}

    def read(value: Any) -> Any:
        if type(value) not in allowed:
            _checked(name, hint, value)
        if not low <= value <= high:
            raise ValueError(f"{name}: {value!r:.40} is not between {low:g} and {high:g}")
        return value

    if not is_dataclass(hint):
        return read
    whole = _reader_of(typing.cast(type, hint))
    of_parts = [
        (one.name, _reader_within(f"{name}.{one.name}", float, limits)) for one in fields(hint)
    ]

    def read_whole(value: Any) -> Any:
        made = whole(value)
        for part, check in of_parts:
            if (number := getattr(made, part)) is not None:
                check(number)
        return made

    return read_whole


def _reader_among(name: str, allowed: Collection[str]) -> Reader:
    """Return a reader of text that raises for any but some words."""

    def read(value: Any) -> str:
        text: str = _checked(name, str, value)
        if text not in allowed:
            raise ValueError(f"{name}: {text!r:.40} is not one of: {', '.join(allowed)}")
        return text

    return read


def _check_json(name: str, value: Any, depth: int = 0) -> Any:
    """Return a JSON value of any shape as it is. Raises ValueError for infinite numbers and deep
    nesting.
    """
    if depth > 20:
        raise ValueError(f"{name}: nested too deeply")
    if type(value) in LIMITS:
        low, high = LIMITS[type(value)]
        if not low <= value <= high:
            raise ValueError(f"{name}: {value!r:.40} is out of range")
    elif type(value) not in PLAIN:
        for item in value.values() if type(value) is dict else value:
            _check_json(name, item, depth + 1)
    return value


def get_mapping(value: object, *keys: str) -> Mapping[str, Any]:
    """Return the mapping under nested keys of a value of any shape; empty where there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def flatten(options: Mapping[str, Any], prefix: str = "") -> dict[str, Json]:
    """Nested options with their keys joined by `.`, as Inductor names them: `triton: {cudagraphs:
    true}`.

    Raises ConfigError for NaN and infinity, which JSON cannot hold.
    """
    flat: dict[str, Json] = {}
    for key, value in options.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        elif isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{prefix}{key}={value}: it must be a finite number")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _checked(name: str, expected: type, value: Any) -> Any:
    """Return a value of the expected type as it is."""
    if type(value) is not expected:
        raise TypeError(f"{name}: {value!r:.40} has the wrong type")
    return value
