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
from sweeper.core.record import ARMS, MAX_BUSY_HOST, HostState, Process, Record
from sweeper.core.settings import Measure

from .derive import predict_loop_speedup, read_speedup
from .margins import find_margin
from .meanings import Meaning
from .result import Result
from .stats import median_of

MAX_SCATTER = {"cuda": 0.05, "cpu": 0.10}  # of the blocks of an arm, as a share of the fastest
MAX_CLOCK_DIFFERENCE = 0.01
# the share by which a speedup may be off whose void rounds show that the compiler goes on compiling
MAX_RECOMPILED = 0.05
# of the device step time; beyond it a slightly slower host makes the trial host-bound
MAX_HOST_SHARE = 0.8
MAX_THROTTLED = 0.01  # of the time of the rounds, lost to the quota of the cgroup

UNVERIFIED = "accuracy_unverified"
FAILED_BEFORE = "failed_before"
DOUBT, CONTEXT, HOUSEKEEPING = "doubt", "context", "housekeeping"
RANKS: Mapping[str, str] = {  # of flags
    DOUBT: "the result is not verified, or something disturbed the measurement, which counts where "
    "it may have moved the speedup by more than its interval",
    CONTEXT: "the speedup is right, and the flag says what was measured or where it holds",
    HOUSEKEEPING: "the speedup is right, and the tables already show what the flag says",
}


@dataclass(frozen=True, kw_only=True)
class Flag(Meaning):
    """A flag: its texts, and the rule by which any process or the trial gets it.

    A flag without a rule is set elsewhere: `unresolved` by `find_flags`, `eager_moved` by
    `sweeper.loading.cross_trial`.
    """

    rank: str
    why: str  # it belongs to its rank
    cause: str = ""  # of a disturbance, in the words of an answer; "": of another kind
    # of a disturbance: the share by which it may move the speedup of a process
    moves: Callable[[Process], float] = lambda _process: math.inf
    # a rule applies where it returns something true
    of_process: Callable[[Record, Process], object] = lambda _record, _process: False
    of_trial: Callable[[Record, Result], object] = lambda _record, _result: False


def find_flags(record: Record, result: Result, measure: Measure) -> tuple[str, ...]:
    """Return every flag of a record, in alphabetical order."""
    found = []
    for name, flag in FLAGS.items():
        of_processes = (flag.of_process(record, process) for process in record.processes)
        if flag.of_trial(record, result) or any(of_processes):
            found.append(name)
    if record.status == "ok" and measure.target and not is_resolved(result, measure.target):
        found.append("unresolved")
    return tuple(sorted(found))


def find_disturbances(record: Record) -> dict[str, float]:
    """Find the flags of a record that say what disturbed it, and the share by which each may have
    moved its speedup.
    """
    found = {}
    for name in record.flags:
        flag = FLAGS.get(name)
        if flag and flag.cause:
            found[name] = max(map(flag.moves, record.processes), default=math.inf)
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
    its cores, all in one arm.
    """
    host = process.host or HostState()
    taken = host.busy_while_measuring or 0.0
    if rounds_s := _rounds_s(process):
        taken += (host.throttled_s or 0.0) / rounds_s
    return 1 / (1 - min(taken, 0.99)) - 1


def _rounds_s(process: Process) -> float:
    """Seconds that all rounds of a process took, void ones too."""
    return sum((item.eager_s or 0.0) + (item.compiled_s or 0.0) for item in process.rounds)


def _is_compile_contended(_record: Record, process: Process) -> bool:
    host = process.host or HostState()
    return process.compile_s is not None and (host.busy_while_compiling or 0.0) > MAX_BUSY_HOST


def _is_host_busy(_record: Record, process: Process) -> bool:
    """Whether others kept cores busy in the rounds or a script's loops, or the cgroup's quota
    stopped the process.
    """
    host = process.host or HostState()
    is_busy = (host.busy_while_measuring or 0.0) > MAX_BUSY_HOST
    return is_busy or (host.throttled_s or 0.0) > MAX_THROTTLED * _rounds_s(process)


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


FLAGS: Mapping[str, Flag] = {
    UNVERIFIED: Flag(
        "no verdict on the result was possible, so the trial is in no mean",
        "`accuracy.unverified` of the record says why. Or this attempt passed the check, but an "
        "earlier attempt with the same code failed it, and `attempts` says how; code without "
        "fingerprints (any backend but Inductor) counts as the same.",
        "Read the reason in the opened row. Measure a mended model under another `sweep=`.",
        rank=DOUBT,
        why="what was timed may compute something else",
        of_process=lambda _, process: (
            process.rounds and (process.accuracy is None or process.accuracy.passed is None)
        ),
        of_trial=_was_wrong_before,
    ),
    "attention_differs": Flag(
        "the arms ran attention kernels of different kinds",
        "The kinds are cuDNN, flash, memory-efficient, and none of these; `diagnostics.settings` "
        "names them.",
        "Where the model takes it, `model.attention=flash_attention_2` gives both arms one kernel.",
        rank=CONTEXT,
        why="the speedup is what people get, and a part of it is the choice of a kernel that eager "
        "could have made as well",
        of_trial=_attention_differs,
    ),
    "clock_mismatch": Flag(
        "one arm ran at another clock",
        "The median SM clocks of the arms are more than 1 % apart.",
        "Measure again on a GPU that is cool and idle, or lock its clocks.",
        rank=DOUBT,
        why="the arm with the higher clock looks faster than it is",
        of_process=lambda _, process: _clock_difference(process) > MAX_CLOCK_DIFFERENCE,
        cause="clocks that differ",
        moves=_clock_difference,
    ),
    "compile_contended": Flag(
        "others kept the processor busy while the trial compiled, so its compile time is shown "
        "with ≤",
        "Other processes, including trials that compile beside this one, kept more than 10 % of "
        "the trial's cores busy while it compiled.",
        "`scheduler.prepare=1` gives exact compile times.",
        rank=HOUSEKEEPING,
        why="it concerns compile time, which is printed with ≤",
        of_process=_is_compile_contended,
    ),
    "cudagraphs_skipped": Flag(
        "a graph was not recorded as a CUDA graph",
        "`diagnostics.cudagraph_skips` and the opened row have the reasons.",
        "Remove what the reason names, such as a tensor on the CPU or an input that is changed in "
        "place. With `device=cpu` there is nothing to do.",
        rank=CONTEXT,
        why="it says what the compiler did, and the speedup is that of the program it made",
        of_trial=lambda record, _: record.cudagraph_skips,
    ),
    "eager_moved": Flag(
        "trials of this sweep that time the same eager step found different times",
        "Eager step times of one model, precision and batch differ by more than 1 % (10 % on a "
        "CPU).",
        "Compare modes by their speedups, each over the eager arm of its own trial, as the "
        "recommendations do.",
        rank=CONTEXT,
        why="each mode is compared with the eager step of its own trial",
    ),
    "eager_nondeterministic": Flag(
        "eager differs from itself by more than the tolerance, run twice from one state with one "
        "seed",
        rank=CONTEXT,
        why="it concerns the verdict on the result; where none was possible, `accuracy_unverified`"
        " says so",
        of_process=lambda _, process: process.accuracy and process.accuracy.nondeterministic,
    ),
    FAILED_BEFORE: Flag(
        "an earlier attempt in this sweep failed",
        "`attempts` of the record and the opened row say how.",
        "Count on another failure, and look at what the earlier attempts said.",
        rank=CONTEXT,
        why="the speedup is the last attempt's, and no earlier attempt has a part in it",
        of_trial=lambda record, _: record.attempts,
    ),
    "gpu_unobserved": Flag(
        "the driver did not say whether the GPU was shared, or whether its clocks were lowered",
        "NVML gave no processes or no reasons for lowered clocks.",
        "Measure where NVML answers, or make sure that nothing else runs on the GPU.",
        rank=CONTEXT,
        why="that nobody could look is no sign that something disturbed the measurement",
        of_process=_is_gpu_unobserved,
    ),
    "host_bound": Flag(
        "the device waits for the host, so the wall-clock speedup depends on the host",
        "The column `host_bound_arms` says in which arm. The column `device` has the speedup by "
        "the clock of the GPU, which the host cannot disturb.",
        "`mode=reduce-overhead` launches the kernels all at once, and a larger batch gives the "
        "device more to do. Several processes (`measure.processes`) show how much the speedup "
        "moves.",
        rank=CONTEXT,
        why="the wall-clock speedup is this host's (one sweep gave 4.04 and 3.55 on one H200), and "
        "the device speedup stands beside it",
        of_trial=lambda _, result: result.host_bound_arms is not None,
    ),
    "host_busy": Flag(
        "other processes used the host while the trial was measured",
        "They kept more than 10 % of the trial's cores busy in the rounds or in a script's loops, "
        "or the cgroup's quota took more than 1 % of the cores.",
        "Measure again on an idle machine; `python -m sweeper.doctor` says how noisy it is.",
        rank=DOUBT,
        cause="neighbours on the host",
        moves=_share_taken_by_others,
        why="other processes may have slowed down one arm more than the other",
        of_process=_is_host_busy,
    ),
    "little_headroom": Flag(
        "a slightly slower host makes the trial host-bound",
        "No arm is host-bound, but the host needs more than 0.8 of an arm's device step time for a"
        " step.",
        "Look at `speedup_host_2x_slower` before you count on the speedup elsewhere.",
        rank=CONTEXT,
        why="the speedup is right on this host, and a slightly slower one changes it",
        of_trial=lambda _, result: (
            result.host_bound_arms is None and (result.host_share.largest or 0.0) > MAX_HOST_SHARE
        ),
    ),
    "no_kernels": Flag(
        "Inductor wrote no kernel of its own",
        "Every operation calls ATen or a library, as `mode=lite` does by design. "
        "`diagnostics.kernels` counts the kernels.",
        rank=CONTEXT,
        why="ATen's own kernels run in both arms, and the speedup is what Dynamo and the wrapper "
        "code save",
        of_trial=lambda record, _: record.diagnostics and record.diagnostics.kernels == 0,
    ),
    "partly_eager": Flag(
        "the backend ran some of its graphs without compiling them",
        "`diagnostics.graphs_run_eager` counts them.",
        "`inspect=true` shows the graphs.",
        rank=CONTEXT,
        why="it says what the backend did, and the speedup is that of the program it made",
        of_trial=lambda record, _: record.diagnostics and record.diagnostics.graphs_run_eager,
    ),
    "random_in_step": Flag(
        "the step draws random numbers, although dropout is off",
        "Another seed changes what a step gives.",
        rank=CONTEXT,
        why="it says what the step is: dropout, or something like it, is on in both arms",
        of_process=_is_random_in_step,
    ),
    "recompiled": Flag(
        "the compiler compiled again while the trial was measured",
        "At least one round was void because of a recompilation.",
        "`TORCH_LOGS=recompiles` or `inspect=true` says why. Sizes that change call for "
        "`compile.dynamic=true`.",
        rank=DOUBT,
        cause="recompilation",
        moves=lambda _: MAX_RECOMPILED,
        why="rounds are void, and the next compilation may come at any step",
        of_process=lambda _, process: any(item.void == "recompiled" for item in process.rounds),
    ),
    "several_artifacts": Flag(
        "processes that share a compile cache ran different code",
        "The cache did not return the code that was stored in it.",
        "Compare the step times of the processes in `record.json`.",
        rank=CONTEXT,
        why="each process timed the program that it ran, and the interval shows how far the "
        "processes lie apart",
        of_trial=_has_several_artifacts,
    ),
    "shared_gpu": Flag(
        "another process held the GPU before or during the measurement",
        todo="Measure again on a GPU of its own.",
        rank=DOUBT,
        cause="neighbours on the GPU",
        why="other processes may have slowed down one arm more than the other",
        of_process=lambda _, process: process.gpu and process.gpu.other_processes,
    ),
    "single_process": Flag(
        "one process, so there is no interval",
        todo="`measure=trusted` gives an interval.",
        rank=HOUSEKEEPING,
        why="the report shows no interval",
        of_trial=lambda record, _: record.status == "ok" and len(record.processes) == 1,
    ),
    "slower_from_cache": Flag(
        "the step is slower in processes that took its code from a cache",
        "The speedup of the process that compiled the code is higher than the median of those that "
        "found it in the cache, by more than 5 % (10 % on a CPU), and where the device waits for "
        "the host by more than the host moves.",
        "Compare the code of both (`inspect=true`), and report it to PyTorch.",
        rank=CONTEXT,
        why="the speedup is of all processes, and a program that starts often has the slower step",
        of_trial=_is_slower_from_cache,
    ),
    "smaller_batch": Flag(
        "the trial's own batch ran out of memory, and both arms ran with a smaller one",
        "The column `batch_size` has the batch that ran.",
        rank=CONTEXT,
        why="the speedup is right for the batch size in the table",
        of_trial=lambda record, _: record.smaller_batch_size is not None,
    ),
    "throttled": Flag(
        "the GPU lowered its clocks while the trial was measured",
        "NVML gave a reason in the rounds: power cap, thermal, hardware, power brake.",
        "Improve the cooling, raise the power limit, or lock the clocks at a value that the GPU "
        "can hold.",
        rank=DOUBT,
        cause="throttling",
        moves=lambda process: max(_clock_difference(process), MAX_CLOCK_DIFFERENCE),
        why="the arm that needs more power loses more",
        of_process=lambda _, process: process.gpu and process.gpu.slowdowns,
    ),
    "unequal_settings": Flag(
        "a global switch of torch changed during the measurement",
        "`changed_settings` of the process names the switch.",
        "Set the switch when the model is built, not in its forward.",
        rank=DOUBT,
        cause="changed settings",
        why="the arms may have run under different switches",
        of_process=lambda _, process: process.changed_settings,
    ),
    "trains_differently": Flag(
        "compiled steps of the script differ from eager's by more than rounding explains",
        "With `model.trajectory`. Each step was run in both arms from the same state, and the "
        "finding under the table of scripts names the tensor. `docs/decisions/same-training.md` "
        "has the error rates.",
        "Run it again with another seed, if the script takes one. If it stays, call `.compile()` "
        "on one part of the model in the script, to find the part that differs.",
        rank=DOUBT,
        why="what was timed may not train as eager does",
        of_process=_trains_differently,
    ),
    "unexplained": Flag(
        "the loop of a script gains more or less than its step and its loader explain",
        "If only the step became faster, and each arm waited for its loader as measured, the loop "
        "would have another speedup. The difference is more than 5 % (10 % on a CPU), and the "
        "interval of the loop does not hold it. A loop with several shapes of inputs, or one that "
        "compiles again, does not get this flag.",
        "Look for what the script runs beside its step. Workers of a loader that keep all cores "
        "busy slow down the host of the step, and most where compiling made the step short: try "
        "fewer workers.",
        rank=CONTEXT,
        why="the loop's speedup is what the script gets, and the step's is what it could get",
        of_trial=_is_loop_unexplained,
    ),
    "unresolved": Flag(
        "the interval is wider than asked for",
        "`measure.target` was set and not reached. The verdict UNRESOLVED of `compare` says that a "
        "row's records cannot tell.",
        "Allow more processes or draws.",
        rank=HOUSEKEEPING,
        why="the report shows the interval",
    ),
    "unsteady": Flag(
        "step times scatter, or an arm had not warmed up",
        "The warm-up of an arm did not become flat within `measure.warmup_s`, or its slowest block"
        " took over 5 % (10 % on a CPU) longer than its fastest.",
        "Look at the blocks in the opened row, and measure again on an idle machine or with a "
        "longer `measure.warmup_s`.",
        rank=CONTEXT,
        why="the arms take turns in each round, so times that drift do so in both",
        of_process=_is_unsteady,
    ),
}

# The flags that say that the speedup may be off.
DOUBTS = frozenset(name for name, flag in FLAGS.items() if flag.rank == DOUBT)
DEVICE_DOUBTS = DOUBTS - {"host_busy"}
UNVERIFYING = frozenset(name for name in DOUBTS if not FLAGS[name].cause)
