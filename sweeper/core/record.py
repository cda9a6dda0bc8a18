"""A record: everything that came out of a trial, whatever happened. MLflow runs and tables are
views of records. The statuses and phases of trials are declared here.

`docs/formats.md` names every key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Annotated

from .backends import NO_CUDA_GRAPHS
from .errors import explain_unreadable
from .files import MAX_JSON_BYTES, read_text
from .serialization import Between, Json, from_json, parse_json, to_json
from .text import clean_text
from .trial import Trial

SCHEMA_VERSION = 6  # records of other versions are refused

# A record from elsewhere may hold any number. Figures are ratios and logs of times, so these have
# to be above 0.
Seconds = Annotated[float, Between(0, 1e9)]
Duration = Annotated[float, Between(1e-9, 1e9)]  # which a clock can tell from 0
Count = Annotated[int, Between(0, 2**53)]
Positive = Annotated[int, Between(1, 2**53)]
NOT_NEGATIVE = Between(0, 1e100)
Amount = Annotated[float, NOT_NEGATIVE]

STATUSES = (
    "ok", "accuracy_mismatch", "not_compiled", "eager_error", "compile_error", "runtime_error",
    "oom", "timeout", "crashed", "unavailable", "interrupted",
)  # fmt: skip
TORCH_NN = "torch.nn."  # begins the names of torch's own classes among a script's modules
WRAPPER = "DistributedDataParallel"
IN_WRAPPER = f" in {WRAPPER}"  # ends the names of modules that are wrapped in it
# How a trial ends that `python -m sweeper.bisect` can find the reason of.
FAULTS = ("accuracy_mismatch", "compile_error", "runtime_error")
# Left out of the denominator of a pass rate: the compiler is not to blame.
NOT_JUDGED = ("eager_error", "unavailable", "interrupted")
# The same command may change these: a machine or a user ended the trial, not its code.
CHANGEABLE = ("interrupted", "crashed")

EAGER_PHASES = ("starting", "building", "eager")
PHASES = (
    *EAGER_PHASES, "compiling", "reference", "checking",
    # with the device alone
    "warming", "measuring", "memory", "profiling", "energy",
)  # fmt: skip
# what a worker does in a phase, where its name alone does not say it
DOING = {
    "building": "building the model",
    "eager": "running eager steps",
    "reference": "computing the reference",
    "warming": "warming up",
    "memory": "measuring memory",
    "energy": "measuring energy",
}
ARMS = ("eager", "compiled")

MAX_VOID_ROUNDS = 3  # measuring stops after this many
NO_REASON = "no reason given"  # by torch
# Why a round is void in which a script did more than train: this says nothing of the compiler.
READ_LOADER, SAVED_FILE = "the script read another loader", "the script saved a file"
# of a script's modules in two blocks or loops, up to which their steps are alike
MAX_CALLS_DIFFERENCE = 0.05
EVALUATED = "the script called its modules without gradients"
OTHERS_BUSY = "others kept the processor busy"  # why a round on a CPU was taken again
MAX_BUSY_HOST = 0.10  # of the cores that we may use, kept busy by others


@dataclass(frozen=True, slots=True)
class Round:
    """Two blocks, one per arm. Times are wall seconds of a whole block of `Process.steps_per_block`
    steps.
    """

    order: Annotated[str, ("AB", "BA")]  # AB: eager first; BA: compiled first
    eager_s: Duration | None  # wall seconds of the eager block
    compiled_s: Duration | None  # wall seconds of the compiled block
    void: str | None = None  # why the round does not count; None: it counts


@dataclass(frozen=True, slots=True)
class PerArm:
    """One figure for each arm; None where it was not measured."""

    eager: float | None = None  # the figure of the eager arm
    compiled: float | None = None  # the figure of the compiled arm

    @property
    def ratio(self) -> float | None:
        """Eager / compiled; None where either of them is missing or 0."""
        return self.eager / self.compiled if self.eager and self.compiled else None

    @property
    def largest(self) -> float | None:
        """The larger of the figures that were measured."""
        known = [value for value in (self.eager, self.compiled) if value is not None]
        return max(known, default=None)


def of_arm(found: PerArm | None, arm: str) -> float | None:
    """Return the figure of one arm; None where it was not measured."""
    return getattr(found, arm) if found else None


Amounts = Annotated[PerArm, NOT_NEGATIVE]
Durations = Annotated[PerArm, Between(1e-12, 1e9)]  # of a step
PERCENTILES = ("p50", "p90", "p99")


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles of the wall seconds of single steps, each waited for, over the rounds that
    count.
    """

    p50_s: Duration  # seconds within which half of the steps ended
    p90_s: Duration  # seconds within which 90 % of the steps ended
    p99_s: Duration  # seconds within which 99 % of the steps ended
    steps: Count  # how many single steps were timed


@dataclass(frozen=True, slots=True)
class Latencies:
    """Latencies of each arm."""

    eager: Latency  # of the eager arm
    compiled: Latency  # of the compiled arm


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How the compiled step compares with a reference in all that a step changes, in several cases.

    A case is a state of the model and a batch. Errors are root mean squares against the reference;
    those kept belong to the tensor that comes nearest to its bound, or goes furthest beyond it.
    """

    # float64, or float32 where float64 does not fit or run; None: there is no reference, as for a
    # test over seeds
    reference: str | None
    passed: bool | None  # whether the compiled step is right; None: it could not be judged
    unverified: str | None = None  # why it could not be judged
    # eager, run twice from one state, differs from itself by more than the bound
    nondeterministic: bool = False
    tensors: Count = 0  # how many tensors were judged
    # how many tensors could not be judged: eager is not finite there, or rounding explains any
    # difference over seeds
    unjudged: Count = 0
    # the tensor that comes nearest to its bound, e.g. `gradient of layer1.0.conv1.weight`
    worst: str | None = None
    # whether this tensor has less than a third of eager's size, where that has to decide
    too_small: bool = False
    compiled_error: Amount | None = None  # root mean square of the compiled error of this tensor
    eager_error: Amount | None = None  # root mean square of eager's error
    bound: Amount | None = None  # the largest `compiled_error` that passes
    size: Amount | None = None  # root mean square of this tensor in the reference
    compiled_size: Amount | None = None  # root mean square of this tensor in the compiled step
    # the share of numbers that are not eager's, where these are whole numbers
    unequal: float | None = None
    # the process that was checked, where this process ran the same code
    of_process: int | None = None
    elements: Count | None = None  # how many numbers were compared, over all cases
    # the cases that were judged, e.g. `as built, unseen batch` or `moved, batch 1`
    cases: tuple[str, ...] = ()
    case: str | None = None  # the case of the worst tensor
    # the unseen batch: `drawn`, `given`, `mixed` of the first one, or `timed`: the first one itself
    batch: str | None = None
    # the state without dead branches: `full`, `half`, or why it was not judged
    moved: str | None = None
    # the projection of the worst tensor's gradient on the reference, where it was judged
    projection: PerArm | None = None
    # how far the compiled projection may lie outside the range of eager's
    margin: float | None = None
    random_in_step: bool | None = None  # whether a step draws random numbers and depends on them
    # how a step that draws random numbers or differs from itself was judged: `seeds`; None: no step
    # was judged so
    randomness: str | None = None
    statistic: PerArm | None = None  # the statistic of the worst test over seeds


@dataclass(frozen=True, slots=True)
class GpuState:
    """What NVML said of the GPU right after blocks; medians over an arm's blocks."""

    clock_mhz: Amounts  # median clock in MHz
    power_w: Amounts  # median power in watts
    temperature_c: PerArm  # median temperature in degrees Celsius
    # reasons for lowered clocks that were seen, e.g. `power_cap`, `thermal`; None: the driver does
    # not tell
    slowdowns: tuple[str, ...] | None = None
    # the largest number of other processes that computed on this GPU, before and in the rounds
    other_processes: Count | None = None


@dataclass(frozen=True, slots=True)
class HostState:
    """What other processes did on the host. Shares are of the cores that the process may use."""

    # share of the cores that other processes kept busy while this process compiled
    busy_while_compiling: float | None = None
    # share of the cores that other processes kept busy in the rounds that count, on average
    busy_while_measuring: float | None = None
    # seconds of the rounds in which the cgroup's quota stopped this process
    throttled_s: Seconds | None = None


@dataclass(frozen=True, slots=True)
class CompileCall:
    """A call of `torch.compile` in a script, or in a library that it uses."""

    # `file:line` of the script, also where a library calls for the script; of the library where it
    # calls by itself
    where: str
    by_library: bool  # whether a library makes the call
    target: str = ""  # the class of the module, or the name of the function, that is compiled
    # whether this call makes the compiled arm: the script's own, or a library's for one of its
    # modules
    is_arm: bool = False
    arguments: str = ""  # as JSON, the arguments that are numbers, texts and truth values


@dataclass(frozen=True, slots=True)
class LoopRun:
    """How long the loop of a script took, with one arm throughout."""

    steps: Positive  # how many steps were timed
    step_s: Duration  # wall seconds per step, with the loader
    # wall seconds per step in which the script waited for a batch; None without a loader
    loader_s: Seconds | None
    batches: Amount  # batches of its loader per step
    calls: Amount | None = None  # calls of its modules with gradients per step; None: not counted
    recompiles: Count = 0  # compilations while it was timed
    evaluations: Count = 0  # how often the script evaluated while the loop was timed
    saves: Count = 0  # files that the script saved while the loop was timed
    epochs: Count = 0  # how often the loader began anew while the loop was timed
    # whether evaluations, saved files or epochs are missing in this time, or occur less often than
    # in eager's
    left_out: bool = False
    # calls of its modules without gradients while it was timed; None: not counted
    untrained: Count | None = None
    # wall seconds of an evaluation; None: there was none while the loop was timed
    evaluation_s: Seconds | None = None

    @property
    def loader_share(self) -> float | None:
        """The share of a step in which it waited for a batch."""
        return None if self.loader_s is None else self.loader_s / self.step_s

    @property
    def events(self) -> tuple[int, int, int]:
        """From what is usually the rarest on."""
        return self.evaluations, self.saves, self.epochs


@dataclass(frozen=True, slots=True)
class Shapes:
    """The shapes of the tensors that a script's modules were called with, and how often."""

    shapes: str  # e.g. `[32, 128], [32]`
    count: Count  # how many calls had these shapes


@dataclass(frozen=True, slots=True)
class SizeCount:
    """How often a script's compiled loop saw a size of the dimension that varies."""

    size: Count  # a size; of more than 500 sizes, neighbours count as the largest of them
    count: Count  # how many calls had this size


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Whether compiled code trains a script's model as eager does: differences of many steps, each
    from one state.

    The figures belong to the tensor that comes nearest to its limit, or goes furthest beyond it, as
    shares of its size.
    """

    samples: Count  # calls of modules that were compared
    passed: bool | None  # whether no figure is beyond its limit; None: it could not be judged
    unknown: str | None = None  # why it could not be judged
    steps: Count = 0  # steps of the loop that were compared
    # the tensor nearest to its limit, e.g. `gradient of layer1.0.conv1.weight`
    worst: str | None = None
    kind: str | None = None  # the figure: `typical`, `often`, `worst`, `drift` or `gain`
    reference: str | None = None  # `eager`, or `longer`: eager without autocast
    # how far the compiled tensor is from the reference, as a share of the tensor
    value: Amount | None = None
    # the same of eager that is moved by rounding, or of eager against `longer`
    yardstick: Amount | None = None
    limit: Amount | None = None  # the largest `value` that passes

    RETIRED = ("trainings", "trainings_missing")  # of trainings by several seeds


@dataclass(frozen=True, slots=True)
class RankRun:
    """What one process of a script that trains in several has compiled, and needs."""

    graphs: Count  # graphs that the backend was given
    recompiles: Count  # compilations of a frame beyond its first
    allocator_peak_bytes: Amounts | None = None  # of torch's allocator in steps of each arm


@dataclass(frozen=True, slots=True)
class ScriptRun:
    """What was seen of a user's own script while it ran."""

    RETIRED = ("recorded",)  # batches that were given again

    sha256: str | None = None  # of the script's file; None for a module
    modules: tuple[str, ...] = ()  # classes of the outermost modules that the script trains
    called_at: tuple[str, ...] = ()  # `file:line` where the script calls each of these modules
    # modules of which the script calls `forward` itself, with the line
    entered: tuple[str, ...] = ()
    # share of the trained parameters that are in none of these modules; None: not known
    uncalled_share: Annotated[float, Between(0, 1)] | None = None
    optimizers: tuple[str, ...] = ()  # classes of the optimizers, in the order of their first steps
    # the number format of autocast in a step, e.g. `bfloat16`, or `off`; None: not known
    autocast: str | None = None
    # whether a module has dropout above 0 in training mode; None: not known
    dropout: bool | None = None
    # how many workers the script's `DataLoader` has, e.g. `4 workers`; None: there is no loader
    loader: str | None = None
    # batches that were read before the steps that were compared, at most; 0: steps were timed with
    # their wait for the loader
    read_ahead: Count = 0
    watched: Count = 0  # optimizer steps after which it was decided which of them end a step
    late: tuple[str, ...] = ()  # optimizers that stepped first after that, with the line
    # whether steps differ in their calls of modules: times are of equally many calls
    per_call: bool = False
    # calls of `torch.compile` in the script and its libraries
    compile_calls: tuple[CompileCall, ...] = ()
    # classes of modules that the script compiles, and calls past what the compiler gave for them
    gone_round: tuple[str, ...] = ()
    # the twelve most frequent shapes in the compiled loop; empty where the script compiles
    # functions only
    shapes: tuple[Shapes, ...] = ()
    num_shapes: Count = 0  # how many different shapes the compiled loop had
    # sizes of the one dimension that varies, the smallest first; empty where none or several vary
    sizes: tuple[SizeCount, ...] = ()
    # the quartiles and the largest size of the dimension that varies
    pad_to: tuple[Count, ...] = ()
    skipped_steps: Count = 0  # optimizer steps that a gradient scaler left out
    # steps from one evaluation or saved file to the next; 0: fewer than two were seen
    interval: Count = 0
    # steps of its whole training, where the script ended by itself; None: sweeper ended it
    length: Positive | None = None
    # the loop with the eager arm throughout; None: that run did not end
    loop_eager: LoopRun | None = None
    # the loop with the compiled arm throughout; None: that run did not end
    loop_compiled: LoopRun | None = None
    trajectory: Trajectory | None = None  # with `model.trajectory`, in the first process
    # the processes in which it trains, by rank; empty: it trains in one
    ranks: tuple[RankRun, ...] = ()
    # how much longer a block took in the slowest rank than in the fastest, as a share; the median
    # over blocks
    rank_spread: Amounts | None = None
    # a rank, and a parameter that had other values there than in rank 0 after eager steps
    apart: str | None = None

    def __post_init__(self) -> None:
        if self.called_at and len(self.called_at) != len(self.modules):
            raise ValueError(
                f"script.called_at has {len(self.called_at)} places for {len(self.modules)} modules"
            )


@dataclass(frozen=True)
class Process:
    """What one fresh worker process measured."""

    index: Count  # the number of the process in its trial
    draw: Count  # the number of its compile cache
    cold: bool  # whether this cache was empty when the process began
    # wall seconds that the first compiled steps took beyond steady steps; None for mode eager
    compile_s: Seconds | None = None
    # seconds in `dynamo`, `aot_autograd`, `inductor` and `autotuning`, by the compiler's own
    # clocks; the parts do not overlap
    compile_parts_s: Mapping[str, Seconds] = field(default_factory=dict)
    # graphs that Inductor's cache had (`hits`), lacked (`misses`) or could not hold (`bypassed`)
    compile_cache: Mapping[str, Count] = field(default_factory=dict)
    # the same of AOTAutograd's cache, whose entries hold forward and backward
    autograd_cache: Mapping[str, Count] = field(default_factory=dict)
    # why a cache could not hold a graph, in torch's words, and how often it said so
    cache_bypasses: Mapping[str, Count] = field(default_factory=dict)
    # wall seconds of the first compiled steps, each synchronised
    first_steps_s: tuple[Duration, ...] = ()
    # seconds from the start of the process to the end of its first compiled step, without the eager
    # steps and without waiting
    time_to_first_step_s: Seconds | None = None
    code_fingerprint: str | None = None  # a digest of the generated code
    # a digest of the kernel configurations that autotuning chose
    autotuning_fingerprint: str | None = None
    accuracy: Accuracy | None = None  # how the compiled step compares with the reference
    steps_per_block: Positive | None = None  # the number of steps in a block, K
    warm_up_flat: bool | None = None  # whether the step times of both arms became flat
    rounds: tuple[Round, ...] = ()  # the rounds in their order, void ones included
    # global switches that changed in the rounds, e.g. `matmul_allow_tf32 after compiled`
    changed_settings: Mapping[str, Json] = field(default_factory=dict)
    # seconds per step in which the device is busy; None on a CPU
    device_time_s: Durations | None = None
    device_kernels: Amounts | None = None  # kernels, copies and memsets per step; None on a CPU
    # seconds per step in which collectives ran on the device and nothing else; None without any
    exposed_s: Durations | None = None
    # seconds per step in which the device is busy or in a gap of its own; None on a CPU
    device_step_s: Durations | None = None
    # seconds between two kernels up to which a gap is the device's own
    device_gap_s: Amounts | None = None
    # the source of that gap, by arm: `steps`, or `calibration` without steps
    device_gap_source: Mapping[str, str] = field(default_factory=dict)
    # seconds in which the host prepares and launches a step without waiting; None on a CPU
    host_step_s: Durations | None = None
    host_time_missing: str | None = None  # why an arm has no host time
    device_time_missing: str | None = None  # why an arm has no device time
    gpu: GpuState | None = None  # the GPU right after blocks; None where NVML does not tell
    host: HostState | None = None  # what other processes did on the host
    # peak device memory of three steps, CUDA-graph pools and libraries included, less the memory in
    # use before the model was built; None where other processes use the GPU
    memory_bytes: PerArm | None = None
    memory_missing: str | None = None  # why an arm has no memory
    # allocations that found no room at first, also if a second try succeeded
    failed_allocations: Count | None = None
    # the peak by torch's allocator, which misses memory in CUDA-graph pools
    allocator_peak_bytes: PerArm | None = None
    # what torch's allocator held at most without the device
    held_bytes: Amount | None = None
    check_peak_bytes: Amount | None = None  # the peak by torch's allocator in the check
    # tokens without padding, of models that read text; the mean where sizes vary
    tokens_per_step: Amount | None = None
    latencies: Latencies | None = None  # with measure.clock=step
    energy_j: Amounts | None = None  # joules of the whole GPU per step, with measure.energy
    energy_missing: str | None = None  # why there is no energy
    script: ScriptRun | None = None  # of a user's own script
    # wall seconds in each phase, without waiting; of a script, those of its first run
    phases_s: Mapping[str, Seconds] = field(default_factory=dict)
    # wall seconds in which it waited for the device, or was stopped while another worker had it
    waited_s: Seconds | None = None

    @property
    def artifact(self) -> str | None:
        """The identity of the compiled code; None where the backend leaves no code."""
        if not self.code_fingerprint:
            return None
        return f"{self.code_fingerprint}-{self.autotuning_fingerprint}"

    @property
    def device_s(self) -> float:
        """Wall seconds with the device, roughly: compiling needs it only for moments."""
        return sum(took_s for phase, took_s in self.phases_s.items() if phase != "compiling")

    @property
    def all_blocks_s(self) -> float:
        """Wall seconds of the blocks of all rounds, void ones too."""
        return sum((item.eager_s or 0.0) + (item.compiled_s or 0.0) for item in self.rounds)

    def blocks_s(self, arm: str) -> list[float]:
        """Wall seconds of an arm's blocks in the rounds that count."""
        blocks = (getattr(item, f"{arm}_s") for item in self.rounds if item.void is None)
        return [block_s for block_s in blocks if block_s is not None]

    def step_s(self, arm: str) -> float | None:
        """Median wall seconds of a step of an arm, over the rounds that count."""
        blocks = self.blocks_s(arm)
        if not blocks or not self.steps_per_block:
            return None
        return median(blocks) / self.steps_per_block

    @cached_property
    def steps_s(self) -> PerArm:
        """`step_s` of both arms."""
        return PerArm(*map(self.step_s, ARMS))

    @property
    def beyond_steady_s(self) -> float | None:
        """Wall seconds that the first n compiled steps took beyond n steady ones; None where none
        are steady yet.
        """
        steady_s = self.step_s("compiled")
        if steady_s is None:
            return None
        return max(sum(self.first_steps_s) - len(self.first_steps_s) * steady_s, 0.0)


@dataclass(frozen=True, slots=True)
class GraphBreak:
    """Why and where Dynamo left the graph."""

    reason: str  # the reason that Dynamo gives
    where: str | None = None  # `file:line` of the user's code
    count: Count = 1  # how often this break was seen


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """What the compiler did, from the first process that got so far."""

    graphs: Count | None = None  # graphs that reached the backend; 0 for backends without Dynamo
    graph_breaks: tuple[GraphBreak, ...] = ()  # breaks in the graph
    recompiles: Count | None = None  # how often torch compiled again
    cudagraph_skips: tuple[str, ...] = ()  # why graphs were not recorded as CUDA graphs
    # settings that are equal in both arms: TF32, cuDNN, optimizer and others
    settings: Mapping[str, Json] = field(default_factory=dict)
    graphs_run_eager: Count = 0  # graphs that the backend ran without compiling them
    # how many numbers of each format the model has
    parameters: Mapping[str, Count] = field(default_factory=dict)
    # kernels that Inductor wrote; None for other backends and with `cpp_wrapper`
    kernels: Count | None = None


@dataclass(frozen=True, slots=True)
class Inspection:
    """The result of the process that `inspect=true` adds to a trial; it does not change the trial's
    figures.
    """

    # the folder of its files in the trial's folder; None: it left no files
    folder: str | None = None
    missing: str | None = None  # why files are missing; None: all files are there
    # a digest of the code that it saw; a timed process with the same digest ran this code
    code_fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """How an earlier run of a trial ended, in the same sweep."""

    status: Annotated[str, STATUSES]  # the status of that run
    phase: str | None = None  # the phase in which it ended
    message: str | None = None  # the message of that run
    worst: str | None = None  # the tensor that was wrong
    # the compiled code of its processes: both fingerprints, joined by `-`
    artifacts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Record:
    """A trial and its results; a failed trial is data too."""

    # the version of these keys; readers refuse every other version
    schema_version: int = field(default=SCHEMA_VERSION, kw_only=True)
    trial_id: str  # 12 hexadecimal digits: SHA-256 of the axes, without axes at their defaults
    sweep: str  # the name of the sweep
    label: str  # a name of the trial for people
    status: Annotated[str, STATUSES]  # one of the statuses in docs/flags.md
    flags: tuple[str, ...] = ()  # flags of its processes, see docs/flags.md
    phase: str | None = None  # the phase in which a trial ended that is not ok
    # why a trial ended that is not ok; of one that is ok, why it was not timed
    message: str | None = None
    log: str | None = None  # path of the worker's log, relative to the trial's folder
    trial: Trial = field(kw_only=True)  # the experiment
    # versions, device, host and variables, see below
    environment: Mapping[str, Json] = field(default_factory=dict)
    processes: tuple[Process, ...] = ()  # one entry per worker process
    # what the compiler did, from the first process that got so far
    diagnostics: Diagnostics | None = None
    # the batch size of both arms, after the trial's own ran out of memory
    smaller_batch_size: Positive | None = None
    # seconds from the start of the trial to its end, without waiting and without its inspection
    wall_s: Seconds | None = None
    inspection: Inspection | None = None  # with `inspect=true`; None: there was no inspection
    # earlier attempts in this sweep that failed, the oldest first
    attempts: tuple[Attempt, ...] = ()
    # the fields of `core.settings.Measure`
    measure: Mapping[str, Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.message is not None:
            object.__setattr__(self, "message", clean_text(self.message))

    @property
    def judges_the_compiler(self) -> bool:
        """Whether the trial is ok, or only the compiler can be to blame."""
        return self.status not in NOT_JUDGED and (
            self.status == "ok" or self.phase not in EAGER_PHASES
        )

    @property
    def may_end_differently(self) -> bool:
        """Whether the trial may end otherwise when the same command runs it again on the same
        machine.
        """
        # torch's message lists the processes that it sees on the GPU, its own among them
        if self.status == "oom":
            seen = len(re.findall(r"\b(?:this process|Process \d+) has\b", self.message or ""))
            return seen > 1 or any(
                process.gpu and process.gpu.other_processes for process in self.processes
            )
        return self.status in CHANGEABLE

    @property
    def first_line(self) -> str:
        """The first line of the message, and the second where the first ends in a colon; empty
        without a message.
        """
        lines = (self.message or "").splitlines()
        if len(lines) > 1 and lines[0].endswith(":"):
            return f"{lines[0]} {lines[1].strip()}"
        return lines[0] if lines else ""

    @property
    def batch_size(self) -> int:
        """The batch size that was used."""
        return self.smaller_batch_size or self.trial.batch_size

    @property
    def known_batch_size(self) -> int | None:
        """The batch size that was used; None for a user's own script."""
        return None if self.trial.known_batch_size is None else self.batch_size

    @property
    def settings(self) -> Mapping[str, Json]:
        """Settings of torch that are equal in both arms, by name."""
        return self.diagnostics.settings if self.diagnostics else {}

    @property
    def cudagraph_skips(self) -> tuple[str, ...]:
        """Why graphs were not recorded as CUDA graphs. For graphs on a CPU torch gives no
        reason.
        """
        skips = self.diagnostics.cudagraph_skips if self.diagnostics else ()
        known = NO_CUDA_GRAPHS if self.trial.device == "cpu" else NO_REASON
        return tuple(reason.replace(NO_REASON, known) for reason in skips)

    @property
    def artifacts(self) -> tuple[str, ...]:
        """The compiled code of its processes, each once, in alphabetical order."""
        return tuple(sorted({process.artifact for process in self.processes if process.artifact}))

    def dumps(self) -> str:
        """Return the record as JSON text, keys in the order of `docs/formats.md`."""
        return json.dumps(to_json(self), indent=1, allow_nan=False)

    @staticmethod
    def read(path: Path) -> Record:
        """Read a record's file. Raises RecordError as `loads`, also where there is no file."""
        try:
            text = read_text(path, MAX_JSON_BYTES)
        except (OSError, UnicodeDecodeError) as error:
            raise RecordError(explain_unreadable(error)) from error
        return Record.loads(text)

    @staticmethod
    def loads(text: str) -> Record:
        """Read what `dumps` wrote, wherever it comes from: the one boundary that every reader of
        records goes through.

        Raises SchemaError for a record of another schema, RecordError for everything else that is
        none.
        """
        try:
            if len(text) > MAX_JSON_BYTES:
                raise ValueError(f"larger than {MAX_JSON_BYTES / 2**20:.0f} MiB")
            data = parse_json(text)
            if not isinstance(data, dict) or "schema_version" not in data:
                raise ValueError("not a record: no schema_version")
            version = data["schema_version"]
            # `from_json` judges what is no number
            if type(version) is int and version != SCHEMA_VERSION:
                problem = f"is newer than {SCHEMA_VERSION}: upgrade sweeper"
                if version < SCHEMA_VERSION:
                    problem = (
                        f"is older than {SCHEMA_VERSION}: read the record with the sweeper that "
                        "wrote it, or measure the trial again"
                    )
                raise SchemaError(f"cannot be read (schema_version {version} {problem})")
            return from_json(Record, data)
        except RecordError:
            raise
        except ValueError as error:
            raise RecordError(explain_unreadable(error)) from error


def describe_phase(phase: str | None) -> str:
    """Say what is done in a phase, behind `while`, e.g. `warming up`; "" without a phase."""
    return DOING.get(phase, phase) if phase else ""


def say_while(phase: str | None) -> str:
    """E.g. ` while warming up`, behind the status of what ended in this phase; "" without one."""
    return f" while {describe_phase(phase)}" if phase else ""


class RecordError(ValueError):
    """A file or a text that holds no record; the message goes on after its name."""


class SchemaError(RecordError):
    """A record that another version of sweeper wrote, in another schema."""
