"""What each status, each cause and each word of an answer means, and what to do about it; `flags`
says it of flags.

`python -m sweeper.explain WORD` and docs/flags.md show these texts, and the legend of the page and
its tooltips those of statuses and causes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Meaning:
    """The texts of a status, a flag or a cause. `says` has no markup, the others may have names in
    backticks.
    """

    says: str  # one line
    more: str = ""  # how it is found, and where the details are
    todo: str = ""


STATUSES: Mapping[str, Meaning] = {
    "ok": Meaning(
        "measured, and correct unless the flag accuracy_unverified says that nobody knows",
    ),
    "accuracy_mismatch": Meaning(
        "the result of the compiled step differs from eager, so there is no speedup",
        "A tensor is beyond its bound, the arms return different tensors, or a value is NaN or "
        "infinite. The message names the tensor that is furthest beyond its bound.",
        "`python -m sweeper.bisect SWEEP TRIAL` names the part of the compiler that is wrong, and "
        "a setting that mends it. Report it to PyTorch.",
    ),
    "not_compiled": Meaning(
        "the compiler gave back no code of its own, so there is nothing to time",
        "No graph reached the backend, a frame ran eager past torch's limit of recompilations, the "
        "backend runs its graphs without compiling them (given back, in a closure, or through an "
        "interpreter), Inductor left no code, or OpenVINO wrote to its log that it continues in "
        "native PyTorch or Inductor. Backends with the name `eager`, `eager_noexcept`, "
        "`eager_debug` or `pre_dispatch_eager` serve as a control and are `ok`. `jit_trace`, "
        "`jit_script`, `fx` and `graphed` have no graphs that could be lost: sweeper times what "
        "they made of the model. With `compile.scope=step` the loss and the optimizer are graphs "
        "too, so sweeper does not notice a model that was left out of them. With "
        "`compile.scope=blocks` a model without repeated blocks also has this status. So has a "
        "model that computes its loss in its forward, as those of transformers do, with "
        "`compile.scope=loss`, and a fused optimizer with `compile.scope=optimizer`. Code without "
        "kernels (`mode=lite`) is compiled. A script of your own has this status where it runs "
        "nothing of what its own calls of `torch.compile` gave, or calls no module with parameters "
        "to train in a step.",
        "The message says which of these it was. Run the trial again with `inspect=true` to see "
        "the graphs.",
    ),
    "eager_error": Meaning(
        "the model itself failed, before any compiler",
        "Or its loss diverges in eager alone as well, or its parameters are not in the precision's "
        "number format. A script of your own also has this status where no step of an optimizer "
        "was seen, or where it ended too early.",
        "Run the model without sweeper in this precision; a script may need more steps. The trial "
        "is in no pass rate.",
    ),
    "compile_error": Meaning(
        "the first compiled steps raised an error",
        "Also scripting or symbolic tracing that torch refused.",
        "The end of the log has the compiler's error. `python -m sweeper.bisect SWEEP TRIAL` names "
        "the part of the compiler that raised it.",
    ),
    "runtime_error": Meaning(
        "a later step raised an error, or three rounds were void",
        todo="The end of the log has the error. Rounds are void where the compiler compiles again "
        "while they run, and in a script also where it reads another loader, saves a file, or "
        "skips a step in its gradient scaler: make its evaluations and checkpoints rarer.",
    ),
    "oom": Meaning(
        "out of device or host memory",
        "The batch was halved again and again, down to one sample (with `measure.back_off=false` "
        "only the trial's own batch was tried). A trial that ran out of device memory beside other "
        "trials of the sweep ran once more alone first.",
        "Give a smaller batch (`batch_size=N`) or a device with more memory.",
    ),
    "timeout": Meaning(
        "a worker was still busy when its time was over",
        "The limits are `measure.timeout_s` for a worker and `measure.phase_timeouts_s.PHASE` for "
        "a phase; waiting does not count. The log ends with the stack of every thread.",
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
        "this device or this workload, or this torch has no such mode (`mode=lite` came with torch "
        "2.10). Or the model is missing: TorchBench is not installed or does not implement this "
        "test, the library removed the class, or the weights (`model.pretrained=true`) are not "
        "here and cannot be fetched. Or `model.attention` is nothing that the model's class takes, "
        "or flash-attn is missing; or float8 lacks torchao or the GPU.",
        "The message says what to install or to use instead. The trial is in no pass rate.",
    ),
    "interrupted": Meaning(
        "ended by Ctrl-C",
        "If a worker was running, the log ends with the stack of every thread: what it was doing.",
        "The same command runs the trial again. Until then it is in no pass rate.",
    ),
}

# Causes of lost time that are no flags too.
CAUSES: Mapping[str, Meaning] = {
    "graph_break": Meaning(
        "the compiler could not follow the code, so it made several graphs of the step",
        "Between two graphs Python runs, and nothing is fused across the break. The table of "
        "causes names the reason and the place.",
        "Rewrite the line at the place named, or move it out of the step; `compile.fullgraph=true` "
        "makes a break an error.",
    ),
    "recompile": Meaning(
        "the compiler compiled a graph more than once, since something it had taken for constant "
        "changed",
        todo="`TORCH_LOGS=recompiles` or `inspect=true` says what changed. Sizes that change "
        "call for `compile.dynamic=true`.",
    ),
    "cudagraph_skip": Meaning(
        "the mode records CUDA graphs, and a graph could not be recorded",
        todo="Remove what the reason names, such as a tensor on the CPU or an input that is "
        "changed in place.",
    ),
    "cache_bypass": Meaning(
        "a compile cache could not hold a graph, so every process does its work again",
        "`autograd_cache` and `compile_cache` of a process count hits, misses and bypasses.",
        "Move what the reason names out of the compiled code: enter autocast around the call of "
        "the compiled model, not in its forward.",
    ),
}


def read_words() -> dict[str, Meaning]:
    """Read what the other words of answers and of `compare` mean; words of one meaning share a
    row, with commas between.
    """
    table = Path(__file__).with_name("words.md").read_text("utf-8")
    rows = [row.split(" | ") for row in table.splitlines()[2:]]
    return {names: Meaning(says) for names, says in rows}
