"""The libraries of models: everything that is known of one without importing it.

To add a library, write a builder module, for which `sweeper.worker.models.Builder` is the pattern,
and put a `LibrarySpec` into `LIBRARIES`. No other module names a library.
"""

import importlib.metadata
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LibrarySpec:
    """What the configuration, the checks, the worker and doctor need to know about a library of
    models.
    """

    builder: str  # the module that builds its models; only the worker imports it
    example: str  # a setting that names one of its models
    all_models: str = ""  # where the names of all its models can be read
    packages: tuple[str, ...] = ()  # of which records, sweep.json and doctor give the versions
    named_by: str = "name"  # the key of `conf/model` that holds the model's name
    # kinds of size that its inputs have and `vary` may change, beside batch_size
    input_sizes: tuple[str, ...] = ()
    # of a library whose pretrained models need `model.checkpoint`
    example_checkpoint: str | None = None
    has_decoders: bool = False  # whether workload=prefill and decode are for its models
    # whether `model.attention` chooses the implementation of its models' attention
    takes_attention: bool = False
    # why its models take no sizes, classes, arguments or weights; None: they do
    no_settings: str | None = None


CUSTOM = "custom"  # a factory of a user's own
SCRIPT = "script"  # a user's own training script, which is its workload as well

LIBRARIES = {
    "torchvision": LibrarySpec(
        builder="sweeper.worker.models.torchvision_models",
        example="model.name=densenet121",
        all_models="python -c 'import torchvision; print(*torchvision.models.list_models(), "
        'sep="\\n")\'',
        packages=("torchvision",),
        input_sizes=("image_size",),
    ),
    "timm": LibrarySpec(
        builder="sweeper.worker.models.timm_models",
        example="model.name=convnext_tiny",
        all_models="python -c 'import timm; print(*timm.list_models(), sep=\"\\n\")'",
        packages=("timm",),
        input_sizes=("image_size",),
    ),
    "transformers": LibrarySpec(
        builder="sweeper.worker.models.transformers_models",
        example="model.name=ModernBertForMaskedLM",
        all_models="the model classes of `transformers`, e.g. BertForMaskedLM",
        packages=("transformers",),
        input_sizes=("sequence_length",),
        example_checkpoint="google-bert/bert-base-uncased",
        has_decoders=True,
        takes_attention=True,
    ),
    "diffusers": LibrarySpec(
        builder="sweeper.worker.models.diffusers_models",
        example="model.name=UNet2DModel",
        all_models="the networks of `diffusers`, e.g. UNet2DConditionModel",
        packages=("diffusers",),
        input_sizes=("image_size",),
    ),
    "torchbench": LibrarySpec(
        builder="sweeper.worker.models.torchbench_models",
        example="model.name=BERT_pytorch",
        all_models="the folders of `torchbenchmark/models`, e.g. BERT_pytorch",
        no_settings="TorchBench gives module and inputs",
    ),
    CUSTOM: LibrarySpec(
        builder="sweeper.worker.models.custom_models",
        example="model.factory=my_package.my_module:build",
        named_by="factory",
        no_settings="the factory gets batch_size and device only",
    ),
    SCRIPT: LibrarySpec(
        builder="sweeper.worker.scripts.builder",
        example="model.path=train.py",
        named_by="path",
        no_settings="the script builds its model by itself",
    ),
}


def has_texts(library: str) -> bool:
    """Whether models of a library read texts, so that `text` applies to them."""
    return "sequence_length" in LIBRARIES[library].input_sizes


def library_packages() -> list[str]:
    """Distributions of all libraries, each once, in the order of `LIBRARIES`."""
    return list(dict.fromkeys(package for spec in LIBRARIES.values() for package in spec.packages))


def read_versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of the distributions that are installed, which are not imported for it."""
    versions = {}
    for package in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions
