"""What each status, flag and cause means, and what to do about it.

`python -m sweeper.explain NAME`, docs/flags.md, the legend of the page and its tooltips all show
these texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

DOUBT, CONTEXT, HOUSEKEEPING = "doubt", "context", "housekeeping"
RANKS: Mapping[str, str] = {  # of flags
    DOUBT: "the speedup may be off, or is not the compiler's own",
    CONTEXT: "the speedup is right, and the flag says what was measured or where it holds",
    HOUSEKEEPING: "the speedup is right, and the tables already show what the flag says",
}


@dataclass(frozen=True)
class Meaning:
    """The texts of a status, a flag or a cause. `says` has no markup, the others may have names in
    backticks.
    """

    says: str  # one line
    more: str = ""  # how it is found, and where the details are
    todo: str = ""


@dataclass(frozen=True, kw_only=True)
class Flag(Meaning):
    """The texts of a flag: `why` says why it belongs to its rank."""

    rank: str
    why: str


STATUSES: Mapping[str, Meaning] = {
    "ok": Meaning(
        "measured, and correct unless the flag accuracy_unverified says that nobody knows",
    ),
    "accuracy_mismatch": Meaning(
        "the result of the compiled step differs from eager, so there is no speedup",
        "A tensor is beyond its bound, there are other tensors, or NaN or infinity. The message "
        "names the tensor "
        "that is furthest beyond its bound.",
        "Look which gradient or output is wrong, and try `backend=aot_eager`: where that is wrong "
        "too, Inductor is "
        "not to blame. Report it to PyTorch with the trial's command.",
    ),
    "not_compiled": Meaning(
        "the compiler gave back no code of its own, so there is nothing to time",
        "No graph reached the backend, a frame ran eager past torch's limit of recompilations, the "
        "backend runs its "
        "graphs without compiling them (given back, in a closure, or through an interpreter), "
        "Inductor left no code, "
        "or OpenVINO wrote to its log that it continues in native PyTorch or Inductor. Backends "
        "with the name `eager`, "
        "`eager_noexcept`, `eager_debug` or `pre_dispatch_eager` serve as a control and are `ok`. "
        "`jit_trace`, "
        "`jit_script`, `fx` and `graphed` have no graphs that could be lost: sweeper times what "
        "they made of the "
        "model. With `compile.scope=step` the loss and the optimizer are graphs too, so sweeper "
        "does not notice a "
        "model that was left out of them. With `compile.scope=blocks` a model without repeated "
        "blocks also has this "
        "status. So has a model that computes its loss in its forward, as those of transformers "
        "do, with "
        "`compile.scope=loss`, and a fused optimizer with `compile.scope=optimizer`. Code without "
        "kernels "
        "(`mode=lite`) is compiled. A script of your own has this status where it runs nothing of "
        "what its own calls "
        "of `torch.compile` gave, or calls no module with parameters to train in a step.",
        "The message says which of these it was. Run the trial again with `inspect=true` to see "
        "the graphs.",
    ),
    "eager_error": Meaning(
        "the model itself failed, before any compiler",
        "Or its loss diverges in eager alone as well, or its parameters are not in the precision's "
        "number format. A "
        "script of your own also has this status where no step of an optimizer was seen, or where "
        "it ended too early.",
        "Run the model without sweeper in this precision; a script may need more steps. The trial "
        "is in no pass rate.",
    ),
    "compile_error": Meaning(
        "the first compiled steps raised an error",
        "Also scripting or symbolic tracing that torch refused.",
        "The end of the log has the compiler's error. Try `backend=aot_eager` to see whether "
        "Inductor is to blame.",
    ),
    "runtime_error": Meaning(
        "a later step raised an error, or three rounds were void",
        todo="The end of the log has the error. Rounds are void where the compiler compiles again "
        "while they run, and "
        "in a script also where it reads another loader, saves a file, or skips a step in its "
        "gradient scaler: make "
        "its evaluations and checkpoints rarer.",
    ),
    "oom": Meaning(
        "out of device or host memory",
        "The batch was halved again and again, down to one sample (with `measure.back_off=false` "
        "only the trial's "
        "own batch was tried). A trial that ran out of device memory beside other trials of the "
        "sweep ran once more "
        "alone first.",
        "Give a smaller batch (`batch_size=N`) or a device with more memory.",
    ),
    "timeout": Meaning(
        "a worker was still busy when its time was over",
        "The limits are `measure.timeout_s` for a worker and `measure.phase_timeouts_s.PHASE` for "
        "a phase; waiting "
        "does not count. The log ends with the stack of every thread.",
        "Raise the limit that the message names.",
    ),
    "crashed": Meaning(
        "a worker was killed or exited without an answer",
        todo="The end of the log has what it said last. A kill by SIGKILL is often the host "
        "running out of memory.",
    ),
    "unavailable": Meaning(
        "the backend, the mode or the model is not available here",
        "The backend is not installed, cannot be imported, no longer exists, or does not support "
        "this device or this "
        "workload, or this torch has no such mode (`mode=lite` came with torch 2.10). Or the model "
        "is missing: "
        "TorchBench is not installed or does not implement this test, the library removed the "
        "class, or the weights "
        "(`model.pretrained=true`) are not here and cannot be fetched. Or `model.attention` is "
        "nothing that the "
        "model's class takes, or flash-attn is missing; or float8 lacks torchao or the GPU.",
        "The message says what to install or to use instead. The trial is in no pass rate.",
    ),
    "interrupted": Meaning(
        "ended by Ctrl-C",
        "Where its worker was busy, the log ends with the stack of every thread, which shows with "
        "what.",
        "The same command runs the trial again. Until then it is in no pass rate.",
    ),
}

FLAGS: Mapping[str, Flag] = {
    "accuracy_unverified": Flag(
        "no verdict on the result was possible, so the trial is in no mean",
        "`accuracy.unverified` of the record says why. Or this attempt passed the check, but an "
        "earlier attempt with "
        "the same code failed it, and `attempts` says how; code without fingerprints (any backend "
        "but Inductor) "
        "counts as the same.",
        "Read the reason in the opened row. Measure a mended model under another `sweep=`.",
        rank=DOUBT,
        why="what was timed may compute something else",
    ),
    "attention_differs": Flag(
        "the arms ran attention kernels of different kinds",
        "The kinds are cuDNN, flash, memory-efficient, and none of these; `diagnostics.settings` "
        "names them.",
        "Where the model takes it, `model.attention=flash_attention_2` gives both arms one kernel.",
        rank=DOUBT,
        why="a part of the speedup is the choice of another attention kernel, which eager could "
        "have made as well",
    ),
    "clock_mismatch": Flag(
        "one arm ran at another clock",
        "The median SM clocks of the arms are more than 1 % apart.",
        "Measure again on a GPU that is cool and idle, or lock its clocks.",
        rank=DOUBT,
        why="the arm with the higher clock looks faster than it is",
    ),
    "compile_contended": Flag(
        "others kept the processor busy while the trial compiled, so its compile time is shown "
        "with ≤",
        "Other processes, including trials that compile beside this one, kept more than 10 % of "
        "the trial's cores busy "
        "while it compiled.",
        "`scheduler.prepare=1` gives exact compile times.",
        rank=HOUSEKEEPING,
        why="it concerns compile time, which is printed with ≤",
    ),
    "cudagraphs_skipped": Flag(
        "a graph was not recorded as a CUDA graph",
        "`diagnostics.cudagraph_skips` and the opened row have the reasons.",
        "Remove what the reason names, such as a tensor on the CPU or an input that is changed in "
        "place. With "
        "`device=cpu` there is nothing to do.",
        rank=CONTEXT,
        why="it says what the compiler did, and the speedup is that of the program it made",
    ),
    "eager_moved": Flag(
        "trials of this sweep that time the same eager step found different times",
        "Eager step times of one model, precision and batch differ by more than 1 % (10 % on a "
        "CPU).",
        "Compare modes by their speedups, each over the eager arm of its own trial, as the "
        "recommendations do.",
        rank=DOUBT,
        why="the machine was not in one state for the whole sweep",
    ),
    "eager_nondeterministic": Flag(
        "eager differs from itself by more than the tolerance, run twice from one state with "
        "one seed",
        rank=CONTEXT,
        why="it concerns the verdict on the result; where none was possible, `accuracy_unverified` "
        "says so",
    ),
    "failed_before": Flag(
        "an earlier attempt in this sweep failed",
        "`attempts` of the record and the opened row say how.",
        "Count on another failure, and look at what the earlier attempts said.",
        rank=DOUBT,
        why="the trial counts because it was run until it was ok, and another compilation may fail "
        "again",
    ),
    "gpu_unobserved": Flag(
        "the driver did not say whether the GPU was shared, or whether its clocks were lowered",
        "NVML gave no processes or no reasons for lowered clocks.",
        "Measure where NVML answers, or make sure that nothing else runs on the GPU.",
        rank=DOUBT,
        why="nobody knows whether others used the GPU, or whether its clocks were lowered",
    ),
    "host_bound": Flag(
        "the device waits for the host, so the wall-clock speedup depends on the host",
        "The column `host_bound_arms` says in which arm. The column `device` has the speedup by "
        "the clock of the GPU, which the host cannot disturb.",
        "`mode=reduce-overhead` launches the kernels all at once, and a larger batch gives the "
        "device more to do. "
        "Several processes (`measure.processes`) show how much the speedup moves.",
        rank=DOUBT,
        why="wall-clock time depends on the host: one sweep gave 4.04 and 3.55 on one H200",
    ),
    "host_busy": Flag(
        "other processes used the host while the trial was measured",
        "They kept more than 10 % of the trial's cores busy in the rounds or in a script's loops, "
        "or the cgroup's "
        "quota took more than 1 % of the cores.",
        "Measure again on an idle machine; `python -m sweeper.doctor` says how noisy it is.",
        rank=DOUBT,
        why="other processes may have slowed down one arm more than the other",
    ),
    "little_headroom": Flag(
        "a slightly slower host makes the trial host-bound",
        "No arm is host-bound, but the host needs more than 0.8 of an arm's device step time for a "
        "step.",
        "Look at `speedup_host_2x_slower` before you count on the speedup elsewhere.",
        rank=CONTEXT,
        why="the speedup is right on this host, and a slightly slower one changes it",
    ),
    "no_kernels": Flag(
        "Inductor wrote no kernel of its own",
        "Every operation calls ATen or a library, as `mode=lite` does by design. "
        "`diagnostics.kernels` counts the "
        "kernels.",
        rank=CONTEXT,
        why="ATen's own kernels run in both arms, and the speedup is what Dynamo and the wrapper "
        "code save",
    ),
    "partly_eager": Flag(
        "the backend ran some of its graphs without compiling them",
        "`diagnostics.graphs_run_eager` counts them.",
        "`inspect=true` shows the graphs.",
        rank=CONTEXT,
        why="it says what the backend did, and the speedup is that of the program it made",
    ),
    "random_in_step": Flag(
        "the step draws random numbers, although dropout is off",
        "Another seed changes what a step gives.",
        rank=CONTEXT,
        why="it says what the step is: dropout, or something like it, is on in both arms",
    ),
    "recompiled": Flag(
        "the compiler compiled again while the trial was measured",
        "At least one round was void because of a recompilation.",
        "`TORCH_LOGS=recompiles` or `inspect=true` says why. Sizes that change call for "
        "`compile.dynamic=true`.",
        rank=DOUBT,
        why="rounds are void, and the next compilation may come at any step",
    ),
    "several_artifacts": Flag(
        "processes that share a compile cache ran different code",
        "The cache did not return the code that was stored in it.",
        "Compare the processes in the figure of step times.",
        rank=DOUBT,
        why="the mean is over different programs",
    ),
    "shared_gpu": Flag(
        "another process held the GPU before or during the measurement",
        todo="Measure again on a GPU of its own.",
        rank=DOUBT,
        why="other processes may have slowed down one arm more than the other",
    ),
    "single_process": Flag(
        "one process, so there is no interval",
        todo="`measure.processes=3` gives an interval.",
        rank=HOUSEKEEPING,
        why="the report shows no interval",
    ),
    "smaller_batch": Flag(
        "the trial's own batch ran out of memory, and both arms ran with a smaller one",
        "The column `batch_size` has the batch that ran.",
        rank=CONTEXT,
        why="the speedup is right for the batch size in the table",
    ),
    "throttled": Flag(
        "the GPU lowered its clocks while the trial was measured",
        "NVML gave a reason in the rounds: power cap, thermal, hardware, power brake.",
        "Improve the cooling, raise the power limit, or lock the clocks at a value that the GPU "
        "can hold.",
        rank=DOUBT,
        why="the arm that needs more power loses more",
    ),
    "unequal_settings": Flag(
        "a global switch of torch changed during the measurement",
        "`changed_settings` of the process names the switch.",
        "Set the switch when the model is built, not in its forward.",
        rank=DOUBT,
        why="the arms may have run under different switches",
    ),
    "trains_differently": Flag(
        "compiled steps of the script differ from eager's by more than rounding explains",
        "With `model.trajectory`. Each step was run in both arms from the same state, and the "
        "finding under the table "
        "of scripts names the tensor. `docs/decisions/same-training.md` has the error rates.",
        "Run it again with another seed, if the script takes one. If it stays, call `.compile()` "
        "on one part of the "
        "model in the script, to find the part that differs.",
        rank=DOUBT,
        why="what was timed may not train as eager does",
    ),
    "unresolved": Flag(
        "the interval is wider than asked for",
        "`measure.target` was set and not reached.",
        "Allow more processes or draws.",
        rank=HOUSEKEEPING,
        why="the report shows the interval",
    ),
    "unsteady": Flag(
        "step times scatter, or an arm had not warmed up",
        "The warm-up of an arm did not become flat within `measure.warmup_s`, or its slowest block "
        "took over 5 % (10 % "
        "on a CPU) longer than its fastest.",
        "Look at the figure of step times, and measure again on an idle machine or with a longer "
        "`measure.warmup_s`.",
        rank=DOUBT,
        why="a mean of times that drift depends on when it was taken",
    ),
}

# Causes of lost time that are no flags too.
CAUSES: Mapping[str, Meaning] = {
    "graph_break": Meaning(
        "the compiler could not follow the code, so it made several graphs of the step",
        "Between two graphs Python runs, and nothing is fused across the break. The table of "
        "causes names the reason "
        "and the place.",
        "Rewrite the line at the place named, or move it out of the step; `compile.fullgraph=true` "
        "makes a break an "
        "error.",
    ),
    "recompile": Meaning(
        "the compiler compiled a graph more than once, since something it had taken for constant "
        "changed",
        todo="`TORCH_LOGS=recompiles` or `inspect=true` says what changed. Sizes that change "
        "call for "
        "`compile.dynamic=true`.",
    ),
    "cudagraph_skip": Meaning(
        "the mode records CUDA graphs, and a graph could not be recorded",
        todo="Remove what the reason names, such as a tensor on the CPU or an input that is "
        "changed in place.",
    ),
}


def leave_out_housekeeping(flags: Iterable[str]) -> tuple[str, ...]:
    """Leave out the flags that say what tables already show; flags that this version does not know
    are kept.
    """
    return tuple(flag for flag in flags if flag not in FLAGS or FLAGS[flag].rank != HOUSEKEEPING)
