"""The calls of `torch.compile` that a script makes by itself, and those that its libraries make."""

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from traceback import walk_stack
from typing import Any

import torch

from sweeper.core.record import CompileCall
from sweeper.worker.source_lines import LIBRARIES, OWN, TORCH, name_place

from .patches import Patches


class CompileCalls:
    """Notes each call of `torch.compile`, and lets it happen."""

    def __init__(self) -> None:
        self.calls: list[CompileCall] = []
        # modules that were given to it, and what came back last
        self.compiled: dict[torch.nn.Module, Any] = {}
        self._compile: Callable[..., Any] = torch.compile

    def begin(self, patches: Patches) -> None:
        """Note calls until the patch is undone."""
        patches.replace(torch, "compile", self._note)

    @property
    def own(self) -> list[CompileCall]:
        """The calls that are the compiled arm."""
        return [call for call in self.calls if call.is_arm]

    def _note(self, model: Any = None, **options: Any) -> Any:
        if (caller := _find_caller()) is None:
            return self._compile(model, **options)
        where, by_library = caller
        if model is None:  # @torch.compile(mode=...)
            return functools.partial(self._note, **options)
        result = self._compile(model, **options)
        target, is_arm = getattr(model, "__name__", ""), not by_library
        # `Module.compile` compiles a method of the module
        owner = getattr(model, "__self__", model)
        if isinstance(owner, torch.nn.Module):
            target, is_arm = type(owner).__name__, True
            self.compiled[owner] = result
        shown = {
            key: value
            for key, value in options.items()
            if isinstance(value, (str, bool, int, float))
        }
        call = CompileCall(where, by_library, target, is_arm, json.dumps(shown) if shown else "")
        if call not in self.calls:
            self.calls.append(call)
        return result


def _find_caller() -> tuple[str, bool] | None:
    """Where `torch.compile` was called, and whether a library called it; None for a call of ours.

    The place is the script's line where there is one, also when a library acts for it.
    """
    library: str | None = None
    for frame, line in walk_stack(sys._getframe(1)):
        name = frame.f_code.co_filename
        file = Path(name)
        # Lightning's
        wraps = file.name == "wrappers.py" and file.parent.name in ("fabric", "lightning_fabric")
        if name == __file__ or name.startswith(TORCH) or wraps or "<frozen" in name:
            continue
        if OWN in file.parents:
            break
        where = name_place(name, line)
        if not name.startswith(LIBRARIES):
            return where, library is not None
        library = library or where
    return None if library is None else (library, True)
