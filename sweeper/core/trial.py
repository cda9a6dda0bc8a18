"""A trial: one point of the grid, the same value in the driver, in the worker and in the record.

The id is a hash of the axes alone, so the same experiment has the same id in every sweep.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

from .backends import GRAPHED
from .libraries import LIBRARIES, SCRIPT, has_texts
from .serialization import Between, Json, drop_defaults, from_json, show_value, to_json

MODULE = "-m "  # begins the name of a script that is a module
MIN_TRAJECTORY = 20  # calls of a script's module, to compare its training with another
OWN_PRECISION = "own"  # the name of what a script decides
WORKLOADS = ("train", "inference", "prefill", "decode", SCRIPT)
CACHED = ("prefill", "decode")  # forwards of a decoder language model with a static key-value cache
MODES = (
    "eager",
    "lite",
    "default",
    "reduce-overhead",
    "max-autotune",
    "max-autotune-no-cudagraphs",
)
OPTIMIZERS = ("adam", "adamw", "sgd", "none")
OPTIMIZER_IMPLS = ("default", "foreach", "fused")
MEMORY_FORMATS = ("contiguous", "channels_last")
SCOPES = ("model", "step", "blocks", "optimizer", "loss")
PARAMETER_DTYPES = ("float32", "bfloat16", "float16")
HALVES = ("bfloat16", "float16")
AUTOCASTS = ("auto", *HALVES)
WEIGHTS = ("amp", "fp32")
MAX_SIZE = 2**53
Size = Annotated[int, Between(1, MAX_SIZE)]
MAX_SHOWN = 8  # lengths of texts
TEXTS = ("auto", "padded", "packed", "full", "words", "none")
PRECISION_CASTS = "emulate_precision_casts"  # Inductor's own name for `Compile.precision_casts`
# Rungs of the ladder (`sweeper.core.ladder`) that have every one-liner that applies to the model.
BUNDLED_RUNGS = (GRAPHED, "default", "reduce-overhead", "max-autotune")
ATTENTIONS = ("sdpa", "eager", "flash_attention_2", "flex_attention")


@dataclass(frozen=True, slots=True)
class Model:
    """What to build: `library` is a key of `LIBRARIES`, `name` the library's own name, or
    `package.module:function`.
    """

    library: Annotated[str, tuple(LIBRARIES)]
    name: str
    image_size: int | None = None  # pixels per side; None: the model's own
    sequence_length: int | None = None  # tokens
    num_classes: int | None = None
    dropout: bool = False  # False: every dropout and drop-path rate is 0, in both arms
    # for the library's constructor or configuration
    arguments: Mapping[str, Json] = field(default_factory=dict)
    memory_format: str = "contiguous"  # of weights and images
    pretrained: bool = False  # True: the weights that the library's hub has, else random ones
    # the source of pretrained weights, where a library has several sets
    checkpoint: str | None = None
    # True: parameters, buffers and inputs get the precision's format, also float32
    cast: bool = False
    attention: str | None = None  # the implementation of attention; None: the library's choice

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
    float16.
    """

    parameters: str = "float32"
    autocast: str | None = None
    grad_scaler: bool = False  # with autocast="auto", used only where autocast is float16
    tf32: bool | None = None  # None: torch's defaults
    float8: bool = False  # True: torchao's float8 linear layers, in both arms


@dataclass(frozen=True, slots=True)
class Compile:
    """How `torch.compile` is called, beside mode and backend."""

    dynamic: bool | None = None
    fullgraph: bool = False
    # model: the module is wrapped; step: the whole training step; blocks: the model's repeated
    # blocks; optimizer: its step alone; loss: the loss function alone
    scope: str = "model"
    # Inductor options, nested keys joined by "."
    options: Mapping[str, Json] = field(default_factory=dict)
    # share of the activations that are saved for backward; None: torch's default
    memory_budget: float | None = None
    precision_casts: bool = False  # fused kernels round to half precision where eager does

    @property
    def has_optimizer(self) -> bool:
        """Whether the optimizer's step is in what is compiled; then each arm needs an optimizer of
        its own.
        """
        return self.scope in ("step", "optimizer")

    @property
    def asks_for_cuda_graphs(self) -> bool:
        return bool(self.options.get("triton.cudagraphs"))


@dataclass(frozen=True, slots=True)
class Text:
    """How texts come to a language model. Ids leave out defaults, so the defaults never change."""

    # none: full length and no mask; `sweeper.worker.models.texts` has the others
    form: str = "none"
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
    total_steps: Size | None = None  # of the training that the user plans with a script


@dataclass(frozen=True, slots=True)
class Trial:
    """One experiment. `mode="eager"` times eager against eager and has neither backend nor
    options.
    """

    model: Model
    batch_size: Size
    labels: Labels
    workload: str = "train"
    precision: Precision = field(default_factory=Precision)
    mode: str = "default"
    backend: str | None = "inductor"
    optimizer: str = "adam"
    compile: Compile = field(default_factory=Compile)
    device: str = "cuda"  # the type alone: the GPU that ran a trial is not part of it
    # the workers' interpreter, with a torch of its own; None: the driver's
    python: str | None = None
    # A kind of size (batch_size, image_size or sequence_length) and those that the steps go through
    # in turn, in both arms; the field of that name holds the largest.
    vary: Mapping[str, Sequence[Size]] = field(default_factory=dict)
    optimizer_impl: str = "default"  # default: as torch chooses; foreach, fused
    text: Text = field(default_factory=Text)  # of models whose library has texts
    # how many rows of the cache are full before a step of workload=decode
    decode_position: int | None = None
    # True: cuDNN times its algorithms and takes the fastest, in both arms
    cudnn_benchmark: bool = False

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
    def samples_per_step(self) -> float:
        """The batch size; where it varies, the mean over steps."""
        return fmean(self.vary.get("batch_size", (self.batch_size,)))

    def replace_batch_size(self, size: int) -> Trial:
        """Return the trial with another batch size; varying sizes keep their share of the
        largest.
        """
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
        how = self.mode if self.backend in (None, "inductor") else f"{self.mode}-{self.backend}"
        if self.labels.rung:
            how = f"rung-{self.labels.rung}"
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

    @property
    def variant(self) -> str:
        """Every axis without a column of its own that is not at its default, e.g.
        `compile.scope=step`.
        """
        usual_optimizer = "adam" if self.workload == "train" else "none"
        last_row = (self.model.sequence_length or 0) - 1  # of the cache, the default
        # which ones these are differs from model to model
        has_all = self.labels.rung in BUNDLED_RUNGS
        has_impl = self.optimizer_impl != "default" and not has_all
        is_told = {  # what the variant says, and whether it does
            f"preset={self.labels.preset}": self.labels.preset,
            self.labels.overrides: self.labels.overrides,
            f"optimizer={self.optimizer}": self.optimizer != usual_optimizer,
            f"optimizer.impl={self.optimizer_impl}": has_impl,
            f"decode.position={self.decode_position}": self.decode_position not in (None, last_row),
            f"text.lengths={self.text.describe_lengths()}": self.text.lengths,
            "cudnn_benchmark=true": self.cudnn_benchmark and not has_all,
            "free one-liners": has_all,
        }
        parts = [part for part, is_so in is_told.items() if is_so]
        for key, value in drop_defaults(self.compile).items():
            if key == "options":
                parts += (
                    f"compile.options.{name}={show_value(value[name])}" for name in sorted(value)
                )
            else:
                parts.append(f"compile.{key}={show_value(value)}")
        parts += (f"vary.{key}={','.join(map(str, sizes))}" for key, sizes in self.vary.items())
        if self.python is not None:
            parts.append(f"worker.python={self.python}")
        return "; ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Return the whole trial, labels included, as JSON values."""
        return dict(to_json(self))

    @staticmethod
    def from_json(data: Any) -> Trial:
        """The inverse of `to_json`. Raises ValueError on unknown or missing keys."""
        return from_json(Trial, data)


def name_variants(trials: Sequence[Trial]) -> list[str]:
    """The variant of each trial, with what a step is where trials differ in it, e.g.
    `model.dropout=false; text=auto`. Trials with different steps share no mean.
    """
    steps = [trial.step for trial in trials]
    differ = [len({*parts} - {""}) > 1 for parts in zip(*steps, strict=True)]
    names = []
    for trial, step in zip(trials, steps, strict=True):
        shown = [part for part, differs in zip(step, differ, strict=True) if differs]
        names.append("; ".join(filter(None, [trial.variant, *shown])))
    return names
