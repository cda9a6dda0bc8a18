"""`hydra/launcher=local`: the whole sweep in this process, through `sweeper.app.run_grid`."""

from collections.abc import Sequence
from dataclasses import dataclass

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


@dataclass
class LocalLauncherConf:
    _target_: str = "hydra_plugins.sweeper_hydra.local.LocalLauncher"


ConfigStore.instance().store(group="hydra/launcher", name="local", node=LocalLauncherConf, provider="sweeper")


class LocalLauncher(Launcher):
    """Runs all jobs of a batch as one sweep. Our own sweeper composes for it; another one gives overrides."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:  # noqa: ARG002  # Hydra's signature
        self._context = hydra_context
        self._config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:  # noqa: ARG002  # Hydra's signature
        from sweeper.app import run_grid

        load = self._context.config_loader.load_sweep_config
        code = run_grid([load(self._config, list(overrides)) for overrides in job_overrides])
        return [JobReturn(return_value=code) for _ in job_overrides]
