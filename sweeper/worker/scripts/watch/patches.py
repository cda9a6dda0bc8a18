"""The owner of what stands in torch and in a user's modules in place of what was there: it makes
each patch, lists them, and undoes them.

Torch's stance, which `arms` sets, and what `python train.py` itself sets (`sys.argv`, the folder)
stay as they are until the process ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

MISSING = object()


class Patch(NamedTuple):
    """Something that stands in the process until it is undone."""

    name: str  # e.g. `torch.save`
    undo: Callable[[], None]


class Patches:
    """Makes patches, and undoes them at the end of its `with` block at the latest, the last one
    first. A part of them may be undone before.
    """

    def __init__(self) -> None:
        self._made: list[Patch] = []
        self._parts: list[Patches] = []

    def __enter__(self) -> Patches:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    @property
    def names(self) -> list[str]:
        """The names of those that are in place."""
        found = [patch.name for patch in self._made]
        for part in self._parts:
            found += part.names
        return found

    def part(self) -> Patches:
        """Begin a part of these."""
        self._parts.append(Patches())
        return self._parts[-1]

    def replace(self, owner: Any, attribute: str, value: object) -> None:
        """Set an attribute of an object, a class or a module. To undo it leaves what somebody else
        has put there meanwhile.
        """
        before = vars(owner).get(attribute, MISSING)
        _set(owner, attribute, value)

        def undo() -> None:
            if vars(owner).get(attribute) is value:
                _set(owner, attribute, before)

        name = getattr(owner, "__name__", type(owner).__name__)
        self.own(f"{name}.{attribute}", undo)

    def own(self, name: str, undo: Callable[[], None]) -> None:
        """Own what has been changed already, such as a hook."""
        self._made.append(Patch(name, undo))

    def undo(self) -> None:
        """Undo all that are in place, the last one first."""
        for part in reversed(self._parts):
            part.undo()
        while self._made:
            self._made.pop().undo()


def _set(owner: Any, attribute: str, value: object) -> None:
    """Set or delete an attribute, past a `__setattr__` that an object has of its own."""
    if isinstance(owner, type):
        if value is MISSING:
            delattr(owner, attribute)
        else:
            setattr(owner, attribute, value)
    elif value is MISSING:
        del vars(owner)[attribute]
    else:
        vars(owner)[attribute] = value
