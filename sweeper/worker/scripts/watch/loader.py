"""What the loaders of a script give, how long it takes, and what is read ahead of the script.

Each batch is given once, in its order, to whom its loader would have given it. Which batches train
is seen at the end of a step: a whole pass over a loader between two steps is an evaluation, and so
is what is taken without gradients.
"""

from __future__ import annotations

import math
import os
import resource
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from sweeper.core.system.host import free_memory_bytes
from sweeper.worker.measurement.leaves import walk
from sweeper.worker.source_lines import is_users_class

from .patches import Patches

FREE_SHARE = 1 / 8  # of memory, shared memory and open files, that batches read ahead may take
MIN_USUAL = 0.8  # share of a data set's batches with one shape, from which others are odd
MAX_REST_S = 10.0  # of waiting until workers have nothing to do
Shape = tuple[torch.Size, ...]


@dataclass(eq=False)
class LoaderPass:
    """One pass over a loader, and what was read of it ahead of the script."""

    iterator: weakref.ref[_BaseDataLoaderIter]
    data: object  # the loader's data set
    shapes: Counter[Shape]  # of all batches of the data set that are as large
    reads_ahead: bool  # whether a batch may be made before the script asks for it
    ahead: deque[Any] = field(default_factory=deque)
    end: Exception | None = None  # what the script gets when `ahead` is empty
    total: int = 0  # batches that were read
    given: int = 0  # with gradients on, since the last step
    per_step: int = 1  # what it gave in the last step
    is_new: bool = True  # whether it had given nothing before the last step

    @property
    def is_whole(self) -> bool:
        """Whether it has begun and ended since the last step."""
        return self.is_new and self.end is not None and not self.ahead

    def count_usual(self) -> int:
        """Count the batches that were read ahead, up to an odd one: the last of an epoch may be
        smaller.
        """
        ((usual, count),) = self.shapes.most_common(1) or [((), 0)]
        if count < MIN_USUAL * self.shapes.total():
            return len(self.ahead)
        return len(list(takewhile(lambda batch: _read_shape(batch) == usual, self.ahead)))


class LoaderWatch:
    """Sees what loaders of torch give; on demand it reads ahead of the script."""

    def __init__(self, patches: Patches) -> None:
        self._patches, self._thread = patches, threading.get_ident()
        self.seconds = 0.0  # that the script has waited for loaders
        self.num_batches = 0  # of training, since it is known where steps end
        self.others = 0  # other batches since then
        self.num_epochs = 0  # times that a training loader began anew since then
        self.num_ahead = 0  # batches that were read ahead, at most
        self.max_steps = math.inf  # that can be read ahead: in an epoch, and in memory
        self.seen: set[str] = set()  # how many workers loaders have
        self.queued = 0  # batches at most that workers fetch ahead
        self._passes = weakref.WeakKeyDictionary[_BaseDataLoaderIter, LoaderPass]()
        self._active: list[LoaderPass] = []  # that have given a batch since the last step
        self._training: list[LoaderPass] = []  # that have given the batches of the last step
        self.num_since = 0  # batches since the last step
        self._data: dict[int, object] = {}  # data sets of training, by their identity
        self._votes = Counter[int]()  # steps before which they gave a batch
        self._shapes: dict[tuple[int, int | None], Counter[Shape]] = {}
        self._last: Any = None  # batch; another one in the same memory is noticed
        self._keeps = True
        self._next, self._iter = _BaseDataLoaderIter.__next__, DataLoader.__iter__

    def begin(self) -> None:
        """See all loaders from now on."""
        replace = self._patches.replace
        # functions, so that a loader is their first argument
        replace(_BaseDataLoaderIter, "__next__", lambda iterator: self._give_next(iterator))
        replace(DataLoader, "__iter__", lambda loader: self._iterate(loader))

    def keep_none(self) -> None:
        """Keep no batches: pinned ones leave torch's allocator larger for good, and every fork of a
        worker maps them.
        """
        self._keeps, self._last = False, None

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            if threading.get_ident() == self._thread:
                self.seconds += time.perf_counter() - start

    def _iterate(self, loader: DataLoader[Any]) -> Any:
        with self._waiting():
            iterator = self._iter(loader)  # which starts workers
        # persistent workers have one iterator for all passes
        self._passes.pop(iterator, None)
        batches = loader.batch_sampler
        samplers = loader.sampler, batches, getattr(batches, "sampler", None)
        # they may know the step
        self._find_pass(iterator).reads_ahead = not any(map(is_users_class, samplers))
        return iterator

    def _find_pass(self, iterator: _BaseDataLoaderIter) -> LoaderPass:
        if (one := self._passes.get(iterator)) is None:
            data = iterator._dataset
            # an evaluation may take the same data in other batches
            size = getattr(iterator._index_sampler, "batch_size", None)
            shapes = self._shapes.setdefault((id(data), size), Counter())
            one = self._passes[iterator] = LoaderPass(weakref.ref(iterator), data, shapes, True)
        return one

    def _give_next(self, iterator: _BaseDataLoaderIter) -> Any:
        one = self._find_pass(iterator)
        # another thread would ask for a batch while this one reads ahead
        one.reads_ahead &= threading.get_ident() == self._thread
        with self._waiting():
            if not one.ahead:
                self._read(one, iterator)
        if not one.ahead:
            assert one.end is not None
            end = one.end
            if not isinstance(end, StopIteration):
                one.end = None  # the loader goes on, where the script catches it
            raise end
        self.num_since += 1
        one.given += torch.is_grad_enabled()
        if one not in self._active:
            self._active.append(one)
        return one.ahead.popleft()

    def _read(self, one: LoaderPass, iterator: _BaseDataLoaderIter) -> None:
        """Read the next batch of a pass, or why there is none."""
        if one.end is not None:
            return
        try:
            batch = self._next(iterator)
        except Exception as end:  # noqa: BLE001  # the script gets it in its turn
            one.end = end
            return
        one.ahead.append(batch)
        one.total += 1
        if self._keeps:
            one.shapes[_read_shape(batch)] += 1
            one.reads_ahead &= not _share_memory(batch, self._last)
            self._last = batch

    def end_step(self, counts: bool) -> None:
        """Note the end of a step; its batches count when it is known where steps end."""
        training = self._find_training() if counts else self._vote()
        if counts:
            own = sum(one.given for one in training)
            self.num_batches += own
            self.others += self.num_since - own
            self.num_epochs += any(one.is_new for one in training)
        self._training = training or self._training
        for one in self._active:
            one.per_step = max(one.given, 1)
            one.given, one.is_new = 0, False
        self._active, self.num_since = [], 0

    def _vote(self) -> list[LoaderPass]:
        """Count what gave batches for a step, while it is not known yet where steps end."""
        training = [one for one in self._active if one.given and not one.is_whole]
        for one in training or self._active:
            self._votes[id(one.data)] += 1
            self._data[id(one.data)] = one.data
            self._note_workers(one)
        return training

    def decide(self) -> None:
        """From now on those loaders train that gave batches for most steps so far."""
        most = max(self._votes.values(), default=0)
        self._data = {key: data for key, data in self._data.items() if 2 * self._votes[key] >= most}

    def _note_workers(self, one: LoaderPass) -> None:
        if (iterator := one.iterator()) is not None:
            workers = iterator._num_workers
            self.seen.add({0: "no workers", 1: "1 worker"}.get(workers, f"{workers} workers"))
            per_worker = getattr(iterator, "_prefetch_factor", None) or 0
            self.queued = max(self.queued, workers * per_worker)

    def _find_training(self) -> list[LoaderPass]:
        """Find what gave the batches of the step that ends."""
        active = [one for one in self._active if one.given]
        parts = [one for one in active if not one.is_whole]
        known = [one for one in parts or active if id(one.data) in self._data]
        # without parts, the step had a batch that a library had taken before an evaluation
        if known or not parts:
            return known
        last = parts[-1]
        self._data[id(last.data)] = last.data  # an epoch with a data set of its own
        return [last]

    def read_ahead(self, steps: int) -> float:
        """Read the batches of the next steps; return for how many there are batches now, infinite
        where none are to be read.
        """
        going_on = [one for one in self._training if one.ahead or one.end is None]
        if self._training and not going_on:
            return 0  # the epoch is over
        return min((self._read_pass(one, steps) for one in going_on), default=math.inf)

    def _read_pass(self, one: LoaderPass, steps: int) -> float:
        iterator = one.iterator()
        if iterator is None:  # the script has left it
            return 0
        if not one.reads_ahead:
            return math.inf
        if not one.ahead:
            self._read(one, iterator)
        most = _count_room(one, iterator)
        wanted = min(steps * one.per_step, most)
        while one.reads_ahead and one.end is None and len(one.ahead) < wanted:
            self._read(one, iterator)
        _wait_for_workers(iterator)
        if not one.reads_ahead:
            return math.inf
        self.num_ahead = max(self.num_ahead, len(one.ahead))
        usual = one.count_usual()
        if one.end is not None:
            epoch = one.total - len(one.ahead) + usual
            # the first step of an epoch begins when nothing can be read yet
            self.max_steps = min(self.max_steps, epoch // one.per_step - 1)
        elif len(one.ahead) >= most:
            self.max_steps = min(self.max_steps, most // one.per_step)
        return usual // one.per_step


def _wait_for_workers(iterator: _BaseDataLoaderIter) -> None:
    """Wait until workers have fetched all that they fetch ahead, so that they rest while steps are
    timed.
    """
    deadline = time.monotonic() + MAX_REST_S
    if isinstance(iterator, _MultiProcessingDataLoaderIter):
        while iterator._data_queue.qsize() < iterator._tasks_outstanding:
            if time.monotonic() >= deadline:
                return
            time.sleep(0.005)


def _count_room(one: LoaderPass, iterator: _BaseDataLoaderIter) -> int:
    """Count the batches that memory and open files leave room for, those in `ahead` with them."""
    tensors = list(_find_tensors(list(one.ahead)[:1]))
    size = max(sum(tensor.nbytes for tensor in tensors), 1)
    room = free_memory_bytes() / size
    if iterator._num_workers and tensors:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        room = min(room, files / len(tensors))  # a tensor from a worker is an open file
        with suppress(OSError):
            shared = os.statvfs("/dev/shm")  # noqa: S108
            room = min(room, shared.f_bavail * shared.f_frsize / size)
    return max(int(FREE_SHARE * (len(one.ahead) + room)), 1)


def _share_memory(batch: Any, other: Any) -> bool:
    """Whether two batches hold the same memory: to make the one may change the other."""
    taken = {tensor.untyped_storage().data_ptr() for tensor in _find_tensors(other)}
    return any(
        tensor.numel() and tensor.untyped_storage().data_ptr() in taken
        for tensor in _find_tensors(batch)
    )


def _read_shape(batch: Any) -> Shape:
    return tuple(tensor.shape for tensor in _find_tensors(batch))


def _find_tensors(batch: Any) -> Iterator[torch.Tensor]:
    """The dense tensors of a batch in containers, and in objects that hold them as attributes."""
    for _, leaf in walk("", batch):
        if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided:
            yield leaf
