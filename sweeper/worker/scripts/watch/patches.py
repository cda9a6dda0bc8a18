"""The owner of what stands in torch and in a user's modules in place of what was there: it makes
each patch, lists them, and undoes them.

Torch's stance, which `arms` sets, and what `python train.py` itself sets (`sys.argv`, the folder)
stay as they are until the process ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MISSING = object()


@dataclass(frozen=True, eq=False)
class Patch:
    """Something that stands in the process until it is undone."""

    name: str  # e.g. `torch.save`
    undo: Callable[[], None]


class Patches:
    """Makes patches, and undoes them at the end of its `with` block at the latest, the last one
    first.
    """

    def __init__(self) -> None:
        self._made: list[Patch] = []

    def __enter__(self) -> Patches:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo(*self._made)

    @property
    def names(self) -> list[str]:
        """The names of those that are in place, the first one first."""
        return [patch.name for patch in self._made]

    def replace(self, owner: Any, attribute: str, value: object) -> Patch:
        """Set an attribute of an object, a class or a module. To undo it leaves what somebody else
        has put there meanwhile.
        """
        before = vars(owner).get(attribute, MISSING)
        _set(owner, attribute, value)

        def undo() -> None:
            if vars(owner).get(attribute) is value:
                _set(owner, attribute, before)

        name = getattr(owner, "__name__", type(owner).__name__)
        return self.own(f"{name}.{attribute}", undo)

    def own(self, name: str, undo: Callable[[], None]) -> Patch:
        """Own what has been changed already, such as a hook."""
        patch = Patch(name, undo)
        self._made.append(patch)
        return patch

    def undo(self, *patches: Patch) -> None:
        """Undo some patches, the last one first; one that is undone already stays so."""
        for patch in reversed(patches):
            if patch in self._made:
                self._made.remove(patch)
                patch.undo()


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
