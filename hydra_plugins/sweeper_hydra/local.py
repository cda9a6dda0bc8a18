"""`hydra/launcher=local`: the whole sweep in this process, through
`sweeper.sweep.hydra_app.run_grid`.
"""

import sys
from collections.abc import Sequence

from hydra.core.utils import JobReturn

from .base import BaseLauncher


class LocalLauncher(BaseLauncher):
    """Runs as one sweep what Hydra's own sweeper expands; the grid sweeper needs no launcher to run
    in this process.
    """

    def launch(
        self,
        job_overrides: Sequence[Sequence[str]],
        initial_job_idx: int,  # noqa: ARG002  # Hydra's signature
    ) -> Sequence[JobReturn]:
        """Ends the process with the sweep's exit code: Hydra would drop it."""
        from sweeper.config.grid import Composer
        from sweeper.sweep.hydra_app import run_grid

        composer = Composer(self._context.config_loader, self._config)
        sys.exit(run_grid(map(composer.compose, job_overrides), composer.repository))
