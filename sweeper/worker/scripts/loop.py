"""A training loop that somebody else wrote, seen from outside: its steps, its loader, and the
modules that it calls.

A step of the loop ends when an optimizer's step returns. Where several optimizers take turns, it is
the step of the one that steps least often, and of those the last in turn. Wrappers call the
optimizers within them, so the outermost call counts. Until that is known the loop runs as it is,
and the outermost modules that it calls are noted.
"""

from __future__ import annotations

import copy
import itertools
import sys
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import astuple, dataclass
from traceback import walk_stack
from types import FrameType
from typing import Any

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from sweeper.worker.failures import Failure
from sweeper.worker.measurement.bench import Steps
from sweeper.worker.models.dropout import has_dropout

from .interruptions import Interruptions
from .script_runner import EndOfScript
from .source_lines import TORCH, is_users, name_place

MIN_WATCHED = 8  # optimizer steps, before it is decided which of them end a step of the loop
MAX_SINCE_LAST = 8 * MIN_WATCHED  # steps of other optimizers, before it is decided anew
MAX_RECORDED = 16  # batches that are kept to be given again


class LoaderWatch:
    """Sees what loaders of torch give, and how long it takes; on demand it gives recorded batches
    again.

    The training loader is the one that gives most batches: a kind of data set, and the line that
    takes from it.
    """

    def __init__(self) -> None:
        self.seconds = 0.0  # that the script has waited for loaders
        self.num_batches = 0  # of the training loader
        self.others = 0  # batches of other loaders, once it is known which one that is
        self.num_replayed = 0  # batches that are given again
        self.num_epochs = 0  # times that the training loader began anew
        self.seen: set[str] = set()  # how many workers loaders have
        self.queued = 0  # batches at most that workers fetch ahead
        self._pulled: Counter[object] = Counter()  # batches by loader
        self._records = True
        self._recorded: deque[Any] = deque(maxlen=MAX_RECORDED)
        self._training: object = None
        self._replayed: Iterator[RecordedBatch] | None = None
        # that have given nothing yet
        self._fresh: weakref.WeakSet[_BaseDataLoaderIter] = weakref.WeakSet()
        self._next, self._iter = _BaseDataLoaderIter.__next__, DataLoader.__iter__
        # functions, so that a loader is their first argument
        setattr(_BaseDataLoaderIter, "__next__", lambda iterator: self._give_next(iterator))  # noqa: B010
        setattr(DataLoader, "__iter__", lambda loader: self._begin(loader))  # noqa: B010

    def stop(self) -> None:
        setattr(_BaseDataLoaderIter, "__next__", self._next)  # noqa: B010
        setattr(DataLoader, "__iter__", self._iter)  # noqa: B010

    def _begin(self, loader: DataLoader[Any]) -> Any:
        start = time.perf_counter()
        try:
            iterator = self._iter(loader)  # which starts workers
        finally:
            self.seconds += time.perf_counter() - start
        self._fresh.add(iterator)
        return iterator

    def _give_next(self, iterator: _BaseDataLoaderIter) -> Any:
        key = type(iterator._dataset), _find_place()
        is_training = self._training in (None, key)
        if self._replayed is not None and is_training:
            return next(self._replayed).take()
        start = time.perf_counter()
        try:
            batch = self._next(iterator)
        finally:
            self.seconds += time.perf_counter() - start
        if not is_training:
            self.others += 1
            return batch
        self.num_batches += 1
        if self._training is None:
            self._pulled[key] += 1
            workers = iterator._num_workers
            self.seen.add(
                f"{workers} workers" if workers > 1 else "1 worker" if workers else "no workers"
            )
            self.queued = max(
                self.queued, workers * (getattr(iterator, "_prefetch_factor", None) or 0)
            )
        else:
            self.num_epochs += iterator in self._fresh
        self._fresh.discard(iterator)
        if self._records:
            self._recorded.append(copy_structure(batch))
        return batch

    def decide(self) -> None:
        """From now on only the loader that gave most batches is the training loader."""
        self._training = self._pulled.most_common(1)[0][0] if self._pulled else None

    def keep_none(self) -> None:
        """Keep no batches: pinned ones leave torch's allocator larger for good, and every fork of a
        worker maps it.
        """
        self._records = False
        self._recorded.clear()

    def replay(self, count: int) -> None:
        """From now on the training loader gives its last `count` batches again, in turn, and does
        not end.
        """
        batches = [RecordedBatch(batch) for batch in list(self._recorded)[-count:]]
        self.num_replayed = len(batches)
        self._replayed = itertools.cycle(batches) if batches else None

    @property
    def num_recorded(self) -> int:
        return len(self._recorded)


def _find_place() -> object:
    """The line that takes a batch, past the frames of torch."""
    for frame, line in walk_stack(sys._getframe(3)):
        if not frame.f_code.co_filename.startswith(TORCH):
            return frame.f_code.co_filename, line
    return None


class RecordedBatch:
    """A batch that is given again; what the script changes in place is as it was the next time."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self._tensors = list(_find_tensors(batch))
        self._values = [tensor.detach().clone() for tensor in self._tensors]
        self._versions = [tensor._version for tensor in self._tensors]

    def take(self) -> Any:
        for index, (tensor, value) in enumerate(zip(self._tensors, self._values, strict=True)):
            if tensor._version != self._versions[index]:
                tensor.detach().copy_(value)
                self._versions[index] = tensor._version
        return copy_structure(self._batch)


def _find_tensors(batch: Any) -> Iterator[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, (Mapping, list, tuple)):
        for item in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _find_tensors(item)


def copy_structure(batch: Any) -> Any:
    """The same tensors in containers of their own, which the script may take apart."""
    if isinstance(batch, MutableMapping):
        copied = copy.copy(batch)
        for key, value in batch.items():
            copied[key] = copy_structure(value)
        return copied
    if isinstance(batch, list):
        return [copy_structure(item) for item in batch]
    if type(batch) is tuple:
        return tuple(copy_structure(item) for item in batch)
    return batch if isinstance(batch, torch.Tensor) else copy.copy(batch)


class ModuleWatch:
    """Notes the outermost modules that are called for training and have parameters to train.

    Left in place, such a hook fires for every submodule and breaks graphs, so it has to stop before
    anything compiles.
    """

    def __init__(self) -> None:
        # with the line of the script that calls them first
        self.modules: dict[torch.nn.Module, str] = {}
        self.has_dropout = False  # whether a module in training mode has it
        self.autocasts: set[str] = set()  # number formats of autocast that modules were called in
        self._depth = 0
        hooks = torch.nn.modules.module
        self._handles = (
            hooks.register_module_forward_pre_hook(self._enter),
            hooks.register_module_forward_hook(self._leave, always_call=True),
        )

    def stop(self) -> None:
        """Note no more; a module that is part of another one is compiled with that."""
        for handle in self._handles:
            handle.remove()
        parts = {part for module in self.modules for part in module.modules() if part is not module}
        self.modules = {
            module: line for module, line in self.modules.items() if module not in parts
        }

    def _enter(self, module: torch.nn.Module, _inputs: object) -> None:
        self._depth += 1
        if self._depth == 1 and is_called_to_train(module):
            self.modules.setdefault(module, find_script_line())
        if torch.is_grad_enabled():
            self.has_dropout |= module.training and has_dropout(module)
            for device in ("cuda", "cpu"):
                if torch.is_autocast_enabled(device):
                    self.autocasts.add(str(torch.get_autocast_dtype(device)))

    def _leave(self, *_: object) -> None:
        self._depth = max(self._depth - 1, 0)


def is_called_to_train(module: torch.nn.Module) -> bool:
    """Whether a module that is being called has parameters to train, and gradients are on."""
    in_backward = torch._C._current_graph_task_id() != -1  # as checkpointed blocks are called again
    return (
        not in_backward
        and torch.is_grad_enabled()
        and any(item.requires_grad for item in module.parameters())
    )


def find_script_line() -> str:
    """`file:line` of the innermost frame that belongs to no library; "" where there is none."""
    for frame, line in walk_stack(sys._getframe(2)):
        if is_users(frame.f_code.co_filename):
            return name_place(frame.f_code.co_filename, line)
    return ""


class Loop:
    """Sees the steps of a loop, and goes on with `phases` at the end of each.

    The script ends with its phases; before that, `on_end` gets what went wrong in it, or None.
    """

    def __init__(
        self, phases: Callable[[Loop], Steps[None]], on_end: Callable[[Exception | None], None]
    ) -> None:
        self.num_steps = 0  # of the loop, since it is known where they end
        self.num_watched = 0  # optimizer steps before that
        self.length: int | None = None  # steps of the whole loop, where the script ended by itself
        self.num_saved = 0  # calls of `torch.save`
        # steps before which other loaders gave batches, and these batches
        self.num_evaluations = self._others = 0
        self.num_skipped = 0  # optimizer steps that a gradient scaler left out
        self.optimizers: dict[int, Optimizer] = {}
        self.loader = LoaderWatch()
        self.modules = ModuleWatch()
        self.interruptions = Interruptions()
        self._order: list[int] = []
        self._last: int | None = None  # the optimizer whose step ends a step of the loop
        self._num_before = 0  # steps that ended before that was known
        self._since_last = 0  # steps of others
        self._running: list[FrameType] = []  # of steps that have begun, from the outermost
        self._thread = threading.get_ident()
        self._phases, self._on_end, self._ended = phases(self), on_end, False
        self._handles = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        self._save, self._scaler_step = torch.save, torch.amp.GradScaler.step
        setattr(torch, "save", self._note_save)  # noqa: B010

        # a function, so that the scaler is its first argument
        def step(
            scaler: torch.amp.GradScaler, optimizer: Optimizer, *rest: Any, **options: Any
        ) -> Any:
            before = (len(self._order), self.num_steps)
            returned = self._scaler_step(scaler, optimizer, *rest, **options)
            if before == (len(self._order), self.num_steps) and id(optimizer) == self._last:
                self.num_skipped += 1
            return returned

        setattr(torch.amp.GradScaler, "step", step)  # noqa: B010

    def stop(self) -> None:
        """Take everything away that was put into torch."""
        for handle in self._handles:
            handle.remove()
        self._stop_watching()

    def _stop_watching(self) -> None:
        """Take away all but what sees steps; the script's own clean-up runs as without us."""
        self.loader.stop()
        self.modules.stop()
        setattr(torch, "save", self._save)  # noqa: B010
        setattr(torch.amp.GradScaler, "step", self._scaler_step)  # noqa: B010

    @property
    def order(self) -> list[str]:
        """The optimizers by name, in the order of their first steps."""
        return [type(optimizer).__name__ for optimizer in self.optimizers.values()]

    def count(self) -> Counts:
        loader = self.loader
        return Counts(
            self.num_steps,
            loader.num_batches,
            loader.seconds,
            loader.others,
            self.num_saved,
            self.num_skipped,
            self.num_evaluations,
            loader.num_epochs,
        )

    def _count_steps(self) -> str:
        if not self.num_watched:
            return "no step of an optimizer of torch was seen"
        steps = self.num_watched + self.num_steps
        return (
            f"{steps} {'step was' if steps == 1 else 'steps were'} seen, and more are needed "
            "(docs/scripts.md)"
        )

    def finish(self, error: Exception | None = None) -> None:
        """The script has ended by itself, or with an error: its phases hear it, and what it has is
        kept.
        """
        if self._ended:
            return
        self._ended = True
        self.stop()
        if error is None and self._last is not None:
            self.length = self._num_before + self.num_steps
        over = ScriptOverError(f"the script ended by itself: {self._count_steps()}")
        try:
            self._phases.throw(ScriptFailedError(error) if error else over)
        except StopIteration:
            self._on_end(None)
        except ScriptFailedError:
            self._on_end(error)
        except Exception as failure:  # noqa: BLE001  # it becomes the trial's status
            self._on_end(failure)
        else:
            self._on_end(error or over)  # the phases want more steps, of which there are none

    def _before_step(self, *_: object) -> None:
        if threading.get_ident() != self._thread:
            return
        caller = sys._getframe(1)
        if self._running:
            # A step that raises has no end that torch tells of, but its frame is gone.
            callers = [frame for frame, _ in walk_stack(caller)]
            self._running = [frame for frame in self._running if frame in callers]
        self._running.append(caller)

    def _after_step(self, optimizer: Optimizer, *_: object) -> None:
        if threading.get_ident() != self._thread:
            return
        key = id(optimizer)
        self._running.remove(sys._getframe(1))
        if self._running:
            return
        if self._last is None:
            self._watch(key, optimizer)
        elif key == self._last:
            self.num_steps += 1
            self._since_last = 0
            self._go_on()
        else:
            self._since_last += 1
            if self._since_last > MAX_SINCE_LAST:  # it steps no more
                self._last, self._since_last = None, 0
                self._order.clear()

    def _watch(self, key: int, optimizer: Optimizer) -> None:
        self.optimizers[key] = optimizer
        self._order.append(key)
        self.num_watched += 1
        recent = self._order[-MIN_WATCHED:]
        counts = Counter(recent)
        if len(recent) < MIN_WATCHED or counts[recent[0]] < 2:
            return
        least = min(counts.values())
        within_one = {key for key, count in counts.items() if count <= least + (least > 1)}
        self._last = [key for key in dict.fromkeys(recent) if key in within_one][-1]
        self._num_before += self._order.count(self._last)
        self.modules.stop()
        self.loader.decide()
        if key == self._last:
            self._go_on()

    def _go_on(self) -> None:
        if self._ended:  # the script has caught what should have ended it
            raise EndOfScript
        self.num_evaluations += self.loader.others > self._others
        self._others = self.loader.others
        self.interruptions.note(self.loader.others + self.num_saved)
        try:
            next(self._phases)
            return
        except StopIteration:
            error = None
        except Exception as failure:  # noqa: BLE001  # it becomes the trial's status; the script must not catch it
            error = failure
        self._ended = True
        self._stop_watching()
        self._on_end(error)
        raise EndOfScript

    def _note_save(self, *arguments: Any, **options: Any) -> Any:
        self.num_saved += 1
        return self._save(*arguments, **options)


@dataclass(frozen=True)
class Counts:
    """What has happened in a loop since its end of a step is known."""

    steps: int
    batches: int
    loader_s: float  # waited for batches
    others: int  # batches of other loaders
    saved: int
    skipped: int
    evaluations: int = 0  # steps before which the script evaluated
    epochs: int = 0  # times that the training loader began anew

    def since(self, before: Counts) -> Counts:
        return Counts(
            *(now - then for now, then in zip(astuple(self), astuple(before), strict=True))
        )


class ScriptOverError(Failure):
    """The script has ended by itself."""

    status = "eager_error"


class ScriptFailedError(Failure):
    """The script has raised an error, which is the trial's and no reading's: it passes every
    `try_steps`.
    """


def run_steps(steps: int) -> Iterable[None]:
    """Let the loop run for some steps."""
    return itertools.repeat(None, steps)
