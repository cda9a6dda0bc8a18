"""What the launchers have in common."""

from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class BaseLauncher(Launcher):
    """Keeps what Hydra sets a launcher up with."""

    num_devices = 1  # GPUs for each job

    def ask_for(self, num_devices: int) -> None:
        """Give so many GPUs to each job that is launched from now on."""
        self.num_devices = num_devices

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self._context = hydra_context
        self._task_function = task_function
        self._config = config
