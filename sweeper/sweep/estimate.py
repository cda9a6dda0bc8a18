"""How long a sweep will take, judging by the records of trials that ran on the same kind of
device.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from operator import attrgetter
from statistics import median
from typing import NamedTuple

from sweeper.config.saved_files import describe_saved
from sweeper.core.grouping import group_by
from sweeper.core.libraries import SCRIPT
from sweeper.core.paths import RUNS
from sweeper.core.record import Record, RecordError
from sweeper.core.serialization import get_mapping
from sweeper.core.settings import TIMING, Measure
from sweeper.core.trial import Trial
from sweeper.execution.placement import Placement
from sweeper.execution.trial_runner import MAX_FEATURE_PROCESSES
from sweeper.report.columns.formats import count, duration

from .plan import Plan
from .resume import read_measure

_read_timing = attrgetter(*TIMING)


class ProcessTimes(NamedTuple):
    """Wall seconds of a process of a trial: in total, and of them on the device."""

    whole_s: float
    device_s: float


class History:
    """How long processes of similar earlier trials took on the same device.

    A trial that ran before is expected to take as long as the last time. Any other is expected to
    take the median of those with its model, workload, mode, backend and compile settings, or of
    those with its script.
    """

    def __init__(self, earlier: Iterable[tuple[Trial, ProcessTimes]]) -> None:
        known: dict[object, list[ProcessTimes]] = {}
        for trial, times in earlier:
            known[trial.id] = [times]
            known.setdefault(_make_likeness(trial), []).append(times)
        self._expected: dict[object, ProcessTimes] = {}
        for key, alike in known.items():
            whole_s, device_s = zip(*alike, strict=True)
            self._expected[key] = ProcessTimes(median(whole_s), median(device_s))

    def expect(self, trial: Trial) -> ProcessTimes | None:
        """Return what a process will take; None when no similar trial is known. A feature changes
        little of that.
        """
        for key in (trial.id, _make_likeness(trial), trial.labels.default_id):
            if found := self._expected.get(key):
                return found
        return None

    def longest_first(self, trials: Sequence[Trial]) -> tuple[Trial, ...]:
        """Sort trials for several devices: a long one that begins last would keep the others
        waiting.

        Trials of which nothing is known go in the middle.
        """
        expected_s = {}
        for trial in trials:
            if times := self.expect(trial):
                expected_s[trial.id] = times.whole_s
        middle_s = median([*expected_s.values()] or [0.0])
        return tuple(sorted(trials, key=lambda trial: -expected_s.get(trial.id, middle_s)))


def _make_likeness(trial: Trial) -> object:
    """What decides how long a process of a trial takes: mostly how much there is to compile, and
    how hard it tries; of a script, what the script does.
    """
    if trial.workload == SCRIPT:
        return trial.model.name, trial.model.arguments.get("cwd"), trial.device, trial.python
    how = (trial.workload, trial.mode, trial.backend, trial.parallel, str(trial.compile))
    return trial.model.key, how, trial.device, trial.python


def estimate_s(whole_s: float, device_s: float, devices: int, concurrency: int) -> float:
    """Estimate the seconds of processes that take `whole_s` one after the other, `device_s` of it
    on the device, with `concurrency` trials in flight per device.

    Only one process at a time works on a device; whatever else processes do goes on beside it.
    """
    return (device_s + (whole_s - device_s) / concurrency) / devices


def read_history(placement: Placement, measure: Measure) -> History:
    """Read the times of ok trials that were measured alike on such a device.

    Empty where a cluster places the trials, since its devices are not known.
    """
    names = placement.device_names
    earlier, dated = [], []
    for path in RUNS.glob("*/*/record.json") if names else ():
        with suppress(FileNotFoundError):  # another command may take a record away meanwhile
            dated.append((path.lstat().st_mtime, path))
    for _, path in sorted(dated):
        with suppress(RecordError):  # a report says what cannot be read
            record = Record.read(path)
            num_processes = len(record.processes)
            found = read_measure(record.measure)
            alike = found is not None and _read_timing(found) == _read_timing(measure)
            here = get_mapping(record.environment, "device").get("name") in names
            if record.status == "ok" and record.wall_s and num_processes and alike and here:
                device_s = sum(process.device_s for process in record.processes)
                times = ProcessTimes(record.wall_s / num_processes, device_s / num_processes)
                earlier.append((record.trial, times))
    return History(earlier)


def bound_processes(plan: Plan, measure: Measure) -> tuple[int, int]:
    """The fewest and the most processes that most trials of a plan get."""
    if plan.has_features and measure.goes_on_until_sure:
        return 1, MAX_FEATURE_PROCESSES
    return measure.process_minimum, measure.process_limit


def describe_estimate(plan: Plan, placement: Placement, measure: Measure) -> str:
    """Say how long a plan will take, judging by similar trials, and for how many of its trials
    nothing is known.
    """
    history = read_history(placement, measure)
    known = list(filter(None, map(history.expect, plan.trials)))
    if not known:
        if any(trial.workload == SCRIPT for trial in plan.trials):
            return "no estimate yet: the first run of a script tells"
        if plan.has_features:
            return "no estimate yet: each feature takes about as long as the first trial"
        return "no estimate yet"
    num_devices = len(placement.devices)
    concurrency = placement.concurrency // num_devices
    whole_s = sum(times.whole_s for times in known)
    device_s = sum(times.device_s for times in known)
    process_s = estimate_s(whole_s, device_s, num_devices, concurrency)
    limits = dict.fromkeys(bound_processes(plan, measure))
    time = " to ".join(duration(process_s * processes) for processes in limits)
    where = "one device" if num_devices == 1 else f"{num_devices} devices"
    if placement.concurrency > num_devices:
        where += f" with {placement.concurrency} trials in flight"
    unknown, takes = len(plan.trials) - len(known), f"about {time} on {where}"
    if not unknown:
        return f"{takes}, judging by similar trials on this kind of device"
    some = count(len(known), "trial")
    return f"{takes} for {some}, no estimate yet for {unknown} unlike any earlier one"


def describe_script_runs(trials: Sequence[Trial], measure: Measure) -> Iterator[str]:
    """Say how many times each script will run, a line for each."""
    scripts = [trial for trial in trials if trial.workload == SCRIPT]
    for name, own in group_by(map(attrgetter("labels.model"), scripts), scripts).items():
        compared = [one for one in own if one.model.asked_trajectory and one.mode != "eager"]
        processes = {measure.process_minimum, measure.process_limit}
        # a process runs a script three times
        numbers = [3 * len(own) * most + len(compared) for most in sorted(processes)]
        times = " to ".join(map(str, numbers))
        line = (
            f"{name} will run {times} times: in each process for the steps of both arms, the loop "
            "in eager and the loop compiled"
        )
        if compared:
            line += "; once more in the first process for model.trajectory"
        yield line
        yield from describe_saved(name, own[0].model)
