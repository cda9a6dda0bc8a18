"""Temporary files and folders: their names say which process made them, so a later one removes what
a kill has left.
"""

import functools
import os
import shutil
import socket
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TEMPORARY = "sweeper"  # begins the names of our folders in the temporary folder of the system


@functools.cache
def _machine() -> str:
    """The host and its namespace of process numbers: containers share folders and host names, but
    not these.
    """
    with suppress(OSError):  # a kernel without namespaces
        return f"{socket.gethostname()}-{Path('/proc/self/ns/pid').stat().st_ino}"
    return socket.gethostname()


def make_prefix(name: str) -> str:
    """Make the beginning of the name of a temporary file, for `tempfile`, which adds random
    characters.
    """
    return f"{name}.{_machine()}-{os.getpid()}."


@contextmanager
def make_temporary() -> Iterator[Path]:
    """Make a folder in the temporary folder of the system that goes with the body.

    What cannot be removed is left for the next start: it must not cost what was done meanwhile.
    """
    with tempfile.TemporaryDirectory(
        prefix=make_prefix(TEMPORARY), ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


def remove_temporary() -> None:
    """Remove what processes that run no more have left in the temporary folder of the system."""
    remove_leftovers(Path(tempfile.gettempdir()).glob(f"{TEMPORARY}.*"))


def remove(path: Path) -> None:
    """Remove whatever is at `path`, a folder with everything in it; a link is not followed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def remove_leftovers(paths: Iterable[Path]) -> None:
    """Remove those of the files and folders whose makers, processes of this user on this machine,
    have ended.
    """
    for path in paths:
        made_by, _, _random = path.name.rpartition(".")
        machine, _, pid = made_by.rpartition("-")
        is_ours = machine.endswith(f".{_machine()}") and pid.isdecimal()
        if not is_ours or Path(f"/proc/{pid}").exists():
            continue
        with suppress(FileNotFoundError):  # another start removes it too
            if path.lstat().st_uid == os.getuid():
                remove(path)
