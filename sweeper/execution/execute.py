"""`execute(trials, settings, placement)`: the one way to run trials, for a whole sweep and for a cluster's job.

Every record is on disk before anything else happens to it.
"""

from __future__ import annotations

import functools
import shutil
import threading
from collections.abc import Generator, Sequence

from sweeper.core.paths import SweepPaths, write_text
from sweeper.core.settings import Settings
from sweeper.core.trial import Trial
from sweeper.execution.placement import DeviceSlot, Placement, claim_devices, make_slots
from sweeper.execution.reaper import run_reaper
from sweeper.execution.scheduler import Event, Finished, OnPhase, run_all
from sweeper.execution.trial_runner import run_trial

MIN_FREE_BYTES = 2**30  # a max-autotune cache of a large model is about that


class NoSpaceError(Exception):
    """The disk is too full to begin another trial."""


def execute(trials: Sequence[Trial], settings: Settings, placement: Placement) -> Generator[Event, None, None]:
    """Run the trials on the devices of the placement, and yield the events. Closing the generator ends what still runs.

    After an interruption the last records are those of interrupted trials. Raises ConfigError when another driver has
    every device, NoSpaceError when the disk has too little space for another trial.
    """
    with claim_devices(placement.devices) as claimed, run_reaper() as reaper:
        slots = make_slots(placement, claimed, reaper)
        yield from run_all(trials, slots, functools.partial(_run_and_write, settings))


def _run_and_write(
    settings: Settings, trial: Trial, slot: DeviceSlot, on_phase: OnPhase, stop: threading.Event
) -> Finished:
    """Run a trial and write its record to disk, where there is space for all trials in flight on the device."""
    paths = SweepPaths.of(settings.sweep)
    paths.folder.mkdir(parents=True, exist_ok=True)
    free_bytes, needed_bytes = shutil.disk_usage(paths.folder).free, slot.concurrency * MIN_FREE_BYTES
    if free_bytes < needed_bytes:
        raise NoSpaceError(
            f"{paths.folder.absolute()} has {free_bytes / 2**20:.0f} MiB left and what runs may need "
            f"{needed_bytes / 2**20:.0f}; free some space, then go on with the same command"
        )
    finished = run_trial(trial, settings, slot, on_phase, stop)
    record = finished.record
    path = paths.trial(record.label, record.trial_id).record
    if record.status != "interrupted" or not path.exists():  # an earlier record is worth more
        write_text(path, record.dumps())
    slot.peak_memory.learn(record)
    return finished
