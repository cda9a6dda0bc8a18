"""The one step from a composed `DictConfig` to a `Trial` and `Settings`.

Place in the flow: `conf/*.yaml --Hydra--> DictConfig --read--> Trial + Settings`; `schema` says what may be in it.

Try: `python -m sweeper --cfg job model=vit_b16 precision=amp`
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig, MissingMandatoryValue, OmegaConf

from sweeper.config.schema import CompileConf, Config, ModelConf, OptimizerConf, PrecisionConf, keys
from sweeper.core.errors import ConfigError, nearest
from sweeper.core.libraries import LIBRARIES
from sweeper.core.paths import check_sweep_name
from sweeper.core.serialization import Json
from sweeper.core.settings import RETRIES, Settings, check_measure, check_scheduler
from sweeper.core.trial import (
    AUTOCASTS,
    HALVES,
    MEMORY_FORMATS,
    MODES,
    OPTIMIZER_IMPLS,
    OPTIMIZERS,
    PARAMETER_DTYPES,
    SCOPES,
    WEIGHTS,
    WORKLOADS,
    Compile,
    Labels,
    Model,
    Precision,
    Trial,
)

# Keys of an option that have a column of their own or only change how a trial is called.
LABELS = ("name", "factory", "batch_size", "family", "suite", "weight")


@dataclass(frozen=True)
class Point:
    """One point of the grid: what to run and how."""

    trial: Trial
    settings: Settings


def read(cfg: DictConfig, choices: Mapping[str, str | None], own: Mapping[str, Mapping[str, Any]], gpu: bool) -> Point:
    """Turn a composed configuration into a trial and settings.

    `choices` maps a group to the option chosen (`hydra.runtime.choices`), `own` a group to what that option's file
    says, `gpu` is what `device=null` means. Raises ConfigError for values that make no sense.
    """
    if unknown := _unknown(cfg, Config()):
        raise ConfigError(f"{unknown[0]}: there is no such key; {nearest(unknown[0], keys())}")
    try:
        config: Any = OmegaConf.to_object(cfg)
    except MissingMandatoryValue as error:
        missing = ", ".join(sorted(str(key) for key in OmegaConf.missing_keys(cfg)))
        raise ConfigError(
            f"{missing}: no value given, and there is no default (model={choices.get('model')})"
        ) from error
    settings = Settings(
        sweep=check_sweep_name(config.sweep),
        device=config.device,
        dry_run=config.dry_run,
        retry=_one_of("retry", config.retry, RETRIES),
        inspect=config.inspect,
        measure=check_measure(config.measure),
        tracking=config.tracking,
        scheduler=check_scheduler(config.scheduler),
    )
    return Point(_trial(config, choices, own, gpu), settings)


def _unknown(cfg: DictConfig, schema: Any, prefix: str = "") -> list[str]:
    """Keys that `+key=value` has added where the schema has a fixed set."""
    known, found = {entry.name for entry in fields(schema)}, []
    for key in map(str, cfg):
        value = getattr(schema, key, None)
        if key not in known:
            found.append(f"{prefix}{key}")
        elif is_dataclass(value):
            found += _unknown(cfg[key], value, f"{prefix}{key}.")
    return found


def _trial(config: Config, choices: Mapping[str, str | None], own: Mapping[str, Mapping[str, Any]], gpu: bool) -> Trial:
    workload = _one_of("workload.name", config.workload.name, WORKLOADS)
    mode = _one_of("mode.name", config.mode.name, MODES)
    compiled = mode != "eager"
    optimizer, impl = _optimizer(config.optimizer, workload)
    vary = _vary(config)
    largest: dict[str, Any] = {key: max(sizes) for key, sizes in vary.items()}
    return Trial(
        model=_model(
            replace(config.model, **{key: size for key, size in largest.items() if key != "batch_size"}),
            choices,
            own["model"],
        ),
        batch_size=largest.get("batch_size") or _batch_size(config),
        labels=_labels(config, choices, own),
        workload=workload,
        precision=_precision(config.precision),
        mode=mode,
        backend=config.backend.name if compiled else None,
        optimizer=optimizer,
        compile=_compile(config.compile) if compiled else Compile(),
        device=device_type(config.device, gpu),
        python=_interpreter(config.worker.python),
        optimizer_impl=impl,
        vary=vary,
    )


def _vary(config: Config) -> dict[str, list[int]]:
    """The key whose sizes the steps go through, and these; empty when all steps have one size."""
    given = {key: list(sizes) for key, sizes in asdict(config.vary).items() if sizes is not None}
    if not given:
        return {}
    if len(given) > 1:
        raise ConfigError(f"vary: one of {', '.join(given)} at a time")
    ((key, sizes),) = given.items()
    for size in sizes:
        _positive(f"vary.{key}", size)
    if len(set(sizes)) < 2:
        raise ConfigError(f"vary.{key}={sizes}: give two sizes or more, e.g. vary.{key}=[16,32]")
    if key == "batch_size" and config.batch_size is not None:
        raise ConfigError("batch_size and vary.batch_size: give one of them; the largest of vary.batch_size is taken")
    allowed = [name for name, spec in LIBRARIES.items() if key == "batch_size" or key in spec.input_sizes]
    if config.model.library not in allowed:
        raise ConfigError(
            f"vary.{key}: model.library={config.model.library} has none; allowed are {', '.join(allowed)}"
        )
    return {key: sizes}


def _optimizer(optimizer: OptimizerConf, workload: str) -> tuple[str, str]:
    name = _one_of("optimizer.name", optimizer.name, OPTIMIZERS)
    impl = _one_of("optimizer.impl", optimizer.impl, OPTIMIZER_IMPLS)
    if workload != "train":
        return "none", "default"
    if name == "none" and impl != "default":
        raise ConfigError(f"optimizer.impl={impl}: with optimizer=none there is nothing to choose; take optimizer=adam")
    return name, impl


def _model(model: ModelConf, choices: Mapping[str, str | None], own: Mapping[str, Any]) -> Model:
    library = _one_of("model.library", model.library, LIBRARIES)
    spec = LIBRARIES[library]
    name = getattr(model, spec.named_by)
    if not name:
        raise ConfigError(f"model={choices.get('model')} needs a name, e.g. {spec.example}")
    for key in ("image_size", "sequence_length", "num_classes"):
        _positive(f"model.{key}", getattr(model, key))
    _require_settings_that_count(model, library, own)
    flatten(model.arguments)
    return Model(
        library=library,
        name=name,
        image_size=model.image_size,
        sequence_length=model.sequence_length if "sequence_length" in spec.input_sizes else None,
        num_classes=model.num_classes,
        dropout=model.dropout,
        arguments=model.arguments,
        memory_format=_one_of("model.memory_format", model.memory_format, MEMORY_FORMATS),
        pretrained=model.pretrained,
        checkpoint=model.checkpoint if model.pretrained else None,
    )


def _require_settings_that_count(model: ModelConf, library: str, own: Mapping[str, Any]) -> None:
    """Raises ConfigError for settings that the model's builder would not look at, or lacks."""
    shaped = model.image_size or model.num_classes or model.sequence_length or model.pretrained
    spec = LIBRARIES[library]
    if spec.no_settings and (model.arguments or shaped):
        raise ConfigError(f"model.library={library} takes no other model settings: {spec.no_settings}")
    if model.checkpoint and not spec.example_checkpoint:
        allowed = ", ".join(name for name, other in LIBRARIES.items() if other.example_checkpoint)
        raise ConfigError(
            f"model.checkpoint is for model.library={allowed}; the others have one set of weights for each name"
        )
    if model.checkpoint != own.get("checkpoint") and not model.pretrained:
        raise ConfigError(f"model.checkpoint={model.checkpoint} is used with model.pretrained=true only; add that")
    if model.pretrained and spec.example_checkpoint and not model.checkpoint:
        raise ConfigError(
            f"model.pretrained=true of {library} needs whose weights: model.checkpoint={spec.example_checkpoint}"
        )


def _batch_size(config: Config) -> int:
    size = config.model.batch_size if config.batch_size is None else config.batch_size
    return _positive("batch_size", size) or 0


def _precision(precision: PrecisionConf) -> Precision:
    if precision.autocast is not None:
        _one_of("precision.autocast", precision.autocast, AUTOCASTS)
    if precision.auto is not None:
        _one_of("precision.auto", precision.auto, HALVES)
    autocast = (precision.auto or "auto") if precision.autocast == "auto" else precision.autocast
    if precision.grad_scaler and autocast not in ("auto", "float16"):
        raise ConfigError("precision.grad_scaler=true is for precision.autocast=auto or float16")
    return Precision(
        parameters=_one_of("precision.parameters", precision.parameters, PARAMETER_DTYPES),
        autocast=autocast,
        grad_scaler=precision.grad_scaler,
        tf32=precision.tf32,
    )


def _compile(compile_: CompileConf) -> Compile:
    return Compile(
        dynamic=compile_.dynamic,
        fullgraph=compile_.fullgraph,
        scope=_one_of("compile.scope", compile_.scope, SCOPES),
        options=flatten(compile_.options),
    )


def _interpreter(python: str | None) -> str | None:
    """Its absolute path; links stay, since the interpreter of a virtual environment is one."""
    if python is None:
        return None
    path = Path(python).expanduser().absolute()
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise ConfigError(f"worker.python={python}: there is no program {path}; give the path of an interpreter")
    return str(path)


def _labels(config: Config, choices: Mapping[str, str | None], own: Mapping[str, Mapping[str, Any]]) -> Labels:
    model, weight = config.model, config.precision.weight
    named = {key: own["model"].get(key) for key in ("name", "factory")}
    renamed = named != {"name": model.name, "factory": model.factory}
    changed = [*_changed("model", model, own["model"]), *_changed("precision", config.precision, own["precision"])]
    return Labels(
        model=str(model.factory or model.name) if renamed else str(choices.get("model")).rsplit("/", 1)[-1],
        precision=str(choices.get("precision")),
        family=model.family,
        suite=model.suite,
        weight=None if weight is None else _one_of("precision.weight", weight, WEIGHTS),
        overrides="; ".join(changed),
        preset=choices.get("preset"),
    )


def _changed(group: str, composed: Any, own: Mapping[str, Any]) -> list[str]:
    """What differs from the option's own file, e.g. `model.image_size=64`."""
    known = {entry.name for entry in fields(composed)}
    before = flatten(asdict(type(composed)(**{key: value for key, value in own.items() if key in known})))
    now = flatten(asdict(composed))
    keys_changed = sorted(key for key in now if now[key] != before.get(key, MISSING) and key not in LABELS)
    return [f"{group}.{key}={json.dumps(now[key]).strip(chr(34))}" for key in keys_changed]


def device_type(device: str | None, gpu: bool) -> str:
    """`cpu` or `cuda` for what the user wrote. Raises ConfigError for anything but cpu, cuda, cuda:N."""
    if device is None:
        return "cuda" if gpu else "cpu"
    kind, _, index = device.partition(":")
    if kind not in ("cpu", "cuda") or (index and (kind == "cpu" or not index.isdigit())) or device.endswith(":"):
        raise ConfigError(f"device={device}: allowed are cpu, cuda (every visible GPU) and cuda:N, e.g. device=cuda:1")
    return kind


def flatten(options: Mapping[str, Any], prefix: str = "") -> dict[str, Json]:
    """Nested options with their keys joined by `.`, as Inductor names them: `triton: {cudagraphs: true}`.

    Raises ConfigError for NaN and infinity, which JSON cannot hold.
    """
    flat: dict[str, Json] = {}
    for key, value in options.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            _require_finite(f"{prefix}{key}", value)
            flat[f"{prefix}{key}"] = value
    return flat


def _require_finite(key: str, value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{key}={value}: it must be a finite number")


def _one_of(key: str, value: str, allowed: Collection[str]) -> str:
    if value not in allowed:
        raise ConfigError(f"{key}={value}: allowed are {', '.join(allowed)}")
    return value


def _positive(key: str, value: int | None) -> int | None:
    if value is not None and value < 1:
        raise ConfigError(f"{key}={value}: it must be a whole number of at least 1, e.g. {key}=8")
    return value
