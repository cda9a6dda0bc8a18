"""Preflight: one short process says, before the first trial, what only torch and the model
libraries know.

Whether a library has a model, a factory imports and returns what it should, a compile option or a
backend exists, torch sees the device.
"""

import json
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from subprocess import TimeoutExpired
from typing import NamedTuple

from sweeper.core.errors import ConfigError, explain_unreadable
from sweeper.core.files import read_json, read_last_lines, read_text
from sweeper.core.protocol import AT, Preflight
from sweeper.core.serialization import from_json, to_json
from sweeper.core.system import interrupts
from sweeper.core.system.gpus import Device
from sweeper.core.system.leftovers import make_temporary
from sweeper.core.system.orphans import WholeGroup
from sweeper.core.system.process_group import describe_exit
from sweeper.core.text import printable
from sweeper.core.tlparse import explain_missing, find_tlparse
from sweeper.core.trial import Trial
from sweeper.execution import processes

TIMEOUT_S = 300
NOTE_S = 15  # between two notes that the process still runs
MAX_NAME_BYTES = 10_000
MAX_PROBLEMS = 10  # that a message names


class _NoAnswerError(Exception):
    """The process gave no answer, or none that can be read, while it looked at the model `at`."""

    def __init__(self, at: str, problem: str) -> None:
        super().__init__(problem)
        self.at = at


class Found(NamedTuple):
    """What the processes said: notes about what the trials will do, e.g. the loss of a factory's
    model, and by mode the features of an ablation that the torch of an interpreter lacks.
    """

    notes: Sequence[str]
    lacking: Collection[tuple[str | None, str, str]]

    def lacks(self, trial: Trial) -> bool:
        return (trial.python, trial.mode, trial.labels.feature) in self.lacking


def require_runnable(trials: Sequence[Trial], device: Device, inspect: bool) -> Found:
    """Ask what the trials will do.

    Raises ConfigError that lists what cannot be built here, or says why the process gave no answer.
    """
    problems = []
    notes: list[str] = []
    lacking: set[tuple[str | None, str, str]] = set()
    for python in dict.fromkeys(trial.python for trial in trials):
        own = [trial for trial in trials if trial.python == python]
        prefix = f"worker.python={python}: " if python else ""
        if inspect and find_tlparse(python) is None:
            raise ConfigError(prefix + explain_missing(python))
        try:
            found = _ask_until_answered(own, python, device)
        except _NoAnswerError as error:
            raise ConfigError(f"{prefix}{error}") from error
        except OSError as error:
            raise ConfigError(
                f"{prefix}the models cannot be checked: {processes.describe_failed_start(error)}. "
                "Nothing was started"
            ) from error
        problems += [prefix + problem for problem in found.problems]
        notes += found.notes
        lacking.update((python, *one) for one in found.lacking)
    if problems:
        if len(problems) > MAX_PROBLEMS:
            problems[MAX_PROBLEMS:] = [f"and {len(problems) - MAX_PROBLEMS} more"]
        raise ConfigError("\n".join(problems))
    return Found(list(dict.fromkeys(notes)), lacking)


def _ask_until_answered(trials: Sequence[Trial], python: str | None, device: Device) -> Preflight:
    """Ask, and ask again without a model that leaves no answer, whose trials will say what it does.

    Raises _NoAnswerError where no other model is left.
    """
    silent = []
    while True:
        try:
            found = _ask(trials, python, device)
        except _NoAnswerError as error:
            others = [trial for trial in trials if _name(trial) != error.at]
            if len(others) in (0, len(trials)):
                raise
            trials = others
            silent.append(f"note: {error}; its trials are tried all the same")
        else:
            return replace(found, notes=(*silent, *found.notes))


def _ask(trials: Sequence[Trial], python: str | None, device: Device) -> Preflight:
    """Ask in a process group of its own: a factory may print, exit, leave children behind, and
    write to the files here.
    """
    with make_temporary() as folder, processes.expose_package(python) as variables:
        question, answer, log = folder / "trials.jsonl", folder / "answer.json", folder / "log"
        with question.open("w") as file:
            file.writelines(f"{json.dumps(to_json(trial))}\n" for trial in trials)
        command = processes.make_command(python, "sweeper.worker")
        command += ["--check", str(question), str(answer)]
        process = processes.start_group(command, {**device.environment(), **variables}, log)
        with interrupts.allow():
            code = _await_end(process, folder)
        at = _read_name(folder)
        checked = f"the check of model {at}" if at else "the check of the models"
        if code is None:
            raise _NoAnswerError(at, f"{checked} took longer than {TIMEOUT_S} s")
        try:
            return from_json(Preflight, read_json(answer))
        except FileNotFoundError:
            how = f"{checked} {describe_exit(code)} and gave no answer"
        except (OSError, ValueError) as error:
            how = f"{checked} left an answer that cannot be read: {explain_unreadable(error)}"
        if python:
            how += "; it must be a Python of 3.11 to 3.13 with torch"
        raise _NoAnswerError(at, "\n".join([how, *read_last_lines(folder, log.name, 4)]))


def _await_end(process: WholeGroup, folder: Path) -> int | None:
    """Wait for the process, with a note now and then; its exit code, or None when it took too
    long.
    """
    with process:
        for waited_s in range(NOTE_S, TIMEOUT_S + 1, NOTE_S):
            with suppress(TimeoutExpired):
                return process.wait(NOTE_S)
            model = _read_name(folder) or "the models"
            left = f"{waited_s} s so far, and at most {TIMEOUT_S} s"
            print(f"note: still checking {model}: {left}", file=sys.stderr)
    return None


def _name(trial: Trial) -> str:
    return printable(f"{trial.model.library} {trial.model.name}")


def _read_name(folder: Path) -> str:
    """The model that the process looks at; empty where it does not say."""
    with suppress(OSError, ValueError):
        return printable(read_text(folder / AT, MAX_NAME_BYTES))
    return ""
