"""How files of a sweep are written, read, moved and removed where somebody else may have put
anything in their place.

A file is written under a temporary name and then renamed. No link is followed. `docs/security.md`
says who is trusted with what.
"""

import errno
import itertools
import os
import secrets
import stat
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

from sweeper.core.system.leftovers import make_prefix

from .serialization import parse_json
from .text import clean_text

MAX_JSON_BYTES = 100 * 2**20  # large records have 100 kB
MAX_FILE_BYTES = 1 << 30  # of a log, or of another file that is shown or sent


def write_text(path: Path, text: str) -> None:
    """Replace `path` as a whole or not at all, so that a reader never sees half a file. A link is
    replaced, too.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(make_prefix(f".{path.name}") + secrets.token_hex(8))
    try:
        with temporary.open("x", encoding="utf-8") as file:  # with the rights that the umask leaves
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def open_inside(folder: Path, name: str | Path, max_bytes: int) -> BinaryIO:
    """Open a regular file under `folder` for reading. No link is followed below `folder`, which
    itself may be one.

    Raises OSError, whose `strerror` says why, for a name outside of `folder`, a file that is
    missing, too large or not regular, and a link.
    """
    path, parts = folder / name, Path(name).parts
    if not parts or ".." in parts or Path(name).is_absolute():
        raise OSError(errno.EPERM, f"not inside of {folder}", str(path))
    try:
        with ExitStack() as folders:
            at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            folders.callback(os.close, at)
            for parent in parts[:-1]:
                at = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
                folders.callback(os.close, at)
            # without O_NONBLOCK opening waits for a pipe that is never filled
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            handle = os.open(parts[-1], flags, dir_fd=at)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise OSError(error.errno, "a link, which is not followed", str(path)) from error
        raise
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if status.st_size > max_bytes:
            raise OSError(
                errno.EFBIG, f"{status.st_size:,} bytes, more than {max_bytes:,}", str(path)
            )
        return os.fdopen(handle, "rb")
    except OSError:
        os.close(handle)
        raise


def read_text(path: Path, max_bytes: int) -> str:
    """Read a regular file. Raises OSError as `open_inside` does, and UnicodeDecodeError."""
    with open_inside(path.parent, path.name, max_bytes) as file:
        return file.read().decode()


def read_last_lines(folder: Path, name: str, count: int, max_bytes: int = 2**16) -> list[str]:
    """Read the last lines of a log that are not empty, fit for a terminal; none where there is no
    such file under `folder`.
    """
    try:
        with open_inside(folder, name, MAX_FILE_BYTES) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - max_bytes))
            text = clean_text(file.read().decode(errors="replace"))
    except OSError:
        return []
    lines = [line.expandtabs(4).rstrip() for line in text.splitlines()]
    return list(filter(None, lines))[-count:]


def read_json(path: Path) -> Any:
    """Read a regular file of JSON. Raises OSError as `open_inside` does, and ValueError as
    `parse_json` does.
    """
    return parse_json(read_text(path, MAX_JSON_BYTES))


def move_aside(path: Path) -> Path:
    """Rename a file that cannot be read to `NAME.unreadable-TIME`, which replaces nothing, and
    return its new path.
    """
    aside = moved = path.with_name(f"{path.name}.unreadable-{time.strftime('%Y%m%d-%H%M%S')}")
    numbers = itertools.count(2)
    while os.path.lexists(aside):
        aside = moved.with_name(f"{moved.name}-{next(numbers)}")
    return path.rename(aside)


def make_way(path: Path) -> None:
    """Have nothing stand in place of a file, or of its folder, that a rename would not replace, or
    that leads elsewhere: a folder, a file or a link, whoever has put it there.
    """
    folder = path.parent
    if folder.is_symlink():
        folder.unlink()
    elif folder.is_dir():
        folder.chmod(folder.stat().st_mode | stat.S_IRWXU)
    elif folder.exists():
        move_aside(folder)
    if path.is_dir() and not path.is_symlink():
        move_aside(path)
