"""How a Python process of sweeper's is started: by this interpreter, or by one that has torch but not sweeper.

Another interpreter is shown the package sweeper alone, through a folder that holds nothing but a link to it. What else
is installed beside sweeper is not for it to import.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


def make_command(python: str | None, module: str) -> list[str]:
    """Make the command `python -m module`; None is this interpreter."""
    return [python or sys.executable, "-m", module]


@contextmanager
def expose_package(python: str | None) -> Iterator[Mapping[str, str]]:
    """Give environment variables with which another interpreter finds sweeper; none for this interpreter."""
    if python is None:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="sweeper-") as folder:
        (Path(folder) / PACKAGE.name).symlink_to(PACKAGE)
        yield {"PYTHONPATH": os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])}


def make_cache_variables(folder: Path) -> Mapping[str, str]:
    """Make environment variables that keep every compile cache of a process in `folder`."""
    folder = folder.resolve()
    return {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "TRITON_CACHE_DIR": str(folder / "triton")}
