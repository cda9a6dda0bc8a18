"""Many trials over several devices: each device has several trials in hand and takes the next when one has ended.

One thread a trial in hand; what happens is told in the thread that asks, in the order in which it happened. Place in
the flow: `execute` says what running a trial on a slot means, and tells its watchers.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from sweeper.core.gpus import Device
from sweeper.core.record import Record
from sweeper.core.trial import Trial
from sweeper.execution.device_lease import DeviceLease
from sweeper.execution.memory_budget import MemoryBudget, Peaks


@dataclass(frozen=True)
class Slot:
    """A device with the cores of the host that belong to it (None: all), and what its trials have to share."""

    device: Device
    cores: tuple[int, ...] | None = None
    prepare: int = 1  # trials in hand at a time
    turns: DeviceLease = field(default_factory=DeviceLease, compare=False)
    room: MemoryBudget = field(default_factory=MemoryBudget, compare=False)
    peaks: Peaks = field(default_factory=Peaks, compare=False)


@dataclass(frozen=True)
class Started:
    trial: Trial


@dataclass(frozen=True)
class PhaseBegan:
    trial: Trial
    phase: str
    process: int


@dataclass(frozen=True)
class Finished:
    record: Record


@dataclass(frozen=True)
class _Left:
    """A slot takes no further trial; `error` is why, if it was not for want of trials."""

    error: Exception | None = None


News = Started | PhaseBegan | Finished
Run = Callable[[Trial, Slot, Callable[[str, int], None], threading.Event], Record]


def run_all(trials: Sequence[Trial], slots: Sequence[Slot], run: Run) -> Iterator[News]:
    """Run every trial on one of the slots and tell what happens.

    A KeyboardInterrupt asks running trials to end (the event that `run` gets) and starts no other; the second one is
    raised. What `run` raises is raised here when the other slots have ended their trials.
    """
    todo, news, stop = deque(trials), queue.SimpleQueue[News | _Left](), threading.Event()
    # First one trial on each device, then a second: longest first has to hold over all of them.
    hands = [slot for hand in range(max(slot.prepare for slot in slots)) for slot in slots if hand < slot.prepare]
    threads = [threading.Thread(target=_serve, args=(slot, todo, news, stop, run), daemon=True) for slot in hands]
    for thread in threads:
        thread.start()
    error: Exception | None = None
    try:
        serving = len(threads)
        while serving:
            try:
                item = news.get()
            except KeyboardInterrupt:
                if stop.is_set():
                    raise
                stop.set()
                continue
            if not isinstance(item, _Left):
                yield item
                continue
            serving -= 1
            if item.error is not None:
                todo.clear()
                error = error or item.error
    finally:  # also when whoever asks has had enough
        stop.set()
        for thread in threads:
            thread.join()
    if error is not None:
        raise error


def _serve(
    slot: Slot, todo: deque[Trial], news: queue.SimpleQueue[News | _Left], stop: threading.Event, run: Run
) -> None:
    """Take trials until there are none, one goes wrong in a way that has no record, or all shall end."""
    try:
        while todo and not stop.is_set():
            try:
                trial = todo.popleft()
            except IndexError:  # another was faster
                break
            news.put(Started(trial))

            def on_phase(phase: str, process: int, trial: Trial = trial) -> None:
                news.put(PhaseBegan(trial, phase, process))

            news.put(Finished(run(trial, slot, on_phase, stop)))
    except Exception as error:  # noqa: BLE001  # raised again in the thread that asks
        news.put(_Left(error))
    else:
        news.put(_Left())
