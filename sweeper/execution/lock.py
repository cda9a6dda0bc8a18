"""Locks between processes of one machine or of one shared folder; the file says who holds it.

The kernel releases a lock when its holder ends, however it ends; a file that is left behind holds nothing.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from sweeper.core.errors import ConfigError


@contextmanager
def hold_lock(path: Path, what: str) -> Iterator[None]:
    """Hold the lock `path` as long as the body runs.

    Raises ConfigError that names the holder, if somebody else holds it, and when the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = _open_lock(path)
    except OSError as error:
        raise ConfigError(f"cannot write to {path.parent}: {error.strerror}; nothing was started") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise ConfigError(f"{what} is in use by {file.read().strip() or 'another process'}") from None
        if file.writable():
            file.truncate(0)
            started = dt.datetime.now().astimezone().isoformat(timespec="seconds")
            file.write(f"process {os.getpid()} on {socket.gethostname()} since {started}\n")
            file.flush()
        yield


def _open_lock(path: Path) -> TextIO:
    """Open the file, for reading alone where it is another user's: it can be locked all the same."""
    try:
        return path.open("a+")
    except PermissionError:
        if not path.exists():
            raise
        return path.open()
