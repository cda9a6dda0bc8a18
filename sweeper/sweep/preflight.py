"""Asks one short process, before the first trial, what only torch and the model libraries know.

Whether a library has a model, a factory imports and returns what it should, a compile option exists, torch sees the
device. Place in the flow: `app` calls `require_runnable` with the trials of the plan.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from sweeper.core.errors import ConfigError
from sweeper.core.gpus import Device
from sweeper.core.protocol import AT
from sweeper.core.trial import Trial
from sweeper.execution.interpreter import command, search_path

TIMEOUT_S = 300
MAX_PROBLEMS = 10


def require_runnable(trials: Sequence[Trial], device: Device) -> None:
    """Raises ConfigError that lists what cannot be built here, or says why the check itself could not be made."""
    if not trials:
        return
    problems = []
    for python in dict.fromkeys(trial.python for trial in trials):
        with tempfile.TemporaryDirectory() as folder, search_path(python) as variables:
            own = [trial for trial in trials if trial.python == python]
            found = _ask(own, python, {**device.environment(), **variables}, Path(folder))
            problems += [f"worker.python={python}: {problem}" if python else problem for problem in found]
    if problems:
        raise ConfigError("\n".join(problems[:MAX_PROBLEMS]))


def _ask(trials: Sequence[Trial], python: str | None, variables: Mapping[str, str], folder: Path) -> list[str]:
    """Run the check in a process group of its own; a user's factory may print, exit or leave children behind."""
    question, answer, log = folder / "trials.json", folder / "problems.json", folder / "log"
    question.write_text(json.dumps([trial.to_json() for trial in trials]))
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command(python, "sweeper.worker"), "--check", str(question), str(answer)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **variables},
            start_new_session=True,
        )
    try:
        process.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"checking {_at(folder)} took longer than {TIMEOUT_S} s; nothing was started") from error
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if not answer.exists():
        last = "\n".join(log.read_text(errors="replace").strip().splitlines()[-4:])
        who = f"worker.python={python}: " if python else ""
        how = f"{who}the check of {_at(folder)} ended with code {process.returncode} and no answer"
        raise ConfigError(f"{how}:\n{last}" if last else how)
    problems: list[str] = json.loads(answer.read_text())
    return problems


def _at(folder: Path) -> str:
    """The model that was being checked."""
    file = folder / AT
    return f"model {file.read_text()}" if file.exists() else "the models"
