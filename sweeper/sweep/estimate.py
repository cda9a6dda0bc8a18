"""How long a sweep will take, judging by the records of trials that ran on the same kind of
device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from statistics import median

from sweeper.core.paths import RUNS
from sweeper.core.record import Record, RecordError
from sweeper.core.serialization import get_mapping
from sweeper.core.settings import TIMING, Measure
from sweeper.core.trial import Trial
from sweeper.execution.placement import Placement
from sweeper.report.formatting import format_duration
from sweeper.sweep.plan import Plan
from sweeper.sweep.resume import read_measure


class History:
    """How long similar earlier trials took on the same device, in wall seconds per process.

    A trial that ran before is expected to take as long as the last time. Any other is expected to
    take the median of those with its model, workload, mode, backend and compile settings.
    """

    def __init__(self, earlier: Iterable[tuple[Trial, float]]) -> None:
        similar: dict[tuple[object, ...], list[float]] = {}
        self._by_trial: dict[str, float] = {}
        for trial, process_s in earlier:
            self._by_trial[trial.id] = process_s
            similar.setdefault(_make_likeness(trial), []).append(process_s)
        self._by_likeness = {likeness: median(times_s) for likeness, times_s in similar.items()}

    def __len__(self) -> int:
        """How many different trials it knows."""
        return len(self._by_trial)

    def expected_s(self, trial: Trial) -> float | None:
        """Seconds per process; None when no similar trial is known."""
        return self._by_trial.get(trial.id, self._by_likeness.get(_make_likeness(trial)))

    def select_known(self, trials: Iterable[Trial]) -> list[Trial]:
        """The trials of which something is expected."""
        return [trial for trial in trials if self.expected_s(trial) is not None]

    def total_s(self, trials: Iterable[Trial]) -> float:
        """Seconds of one process of each trial of which something is expected, one after the
        other.
        """
        return sum(self.expected_s(trial) or 0.0 for trial in trials)

    def longest_first(self, trials: Sequence[Trial]) -> tuple[Trial, ...]:
        """Sort trials for several devices: a long one that begins last would keep the others
        waiting.

        Trials of which nothing is known go in the middle.
        """
        expected_s = {trial.id: self.expected_s(trial) for trial in trials}
        middle_s = median(
            [known_s for known_s in expected_s.values() if known_s is not None] or [0.0]
        )
        order = {
            key: middle_s if found_s is None else found_s for key, found_s in expected_s.items()
        }
        return tuple(sorted(trials, key=lambda trial: -order[trial.id]))


def _make_likeness(trial: Trial) -> tuple[object, ...]:
    """What decides how long a process of a trial takes: mostly how much there is to compile, and
    how hard it tries.
    """
    return (
        trial.model.key,
        trial.workload,
        trial.mode,
        trial.backend,
        str(trial.compile),
        trial.device,
        trial.python,
    )


def estimate_s(
    trials: Sequence[Trial],
    whole: History,
    on_device: History,
    devices: int = 1,
    concurrency: int = 1,
) -> float:
    """Estimate the seconds of one process of each trial that is known, `concurrency` in flight per
    device.

    Only one process at a time works on a device; whatever else processes do goes on beside it.
    """
    whole_s, device_s = whole.total_s(trials), on_device.total_s(trials)
    return (device_s + (whole_s - device_s) / concurrency) / devices


def read_history(placement: Placement, measure: Measure) -> tuple[History, History]:
    """Read the seconds per process, in total and on the device, of ok trials that were measured
    alike on such a device.

    Empty where a cluster places the trials, since its devices are not known.
    """
    names = placement.device_names
    timing = [getattr(measure, name) for name in TIMING]
    whole, on_device = [], []
    for path in sorted(
        RUNS.glob("*/*/record.json") if names else (), key=lambda path: path.lstat().st_mtime
    ):
        with suppress(RecordError):  # a report says what cannot be read
            record = Record.read(path)
            if not (record.status == "ok" and record.wall_s and record.processes):
                continue
            found = read_measure(record.measure)
            alike = found is not None and [getattr(found, name) for name in TIMING] == timing
            if alike and get_mapping(record.environment, "device").get("name") in names:
                whole.append((record.trial, record.wall_s / len(record.processes)))
                device_s = sum(process.device_s for process in record.processes)
                on_device.append((record.trial, device_s / len(record.processes)))
    return History(whole), History(on_device)


def describe_estimate(plan: Plan, placement: Placement, measure: Measure) -> str:
    """Say how long a plan will take, judging by similar trials, and for how many of its trials
    nothing is known.
    """
    whole, on_device = read_history(placement, measure)
    known = whole.select_known(plan.trials)
    if not known:
        return "no estimate yet"
    num_devices = len(placement.devices)
    process_s = estimate_s(
        known, whole, on_device, num_devices, max(placement.concurrency // num_devices, 1)
    )
    duration = format_duration(process_s * measure.processes * measure.draws)
    where = "one device" if num_devices == 1 else f"{num_devices} devices"
    if placement.concurrency > num_devices:
        where += f" with {placement.concurrency} trials in flight"
    if (unknown := len(plan.trials) - len(known)) == 0:
        return f"about {duration} on {where}, judging by similar trials on this kind of device"
    counted = f"{len(known)} trial{'' if len(known) == 1 else 's'}"
    return (
        f"about {duration} on {where} for {counted}, no estimate yet for {unknown} unlike any "
        "earlier one"
    )
