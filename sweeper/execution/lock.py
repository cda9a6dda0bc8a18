"""Locks between processes of one machine or of one shared folder; the file says who holds it.

The kernel releases a lock when its holder ends, however it ends; a file that is left behind holds nothing.
"""

from __future__ import annotations

import datetime as dt
import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from sweeper.core.errors import ConfigError
from sweeper.core.paths import require_regular


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
    """Open the file, for reading alone where it is another user's: it can be locked all the same.

    Raises OSError for a link and for anything else that is no regular file: taking the lock would empty it.
    """

    def open_file(_: str, flags: int) -> int:
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        try:
            require_regular(handle, path)
        except OSError:
            os.close(handle)
            raise
        return handle

    try:
        return open(path, "a+", opener=open_file)
    except PermissionError:
        if not path.exists():
            raise
        return open(path, opener=open_file)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(error.errno, f"{path.name} is a link", str(path)) from error
        raise
