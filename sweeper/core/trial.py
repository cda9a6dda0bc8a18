"""A trial: one point of the grid, the same value in the driver, in the worker and in the record.

The id is a hash of the axes alone, so the same experiment has the same id in every sweep.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, is_dataclass, replace
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, NamedTuple, get_type_hints

from .backends import GRAPHED
from .launch import TORCHRUN, Launch
from .libraries import LIBRARIES, SCRIPT, has_texts
from .serialization import Between, Json, drop_defaults, flatten, show_value

MODULE = "-m "  # begins the name of a script that is a module
MIN_TRAJECTORY = 20  # calls of a script's module, to compare its training with another
OWN_PRECISION = "own"  # the name of what a script decides
CACHED = ("prefill", "decode")  # forwards of a decoder language model with a static key-value cache
MODES = (
    "eager",
    "lite",
    "default",
    "reduce-overhead",
    "max-autotune",
    "max-autotune-no-cudagraphs",
)
HALVES = ("bfloat16", "float16")
WEIGHTS = ("amp", "fp32")
MAX_SIZE = 2**53
Size = Annotated[int, Between(1, MAX_SIZE)]
MAX_SHOWN = 8  # lengths of texts
TEXTS = ("auto", "padded", "packed", "full", "words", "none")
OPEN_SETTINGS = ("options", "dynamo", "functorch")  # fields of `Compile` with keys of torch
SPELLED_OUT = {  # fields of `Compile` that are one setting of torch, with its place and name there
    "precision_casts": ("options", "emulate_precision_casts"),
    "memory_budget": ("functorch", "activation_memory_budget"),
    "recompile_limit": ("dynamo", "recompile_limit"),
}
# Rungs of the ladder (`sweeper.core.ladder`) that have every one-liner that applies to the model.
BUNDLED_RUNGS = (GRAPHED, "default", "reduce-overhead", "max-autotune")
BUNDLED_AXES = ("optimizer_impl", "cudnn_benchmark")
# Axes that the loop of `Trial.variant` leaves out: those with columns of their own, those in
# `Trial.step`, and the interpreter, which comes last.
UNTOLD = (
    "batch_size", "workload", "mode", "backend", "device", "text.form", "text.labels", "python",
)  # fmt: skip
OF_COMPILING = ("python", "mode", "backend", "compile")  # these leave the eager step alone


def axis(default: Any, key: str = "", choices: Collection[str] = ()) -> Any:
    """A field of a trial, or of a part of it, with what the configuration needs to know.

    `key` is its key there, where it is not the field's own name; `choices` are all values that it
    takes beside None.
    """
    return field(default=default, metadata={"axis": (key, choices)})


@dataclass(frozen=True, slots=True)
class Model:
    """What to build: `library` is a key of `LIBRARIES`, `name` the library's own name, or
    `package.module:function`.
    """

    library: Annotated[str, tuple(LIBRARIES)]
    name: str
    image_size: int | None = None  # pixels of a side; null: the model's own
    sequence_length: int | None = None  # tokens of a text; null: the model's own
    num_classes: int | None = None  # null: the library's own
    dropout: bool = False  # False: every dropout and drop-path rate is 0, in both arms
    # for the constructor of the model or of its configuration
    arguments: Mapping[str, Json] = field(default_factory=dict)
    # channels_last: weights of convolutions and images with the channels innermost, in both arms
    memory_format: str = axis("contiguous", choices=("contiguous", "channels_last"))
    # true: weights from the library's hub, which needs a network or what it has fetched before
    pretrained: bool = False
    # whose weights, with pretrained=true: a name at the library's hub or a folder
    checkpoint: str | None = None
    # true: parameters, buffers and inputs are cast to precision.parameters, also to float32
    cast: bool = False
    # sdpa, eager, flash_attention_2 or flex_attention, of models of transformers; null: the
    # library's choice
    attention: str | None = axis(
        None, choices=("sdpa", "eager", "flash_attention_2", "flex_attention")
    )

    @property
    def key(self) -> str:
        """A key that only equal models share; a model is not hashable, because its arguments are a
        dict.
        """
        return json.dumps(drop_defaults(self), sort_keys=True)

    @property
    def asked_trajectory(self) -> Json:
        """How many steps of a script are to be compared; None: none."""
        return self.arguments.get("trajectory")


def name_module(path: str) -> str | None:
    """The module that the path of a script names, as `python -m` takes it; None for a file."""
    return path.removeprefix(MODULE).strip() if path.startswith(MODULE) else None


def find_script(model: Model) -> Path | None:
    """The file of a user's own script; None for other models, and for a module, of which only
    Python knows the file.
    """
    if model.library != SCRIPT or name_module(model.name) is not None:
        return None
    return Path(str(model.arguments.get("cwd", "."))).absolute() / Path(model.name).expanduser()


@dataclass(frozen=True, slots=True)
class Precision:
    """Number formats of a step. `autocast="auto"` is bfloat16 where the device supports it, else
    float16, and only float16 uses its gradient scaler.
    """

    # of parameters and inputs
    parameters: str = axis("float32", choices=("float32", "bfloat16", "float16"))
    # of operations under autocast; null: no autocast
    autocast: str | None = axis(None, choices=("auto", *HALVES))
    grad_scaler: bool = False  # true: losses are scaled, as float16 needs
    # for products of matrices and convolutions in fp32; null: torch's default of each
    tf32: bool | None = None
    float8: bool = False  # true: torchao's float8 linear layers, in both arms


@dataclass(frozen=True, slots=True)
class Compile:
    """How `torch.compile` is called, beside mode and backend."""

    # true: compiled for any size; false: for each size; null: as torch decides
    dynamic: bool | None = None
    fullgraph: bool = False  # true: a graph break is an error
    # model: the module is wrapped; step: the whole training step; blocks: each of the model's
    # repeated blocks; optimizer: the optimizer's step alone; loss: the loss function alone
    scope: str = axis("model", choices=("model", "step", "blocks", "optimizer", "loss"))
    # options of Inductor, e.g. compile.options.epilogue_fusion=false
    options: Mapping[str, Json] = field(default_factory=dict)
    # settings of torch._dynamo.config, e.g. compile.dynamo.capture_scalar_outputs=true
    dynamo: Mapping[str, Json] = field(default_factory=dict)
    # settings of torch._functorch.config, e.g. compile.functorch.donated_buffer=false
    functorch: Mapping[str, Json] = field(default_factory=dict)
    # how often a function is compiled, until it runs eager; null: torch's
    recompile_limit: Size | None = None
    # above 0, up to 1: the share of activations that is saved for backward, the rest is computed
    # again; null: torch's
    memory_budget: float | None = None
    # true: Inductor's kernels round to half precision wherever eager does
    precision_casts: bool = False
    # of a module that is wrapped for several processes. inside: the module in
    # DistributedDataParallel is compiled, and each block of fully_shard; outside: the wrapper
    wrapper: str = axis("inside", "parallel.compile", ("inside", "outside"))
    # what later processes of a draw start from, after the first: torch's caches on disk, the
    # artifacts of torch.compiler.save_cache_artifacts, Dynamo's precompiled code, or a file of
    # aot_compile
    start: str = axis(
        "local_cache", choices=("local_cache", "mega_cache", "caching_precompile", "aot_compile")
    )

    @property
    def has_optimizer(self) -> bool:
        """Whether the optimizer's step is in what is compiled; then each arm needs an optimizer of
        its own.
        """
        return self.scope in ("step", "optimizer")

    def read_settings(self, place: str) -> dict[str, Json]:
        """Read the settings of `options`, `dynamo` or `functorch`, with fields that are one."""
        settings = dict(getattr(self, place))
        for name, (where, key) in SPELLED_OUT.items():
            value = getattr(self, name)
            if where == place and value:
                settings[key] = value
        return settings

    def list_overrides(self) -> Iterator[str]:
        """List the settings that are not at their default, e.g. `compile.scope=step`."""
        for key, value in drop_defaults(self).items():
            if key not in OPEN_SETTINGS:
                yield f"{AXES[f'compile.{key}'].name}={show_value(value)}"
            else:
                for name in sorted(value):
                    yield f"compile.{key}.{name}={show_value(value[name])}"

    @property
    def asks_for_cuda_graphs(self) -> bool:
        return bool(self.options.get("triton.cudagraphs"))


@dataclass(frozen=True, slots=True)
class Text:
    """How texts come to a language model. Ids leave out defaults, so the defaults never change."""

    # none: full length and no mask; `sweeper.worker.models.texts` has the others
    form: str = axis("none", "text.name", TEXTS)
    lengths: tuple[int, ...] = ()  # tokens of each text, in turn; empty: drawn from the seed
    labels: bool = True  # in inference: whether the model gets labels, and so computes a loss

    def describe_lengths(self) -> str:
        """The lengths as an override has them; of many the first ones and their number."""
        shown = ",".join(map(str, self.lengths[:MAX_SHOWN]))
        if len(self.lengths) <= MAX_SHOWN:
            return f"[{shown}]"
        return f"[{shown},...] ({len(self.lengths)})"


@dataclass(frozen=True, slots=True)
class Labels:
    """Names of the parts of a trial; never part of its identity."""

    model: str
    precision: str
    family: str = "other"
    suite: str | None = None
    # which share of the weighted geomean the precision carries
    weight: Annotated[str, WEIGHTS] | None = None
    # what the user changed on the options of model and precision, e.g. "model.image_size=64"
    overrides: str = ""
    preset: str | None = None  # a file of conf/preset that changed them as well
    rung: str | None = None  # of the ladder, where the trial was made as one: `sweeper.core.ladder`
    feature: str | None = None  # of an ablation, that it leaves out or adds: `core.ablation`
    default_id: str | None = None  # of the trial with which an ablation compares it
    total_steps: Size | None = None  # of the training that the user plans with a script


@dataclass(frozen=True, slots=True)
class Trial:
    """One experiment. `mode="eager"` times eager against eager and has neither backend nor
    options.
    """

    model: Model
    batch_size: Size
    labels: Labels
    workload: str = axis(
        "train", "workload.name", ("train", "inference", "prefill", "decode", SCRIPT)
    )
    precision: Precision = field(default_factory=Precision)
    mode: str = axis("default", "mode.name", MODES)
    backend: str | None = axis("inductor", "backend.name")
    optimizer: str = axis("adam", "optimizer.name", ("adam", "adamw", "sgd", "none"))
    compile: Compile = field(default_factory=Compile)
    device: str = "cuda"  # the type alone: the GPU that ran a trial is not part of it
    # an interpreter with torch and the model libraries; several compare versions; null: this one
    python: str | None = axis(None, "worker.python")
    # A kind of size (batch_size, image_size or sequence_length) and those that the steps go through
    # in turn, in both arms; the field of that name holds the largest.
    vary: Mapping[str, Sequence[Size]] = field(default_factory=dict)
    # default: torch chooses; foreach: all parameters at once; fused: in one kernel; the same in
    # both arms
    optimizer_impl: str = axis("default", "optimizer.impl", ("default", "foreach", "fused"))
    text: Text = field(default_factory=Text)  # of models whose library has texts
    # how many rows of the cache are full before a step of workload=decode
    decode_position: int | None = axis(None, "decode.position")
    # true: cuDNN times its algorithms and takes the fastest, in both arms; on a GPU
    cudnn_benchmark: bool = False
    # how a model of sweeper's trains in several processes. ddp: in DistributedDataParallel; fsdp2:
    # fully_shard on each of its repeated blocks and on the whole
    parallel: str = axis("none", "parallel.name", ("none", "ddp", "fsdp2"))
    # how many processes these are, each with a GPU where there are any; parallel=none has one
    parallel_devices: int | None = axis(None, "parallel.devices")

    @property
    def id(self) -> str:
        """12 hexadecimal digits: SHA-256 of the axes, without fields at their default."""
        canonical = json.dumps(self.axes(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]

    @property
    def known_batch_size(self) -> int | None:
        """The batch size; None for a user's own script, which decides it: `batch_size` says nothing
        there.
        """
        return None if self.workload == SCRIPT else self.batch_size

    @property
    def launch(self) -> Launch | None:
        """What starts its processes, where it trains in several."""
        if count := self.parallel_devices:
            return Launch(TORCHRUN, ("--nproc-per-node", str(count)), count)
        launch = self.model.arguments.get("launch")
        if self.model.library != SCRIPT or launch is None:
            return None
        return Launch.parse(str(launch))

    @property
    def has_loop(self) -> bool:
        """Whether a training loop runs its steps, which `sweeper.worker.scripts` sees from outside:
        a script's, or ours in several processes.
        """
        return self.workload == SCRIPT or self.parallel_devices is not None

    @property
    def num_devices(self) -> int:
        """Devices that it has to itself: on GPUs, one for each of its processes."""
        launch = self.launch
        return launch.processes if launch and self.device != "cpu" else 1

    @property
    def samples_per_step(self) -> float:
        """The batch size, of all processes; where it varies, the mean over steps."""
        of_one = fmean(self.vary.get("batch_size", (self.batch_size,)))
        return of_one * (self.parallel_devices or 1)

    def replace_batch_size(self, size: int) -> Trial:
        """Return the trial with another batch size; varying sizes keep their share of the
        largest.
        """
        if size == self.batch_size:
            return self
        varied = [max(1, one * size // self.batch_size) for one in self.vary.get("batch_size", ())]
        vary = {**self.vary, "batch_size": varied} if varied else self.vary
        return replace(self, batch_size=size, vary=vary)

    def axes(self) -> dict[str, Any]:
        """Return everything that identifies the trial, without fields at their default."""
        axes: dict[str, Any] = drop_defaults(self)
        del axes["labels"]
        return axes

    @property
    def label(self) -> str:
        """A name for people and folders: letters, digits, `.`, `_` and `-` only, at most 100
        characters.
        """
        how = self.mode
        if self.backend not in (None, "inductor"):
            how += f"-{self.backend}"
        if self.labels.rung:
            how = f"rung-{self.labels.rung}"
        if self.labels.feature:
            how += f"-feature-{self.labels.feature}"
        text = f"{self.labels.model}-{self.workload}"
        if self.workload == SCRIPT:  # which decides the rest
            text += f"-{how}"
        else:
            text += f"-{self.labels.precision}-{how}-b{self.batch_size}"
        return re.sub(r"[^A-Za-z0-9._-]+|\.\.+", "_", text).lstrip(".-")[:100]

    @property
    def has_texts(self) -> bool:
        """Whether `text` applies; a decoder with a cache is fed tokens and nothing else."""
        return has_texts(self.model.library) and self.workload not in CACHED

    @property
    def step(self) -> tuple[str, str]:
        """Dropout in training, and how texts come, as overrides; empty where there is none of it.

        `variant` has neither: `name_variants` adds them where trials differ in them.
        """
        dropout = text = ""
        if self.workload == "train":
            dropout = f"model.dropout={show_value(self.model.dropout)}"
        if self.has_texts:
            text = f"text={self.text.form}"
            if self.workload == "inference" and self.text.labels:
                text += "; text.labels=true"
        return dropout, text

    def key_without(self, *paths: str) -> str:
        """A key that trials share which differ in these axes alone, or in those of these parts."""
        kept = []
        for path, value in flatten(self.axes()).items():
            if path not in paths and path.partition(".")[0] not in paths:
                kept.append((path, value))
        return repr(sorted(kept))

    @property
    def variant(self) -> str:
        """Every axis without a column of its own that is not at its default, e.g.
        `compile.scope=step`.
        """
        return "; ".join(filter(None, self._list_changes()))

    def _list_changes(self) -> Iterator[str]:
        if self.labels.preset:
            yield f"preset={self.labels.preset}"
        yield self.labels.overrides
        # defaults that depend on other axes; a decoder's is the last row of its cache
        usual: dict[str, Json] = {"decode_position": (self.model.sequence_length or 0) - 1}
        if self.workload != "train":
            usual["optimizer"] = "none"
        has_all = self.labels.rung in BUNDLED_RUNGS
        for path, axis in AXES.items():
            is_bundled = has_all and path in BUNDLED_AXES
            if axis.owner in (Trial, Text) and path not in UNTOLD and not is_bundled:
                value = attrgetter(path)(self)
                if path == "text.lengths" and value:
                    yield f"{path}={self.text.describe_lengths()}"
                elif value not in (None, usual.get(path, axis.field.default)):
                    yield f"{axis.name}={axis.show(self)}"
        if has_all:  # which ones these are differs from model to model
            yield "free one-liners"
        yield from self.compile.list_overrides()
        for key, sizes in self.vary.items():
            yield f"vary.{key}={','.join(map(str, sizes))}"
        if self.python is not None:
            yield f"worker.python={self.python}"


def name_variants(trials: Sequence[Trial]) -> list[str]:
    """The variant of each trial, with what a step is where trials differ in it, e.g.
    `model.dropout=false; text=auto`. Trials with different steps share no mean.
    """
    differing = set()
    for parts in zip(*(trial.step for trial in trials), strict=True):
        if len(found := {*parts} - {""}) > 1:
            differing |= found
    names = []
    for trial in trials:
        shown = [part for part in trial.step if part in differing]
        names.append("; ".join(filter(None, [trial.variant, *shown])))
    return names


class Axis(NamedTuple):
    """A field of a trial or of a part of it, with what the configuration needs to know."""

    path: str  # in the trial, e.g. `optimizer_impl`, `compile.scope`
    key: str  # in the configuration, e.g. `optimizer.impl`, `compile.scope`
    choices: Collection[str]  # all values that are allowed beside None; empty: any
    field: Field[Any]
    hint: Any
    owner: type  # the dataclass that has the field and its comment

    @property
    def name(self) -> str:
        """What people call it: its key, or the group whose option it names, e.g. `mode`."""
        return self.key.removesuffix(".name")

    def show(self, trial: Trial) -> str:
        """The value that a trial has, as an override has it."""
        value = attrgetter(self.path)(trial)
        if isinstance(value, str):
            return value
        return show_value(value)


def _list_axes(owner: Any, prefix: str = "") -> Iterator[Axis]:
    for name, hint in get_type_hints(owner).items():
        path, found = prefix + name, owner.__dataclass_fields__[name]
        if is_dataclass(hint):
            yield from _list_axes(hint, f"{path}.")
        else:
            key, choices = found.metadata.get("axis", ("", ()))
            yield Axis(path, key or path, choices, found, hint, owner)


AXES = {
    axis.path: axis
    for axis in _list_axes(Trial)
    if axis.owner is not Labels and axis.path != "vary"  # whose keys are sizes
}
