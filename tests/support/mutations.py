"""Records with one fault each, made from stored ones with a fixed seed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

SEED = 1906
NUMBERS = (0, -1, 1e-320, 1e308, -1e308, 2**63, 10**400, 1e16, -0.0, 0.5, True)
TEXTS = (
    "",
    "[/x]",
    "\ud800",
    "\x1b]0;owned\x07\x1b[2J",
    "=1+1",
    "\n=1",
    "a\r\nb",
    "../../etc",
    "é" * 300,
    "x" * 100_000,
)
OTHERS = (None, [], {}, [[]], {"x": 1}, [None], "1", False, ["\x00"])
WHOLE = (
    b"", b"[" * 100_000, b'{"schema_version": '
    b'5', b"null", b"\xff\xfe", b'{"schema_version": NaN}', b"5",
    b'{"schema_version": 99}', b'{"schema_version": 5}',
)  # fmt: skip


def mutate(texts: Sequence[str], count: int) -> Iterator[bytes]:
    """Yield the contents of `count` files; most are JSON that is a record but for one value."""
    generator = random.Random(SEED)
    for _ in range(count):
        text = generator.choice(texts)
        kind = generator.random()
        if kind < 0.05:
            yield generator.choice(WHOLE)
        elif kind < 0.15:
            yield _damage(text.encode(), generator)
        else:
            data = json.loads(text)
            for _ in range(generator.choice((1, 1, 1, 3))):
                _change(data, generator)
            yield json.dumps(data).encode()


def _damage(data: bytes, generator: random.Random) -> bytes:
    """Cut a file short, or change one of its bytes."""
    at = generator.randrange(len(data))
    if generator.random() < 0.3:
        return data[:at]
    return data[:at] + bytes([generator.randrange(256)]) + data[at + 1 :]


def _change(data: dict[str, Any], generator: random.Random) -> None:
    """Change, add or remove one value somewhere in `data`."""
    places = list(_places(data))
    parent, key = generator.choice(places)
    old = parent[key]
    kind = generator.randrange(6)
    if kind == 0 and isinstance(parent, dict):
        del parent[key]
    elif kind == 1 and isinstance(parent, dict):
        parent[generator.choice(("invented", "\x1b[31m", "\ud800", ""))] = old
    elif kind == 2:
        for _ in range(generator.choice((30, 300))):
            old = [old] if generator.random() < 0.5 else {"x": old}
        parent[key] = old
    elif isinstance(old, str):
        parent[key] = generator.choice((*TEXTS, *OTHERS, 7))
    elif isinstance(old, (int, float)):
        parent[key] = generator.choice((*NUMBERS, float("nan"), float("inf"), *OTHERS))
    else:
        parent[key] = generator.choice((*OTHERS, *NUMBERS[:3], *TEXTS[:3]))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every container and key of a value in it."""
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in items:
        yield value, key
        yield from _places(item)
