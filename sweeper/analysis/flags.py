"""Flags: what a reader of a number should know, by rules that were fixed before anything was
measured.

A flag never changes a number. Flags are found once, when a trial ends, and its record keeps them;
reports do not find them again. `sweeper.loading.cross_trial` adds the flag `eager_moved`, which
compares trials, and `derive` decides what is host-bound. A few flags are doubts: the result is not
verified, or something disturbed the measurement, by a share that `find_disturbances` reads from the
record. `host_bound` is no doubt: it says that wall-clock speed is this host's, and device speed
stands beside it.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from sweeper.core.libraries import SCRIPT
from sweeper.core.record import ARMS, MAX_BUSY_HOST, HostState, Process, Record, of_arm
from sweeper.core.settings import Measure

from .derive import predict_loop_speedup, read_speedup
from .margins import find_margin
from .meanings import TEXTS, Meaning
from .result import Result
from .stats import median_of

MAX_SCATTER = {"cuda": 0.05, "cpu": 0.10}  # of the blocks of an arm, as a share of the fastest
MAX_CLOCK_DIFFERENCE = 0.01
# the share by which a speedup may be off whose void rounds show that the compiler goes on compiling
MAX_RECOMPILED = 0.05
# of the device step time; beyond it a slightly slower host makes the trial host-bound
MAX_HOST_SHARE = 0.8
MAX_THROTTLED = 0.01  # of the time of the rounds, lost to the quota of the cgroup
# the share by which a step's two clocks differ (docs/results/h200-device-step.md)
CLOCKS_DIFFER = 0.01

UNVERIFIED = "accuracy_unverified"
FAILED_BEFORE = "failed_before"
DOUBT, CONTEXT, HOUSEKEEPING = "doubt", "context", "housekeeping"
RANKS: Mapping[str, str] = {  # of flags
    DOUBT: "the result is not verified, or something disturbed the measurement, which counts where "
    "it may have moved the speedup by more than its interval",
    CONTEXT: "nothing against the speedup: the flag says what was measured or where it holds",
    HOUSEKEEPING: "nothing against the speedup: the tables already show what the flag says",
}


@dataclass(frozen=True, kw_only=True)
class Flag(Meaning):
    """The texts of a flag. `OF_PROCESS` and `OF_TRIAL` have its rule; one without a rule is set
    elsewhere: `unresolved` by `find_flags`, `eager_moved` by `sweeper.loading.cross_trial`.
    """

    rank: str
    why: str  # it belongs to its rank
    cause: str = ""  # of a disturbance, in the words of an answer; "": of another kind


def find_flags(record: Record, result: Result, measure: Measure) -> tuple[str, ...]:
    """Return every flag of a record, in alphabetical order."""
    found = {name for name, rule in OF_TRIAL.items() if rule(record, result)}
    for name, of_process in OF_PROCESS.items():
        if any(of_process(record, process) for process in record.processes):
            found.add(name)
    if record.status == "ok" and measure.target and not is_resolved(result, measure.target):
        found.add("unresolved")
    return tuple(sorted(found))


def find_disturbances(record: Record) -> dict[str, float]:
    """Find the flags of a record that say what disturbed it, and the share by which each may have
    moved its speedup.
    """
    found = {}
    for name in record.flags:
        if moves := MOVES.get(name):
            found[name] = max(map(moves, record.processes), default=math.inf)
    return found


def is_resolved(result: Result, target: float) -> bool:
    """Whether the half-width of the speedup's interval is at most `target`, a share of the
    speedup.
    """
    half = result.speedup.half_width() if result.speedup else None
    return half is not None and half <= target


def leave_out_housekeeping(flags: Iterable[str]) -> tuple[str, ...]:
    """Leave out the flags that say what tables already show; flags that this version does not know
    are kept.
    """
    hidden = [name for name, flag in FLAGS.items() if flag.rank == HOUSEKEEPING]
    return tuple(flag for flag in flags if flag not in hidden)


def _is_unsteady(record: Record, process: Process) -> bool:
    """Whether the warm-up of an arm did not become flat, or its blocks scatter."""
    if process.warm_up_flat is False:
        return True
    for arm in ARMS:
        blocks_s = process.blocks_s(arm)
        if blocks_s and max(blocks_s) / min(blocks_s) - 1 > MAX_SCATTER[record.trial.device]:
            return True
    return False


def _is_gpu_unobserved(record: Record, process: Process) -> bool:
    """Return whether it is unknown if the GPU was shared or its clocks were lowered."""
    if record.trial.device != "cuda" or not process.rounds:
        return False
    gpu = process.gpu
    return gpu is None or gpu.other_processes is None or gpu.slowdowns is None


def _clock_difference(process: Process) -> float:
    """The share by which the median clocks of the arms differ; 0 where they are not known."""
    ratio = process.gpu.clock_mhz.ratio if process.gpu else None
    return abs((ratio or 1.0) - 1)


def _share_taken_by_others(process: Process) -> float:
    """The share by which a step takes longer when others, or the cgroup's quota, take so much of
    its cores, all in one arm. They take nothing of the time in which the device computes.
    """
    host = process.host or HostState()
    taken = host.busy_while_measuring or 0.0
    if process.all_blocks_s:
        taken += (host.throttled_s or 0.0) / process.all_blocks_s
    return min(1 / (1 - min(taken, 0.99)) - 1, _share_beside_device(process))


def _share_beside_device(process: Process) -> float:
    """The share by which a step is longer than its device step time, in the arm where it is more;
    infinite where that is not known, and in a script, whose loop does more than its steps.
    """
    if process.script:
        return math.inf
    shares = [0.0]
    for arm in ARMS:
        step_s, device_s = of_arm(process.steps_s, arm), of_arm(process.device_step_s, arm)
        if not step_s or not device_s:
            return math.inf
        shares.append(step_s / device_s - 1)
    return max(shares) + CLOCKS_DIFFER


def _is_compile_contended(_record: Record, process: Process) -> bool:
    host = process.host or HostState()
    return process.compile_s is not None and (host.busy_while_compiling or 0.0) > MAX_BUSY_HOST


def _is_host_busy(_record: Record, process: Process) -> bool:
    """Whether others kept cores busy in the rounds or a script's loops, or the cgroup's quota
    stopped the process.
    """
    host = process.host or HostState()
    is_busy = (host.busy_while_measuring or 0.0) > MAX_BUSY_HOST
    return is_busy or (host.throttled_s or 0.0) > MAX_THROTTLED * process.all_blocks_s


def _is_random_in_step(record: Record, process: Process) -> bool:
    """Whether a step draws random numbers although dropout is off; a script may have its own."""
    has_dropout = record.trial.model.dropout or record.trial.workload == SCRIPT
    return bool(process.accuracy and process.accuracy.random_in_step) and not has_dropout


def _has_several_artifacts(record: Record, _result: Result) -> bool:
    """Whether processes of one draw ran different code: the compile cache gave back something
    else.
    """
    first: dict[int, str] = {}  # by draw
    for process in record.processes:
        artifact = process.artifact
        if artifact and first.setdefault(process.draw, artifact) != artifact:
            return True
    return False


def _is_slower_from_cache(record: Record, result: Result) -> bool:
    """Whether the step is slower where its code came from a cache than where it was compiled, by
    more than one row among many moves.
    """
    speedups = []
    for cold in (True, False):
        processes = (process for process in record.processes if process.cold is cold)
        speedups.append(median_of(map(read_speedup, processes)))
    compiled, cached = speedups
    if not (compiled and cached):
        return False
    margin = find_margin(record.trial.device)
    allowed = 1 + margin.row
    if result.host_bound_arms or record.trial.device == "cpu":
        allowed *= 1 + margin.host
    return compiled / cached > allowed


def _attention_differs(record: Record, _result: Result) -> bool:
    """Whether the arms ran attention kernels of different kinds, so a part of the speedup is the
    choice of a kernel.
    """
    eager, compiled = (record.settings.get(f"attention_ran_{arm}") for arm in ARMS)
    return eager is not None and compiled is not None and eager != compiled


def _was_wrong_before(record: Record, _result: Result) -> bool:
    """Whether code of an ok trial gave a wrong result in an earlier attempt; without any artifact
    it may be the same.

    A check that passes does not outweigh one that failed.
    """
    artifacts = set(record.artifacts)
    for attempt in record.attempts:
        is_same = artifacts & set(attempt.artifacts) or not (artifacts or attempt.artifacts)
        if attempt.status == "accuracy_mismatch" and is_same:
            return record.status == "ok"
    return False


def _trains_differently(_record: Record, process: Process) -> bool:
    trajectory = process.script.trajectory if process.script else None
    return trajectory is not None and trajectory.passed is False


def _is_loop_unexplained(record: Record, result: Result) -> bool:
    """Whether a script's loop gains another speedup than its step and its loader give, by more than
    its interval and by more than a row among many moves.
    """
    predicted, measured = predict_loop_speedup(result), result.loop_speedup
    if predicted is None or measured is None:
        return False
    reach = max(measured.half_width() or 0.0, math.log1p(find_margin(record.trial.device).row))
    return abs(math.log(predicted) - measured.log) > reach


FLAGS: Mapping[str, Flag] = {name: Flag(**texts) for name, texts in TEXTS["flag"].items()}
# The rules by which any process, or the trial, gets a flag: where they return something true.
OF_PROCESS: Mapping[str, Callable[[Record, Process], object]] = {
    UNVERIFIED: lambda _, process: (
        process.rounds and (process.accuracy is None or process.accuracy.passed is None)
    ),
    "clock_mismatch": lambda _, process: _clock_difference(process) > MAX_CLOCK_DIFFERENCE,
    "compile_contended": _is_compile_contended,
    "eager_nondeterministic": lambda _, process: (
        process.accuracy and process.accuracy.nondeterministic
    ),
    "gpu_unobserved": _is_gpu_unobserved,
    "host_busy": _is_host_busy,
    "random_in_step": _is_random_in_step,
    "recompiled": lambda _, process: any(item.void == "recompiled" for item in process.rounds),
    "shared_gpu": lambda _, process: process.gpu and process.gpu.other_processes,
    "throttled": lambda _, process: process.gpu and process.gpu.slowdowns,
    "unequal_settings": lambda _, process: process.changed_settings,
    "trains_differently": _trains_differently,
    "unsteady": _is_unsteady,
}
OF_TRIAL: Mapping[str, Callable[[Record, Result], object]] = {
    UNVERIFIED: _was_wrong_before,
    "attention_differs": _attention_differs,
    "cudagraphs_skipped": lambda record, _: record.cudagraph_skips,
    FAILED_BEFORE: lambda record, _: record.attempts,
    "host_bound": lambda _, result: result.host_bound_arms is not None,
    "little_headroom": lambda _, result: (
        result.host_bound_arms is None and (result.host_share.largest or 0.0) > MAX_HOST_SHARE
    ),
    "no_kernels": lambda record, _: record.diagnostics and record.diagnostics.kernels == 0,
    "partly_eager": lambda record, _: record.diagnostics and record.diagnostics.graphs_run_eager,
    "several_artifacts": _has_several_artifacts,
    "single_process": lambda record, _: record.status == "ok" and len(record.processes) == 1,
    "slower_from_cache": _is_slower_from_cache,
    "smaller_batch": lambda record, _: record.smaller_batch_size is not None,
    "unexplained": _is_loop_unexplained,
}
# What disturbs: the share by which it may move the speedup of a process.
MOVES: Mapping[str, Callable[[Process], float]] = {
    "clock_mismatch": _clock_difference,
    "host_busy": _share_taken_by_others,
    "recompiled": lambda _: MAX_RECOMPILED,
    "shared_gpu": lambda _: math.inf,
    "throttled": lambda process: max(_clock_difference(process), MAX_CLOCK_DIFFERENCE),
    "unequal_settings": lambda _: math.inf,
}

# The flags that say that the speedup may be off.
DOUBTS = frozenset(name for name, flag in FLAGS.items() if flag.rank == DOUBT)
DEVICE_DOUBTS = DOUBTS - {"host_busy"}
UNVERIFYING = frozenset(name for name in DOUBTS if not FLAGS[name].cause)
