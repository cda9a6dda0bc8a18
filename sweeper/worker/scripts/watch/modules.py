"""The modules that a script calls for training."""

import sys
import weakref
from collections.abc import Collection, Iterator
from traceback import walk_stack
from types import FrameType

import torch
from torch.nn.parallel import DistributedDataParallel

from sweeper.worker.models.dropout import has_dropout
from sweeper.worker.source_lines import is_users, name_place

from .patches import Patches

SHARDED = "FSDPModule"  # the class that `fully_shard` gives modules


class ModuleWatch:
    """Notes the outermost modules that are called for training and have parameters to train.

    Left in place, such a hook fires for every submodule and breaks graphs, so it has to stop before
    anything compiles.
    """

    def __init__(self, patches: Patches) -> None:
        # with the line of the script that calls them first
        self.modules: dict[torch.nn.Module, str] = {}
        # modules of which `forward` was called and not the module, likewise
        self.entered: dict[torch.nn.Module, str] = {}
        self.has_dropout = False  # whether a module in training mode has it
        self.autocasts: set[str] = set()  # number formats of autocast that modules were called in
        self._depth = 0
        self._inner = weakref.WeakSet[torch.nn.Module]()  # that others have called
        self._hooks = patches.part()

    def begin(self) -> None:
        """Note modules from now on."""
        module, own = torch.nn.modules.module, self._hooks.own
        before = module.register_module_forward_pre_hook(self._enter)
        own("hook before the forward of modules", before.remove)
        after = module.register_module_forward_hook(self._leave, always_call=True)
        own("hook after the forward of modules", after.remove)

    def stop(self) -> None:
        """Note no more; a part that another module calls is compiled with that."""
        self._hooks.undo()
        parts = {part for module in self.modules for part in module.modules() if part is not module}
        self.modules = {
            module: line
            for module, line in self.modules.items()
            if module not in parts or module not in self._inner
        }
        self.entered = {
            module: line for module, line in self.entered.items() if module not in self.modules
        }

    def has_seen(self, module: torch.nn.Module) -> bool:
        """Whether a module was called while modules were noted, by the script or by another one."""
        return module in self.modules or module in self._inner

    def _enter(self, module: torch.nn.Module, _inputs: object) -> None:
        self._depth += 1
        if self._depth > 1:
            self._inner.add(module)
        elif is_called_to_train(module) and module not in self.modules:
            self.modules[module] = find_script_line()
            if found := _find_entered(sys._getframe(1)):
                around, frame = found
                self.entered.setdefault(around, find_script_line(frame.f_back))
        if torch.is_grad_enabled():
            self.has_dropout |= module.training and has_dropout(module)
            for device in ("cuda", "cpu"):
                if torch.is_autocast_enabled(device):
                    self.autocasts.add(str(torch.get_autocast_dtype(device)))

    def _leave(self, *_: object) -> None:
        self._depth = max(self._depth - 1, 0)


def find_parts(module: torch.nn.Module, wrapper: str) -> list[torch.nn.Module]:
    """Find what to compile of a module that the script calls. Inside a wrapper these are the module
    in it, and the outermost blocks that `fully_shard` has made; else it is the module itself.
    """
    if wrapper == "outside":
        return [module]
    if isinstance(module, DistributedDataParallel):
        return [module.module]
    blocks = list(_find_blocks(module)) if SHARDED in _name_kinds(module) else []
    return blocks or [module]


def _find_blocks(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    for child in module.children():
        if SHARDED in _name_kinds(child):
            yield child
        else:
            yield from _find_blocks(child)


def _name_kinds(module: torch.nn.Module) -> list[str]:
    """Name its class, and those that it inherits from."""
    return [kind.__name__ for kind in type(module).__mro__]


def find_kind(module: torch.nn.Module, names: Collection[str]) -> str | None:
    """Find a class of a module or of a part of it, or one that it inherits from, by its name."""
    for part in module.modules():
        for kind in _name_kinds(part):
            if kind in names:
                return kind
    return None


def is_called_to_train(module: torch.nn.Module) -> bool:
    """Whether a module that is being called has parameters to train, and gradients are on."""
    in_backward = torch._C._current_graph_task_id() != -1  # as checkpointed blocks are called again
    return (
        not in_backward
        and torch.is_grad_enabled()
        and any(item.requires_grad for item in module.parameters())
    )


def _find_entered(inner: FrameType) -> tuple[torch.nn.Module, FrameType] | None:
    """Find the module whose `forward` runs in a frame, the outermost one, and this frame."""
    found = None
    for frame, _ in walk_stack(inner):
        code = frame.f_code
        if code.co_name == "forward" and code.co_argcount:
            first = frame.f_locals.get(code.co_varnames[0])
            if isinstance(first, torch.nn.Module):
                found = first, frame
    return found


def find_script_line(inner: FrameType | None = None) -> str:
    """`file:line` of the innermost frame that belongs to no library, from the caller's caller or
    from `inner` on; "" where there is none.
    """
    for frame, line in walk_stack(inner or sys._getframe(2)):
        if is_users(frame.f_code.co_filename):
            return name_place(frame.f_code.co_filename, line)
    return ""
