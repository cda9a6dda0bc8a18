"""`hydra/launcher=slurm`: hydra-submitit-launcher, with every task of the array waited for.

That package's own launcher stops waiting at the first task that is lost. The trials of tasks that
still run would then be called lost as well.
"""

import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

from hydra.core.utils import JobReturn

from .base import BaseLauncher


class SlurmLauncher(BaseLauncher):
    """Runs an array job with one task per job of Hydra; the parameters are those of
    submitit_slurm.
    """

    def __init__(self, **parameters: Any) -> None:
        self._parameters = parameters

    def prepare(self) -> None:
        """Raises ConfigError where no SLURM answers."""
        from sweeper.core.errors import ConfigError
        from sweeper.core.system import interrupts

        needs = "hydra/launcher=slurm needs a SLURM that answers"
        for command in ("sbatch", "scontrol"):
            if shutil.which(command) is None:
                raise ConfigError(
                    f"{needs}: there is no {command} on this machine; without SLURM leave "
                    "hydra/launcher out"
                )
        try:
            with interrupts.allow():
                asked = subprocess.run(
                    ["scontrol", "ping"],  # noqa: S607  # SLURM is found by PATH
                    capture_output=True,
                    text=True,
                    timeout=20,
                    check=False,
                )
        except subprocess.TimeoutExpired as error:
            raise ConfigError(
                f"{needs}: scontrol ping has no answer within {error.timeout:g} s"
            ) from error
        if asked.returncode != 0:
            said = (asked.stderr or asked.stdout).strip().splitlines() or ["no answer"]
            raise ConfigError(f"{needs}: scontrol ping says: {said[-1]}")

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Raises what submitit raises for a lost task, once all tasks have ended."""
        import submitit
        from hydra_plugins.hydra_submitit_launcher import submitit_launcher

        parameters = {**self._parameters}
        for name in ("gpus_per_node", "gpus_per_task"):
            if gpus := parameters.get(name):
                parameters[name] = gpus * self.num_devices
        launcher = submitit_launcher.SlurmLauncher(**parameters)
        launcher.setup(
            hydra_context=self._context, task_function=self._task_function, config=self._config
        )

        class WaitingExecutor(submitit.AutoExecutor):
            def map_array(self, *arguments: Any) -> list[Any]:
                jobs: list[Any] = super().map_array(*arguments)
                for job in jobs:
                    job.wait()
                return jobs

        executor, submitit.AutoExecutor = submitit.AutoExecutor, WaitingExecutor
        try:
            return launcher.launch(job_overrides, initial_job_idx)
        finally:
            submitit.AutoExecutor = executor
