"""The schema of the configuration: the groups of `conf/` as typed fields, and where these files
are.

Hydra checks every YAML file against `Config`, so an unknown key or a wrong type fails before
anything runs. Keys that are axes of a trial come from `core.trial`. A group declares other keys,
and axes that it takes in another form.
"""

import copy
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_origin

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from sweeper.core import ablation
from sweeper.core.ladder import RUNGS
from sweeper.core.libraries import LIBRARIES
from sweeper.core.settings import CLOCKS, RETRIES, Settings
from sweeper.core.trial import AXES, HALVES, WEIGHTS


def with_axes(group: str) -> Callable[[type], type]:
    """Give the class of a group, before its own fields, the axes that have their keys in it; the
    empty group is the top level.
    """

    def add(cls: type) -> type:
        own, inherited = cls.__annotations__, getattr(cls, "__dataclass_fields__", ())
        hints: dict[str, Any] = {}
        for axis in AXES.values():
            parent, _, name = axis.key.rpartition(".")
            if parent == group and name not in inherited:
                # OmegaConf knows no other mappings
                hints[name] = dict[str, Any] if get_origin(axis.hint) is Mapping else axis.hint
                if name not in own:
                    setattr(cls, name, copy.copy(axis.field))
        cls.__annotations__ = hints | own
        return cls

    return add


@dataclass
class NamedModelConf:
    """Keys of `conf/model/*.yaml` that say which model it is."""

    # timm, torchvision, transformers, diffusers, torchbench, custom or script
    library: str = MISSING
    batch_size: int = MISSING  # used when the top-level batch_size is null
    name: str | None = None  # the library's own name
    # a model of your own: package.module:function or FILE.py:function, called with (batch_size,
    # device)
    factory: str | None = None
    # A training script of your own: a file, or "-m package.module"
    path: str | None = None
    args: str = ""  # arguments of the script, as you would type them after its name
    # what starts the script's processes, e.g. "torchrun --nproc-per-node 2"; null: python alone
    launch: str | None = None
    cwd: str | None = None  # the folder in which the script runs; null: where sweeper is started
    # steps of the script in which compiled and eager training are compared; at least 20
    trajectory: int | None = None
    # Steps of the training that you plan with the script: the report says what compiling saves over
    # them; null: unknown
    total_steps: int | None = None
    family: str = "other"  # cnn, vit, nlp, ...: a row of summary.csv
    suite: str | None = None  # timm, huggingface, torchbench, ...: a row of summary.csv


@dataclass
@with_axes("model")
class ModelConf(NamedModelConf):
    """`conf/model/*.yaml`: what to build."""

    # Dropout and drop-path; true, and null in training: as the library builds the model; false: all
    # rates are 0
    dropout: bool | None = None


@dataclass
class NamedConf:
    """`conf/mode`, `conf/backend`, `conf/workload`: a name."""

    name: str = MISSING


@dataclass
@with_axes("optimizer")
class OptimizerConf(NamedConf):
    """`conf/optimizer/*.yaml`."""


@dataclass
@with_axes("precision")
class PrecisionConf:
    """`conf/precision/*.yaml`; see `sweeper.core.trial.Precision`."""

    # what autocast=auto means; null: bfloat16 where the device has it, else float16
    auto: str | None = None
    # amp or fp32: the share of the weighted geomean that this option carries
    weight: str | None = None


@dataclass
@with_axes("compile")
class CompileConf:
    """Arguments of `torch.compile` beside mode and backend."""


@dataclass
@with_axes("text")
class TextConf(NamedConf):
    """`conf/text/*.yaml`: how texts come to a language model; other models ignore it."""

    # Tokens of each text, in turn: a list, or a file of whole numbers; null: drawn from the seed
    lengths: Any = None
    labels: bool = False  # true: the model gets labels in inference too, and computes its loss


@dataclass
class VaryConf:
    """Sizes that the steps of both arms go through in turn, e.g. vary.sequence_length=[64,96,128];
    one key of these.
    """

    batch_size: list[int] | None = None  # batches of these sizes in turn; null: of one size
    image_size: list[int] | None = None  # images of these sizes in turn
    sequence_length: list[int] | None = None  # texts of these lengths in turn


@dataclass
@with_axes("decode")
class DecodeConf:
    """Settings of workload=decode; the cache has model.sequence_length rows."""

    position: int | None = None  # how many rows are full before each step; null: all but the last


@dataclass
class RungConf:
    """`conf/rung/*.yaml`: a rung of the ladder, which chooses mode, backend and the free
    one-liners.
    """

    name: str | None = None


@dataclass
@with_axes("parallel")
class ParallelConf:
    """`conf/parallel/*.yaml`: in how many processes a model trains, and what is compiled there."""


@dataclass
@with_axes("worker")
class WorkerConf:
    """What runs a trial."""


@dataclass
@with_axes("")
class Config(Settings):
    """Everything that can be overridden on the command line."""

    sweep: str = MISSING  # its folder is runs/SWEEP/; without a name it gets one
    batch_size: int | None = None  # null: the model's own
    model: ModelConf = field(default_factory=ModelConf)
    mode: NamedConf = field(default_factory=NamedConf)
    backend: NamedConf = field(default_factory=NamedConf)
    precision: PrecisionConf = field(default_factory=PrecisionConf)
    workload: NamedConf = field(default_factory=NamedConf)
    optimizer: OptimizerConf = field(default_factory=OptimizerConf)
    compile: CompileConf = field(default_factory=CompileConf)
    text: TextConf = field(default_factory=TextConf)
    vary: VaryConf = field(default_factory=VaryConf)
    decode: DecodeConf = field(default_factory=DecodeConf)
    rung: RungConf = field(default_factory=RungConf)  # null: none; see experiment=ladder
    # a feature of Inductor that is left out, or added where it is off by default; null: none; see
    # experiment=ablation
    feature: str | None = None
    parallel: ParallelConf = field(default_factory=ParallelConf)
    worker: WorkerConf = field(default_factory=WorkerConf)


# Values allowed for a key that is not null.
CHOICES: Mapping[str, Collection[str]] = {
    "retry": RETRIES,
    "measure.clock": CLOCKS,
    "model.library": LIBRARIES,
    "precision.auto": HALVES,
    "precision.weight": WEIGHTS,
    "rung.name": RUNGS,
    "feature": ablation.FEATURES,
    **{axis.key: axis.choices for axis in AXES.values() if axis.choices},
}

ConfigStore.instance().store(name="sweeper_schema", node=Config)


def conf_folder() -> Path:
    """Return the folder of YAML groups: beside the package in a checkout, inside it when installed
    from a wheel.
    """
    package = Path(__file__).resolve().parents[1]
    packaged = package / "conf"
    return packaged if packaged.is_dir() else package.parent / "conf"
