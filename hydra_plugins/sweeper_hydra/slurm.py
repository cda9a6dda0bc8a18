"""`hydra/launcher=slurm`: hydra-submitit-launcher, with every task of the array waited for.

That package's own launcher stops waiting at the first task that is lost. The trials of tasks that
still run would then be called lost as well.
"""

import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class SlurmLauncher(Launcher):
    """Runs an array job with one task per job of Hydra; the parameters are those of
    submitit_slurm.
    """

    def __init__(self, **parameters: Any) -> None:
        self._parameters = parameters

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        from hydra_plugins.hydra_submitit_launcher.submitit_launcher import (
            SlurmLauncher as SubmititLauncher,
        )

        self._launcher = SubmititLauncher(**self._parameters)
        self._launcher.setup(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

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

        class WaitingExecutor(submitit.AutoExecutor):
            def map_array(self, *arguments: Any) -> list[Any]:
                jobs: list[Any] = super().map_array(*arguments)
                for job in jobs:
                    job.wait()
                return jobs

        executor, submitit.AutoExecutor = submitit.AutoExecutor, WaitingExecutor
        try:
            return self._launcher.launch(job_overrides, initial_job_idx)
        finally:
            submitit.AutoExecutor = executor
