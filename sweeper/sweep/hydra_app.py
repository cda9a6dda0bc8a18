"""`python -m sweeper`: Hydra's entry, and the way from its configurations to trials.

Hydra calls `job` for a single run, and in the jobs of a cluster; for `-m` it calls our sweeper
plugin, which calls `run_grid`.
"""

import functools
import os
import sys
from collections.abc import Iterable, Set
from operator import attrgetter
from typing import Any

import hydra
from hydra._internal.config_repository import IConfigRepository
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from sweeper.config import reader, schema
from sweeper.config.grid import Composed, make_repository
from sweeper.config.reference import list_default_options
from sweeper.core.errors import ConfigError
from sweeper.core.settings import Settings
from sweeper.core.system import interrupts
from sweeper.core.system.exit_codes import BAD_INPUT
from sweeper.core.system.gpus import visible_gpus
from sweeper.core.trial import Trial
from sweeper.execution.execute import execute, make_cluster_launcher
from sweeper.execution.placement import place_trials
from sweeper.execution.scheduler import Finished

from .driver import run_sweep


@hydra.main(version_base="1.3", config_path=str(schema.conf_folder()), config_name="config")
def job(cfg: DictConfig) -> str:
    """Run a single configuration for Hydra: the whole sweep, or in a cluster's job one trial of it.

    A job returns the status of its trial; a driver ends the process with the sweep's exit code.
    """
    command: Any = HydraConfig.get()
    files = make_repository(GlobalHydra.instance().config_loader(), command)
    in_job = not OmegaConf.is_missing(command.job, "num")
    try:
        point = read_point(Composed(cfg, dict(command.runtime.choices), ()), files)
        launcher = command.runtime.choices["hydra/launcher"]
        if not in_job and launcher != "local":  # Hydra asks launchers for grids only
            raise ConfigError(
                f"hydra/launcher={launcher} is for a grid, also for a grid of one trial: add -m"
            )
        if in_job:
            os.chdir(command.runtime.cwd)  # a launcher may start its jobs elsewhere
            placement = place_trials(point.settings, num_trials=1)
            for event in interrupts.receive(execute([point.trial], point.settings, placement)):
                if isinstance(event, Finished):
                    status = event.record.status
            return status
        _require_used_devices({cfg.parallel.devices}, [point.trial])
        code = run_sweep([point.trial], point.settings)
    # Hydra would print the job's overrides before it passes the error on
    except ConfigError as error:
        print(f"sweeper: {error}", file=sys.stderr)
        code = BAD_INPUT
    sys.exit(code)


def read_point(composed: Composed, files: IConfigRepository) -> reader.GridPoint:
    """Read a configuration as trial and settings; `files` holds what the options say. Raises
    ConfigError.
    """
    choices = composed.choices
    for group, option in list_default_options().items():
        # a list of options leaves no choice behind
        if option and not isinstance(choices.get(group), str):
            raise ConfigError(f"{group}: give one option; several make a grid: -m {group}=a,b")
    own = {key: _read_option(files, f"{key}/{choices[key]}") for key in ("model", "precision")}
    preset = choices.get("preset")
    if isinstance(preset, str):
        own["precision"] |= _read_option(files, f"preset/{preset}").get("precision", {})
    return reader.read(composed.config, choices, own, gpu=bool(visible_gpus()))


def _require_used_devices(asked: Set[int | None], trials: Iterable[Trial]) -> None:
    """Raise ConfigError where `parallel.devices` were given, and no trial uses them."""
    given = sorted(filter(None, asked))
    if given and all(trial.parallel == "none" for trial in trials):
        raise ConfigError(
            f"parallel.devices={','.join(map(str, given))}: parallel=none has one process; add "
            "parallel=ddp or fsdp2"
        )


def _read_option(files: IConfigRepository, file: str) -> dict[str, Any]:
    """Read what an option's file says by itself, before anything is overridden."""
    found = files.load_config(file)
    if found is None:
        return {}
    values: Any = OmegaConf.to_container(found.config, resolve=False)
    return dict(values)


def run_grid(
    composed: Iterable[Composed],
    files: IConfigRepository,
    name: str = "hydra/launcher=local",
    cluster: Any = None,
) -> int:
    """Run every configuration of a grid as one sweep, in this process or as jobs of a cluster; the
    exit code.

    `cluster` is Hydra's launcher of that name. Its methods, if it has them: `prepare` joins the
    cluster, and raises ConfigError where there is none; it is called where a trial would run.
    `ask_for` sets how many devices each job gets from then on.
    Raises ConfigError before anything has started.
    """
    trials, devices = [], set()
    parts: dict[str, Any] = {}
    overrides: dict[str, tuple[str, ...]] = {}
    settings: Settings | None = None
    # one at a time: a configuration takes a hundred times the memory of its trial
    for item in composed:
        point = read_point(item, files)
        settings = settings or point.settings
        if point.settings != settings:
            other = vars(point.settings)
            keys = [key for key, value in vars(settings).items() if other[key] != value]
            raise ConfigError(
                f"{', '.join(keys)}: cannot be swept, every trial of a sweep shares it; run two "
                "sweeps"
            )
        # a grid has few different parts; by their text, because `True == 1`
        own = attrgetter(*Trial.__slots__)(point.trial)
        trials.append(Trial(*(parts.setdefault(repr(part), part) for part in own)))
        overrides[point.trial.id] = item.overrides
        devices.add(item.config.parallel.devices)
        if interrupts.is_pending():  # `run_sweep` says what is kept, and how to go on
            return run_sweep(trials, settings)
    assert settings is not None
    _require_used_devices(devices, trials)
    if cluster is None:
        return run_sweep(trials, settings)
    if settings.device is None:
        raise ConfigError(
            f"{name}: say device=cuda or device=cpu; this machine's may be another than the jobs'"
        )
    launch = functools.partial(cluster.launch, initial_job_idx=0)
    prepare, ask_for = (getattr(cluster, method, None) for method in ("prepare", "ask_for"))
    launcher = make_cluster_launcher(name, launch, overrides, prepare, ask_for)
    return run_sweep(trials, settings, launcher)
