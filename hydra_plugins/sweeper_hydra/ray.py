"""`hydra/launcher=ray`: the jobs of hydra-ray-launcher, where a lost job does not end the others.

That package's own launcher stops at the first task that Ray has lost, and the other tasks would end
with the driver. It also sets `object_store_memory`, with which Ray 2 joins no existing cluster
(https://github.com/facebookresearch/hydra/issues/2893).
"""

import importlib.util
import signal
import sys
from collections.abc import Sequence

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, setup_globals
from omegaconf import DictConfig, open_dict

from .base import BaseLauncher


class RayLauncher(BaseLauncher):
    """Runs each job as a Ray task; `ray` holds the arguments of `ray.init` and `ray.remote`."""

    def __init__(self, ray: DictConfig) -> None:
        self._arguments = ray

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Raises what Ray raises for a lost task, once all tasks have ended."""
        import ray
        from hydra_plugins.hydra_ray_launcher._launcher_util import launch_job_on_ray

        setup_globals()
        tasks, remote = [], self._arguments.remote.copy()
        if gpus := remote.get("num_gpus"):
            remote.num_gpus = gpus * self.num_devices
            _note_lack(remote.num_gpus)
        for number, overrides in enumerate(job_overrides, initial_job_idx):
            config = self._context.config_loader.load_sweep_config(self._config, list(overrides))
            with open_dict(config):
                config.hydra.job.id = str(number)
                config.hydra.job.num = number
            state = Singleton.get_state()
            # Ray runs the task when it has resources
            task = launch_job_on_ray(self._context, remote, config, self._task_function, state)
            tasks.append(task)
        ray.wait(tasks, num_returns=len(tasks))
        return ray.get(tasks)

    def prepare(self) -> None:
        """Join the cluster of the arguments, or start a Ray for this sweep.

        Raises ConfigError where that fails, or hydra-ray-launcher is not installed.
        """
        from sweeper.core.errors import ConfigError

        if None in map(importlib.util.find_spec, ("ray", "hydra_plugins.hydra_ray_launcher")):
            raise ConfigError(
                "hydra/launcher=ray needs hydra-ray-launcher: pip install hydra-ray-launcher"
            )
        from hydra_plugins.hydra_ray_launcher._launcher_util import start_ray

        from sweeper.core.system import interrupts

        on_termination = signal.getsignal(signal.SIGTERM)
        try:
            with interrupts.allow():
                start_ray(self._arguments.init)
        except (OSError, RuntimeError, TypeError, ValueError) as error:
            raise ConfigError(f"hydra.launcher.ray.init={self._arguments.init}: {error}") from error
        finally:
            # Ray's own handler would end the sweep without its report
            signal.signal(signal.SIGTERM, on_termination)


def _note_lack(gpus: float) -> None:
    import ray

    if ray.cluster_resources().get("GPU", 0) < gpus:
        print(
            f"note: Ray has fewer than the {gpus:g} GPUs of a task, and waits for a node that has "
            "them; for trials on CPUs say hydra.launcher.ray.remote.num_gpus=0",
            file=sys.stderr,
        )
