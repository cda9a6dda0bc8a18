"""Starts processes in groups of their own, waits for them, and kills them with everything that they
have started.

The interpreter is this one, or another that has torch but not sweeper. Another interpreter is shown
the package sweeper alone, through a folder that holds only a link to it, so it finds nothing else
of this interpreter's packages to import.
"""

import os
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL, TimeoutExpired
from typing import Any

from sweeper.core.system import shortages
from sweeper.core.system.leftovers import make_temporary, remove
from sweeper.core.system.orphans import WholeGroup, start_session
from sweeper.core.system.process_group import adopt_orphans

from .reaper import MARK

# of everything that this process starts; see `reaper`
OWN_MARK = f"{os.getpid()}-{secrets.token_hex(8)}"
PACKAGE = Path(__file__).resolve().parents[1]


def make_command(python: str | None, module: str) -> list[str]:
    """Make the command `python -m module`; None is this interpreter."""
    return [python or sys.executable, "-m", module]


@contextmanager
def expose_package(python: str | None) -> Iterator[Mapping[str, str]]:
    """Give environment variables with which another interpreter finds sweeper; none for this
    interpreter.
    """
    if python is None:
        yield {}
        return
    with make_temporary() as folder:
        (folder / PACKAGE.name).symlink_to(PACKAGE)
        path = str(folder)
        if inherited := os.environ.get("PYTHONPATH"):
            path += os.pathsep + inherited
        yield {"PYTHONPATH": path}


def make_cache_variables(folder: Path) -> Mapping[str, str]:
    """Make environment variables that keep every compile cache of a process in `folder`."""
    folder = folder.resolve()
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }


def start_group(
    command: Sequence[str], environment: Mapping[str, str], log: Path, **options: Any
) -> WholeGroup:
    """Start a program as the leader of a new process group; `environment` is added to the one of
    this process.

    Its output goes to `log`, unless the options (of `Popen`) say otherwise: to files in any case,
    because a child that outlives the program would hold a pipe open.
    """
    # ours alone
    inherited = {key: value for key, value in os.environ.items() if key != "HYDRA_FULL_ERROR"}
    adopt_orphans()
    remove(log)  # an earlier process may have put anything there
    with log.open("xb") as output:
        options = {"stdin": DEVNULL, "stdout": output, "stderr": output, **options}
        with start_session() as own:
            process = WholeGroup(
                command,
                env={**inherited, **environment, MARK: OWN_MARK},
                start_new_session=True,
                **options,
            )
            own.add(process.pid)
    return process


def wait_for_end(process: WholeGroup, limit_s: float) -> int | None:
    """Wait for a program and kill its whole group; its exit code, or None when the limit came
    first.
    """
    with process, suppress(TimeoutExpired):
        return process.wait(limit_s)
    return None


def describe_failed_start(error: OSError) -> str:
    """Say why a process could not be started, and what to do, as the beginning of a sentence."""
    return f"no process can be started: {error.strerror}; {shortages.hint(error)}"
