"""Entry point: `python -m sweeper`. Prepares the command line, and turns bad configuration into a few lines and exit 2.

Try: `python -m sweeper --help`, `python -m sweeper -m model=resnet18,vit_tiny dry_run=true`
"""

from __future__ import annotations

import os
import sys

from sweeper.errors import ConfigError, explain


def main() -> int:
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra's own handling prints tracebacks and exits with 1
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    from sweeper import config
    from sweeper.app import BAD_CONFIGURATION, INTERRUPTED, job
    from sweeper.command_line import normalise

    try:
        sys.argv[1:] = normalise(sys.argv[1:])
        job()
    except (ConfigError, HydraException, OmegaConfBaseException, YAMLError) as error:
        print(f"sweeper: {explain(error, config.keys())}", file=sys.stderr)
        return BAD_CONFIGURATION
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
