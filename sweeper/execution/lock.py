"""Locks between processes of one machine or of one shared folder; the file says who holds it.

The kernel releases a lock when its holder ends, however it ends; a file that is left behind holds
nothing. The folder of a lock may be open to others, so its file may be theirs: links are not
followed, and no file is ever truncated.
"""

import datetime as dt
import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sweeper.core.errors import ConfigError
from sweeper.core.text import printable

GO_ON = (
    "scheduler.locks=false goes on without locks; then no second driver may run the sweep or "
    "use its devices"
)
OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # nor waits for the other end of a pipe
MAX_HOLDER_BYTES = 200


@contextmanager
def hold_lock(path: Path, what: str, enabled: bool = True) -> Iterator[None]:
    """Hold the lock `path` as long as the body runs; where it is not enabled, only run the body.

    Raises ConfigError that names the holder, if somebody else holds it, when the file cannot be
    written or is not a regular one, and when its file system has no locks.
    """
    if not enabled:
        yield
        return
    with ExitStack() as opened:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, writable = _open_lock(path)
            opened.callback(os.close, handle)
            _take(handle, path, what)
            # else it has another name, and may be anything
            if writable and os.fstat(handle).st_nlink == 1:
                started = dt.datetime.now().astimezone().isoformat(timespec="seconds")
                text = f"process {os.getpid()} on {socket.gethostname()} since {started}"
                # covers what the last holder wrote
                os.pwrite(handle, text.encode().ljust(MAX_HOLDER_BYTES - 1) + b"\n", 0)
        except OSError as error:
            why = error.strerror
            if error.errno == errno.ELOOP:
                why = "it is a link, which is not followed"
            raise ConfigError(f"cannot write to {path}: {why}; nothing was started") from error
        yield


def _open_lock(path: Path) -> tuple[int, bool]:
    """Open the file, for reading alone where it is another user's: it can be locked all the
    same.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | OPEN, 0o644)
        os.fchmod(handle, 0o644)  # whatever the umask: other users have to be able to lock it
        return handle, True
    except FileExistsError:
        try:
            return os.open(path, os.O_RDWR | OPEN), True
        except PermissionError:
            return os.open(path, os.O_RDONLY | OPEN), False


def _take(handle: int, path: Path, what: str) -> None:
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        raise ConfigError(f"{path} is not a regular file; remove it. Nothing was started")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = printable(os.pread(handle, MAX_HOLDER_BYTES, 0).decode(errors="replace"))
        raise ConfigError(f"{what} is in use by {holder or 'another process'}") from None
    except OSError as error:
        where = f"the file system of {path.absolute().parent} has no locks ({error.strerror})"
        raise ConfigError(f"{where}; nothing was started. {GO_ON}") from error
