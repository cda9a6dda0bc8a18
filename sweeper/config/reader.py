"""The step from a composed `DictConfig` to a `Trial` and `Settings`; `schema` says what may be in
it.

Try: `python -m sweeper --cfg job model=vit_b16 precision=amp`
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig, MissingMandatoryValue, OmegaConf

from sweeper.core import ablation, ladder
from sweeper.core.errors import MAX_LISTED, ConfigError, nearest
from sweeper.core.libraries import LIBRARIES, SCRIPT, has_texts
from sweeper.core.serialization import drop_defaults, flatten, show_value
from sweeper.core.settings import Settings, check_settings
from sweeper.core.trial import (
    AXES,
    BUNDLED_AXES,
    CACHED,
    MAX_SIZE,
    OPEN_SETTINGS,
    SPELLED_OUT,
    Compile,
    Labels,
    Model,
    Precision,
    Text,
    Trial,
)

from .reference import read_keys
from .schema import CHOICES, Config
from .scripts import ONLY_OF_SCRIPT, read_script

# axes that a rung chooses
CHOSEN_BY_RUNG = ("mode", "backend", "model.memory_format", *BUNDLED_AXES)
POSITIVE = (
    "model.image_size",
    "model.sequence_length",
    "model.num_classes",
    "model.total_steps",
    "decode.position",
)

Choices = Mapping[str, str | None]  # the option of each group, see `hydra.runtime.choices`
OwnValues = Mapping[str, Mapping[str, Any]]  # what the file of each group's option says

# Keys of an option that have a column of their own or only change how people call a trial.
LABELS = ("name", "factory", "batch_size", "family", "suite", "weight", "dropout")


@dataclass(frozen=True)
class GridPoint:
    """One point of the grid: what to run and how."""

    trial: Trial
    settings: Settings


def read(cfg: DictConfig, choices: Choices, own: OwnValues, gpu: bool) -> GridPoint:
    """Turn a composed configuration into a trial and settings.

    `choices` maps a group to the option chosen (`hydra.runtime.choices`), `own` a group to what
    that option's file says, `gpu` is what `device=null` means. Raises ConfigError for values that
    make no sense.
    """
    if unknown := next(_list_unknown(cfg, Config()), None):
        raise ConfigError(f"{unknown}: there is no such key; {nearest(unknown, read_keys())}")
    try:
        config: Any = OmegaConf.to_object(cfg)
    except MissingMandatoryValue as error:
        missing, model = ", ".join(sorted(OmegaConf.missing_keys(cfg))), choices.get("model")
        raise ConfigError(
            f"{missing}: no value given, and there is no default (model={model})"
        ) from error
    for key, allowed in CHOICES.items():
        value = attrgetter(key)(config)
        if value is not None and value not in allowed:
            known = f"allowed are {', '.join(allowed)}"
            if len(allowed) > MAX_LISTED:
                known = nearest(value, allowed)
            raise ConfigError(f"{key}={value}: {known}")
    for key in POSITIVE:
        _check_positive(key, attrgetter(key)(config))
    for path in CHOSEN_BY_RUNG:
        axis = AXES[path]
        value = attrgetter(axis.key)(config)
        if config.rung.name and value != axis.field.default:
            raise ConfigError(
                f"rung={config.rung.name} chooses {axis.name} itself: leave "
                f"{axis.name}={show_value(value)} out"
            )
    if config.model.factory is not None:
        config.model.factory = name_factory(config.model.factory)
    settings = Settings(*(getattr(config, entry.name) for entry in fields(Settings)))
    trial = _read_trial(config, choices, own, gpu)
    if settings.inspect and trial.parallel != "none":
        raise ConfigError(f"inspect=true is for parallel=none, this is {trial.parallel}")
    settings = check_settings(settings)
    start, measure = trial.compile.start, settings.measure
    if start != "local_cache" and measure.target is None and measure.per_draw < 2:
        raise ConfigError(
            f"measure.processes={measure.processes}: compile.start={start} is for later processes, "
            "and there are none; take measure.processes=2 or more"
        )
    return GridPoint(trial, settings)


def _read_axes(owner: type, config: Config) -> dict[str, Any]:
    """Read the axes of a trial, or of a part of it, by the names of their fields."""
    found = {}
    for axis in AXES.values():
        if axis.owner is owner:
            found[axis.field.name] = attrgetter(axis.key)(config)
    return found


def _list_unknown(cfg: DictConfig, schema: Any, prefix: str = "") -> Iterator[str]:
    """Keys that `+key=value` has added where the schema has a fixed set."""
    for key in map(str, cfg):
        if key not in vars(schema):
            yield f"{prefix}{key}"
        elif is_dataclass(vars(schema)[key]):
            yield from _list_unknown(cfg[key], vars(schema)[key], f"{prefix}{key}.")


def _check_positive(key: str, value: int | None) -> None:
    if value is not None and not 1 <= value <= MAX_SIZE:
        allowed = "at least 1" if value < 1 else f"at most {MAX_SIZE}"
        raise ConfigError(f"{key}={value}: it must be a whole number of {allowed}, e.g. {key}=8")


def _read_trial(config: Config, choices: Choices, own: OwnValues, gpu: bool) -> Trial:
    asked = _read_axes(Trial, config)
    if config.mode.name == "eager":
        asked["backend"] = None
    if config.model.library == SCRIPT:
        trial = read_script(config, choices)
    else:
        trial = _read_model_trial(config, asked, choices, own)
    compiling, device, python = _read_compile(config), config.device, asked["python"]
    if device is None:
        device = "cuda" if gpu else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise ConfigError(
            f"device={device}: allowed are cpu, cuda (every visible GPU) and cuda:N, e.g. "
            "device=cuda:1"
        )
    if python is not None:
        # links stay, since the interpreter of a virtual environment is a link
        path = Path(python).expanduser().absolute()
        if not (path.is_file() and os.access(path, os.X_OK)):
            raise ConfigError(
                f"worker.python={python}: there is no program {path}; give the path of an "
                "interpreter"
            )
        python = str(path)
    trial = replace(
        trial,
        mode=config.mode.name,
        backend=asked["backend"],
        compile=compiling,
        device=device.partition(":")[0],
        python=python,
    )
    if trial.cudnn_benchmark and trial.device == "cpu":
        raise ConfigError(
            "cudnn_benchmark=true is for a GPU: with device=cpu no operation runs in cuDNN"
        )
    if config.rung.name is not None:
        trial = ladder.climb(trial, config.rung.name)
    return trial if config.feature is None else _read_feature(trial, config.feature)


def _read_feature(trial: Trial, name: str) -> Trial:
    """Leave out or add a feature. Raises ConfigError where its setting is given too."""
    key = ablation.FEATURES[name].key
    if key in flatten(drop_defaults(trial.compile)):
        raise ConfigError(f"feature={name} sets compile.{key}: leave one of them out")
    return ablation.change(trial, name)


def _read_model_trial(
    config: Config, asked: dict[str, Any], choices: Choices, own: OwnValues
) -> Trial:
    """Read everything but how and where the model is compiled, which `_read_trial` adds."""
    if given := [f"model.{name}" for name in ONLY_OF_SCRIPT if getattr(config.model, name)]:
        raise ConfigError(f"{', '.join(given)}: only with model=script")
    workload, impl = config.workload.name, asked["optimizer_impl"]
    if workload != "train":
        asked |= {"optimizer": "none", "optimizer_impl": "default"}
    elif config.optimizer.name == "none" and impl != "default":
        raise ConfigError(
            f"optimizer.impl={impl}: with optimizer=none there is nothing to choose; take "
            "optimizer=adam"
        )
    vary = _read_vary(config)
    largest: dict[str, Any] = {key: max(sizes) for key, sizes in vary.items()}
    batch_size = largest.pop("batch_size", config.model.batch_size)
    if config.batch_size is not None:
        batch_size = config.batch_size
    _check_positive("batch_size", batch_size)
    devices = asked["parallel_devices"]
    if asked["parallel"] == "none":  # of a grid with others, to which the number belongs
        asked["parallel_devices"] = None
    elif devices is None or devices < 2:
        raise ConfigError(
            f"parallel.devices={show_value(devices)}: parallel={asked['parallel']} takes a whole "
            "number from 2 on"
        )
    precision = Precision(**_read_axes(Precision, config))
    if precision.autocast == "auto" and config.precision.auto:
        precision = replace(precision, autocast=config.precision.auto)
    if precision.grad_scaler and precision.autocast not in ("auto", "float16"):
        raise ConfigError("precision.grad_scaler=true is for precision.autocast=auto or float16")
    if precision.float8 and workload != "train":
        raise ConfigError(
            "precision.float8=true is for workload=train: torchao converts the layers for training"
        )
    dropout = config.model.dropout
    if dropout is None:  # on where the model trains, as everyone's is; evaluation has none
        dropout = workload == "train"
    asked |= {
        "model": _read_model(config, {"dropout": dropout, **largest}, choices, own["model"]),
        "batch_size": batch_size,
        "labels": _read_labels(config, choices, own),
        "precision": precision,
        "vary": vary,
        "text": _read_text(config),
        "decode_position": _read_decode_position(config),
    }
    return Trial(**asked)


def _read_compile(config: Config) -> Compile:
    if config.mode.name == "eager":  # which ignores them
        return Compile()
    asked = Compile(**_read_axes(Compile, config))
    flat: dict[str, Any] = {name: flatten(getattr(asked, name)) for name in OPEN_SETTINGS}
    if asked.memory_budget is not None and not 0 < asked.memory_budget <= 1:
        raise ConfigError(
            f"compile.memory_budget={asked.memory_budget}: it must be above 0 and at most 1, e.g. "
            "0.5"
        )
    _check_positive("compile.recompile_limit", asked.recompile_limit)
    for name, (place, key) in SPELLED_OUT.items():
        if getattr(asked, name) and key in flat[place]:
            raise ConfigError(f"compile.{name} and compile.{place}.{key} are one switch: give one")
    return replace(asked, **flat)


def _read_vary(config: Config) -> dict[str, list[int]]:
    """The key whose sizes the steps go through, and these sizes; empty when all steps have one
    size.
    """
    given = {key: sizes for key, sizes in vars(config.vary).items() if sizes is not None}
    if len(given) > 1:
        raise ConfigError(f"vary: one of {', '.join(given)} at a time")
    library = config.model.library
    for key, sizes in given.items():
        for size in sizes:
            _check_positive(f"vary.{key}", size)
        if len(set(sizes)) < 2:
            raise ConfigError(
                f"vary.{key}={sizes}: give two sizes or more, e.g. vary.{key}=[16,32]"
            )
        if key != "batch_size" and key not in LIBRARIES[library].input_sizes:
            allowed = ", ".join(name for name, spec in LIBRARIES.items() if key in spec.input_sizes)
            raise ConfigError(
                f"vary.{key}: model.library={library} has none; allowed are {allowed}"
            )
    if "batch_size" in given and config.batch_size is not None:
        raise ConfigError(
            "batch_size and vary.batch_size: give one of them; the largest of vary.batch_size is "
            "taken"
        )
    return given


def _read_text(config: Config) -> Text:
    """How texts come; training always has labels, so there the setting says nothing."""
    if not has_texts(config.model.library) or config.workload.name in CACHED:
        return Text()
    form, lengths = config.text.name, _read_lengths(config.text.lengths)
    if lengths and form in ("full", "none"):
        raise ConfigError(
            f"text.lengths: text={form} is of full length; take text=padded, packed or words"
        )
    rows = attrgetter("model.sequence_length")(config)
    if rows is not None and form in ("padded", "words") and max(lengths, default=0) > rows:
        raise ConfigError(
            f"text.lengths: the longest has {max(lengths)} tokens, and model.sequence_length is "
            f"{rows}"
        )
    labels = config.text.labels or config.workload.name == "train"
    return Text(**_read_axes(Text, config) | {"lengths": lengths, "labels": labels})


def _read_lengths(given: Any) -> tuple[int, ...]:
    """The lengths that were given, in a list or in a file."""
    if given is None:
        return ()
    example = "give whole numbers of at least 1, e.g. text.lengths=[100,37,512], or a file of them"
    if isinstance(given, str):
        try:
            words = Path(given).expanduser().read_text(encoding="utf-8").split()
            given = [int(word) for word in words]
        except (OSError, ValueError) as error:
            raise ConfigError(f"text.lengths={given}: {error}; {example}") from error
    numbers = given if isinstance(given, list) else [given]
    if not numbers or not all(type(number) is int and number > 0 for number in numbers):
        raise ConfigError(f"text.lengths={given}: {example}")
    return tuple(numbers)


def _read_decode_position(config: Config) -> int | None:
    """The fill level of workload=decode; None for others. Raises ConfigError for a model or sizes
    without a cache.
    """
    workload, rows = config.workload.name, attrgetter("model.sequence_length")(config)
    if workload not in CACHED or not LIBRARIES[config.model.library].has_decoders:
        return None
    if config.vary.batch_size is not None:
        raise ConfigError(
            f"vary.batch_size: workload={workload} has a cache of one batch size; sweep "
            "batch_size=8,16"
        )
    if workload != "decode":
        return None
    if config.vary.sequence_length is not None:
        raise ConfigError(
            "vary.sequence_length: a step of workload=decode has one token per sequence; sweep "
            "decode.position=100,200 or model.sequence_length=256,512"
        )
    if rows is None or rows < 2:
        raise ConfigError(
            "workload=decode needs model.sequence_length=N of at least 2, the rows of the cache"
        )
    position: int = rows - 1
    if config.decode.position is not None:
        position = config.decode.position
    if position >= rows:
        raise ConfigError(
            f"decode.position={position}: the cache has model.sequence_length={rows} rows, so it "
            f"must be below {rows}"
        )
    return position


def _read_model(
    config: Config, changes: dict[str, Any], choices: Choices, own: Mapping[str, Any]
) -> Model:
    """Read a model with some fields in place of those that were given."""
    spec = LIBRARIES[config.model.library]
    name = getattr(config.model, spec.named_by)
    if not name:
        raise ConfigError(f"model={choices.get('model')} needs a name, e.g. {spec.example}")
    model = Model(**_read_axes(Model, config) | changes | {"name": name})
    # Settings that the model's builder would ignore, or lacks.
    shaped = model.image_size or model.num_classes or model.sequence_length or model.pretrained
    if spec.no_settings and (model.arguments or shaped):
        raise ConfigError(
            f"model.library={model.library} takes no other model settings: {spec.no_settings}"
        )
    if model.checkpoint and not spec.example_checkpoint:
        allowed = ", ".join(name for name, other in LIBRARIES.items() if other.example_checkpoint)
        raise ConfigError(
            f"model.checkpoint is for model.library={allowed}; the others have one set of weights "
            "for each name"
        )
    if model.checkpoint != own.get("checkpoint") and not model.pretrained:
        raise ConfigError(
            f"model.checkpoint={model.checkpoint} is used with model.pretrained=true only; add that"
        )
    if model.pretrained and spec.example_checkpoint and not model.checkpoint:
        raise ConfigError(
            f"model.pretrained=true of {model.library} needs whose weights: "
            f"model.checkpoint={spec.example_checkpoint}"
        )
    flatten(model.arguments)
    if not has_texts(model.library):
        model = replace(model, sequence_length=None)
    if not model.pretrained:
        model = replace(model, checkpoint=None)
    return model


def name_factory(factory: str) -> str:
    """Name a function in a file as Python imports it from the current folder: `./mine.py:build` is
    `mine:build`. Raises ConfigError for a file that is not there.
    """
    file, _, function = factory.rpartition(":")
    if factory.endswith(".py"):
        raise ConfigError(f"model.factory={factory}: name the function too: {factory}:build")
    if not file.endswith(".py"):
        return factory
    path = Path(os.path.relpath(Path(file).expanduser()))
    parts = path.with_suffix("").parts
    if not path.is_file():
        raise ConfigError(f"model.factory={factory}: there is no such file in {Path.cwd()}")
    if not all(part.isidentifier() for part in parts):
        raise ConfigError(
            f"model.factory={factory}: Python cannot import this path from {Path.cwd()}; start "
            "sweeper in the folder of the file"
        )
    return f"{'.'.join(parts)}:{function}"


def _read_labels(config: Config, choices: Choices, own: OwnValues) -> Labels:
    model, plain = config.model, own["model"]
    name = str(choices.get("model")).rpartition("/")[2]
    if (model.name, model.factory) != (plain.get("name"), plain.get("factory")):
        name = str(model.factory or model.name)
    changes = _list_changes("model", model, plain)
    changes += _list_changes("precision", config.precision, own["precision"])
    return Labels(
        model=name,
        precision=str(choices.get("precision")),
        family=model.family,
        suite=model.suite,
        weight=config.precision.weight,
        overrides="; ".join(changes),
        preset=choices.get("preset"),
    )


def _list_changes(group: str, composed: Any, own: Mapping[str, Any]) -> list[str]:
    """Keys that differ from the option's own file, e.g. `model.image_size=64`."""
    before = flatten({**vars(type(composed)()), **own})
    return [
        f"{group}.{key}={show_value(value)}"
        for key, value in sorted(flatten(vars(composed)).items())
        if key not in LABELS and value != before.get(key, MISSING)
    ]
