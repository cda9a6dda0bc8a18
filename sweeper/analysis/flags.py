"""Flags: what a reader of a number should know, by rules that were fixed before anything was
measured.

A flag never changes a number. Flags are found once, when a trial ends, and its record keeps them;
reports do not find them again. `sweeper.loading.cross_trial` adds the flag `eager_moved`, which
compares trials. What each flag means, and its rank, stands in `sweeper.analysis.meanings`; `DOUBTS`
are those flags that say that a speedup may be off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from sweeper.analysis.meanings import DOUBT, FLAGS
from sweeper.analysis.result import Result
from sweeper.core.libraries import SCRIPT
from sweeper.core.record import ARMS, HostState, PerArm, Process, Record
from sweeper.core.settings import Measure

MAX_SCATTER = {"cuda": 0.05, "cpu": 0.10}  # of the blocks of an arm, as a share of the fastest
MAX_CLOCK_DIFFERENCE = 0.01
MAX_BUSY_HOST = 0.10  # of the cores that we may use, kept busy by others
# of the device step time; beyond it a slightly slower host makes the trial host-bound
MAX_HOST_SHARE = 0.8
MAX_THROTTLED = 0.01  # of the time of the rounds, lost to the quota of the cgroup

UNVERIFIED = "accuracy_unverified"
FAILED_BEFORE = "failed_before"
# The flags that say that the speedup may be off, or not the compiler's own, and why. Means stand
# beside the means over models without any of these, and recommendations name them.
DOUBTS: Mapping[str, str] = {name: flag.why for name, flag in FLAGS.items() if flag.rank == DOUBT}
WALL_CLOCK_DOUBTS = frozenset({"host_bound", "host_busy", "eager_moved"})  # not of device time
DEVICE_DOUBTS = DOUBTS.keys() - WALL_CLOCK_DOUBTS


def find_flags(record: Record, result: Result, measure: Measure) -> tuple[str, ...]:
    """Return every flag of a record, in alphabetical order."""
    found = {
        name
        for name, applies in PROCESS_RULES.items()
        if any(applies(record, item) for item in record.processes)
    }
    found |= {name for name, applies in TRIAL_RULES.items() if applies(record)}
    if record.status == "ok" and result.host_bound_arms is not None:
        found.add("host_bound")
    elif record.status == "ok" and _has_little_headroom(result):
        found.add("little_headroom")
    if (
        record.status == "ok"
        and measure.target is not None
        and not is_resolved(result, measure.target)
    ):
        found.add("unresolved")
    return tuple(sorted(found))


def is_resolved(result: Result, target: float) -> bool:
    """Whether the half-width of the speedup's interval is at most `target`, a share of the
    speedup.
    """
    low, high = result.speedup_low, result.speedup_high
    return low is not None and high is not None and math.log(high / low) / 2 <= target


def _has_little_headroom(result: Result) -> bool:
    """Whether the host needs nearly as long for a step of an arm as the device."""
    return max(result.eager_host_share or 0.0, result.compiled_host_share or 0.0) > MAX_HOST_SHARE


def _is_unsteady(record: Record, process: Process) -> bool:
    """Whether the warm-up of an arm did not become flat, or its blocks scatter."""
    arms = [blocks for arm in ARMS if (blocks := process.blocks_s(arm))]
    scatter = max((max(blocks) / min(blocks) - 1 for blocks in arms), default=0.0)
    return process.warm_up_flat is False or scatter > MAX_SCATTER[record.trial.device]


def _is_gpu_unobserved(record: Record, process: Process) -> bool:
    """Return whether it is unknown if the GPU was shared or its clocks were lowered."""
    observed = (
        process.gpu
        and process.gpu.other_processes is not None
        and process.gpu.slowdowns is not None
    )
    return record.trial.device == "cuda" and bool(process.rounds) and not observed


def _clocks_differ(_record: Record, process: Process) -> bool:
    clock = process.gpu.clock_mhz if process.gpu else PerArm()
    return bool(
        clock.eager
        and clock.compiled
        and abs(clock.eager / clock.compiled - 1) > MAX_CLOCK_DIFFERENCE
    )


def _is_host_busy(_record: Record, process: Process) -> bool:
    """Whether others kept cores busy in the rounds or a script's loops, or the cgroup's quota
    stopped the process.
    """
    host = process.host or HostState()
    rounds_s = sum((item.eager_s or 0.0) + (item.compiled_s or 0.0) for item in process.rounds)
    return (host.busy_while_measuring or 0.0) > MAX_BUSY_HOST or (
        host.throttled_s or 0.0
    ) > MAX_THROTTLED * rounds_s


PROCESS_RULES: Mapping[str, Callable[[Record, Process], bool]] = {
    "unsteady": _is_unsteady,
    "recompiled": lambda _, process: any(item.void == "recompiled" for item in process.rounds),
    "shared_gpu": lambda _, process: bool(process.gpu and process.gpu.other_processes),
    "throttled": lambda _, process: bool(process.gpu and process.gpu.slowdowns),
    "gpu_unobserved": _is_gpu_unobserved,
    "clock_mismatch": _clocks_differ,
    "compile_contended": lambda _, process: (
        process.compile_s is not None
        and ((process.host or HostState()).busy_while_compiling or 0) > MAX_BUSY_HOST
    ),
    "host_busy": _is_host_busy,
    UNVERIFIED: lambda _, process: (
        bool(process.rounds) and (process.accuracy is None or process.accuracy.passed is None)
    ),
    "random_in_step": lambda record, process: (
        bool(process.accuracy and process.accuracy.random_in_step)
        and not record.trial.model.dropout
        and record.trial.workload != SCRIPT  # which has the dropout that it has
    ),
    "eager_nondeterministic": lambda _, process: (
        process.accuracy is not None and process.accuracy.nondeterministic
    ),
    "unequal_settings": lambda _, process: bool(process.changed_settings),
}


def _has_several_artifacts(record: Record) -> bool:
    """Whether processes of one draw ran different code: the compile cache gave back something
    else.
    """
    artifacts = {
        (process.draw, process.artifact) for process in record.processes if process.artifact
    }
    return len(artifacts) > len({draw for draw, _ in artifacts})


def _attention_differs(record: Record) -> bool:
    """Whether the arms ran attention kernels of different kinds, so a part of the speedup is the
    choice of a kernel.
    """
    settings = record.diagnostics.settings if record.diagnostics else {}
    eager, compiled = (settings.get(f"attention_ran_{arm}") for arm in ARMS)
    return eager is not None and compiled is not None and eager != compiled


def _was_wrong_before(record: Record) -> bool:
    """Whether code of an ok trial gave a wrong result in an earlier attempt; without any artifact
    it may be the same.

    A check that passes does not outweigh one that failed.
    """
    wrong = [attempt for attempt in record.attempts if attempt.status == "accuracy_mismatch"]
    artifacts = set(record.artifacts)
    same = (
        artifacts & set(attempt.artifacts) or not (artifacts or attempt.artifacts)
        for attempt in wrong
    )
    return record.status == "ok" and any(same)


def _trains_differently(record: Record) -> bool:
    trajectories = (process.script.trajectory for process in record.processes if process.script)
    return any(found.passed is False for found in trajectories if found)


TRIAL_RULES: Mapping[str, Callable[[Record], bool]] = {
    UNVERIFIED: _was_wrong_before,
    FAILED_BEFORE: lambda record: bool(record.attempts),
    "smaller_batch": lambda record: record.smaller_batch_size is not None,
    "single_process": lambda record: record.status == "ok" and len(record.processes) == 1,
    "partly_eager": lambda record: bool(record.diagnostics and record.diagnostics.graphs_run_eager),
    "no_kernels": lambda record: record.diagnostics is not None and record.diagnostics.kernels == 0,
    "cudagraphs_skipped": lambda record: bool(
        record.diagnostics and record.diagnostics.cudagraph_skips
    ),
    "several_artifacts": _has_several_artifacts,
    "attention_differs": _attention_differs,
    "trains_differently": _trains_differently,
}
