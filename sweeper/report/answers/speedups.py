"""Figures of a trial as people see them: its speedup, what compiling costs, and its flags."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from sweeper.analysis.stats import ratio_of
from sweeper.core.libraries import SCRIPT
from sweeper.core.text import printable
from sweeper.loading.entries import Entry
from sweeper.report.columns.formats import (
    estimated,
    figure,
    join,
    prefix,
    ratio,
    shorten_names,
    show_steps,
)

from .candidates import find_candidate
from .trials import TRIAL_AXES, find_varying, name_trial

NOT_KNOWN = "not known"  # of what the device has, and a trial could not tell


def is_ok(entry: Entry) -> bool:
    return entry.is_ok


def show_speedup(entry: Entry) -> str:
    """Show `1.58 [1.55, 1.61]`, or the range of processes, `2.01 (1.89 to 2.12)`, where host noise
    has no interval. Of a script, `loop 1.10 [1.06, 1.13], step 1.19 [1.16, 1.22]`.
    """
    result, one = entry.result, find_candidate(entry)
    shown = estimated(result.speedup)
    if one and one.gain.by_range:
        shown = f"{ratio(one.gain.value)} {one.bounds}"
    if entry.trial.workload != SCRIPT:
        return shown
    loop = prefix("loop ", estimated(result.loop_speedup))
    return join((loop, prefix("step ", shown)), ", ")


def show_device_speedup(entry: Entry) -> str:
    return estimated(entry.result.device_speedup)


def show_break_even(entry: Entry) -> str:
    """Show the steps until compiling has paid, e.g. `1,270 [1,250, 1,310]` or `never`; `≤` as in
    `show_compile_time`.
    """
    result, (steps, low, high) = entry.result, entry.result.break_even_steps
    if result.speedup is None or result.compile_cold_s is None:
        return ""
    shown = _show_steps_or_never(steps)
    if steps is not None:
        shown = f"{mark_upper_bound(entry)}{shown}"
    if low is None:
        return shown
    return f"{shown} [{_show_steps_or_never(low)}, {_show_steps_or_never(high)}]"


def _show_steps_or_never(steps: float | None) -> str:
    return "never" if steps is None else show_steps(steps)


def show_compile_time(entry: Entry) -> str:
    """Show the seconds of compiling cold; `≤24.6` where others kept the processor busy
    meanwhile.
    """
    return prefix(mark_upper_bound(entry), figure(entry.result.compile_cold_s))


def mark_upper_bound(entry: Entry) -> str:
    """Return `≤` where other processes lengthened the compile time, else an empty text."""
    if "compile_contended" in entry.flags:
        return "≤"
    return ""


def peak_ratio(entry: Entry) -> float | None:
    """Divide eager by compiled peak memory of a trial that is ok; above 1, compiling saves."""
    return entry.result.peak_memory_bytes.ratio if entry.is_ok else None


def memory_change_percent(entry: Entry) -> float | None:
    found = peak_ratio(entry)
    if found:
        return 100 * (1 / found - 1)
    return None


def show_memory_change(entry: Entry) -> str:
    """Show by how much the compiled peak lies above eager's, e.g. `+19 %`."""
    change = memory_change_percent(entry)
    if change is not None:
        return f"{round(change):+d} %"
    if entry.result.memory_missing:
        return NOT_KNOWN
    return ""


def show_host_share(entry: Entry) -> str:
    """Show the shares of both arms, e.g. `0.62 / 0.91`, with `?` for an unknown one; nothing where
    both are unknown.
    """
    share = entry.result.host_share
    if share.largest is None:
        return ""
    return f"{ratio(share.eager) or '?'} / {ratio(share.compiled) or '?'}"


def find_common_flags(entries: Sequence[Entry]) -> tuple[str, ...]:
    """Find the flags that every trial has which is ok, in alphabetical order; a single trial has
    none in common.
    """
    found = [set(entry.flags) for entry in filter(is_ok, entries)]
    if len(found) > 1:
        return tuple(sorted(set.intersection(*found)))
    return ()


def name_common_flags(entries: Sequence[Entry]) -> str:
    """Name the flags that no row has to repeat, e.g. `every trial: compile_contended, host_bound
    (both)`.
    """
    ok = list(filter(is_ok, entries))
    named = []
    for flag in find_common_flags(entries):
        arms = {_name_arms(entry, flag) for entry in ok}
        named.append(f"{flag}{arms.pop() if len(arms) == 1 else ''}")
    which = "" if len(ok) == len(entries) else " that is ok"
    return prefix(f"every trial{which}: ", ", ".join(named))


def _name_arms(entry: Entry, flag: str) -> str:
    """Name the arms that are host-bound, e.g. ` (compiled)`; other flags are of no arm."""
    arms = entry.result.host_bound_arms
    if flag == "host_bound" and arms:
        return f" ({arms})"
    return ""


def list_flags(entries: Sequence[Entry]) -> Iterator[str]:
    """Make a line for each flag with the first few trials that have it, and for host_bound the arms
    that are.

    What `name_common_flags` says of the trials that are ok is left out.
    """
    axes, common = find_varying(entries, TRIAL_AXES), find_common_flags(entries)
    having: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        for flag in select_flags(entry, common):
            having[flag].append(entry)
    ok = list(filter(is_ok, entries))
    for flag in common:
        if len({_name_arms(entry, flag) for entry in ok}) > 1:
            having[flag] = ok
    for flag, found in sorted(having.items()):
        names = [f"{name_trial(one, axes)}{_name_arms(one, flag)}" for one in found]
        yield f"{flag}: {shorten_names(names)}"


def select_flags(entry: Entry, common: Collection[str]) -> tuple[str, ...]:
    """Select the flags that stand in a row: those in `common` stand above the table, for all trials
    that are ok.
    """
    if not entry.is_ok:
        return entry.flags
    return tuple(flag for flag in entry.flags if flag not in common)


def explain_missing(entries: Sequence[Entry]) -> Iterator[str]:
    """Make a line for each reason why device time or memory is not known, with the first few
    trials.
    """
    axes = find_varying(entries, TRIAL_AXES)
    having: dict[tuple[str, str], list[str]] = defaultdict(list)
    for entry in entries:
        result = entry.result
        missing = {"device time": result.device_time_missing, "memory": result.memory_missing}
        for what, reason in missing.items():
            if reason:
                having[what, reason].append(name_trial(entry, axes))
    for (what, reason), names in having.items():
        yield printable(f"{what} not known: {shorten_names(names)}: {reason}")


def describe_scaling(entries: Sequence[Entry]) -> Iterator[str]:
    """Make a line for each training in several processes whose model was measured in one as well:
    how many times as many samples it has per second, in eager and compiled.
    """
    axes = find_varying(entries, TRIAL_AXES)
    alone = {}
    for entry in entries:
        if entry.trial.parallel_devices is None:
            alone[_key_of_one(entry)] = entry.result
    for entry in entries:
        one, own = alone.get(_key_of_one(entry)), entry.result
        if entry.trial.parallel_devices is None or one is None:
            continue
        if one.samples_per_s is None or own.samples_per_s is None:
            continue
        compiled = own.samples_per_s / one.samples_per_s
        # the arms of a trial have equally many samples in a step
        eager = compiled * (ratio_of(one.speedup) or 0.0) / (ratio_of(own.speedup) or 1.0)
        yield (
            f"{name_trial(entry, axes)}: {ratio(eager)}x the samples per second of one process in "
            f"eager, {ratio(compiled)}x compiled"
        )


def _key_of_one(entry: Entry) -> tuple[Path, str]:
    """What a training in several processes shares with that in one."""
    return entry.sweep, entry.trial.key_without("parallel", "parallel_devices")
