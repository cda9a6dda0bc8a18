"""Asks one short process, before the first trial, what only torch and the model libraries know.

Whether a library has a model, a factory imports and returns what it should, a compile option exists, torch sees the
device. Place in the flow: `app` calls `require_runnable` with the trials of the plan.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence

from sweeper.devices import Device
from sweeper.errors import ConfigError
from sweeper.trial import Trial

TIMEOUT_S = 300
MOST_PROBLEMS = 10


def require_runnable(trials: Sequence[Trial], device: Device) -> None:
    """Raises ConfigError that lists what cannot be built here, or when the check itself cannot run."""
    if not trials:
        return
    try:
        answer = subprocess.run(
            [sys.executable, "-m", "sweeper.worker", "--check"],
            input=json.dumps([trial.to_json() for trial in trials]),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env={**os.environ, **device.environment()},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"checking the models took longer than {TIMEOUT_S} s; nothing was started") from error
    if answer.returncode != 0:
        last = "\n".join(answer.stderr.strip().splitlines()[-4:])
        raise ConfigError(f"the check process failed (exit code {answer.returncode}):\n{last}")
    problems = json.loads(answer.stdout.splitlines()[-1])
    if problems:
        raise ConfigError("\n".join(problems[:MOST_PROBLEMS]))
