"""What the preflight check asks of a library of models, for scripts: they build their models by
themselves.
"""

import importlib.util
import sys

import torch

from sweeper.core.trial import Model, Trial
from sweeper.worker.failures import UnavailableError
from sweeper.worker.models import Built, Examined

from .watch.script_runner import Program


def names() -> None:
    """Return None: there is no list of scripts."""


def examine(trial: Trial) -> Examined:
    """Read the script without running it: whether Python can read it, or find the module."""
    program = Program.of(trial.model)
    if launch := trial.launch:
        package = launch.module.partition(".")[0]
        if importlib.util.find_spec(package) is None:
            given = trial.model.arguments["launch"]
            return Examined([f"model.launch={given}: the package {package} is not installed"])
    if program.file is None:
        assert program.module is not None
        sys.path.insert(0, str(program.folder))  # where `python -m` looks first
        try:
            found = importlib.util.find_spec(program.module)
        except (ImportError, ValueError) as error:
            return Examined([f"model.path={program.path}: {error}"])
        finally:
            del sys.path[0]
        return Examined([] if found else [f"model.path={program.path}: there is no such module"])
    try:
        compile(program.file.read_bytes(), str(program.file), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return Examined([f"model.path={program.path}: Python cannot read it: {error}"])
    return Examined()


def load(model: Model) -> None:
    """Do nothing: a script imports what it needs in a process of its own."""


def build(trial: Trial, device: torch.device) -> Built:  # noqa: ARG001  # as every builder's
    """Raise UnavailableError: only the script itself can build its model."""
    raise UnavailableError(f"{trial.model.name} builds its model by itself; it cannot be inspected")
