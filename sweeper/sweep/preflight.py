"""Preflight: one short process says, before the first trial, what only torch and the model
libraries know.

Whether a library has a model, a factory imports and returns what it should, a compile option
exists, torch sees the device.
"""

import json
from collections.abc import Sequence

from sweeper.core.errors import ConfigError
from sweeper.core.protocol import AT, Preflight
from sweeper.core.serialization import from_json, parse_json
from sweeper.core.system import interrupts
from sweeper.core.system.gpus import Device
from sweeper.core.system.leftovers import make_temporary
from sweeper.core.system.process_group import describe_exit
from sweeper.core.tlparse import explain_missing, find_tlparse
from sweeper.core.trial import Trial
from sweeper.execution import processes

TIMEOUT_S = 300


def require_runnable(trials: Sequence[Trial], device: Device, inspect: bool) -> list[str]:
    """Return notes about what the trials will do, e.g. the loss of a factory's model.

    Raises ConfigError that lists what cannot be built here, or says why the process gave no answer.
    """
    problems: list[str] = []
    notes: list[str] = []
    for python in dict.fromkeys(trial.python for trial in trials):
        own = [trial for trial in trials if trial.python == python]
        prefix = f"worker.python={python}: " if python else ""
        if inspect and find_tlparse(python) is None:
            raise ConfigError(prefix + explain_missing(python))
        try:
            found = _ask(own, python, device, prefix)
        except OSError as error:
            raise ConfigError(
                f"{prefix}the models cannot be checked: {processes.describe_failed_start(error)}. "
                "Nothing was started"
            ) from error
        problems += [prefix + problem for problem in found.problems]
        notes += found.notes
    if problems:
        raise ConfigError("\n".join(problems[:10]))
    return list(dict.fromkeys(notes))


def _ask(trials: Sequence[Trial], python: str | None, device: Device, prefix: str) -> Preflight:
    """Ask in a process group of its own: a factory may print, exit or leave children behind."""
    with make_temporary() as folder, processes.expose_package(python) as variables:
        question, answer, log = folder / "trials.json", folder / "answer.json", folder / "log"
        question.write_text(json.dumps([trial.to_json() for trial in trials]))
        command = processes.make_command(python, "sweeper.worker")
        command += ["--check", str(question), str(answer)]
        process = processes.start_group(command, {**device.environment(), **variables}, log)
        with interrupts.allow():
            code = processes.wait_for_end(process, TIMEOUT_S)
        at = folder / AT
        model = f"model {at.read_text()}" if at.exists() else "the models"
        if code is None:
            raise ConfigError(
                f"checking {model} took longer than {TIMEOUT_S} s; nothing was started"
            )
        if not answer.exists():
            how = f"{prefix}the check of {model} {describe_exit(code)} and gave no answer"
            if prefix:
                how += "; it must be a Python of 3.11 to 3.13 with torch"
            if last := "\n".join(processes.read_last_lines(log, 4)):
                how += f":\n{last}"
            raise ConfigError(how)
        return from_json(Preflight, parse_json(answer.read_text()))
