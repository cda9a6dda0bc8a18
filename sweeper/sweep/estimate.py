"""How long a sweep will take, judging by the records of trials that ran on the same kind of
device.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from operator import attrgetter
from statistics import median

from sweeper.core.paths import RUNS
from sweeper.core.record import Record, RecordError
from sweeper.core.serialization import get_mapping
from sweeper.core.settings import TIMING, Measure
from sweeper.core.trial import Trial
from sweeper.execution.placement import Placement
from sweeper.report.columns.formats import duration

from .plan import Plan
from .resume import read_measure

_read_timing = attrgetter(*TIMING)


class History:
    """How long similar earlier trials took on the same device, in wall seconds per process.

    A trial that ran before is expected to take as long as the last time. Any other is expected to
    take the median of those with its model, workload, mode, backend and compile settings.
    """

    def __init__(self, earlier: Iterable[tuple[Trial, float]]) -> None:
        times_s: dict[object, list[float]] = {}
        for trial, process_s in earlier:
            times_s[trial.id] = [process_s]
            times_s.setdefault(_make_likeness(trial), []).append(process_s)
        self._expected_s = {key: median(known_s) for key, known_s in times_s.items()}

    def expected_s(self, trial: Trial) -> float | None:
        """Seconds per process; None when no similar trial is known."""
        return self._expected_s.get(trial.id, self._expected_s.get(_make_likeness(trial)))

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
        expected_s = {}
        for trial in trials:
            found_s = self.expected_s(trial)
            if found_s is not None:
                expected_s[trial.id] = found_s
        middle_s = median([*expected_s.values()] or [0.0])
        return tuple(sorted(trials, key=lambda trial: -expected_s.get(trial.id, middle_s)))


def _make_likeness(trial: Trial) -> object:
    """What decides how long a process of a trial takes: mostly how much there is to compile, and
    how hard it tries.
    """
    how = (trial.workload, trial.mode, trial.backend, str(trial.compile))
    return trial.model.key, how, trial.device, trial.python


def estimate_s(
    trials: Sequence[Trial],
    whole: History,
    on_device: History,
    devices: int,
    concurrency: int,
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
    whole, on_device = [], []
    paths = RUNS.glob("*/*/record.json") if names else ()
    for path in sorted(paths, key=lambda path: path.lstat().st_mtime):
        with suppress(RecordError):  # a report says what cannot be read
            record = Record.read(path)
            count = len(record.processes)
            found = read_measure(record.measure)
            alike = found is not None and _read_timing(found) == _read_timing(measure)
            here = get_mapping(record.environment, "device").get("name") in names
            if record.status == "ok" and record.wall_s and count and alike and here:
                whole.append((record.trial, record.wall_s / count))
                device_s = sum(process.device_s for process in record.processes)
                on_device.append((record.trial, device_s / count))
    return History(whole), History(on_device)


def describe_estimate(plan: Plan, placement: Placement, measure: Measure) -> str:
    """Say how long a plan will take, judging by similar trials, and for how many of its trials
    nothing is known.
    """
    whole, on_device = read_history(placement, measure)
    known = [trial for trial in plan.trials if whole.expected_s(trial) is not None]
    if not known:
        return "no estimate yet"
    num_devices = len(placement.devices)
    concurrency = placement.concurrency // num_devices
    process_s = estimate_s(known, whole, on_device, num_devices, concurrency)
    time = duration(process_s * measure.processes * measure.draws)
    where = "one device" if num_devices == 1 else f"{num_devices} devices"
    if placement.concurrency > num_devices:
        where += f" with {placement.concurrency} trials in flight"
    unknown = len(plan.trials) - len(known)
    if not unknown:
        return f"about {time} on {where}, judging by similar trials on this kind of device"
    counted = f"{len(known)} trial{'' if len(known) == 1 else 's'}"
    return (
        f"about {time} on {where} for {counted}, no estimate yet for {unknown} unlike any "
        "earlier one"
    )
