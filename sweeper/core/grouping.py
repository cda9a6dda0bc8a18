"""Puts items with one key together."""

from collections.abc import Iterable
from typing import TypeVar

K = TypeVar("K")
T = TypeVar("T")


def group_by(keys: Iterable[K], items: Iterable[T]) -> dict[K, list[T]]:
    """Group items, each by its key, in the order in which the keys appear."""
    groups: dict[K, list[T]] = {}
    for key, item in zip(keys, items, strict=True):
        groups.setdefault(key, []).append(item)
    return groups
