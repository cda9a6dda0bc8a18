"""The schema of the configuration: the groups of `conf/` as typed fields, and where these files
are.

Hydra checks every YAML file against `Config`, so an unknown key or a wrong type fails before
anything runs.
"""

from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from sweeper.core.settings import Settings


@dataclass
class ModelConf:
    """`conf/model/*.yaml`: what to build."""

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
    cwd: str | None = None  # the folder in which the script runs; null: where sweeper is started
    # steps of the script in which compiled and eager training are compared; at least 20
    trajectory: int | None = None
    # Steps of the training that you plan with the script: the report says what compiling saves over
    # them; null: unknown
    total_steps: int | None = None
    family: str = "other"  # cnn, vit, nlp, ...: a row of summary.csv
    suite: str | None = None  # timm, huggingface, torchbench, ...: a row of summary.csv
    image_size: int | None = None  # pixels of a side; null: the model's own
    sequence_length: int | None = None  # tokens of a text; null: the model's own
    num_classes: int | None = None  # null: the library's own
    # Dropout and drop-path; true, and null in training: as the library builds the model; false: all
    # rates are 0
    dropout: bool | None = None
    # for the constructor of the model or of its configuration
    arguments: dict[str, Any] = field(default_factory=dict)
    # channels_last: weights of convolutions and images with the channels innermost, in both arms
    memory_format: str = "contiguous"
    # true: weights from the library's hub, which needs a network or what it has fetched before
    pretrained: bool = False
    # whose weights, with pretrained=true: a name at the library's hub or a folder
    checkpoint: str | None = None
    # true: parameters, buffers and inputs are cast to precision.parameters, also to float32
    cast: bool = False
    # sdpa, eager, flash_attention_2 or flex_attention, of models of transformers; null: the
    # library's choice
    attention: str | None = None


@dataclass
class NamedConf:
    """`conf/mode`, `conf/backend`, `conf/workload`: a name."""

    name: str = MISSING


@dataclass
class OptimizerConf:
    """`conf/optimizer/*.yaml`."""

    name: str = MISSING
    # default: torch chooses; foreach: all parameters at once; fused: in one kernel; the same in
    # both arms
    impl: str = "default"


@dataclass
class PrecisionConf:
    """`conf/precision/*.yaml`; see `sweeper.core.trial.Precision`."""

    parameters: str = "float32"  # of parameters and inputs
    autocast: str | None = None  # of operations under autocast; null: no autocast
    # what autocast=auto means; null: bfloat16 where the device has it, else float16
    auto: str | None = None
    grad_scaler: bool = False  # true: losses are scaled, as float16 needs
    # for products of matrices and convolutions in fp32; null: torch's default of each
    tf32: bool | None = None
    float8: bool = False  # true: torchao's float8 linear layers, in both arms
    # amp or fp32: the share of the weighted geomean that this option carries
    weight: str | None = None


@dataclass
class CompileConf:
    """Arguments of `torch.compile` beside mode and backend."""

    # true: compiled for any size; false: for each size; null: as torch decides
    dynamic: bool | None = None
    fullgraph: bool = False  # true: a graph break is an error
    # model: the module is wrapped; step: the whole training step; blocks: each of the model's
    # repeated blocks; optimizer: the optimizer's step alone; loss: the loss function alone
    scope: str = "model"
    # Options of Inductor, e.g. compile.options.epilogue_fusion=false
    options: dict[str, Any] = field(default_factory=dict)
    # Above 0, up to 1: the share of activations that is saved for backward, the rest is computed
    # again; null: torch's
    memory_budget: float | None = None
    # true: Inductor's kernels round to half precision wherever eager does
    precision_casts: bool = False


@dataclass
class TextConf:
    """`conf/text/*.yaml`: how texts come to a language model; other models ignore it."""

    name: str = MISSING
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
class WorkerConf:
    """What runs a trial."""

    # An interpreter with torch and the model libraries; several compare versions; null: this one
    python: str | None = None


@dataclass
class Config(Settings):
    """Everything that can be overridden on the command line."""

    sweep: str = MISSING  # its folder is runs/SWEEP/; without a name it gets one
    batch_size: int | None = None  # null: the model's own
    # true: cuDNN times its algorithms and takes the fastest, in both arms; on a GPU
    cudnn_benchmark: bool = False
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
    worker: WorkerConf = field(default_factory=WorkerConf)


GROUPS = (
    "model",
    "mode",
    "backend",
    "precision",
    "workload",
    "optimizer",
    "text",
    "measure",
    "tracking",
)

ConfigStore.instance().store(name="sweeper_schema", node=Config)


def keys(schema: Any = Config, prefix: str = "") -> list[str]:
    """List every key that can be overridden, dotted, e.g. `compile.scope`."""
    found = []
    for entry in fields(schema):
        nested = entry.default_factory
        found += [
            f"{prefix}{entry.name}",
            *(keys(nested, f"{prefix}{entry.name}.") if is_dataclass(nested) else ()),
        ]
    return found


def conf_folder() -> Path:
    """Return the folder of YAML groups: beside the package in a checkout, inside it when installed
    from a wheel.
    """
    package = Path(__file__).resolve().parents[1]
    packaged = package / "conf"
    return packaged if packaged.is_dir() else package.parent / "conf"
