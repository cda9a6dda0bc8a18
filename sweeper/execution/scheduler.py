"""Many trials over several devices: a device has several trials in flight, and `turns` says which
of them run a process next.

Each process in flight has a thread. Events are given in the caller's thread, in the order in which
they happened.
"""

import queue
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sweeper.analysis.gains import TrialGain
from sweeper.analysis.result import Result
from sweeper.core.record import Record
from sweeper.core.settings import Settings
from sweeper.core.trial import Trial

from .placement import DeviceSlot
from .turns import Turns


@dataclass(frozen=True)
class Started:
    """A trial has begun."""

    trial: Trial


@dataclass(frozen=True)
class PhaseBegan:
    """Process number `process` of a trial has begun a phase, or says what it does there for
    long.
    """

    trial: Trial
    phase: str
    process: int
    note: str = ""


@dataclass(frozen=True)
class Finished:
    """The record of a trial is on disk; its result, as it was derived here, goes with it."""

    record: Record
    result: Result


T = TypeVar("T")
Event = Started | PhaseBegan | Finished
OnPhase = Callable[[PhaseBegan], None]
# Runs one process of a trial at a time. Before another it yields what the trial gains so far, and
# is sent whether the trial gets it.
Steps = Generator[TrialGain | None, bool, T]
RunTrial = Callable[[Trial, DeviceSlot, OnPhase, threading.Event], Steps[Finished]]
Events = queue.SimpleQueue[Event | Exception | None]  # None: a thread has ended


def run_all(
    trials: Sequence[Trial],
    slots: Sequence[DeviceSlot],
    run_trial: RunTrial,
    settings: Settings,
) -> Generator[Event, None, None]:
    """Run every trial on one of the slots and yield the events. Closing the generator ends what
    still runs.

    A KeyboardInterrupt asks running trials to end (the event that `run_trial` gets) and starts no
    other; the second one is raised. What `run_trial` raises is raised here when the other threads
    have ended their trials.
    """
    stop, events = threading.Event(), Events()
    turns = Turns(trials, settings, stop)
    threads: list[threading.Thread] = []
    # First one trial on each device, then a second: longest first has to hold over all of them.
    for number in range(max(slot.concurrency for slot in slots)):
        for slot in slots:
            if number < slot.concurrency:
                args = (slot, turns, events, run_trial, stop)
                threads.append(threading.Thread(target=_run_turns, args=args, daemon=True))
    for thread in threads:
        thread.start()
    num_running, error = len(threads), None
    try:
        while num_running:
            try:
                # A signal that comes just before the wait begins does not end it, and is handled
                # when the wait is over.
                event = events.get(timeout=1.0)
            except queue.Empty:
                continue
            except KeyboardInterrupt:
                if stop.is_set():
                    raise
                stop.set()
                continue
            if isinstance(event, Event):
                yield event
                continue
            if event is None:
                num_running -= 1
            error = error or event
    finally:  # also when the caller closes the generator
        stop.set()
        for thread in threads:
            thread.join()
    if error is not None:
        raise error


def _run_turns(
    slot: DeviceSlot, turns: Turns, events: Events, run_trial: RunTrial, stop: threading.Event
) -> None:
    """Run processes on a slot, one after the other, as long as a trial wants one. When one raises,
    those that have begun go on, so that no other waits for them.
    """
    try:
        while entrant := turns.take(slot):
            try:
                if entrant.steps is None:
                    events.put(Started(entrant.trial))
                    entrant.steps = run_trial(entrant.trial, slot, events.put, stop)
                    gain = next(entrant.steps)
                else:
                    gain = entrant.steps.send(turns.gets_another(entrant))
            except StopIteration as ended:
                finished: Finished = ended.value
                turns.end(entrant, finished.record.status == "ok")
                events.put(finished)
            except Exception as error:  # noqa: BLE001  # raised again in the caller's thread
                turns.begin_no_other()
                turns.end(entrant, ok=False)
                events.put(error)
            else:
                turns.give_back(entrant, gain)
    finally:
        events.put(None)
