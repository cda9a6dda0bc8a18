"""The trial of `model=script`: a user's own training script, which decides most axes by itself."""

import shlex
from collections.abc import Mapping
from dataclasses import fields
from operator import attrgetter
from os.path import isdir, isfile  # the methods of `Path` raise OSError for a name that is too long
from pathlib import Path

from sweeper.core.backends import WITHOUT_DYNAMO
from sweeper.core.errors import ConfigError
from sweeper.core.launch import Launch
from sweeper.core.libraries import SCRIPT
from sweeper.core.serialization import show_value
from sweeper.core.trial import (
    AXES,
    MIN_TRAJECTORY,
    OWN_PRECISION,
    Labels,
    Model,
    Trial,
    find_script,
    name_module,
)

from .schema import Config, VaryConf

# keys of `model` that decide what the script does
ARGUMENTS = ("launch", "args", "cwd", "trajectory")
ONLY_OF_SCRIPT = ("path", *ARGUMENTS, "total_steps")
# What the script decides, as it is unless a user asks for something else; groups first, and what
# chooses for others.
DECIDED = {
    "preset": None,
    "rung": None,
    "precision": "fp32",
    "workload": "train",
    "optimizer": "adam",
    "text": "auto",
    "parallel": "none",
}
DECIDES = "with model=script the script decides this"
WHY = {  # where that is not the reason
    "precision": "with model=script the script decides this, by torch.autocast in it",
    "rung": "scripts have no ladder",
    "parallel": "what starts a script's processes is model.launch",
    "parallel.devices": "model.launch says how many processes a script has",
    "inspect": "scripts have no inspection yet",
}
LAUNCHERS = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "deepspeed.launcher.runner",
)
PLAIN = Config()
# groups and keys that a script leaves to the user
LEFT_TO_USER = (
    "device", "mode.", "backend.", "compile.", "parallel.compile", "worker.", "model.library",
)  # fmt: skip
DECIDED_KEYS = (
    "inspect",
    "precision.auto",
    *(f"vary.{item.name}" for item in fields(VaryConf)),
    "model.factory",
    *(
        axis.key
        for axis in AXES.values()
        if not axis.key.startswith(LEFT_TO_USER) and axis.key.partition(".name")[0] not in DECIDED
    ),
)


def read_script(config: Config, choices: Mapping[str, str | None]) -> Trial:
    """Turn the options of a script into a trial, of which the caller sets how and where it is
    compiled.

    Raises ConfigError for a script that is not there, and for options that the script itself
    decides.
    """
    for group, usual in DECIDED.items():
        if (given := choices.get(group)) != usual:
            raise ConfigError(f"{group}={given}: {WHY.get(group, DECIDES)}; leave it out")
    for key in DECIDED_KEYS:
        if (found := attrgetter(key)(config)) != attrgetter(key)(PLAIN):
            raise ConfigError(f"{key}={show_value(found)}: {WHY.get(key, DECIDES)}; leave it out")
    if config.backend.name in WITHOUT_DYNAMO and config.mode.name != "eager":
        raise ConfigError(
            f"backend={config.backend.name} converts a model by hand, which a script's own loop "
            "does not"
        )
    model = config.model
    if not model.path:
        raise ConfigError(
            "model=script needs a script, e.g. model.path=train.py or model.path='-m package.train'"
        )
    if model.cwd is not None and not isdir(model.cwd):  # noqa: PTH112
        raise ConfigError(f"model.cwd={model.cwd}: there is no such folder")
    arguments = {}
    for key in ARGUMENTS:
        if value := getattr(model, key):
            arguments[key] = value
    script = Model(SCRIPT, model.path, arguments=arguments)
    _require_script(script)
    try:
        shlex.split(model.args)
    except ValueError as error:
        raise ConfigError(f"model.args={model.args}: {error}; quote it as a shell would") from error
    if model.trajectory is not None and model.trajectory < MIN_TRAJECTORY:
        raise ConfigError(f"model.trajectory={model.trajectory}: at least {MIN_TRAJECTORY} steps")
    if model.launch is not None:
        _require_launch(model.launch, model.trajectory)
    path = Path(model.path)
    # many scripts are called train.py
    name = name_module(model.path) or f"{path.parent.name}/{path.name}".lstrip("/")
    return Trial(
        model=script,
        batch_size=1,
        labels=Labels(
            name,
            OWN_PRECISION,
            model.family,
            overrides="; ".join(f"model.{key}={value}" for key, value in arguments.items()),
            total_steps=model.total_steps,
        ),
        workload=SCRIPT,
        optimizer="none",
    )


def _require_launch(launch: str, trajectory: int | None) -> None:
    try:
        Launch.parse(launch)
    except ValueError as error:
        raise ConfigError(f"model.launch={launch}: {error}") from error
    if trajectory is not None:
        raise ConfigError("model.trajectory is for a script in one process: leave model.launch out")


def _require_script(model: Model) -> None:
    file = find_script(model)
    if file is None:
        module = str(name_module(model.name))
        if module in LAUNCHERS:
            raise ConfigError(
                f"model.path={model.name}: a launcher starts other processes; give the script "
                "itself, and the launcher as model.launch='torchrun --nproc-per-node 2'"
            )
        if not all(part.isidentifier() for part in module.split(".")):
            raise ConfigError(f"model.path={model.name}: write -m package.module")
    elif not model.name.isprintable():
        raise ConfigError(
            f"model.path={model.name!r}: the name has a character that is not printable; rename it"
        )
    elif isdir(file):  # noqa: PTH112
        raise ConfigError(
            f"model.path={model.name}: a folder; name the script in it, or write "
            "'-m package.module'"
        )
    elif not isfile(file):  # noqa: PTH113
        folder = Path(str(model.arguments.get("cwd", "."))).resolve()
        raise ConfigError(f"model.path={model.name}: there is no such file in {folder}")
