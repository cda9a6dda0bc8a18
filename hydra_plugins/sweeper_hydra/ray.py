"""`hydra/launcher=ray`: the jobs of hydra-ray-launcher, each waited for whatever becomes of the others.

That package's own launcher stops at the first task that Ray has lost, and the driver would end the rest with itself. It
also sets `object_store_memory`, with which Ray 2 joins no existing cluster
(https://github.com/facebookresearch/hydra/issues/2893).
"""

import importlib.util
import signal
from collections.abc import Sequence
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict


class RayLauncher(Launcher):
    """A Ray task for each job; `ray` holds the arguments of `ray.init` and `ray.remote`."""

    def __init__(self, ray: DictConfig) -> None:
        self._arguments = ray

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Raises ConfigError where hydra-ray-launcher is not installed."""
        from sweeper.errors import ConfigError

        if importlib.util.find_spec("hydra_plugins.hydra_ray_launcher") is None:
            raise ConfigError("hydra/launcher=ray needs hydra-ray-launcher: pip install 'sweeper[ray]'")
        self._context = hydra_context
        self._task_function = task_function
        self._config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Raises, when all tasks have ended, what Ray says of the first one that is lost."""
        import ray
        from hydra_plugins.hydra_ray_launcher._launcher_util import start_ray

        setup_globals()
        on_termination = signal.getsignal(signal.SIGTERM)
        start_ray(self._arguments.init)
        signal.signal(signal.SIGTERM, on_termination)  # Ray's own handler would end the sweep without its report
        tasks = [self._started(overrides, number) for number, overrides in enumerate(job_overrides, initial_job_idx)]
        ray.wait(tasks, num_returns=len(tasks))
        results: list[JobReturn] = ray.get(tasks)
        return results

    def _started(self, overrides: Sequence[str], number: int) -> Any:
        """A reference to the result of one job, which Ray runs when it has room."""
        from hydra_plugins.hydra_ray_launcher._launcher_util import launch_job_on_ray

        config = self._context.config_loader.load_sweep_config(self._config, list(overrides))
        with open_dict(config):
            config.hydra.job.id = str(number)
            config.hydra.job.num = number
        remote, state = self._arguments.remote, Singleton.get_state()
        return launch_job_on_ray(self._context, remote, config, self._task_function, state)
