"""`hydra/sweeper=grid`: expands the axes of a grid and composes each configuration once.

Hydra's basic sweeper composes a configuration twice; here all of them are validated before the
first one runs.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from sweeper.config.grid import Composer, OverrideAxis


@dataclass
class GridSweeperConf:
    _target_: str = "hydra_plugins.sweeper_hydra.grid.GridSweeper"
    # Axes that an experiment brings; the command line replaces an axis of the same name.
    params: dict[str, str] = field(default_factory=dict)


ConfigStore.instance().store(
    group="hydra/sweeper", name="grid", node=GridSweeperConf, provider="sweeper"
)


class GridSweeper(Sweeper):
    """Runs the Cartesian product of all comma-separated overrides."""

    def __init__(self, params: dict[str, str]) -> None:
        self._params = dict(params)

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self._context = hydra_context
        self._config = config
        self._launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        from sweeper.config.overrides import allow_new_keys
        from sweeper.sweep.hydra_app import run_grid

        axes = [allow_new_keys(f"{key}={value}") for key, value in self._params.items()]
        loader = self._context.config_loader
        overrides = OverridesParser.create(loader).parse_overrides([*axes, *arguments])
        composer = Composer(loader, self._config)
        launcher = self._config.hydra.runtime.choices["hydra/launcher"]
        cluster = None if launcher == "local" else self._launcher
        points = composer.points(expand(overrides))
        # Hydra would drop the exit code
        sys.exit(run_grid(points, composer.repository, f"hydra/launcher={launcher}", cluster))


def expand(overrides: Sequence[Override]) -> list[OverrideAxis]:
    """Turn overrides into the axes of a grid; the last override of a key counts. Raises ConfigError
    for the rest.
    """
    from sweeper.core.errors import ConfigError

    axes: dict[str, OverrideAxis] = {}
    for override in overrides:
        key = override.get_key_element()
        name = key.lstrip("+")
        if not override.is_sweep_override():
            values = [override.get_value_element_as_str()]
        elif not override.is_discrete_sweep():
            raise ConfigError(f"{override.input_line}: list the values, separated by commas")
        elif key == "experiment":
            raise ConfigError(
                f"{override.input_line}: one experiment per command; each has a grid of its own"
            )
        else:
            values = list(override.sweep_string_iterator())
        axes[name] = OverrideAxis(name, tuple(f"{key}={value}" for value in values))
    return list(axes.values())
