"""What the loaders of a script give, and how long it takes."""

import copy
import itertools
import sys
import time
import weakref
from collections import Counter, deque
from collections.abc import Iterator, Mapping, MutableMapping
from traceback import walk_stack
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from sweeper.worker.source_lines import TORCH

from .patches import Patch, Patches

MAX_RECORDED = 16  # batches that are kept to be given again


class LoaderWatch:
    """Sees what loaders of torch give, and how long it takes; on demand it gives recorded batches
    again.

    The training loader is the one that gives most batches: a kind of data set, and the line that
    takes from it.
    """

    def __init__(self, patches: Patches) -> None:
        self._patches = patches
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

    def begin(self) -> tuple[Patch, Patch]:
        """See all loaders from now on."""
        replace = self._patches.replace
        # functions, so that a loader is their first argument
        return (
            replace(_BaseDataLoaderIter, "__next__", lambda iterator: self._give_next(iterator)),
            replace(DataLoader, "__iter__", lambda loader: self._iterate(loader)),
        )

    def _iterate(self, loader: DataLoader[Any]) -> Any:
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
            self.seen.add({0: "no workers", 1: "1 worker"}.get(workers, f"{workers} workers"))
            per_worker = getattr(iterator, "_prefetch_factor", None) or 0
            self.queued = max(self.queued, workers * per_worker)
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
        self._values = {tensor: tensor.detach().clone() for tensor in _find_tensors(batch)}
        self._versions = {tensor: tensor._version for tensor in self._values}

    def take(self) -> Any:
        for tensor, value in self._values.items():
            if tensor._version != self._versions[tensor]:
                tensor.detach().copy_(value)
                self._versions[tensor] = tensor._version
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
