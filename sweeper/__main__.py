"""`python -m sweeper`: prepares the command line, and turns bad configuration into a few lines and exit 2.

Try: `python -m sweeper --help`, `python -m sweeper -m model=resnet18,vit_tiny dry_run=true`
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
import warnings

from sweeper.config.error_messages import explain
from sweeper.core.errors import ConfigError


def main() -> int:
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra's own handling prints tracebacks and exits with 1
    # End a sweep on a termination, as clusters and containers send it, like on Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Hydra warns that our launcher has the name of hydra-ray-launcher's, which it replaces.
    warnings.filterwarnings("ignore", r"\n'hydra/launcher/ray' is validated against ConfigStore schema", UserWarning)
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    from sweeper.config import schema
    from sweeper.config.overrides import normalise
    from sweeper.sweep.driver import BAD_CONFIGURATION, INTERRUPTED
    from sweeper.sweep.hydra_app import job

    expected = (ConfigError, HydraException, OmegaConfBaseException, YAMLError)
    try:
        sys.argv[1:] = normalise(sys.argv[1:])
        job()
    except (*expected, ValueError) as error:  # Hydra raises plain ones too
        if not isinstance(error, expected) and _came_from_hydra_app(error):
            raise
        print(f"sweeper: {explain(error, schema.keys(), schema.nested_options())}", file=sys.stderr)
        return BAD_CONFIGURATION
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _came_from_hydra_app(error: Exception) -> bool:
    """Whether an error was raised below `sweeper.sweep.hydra_app`: then Hydra had read the command line already."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_globals.get("__name__") == "sweeper.sweep.hydra_app" for frame, _ in frames)


if __name__ == "__main__":
    sys.exit(main())
