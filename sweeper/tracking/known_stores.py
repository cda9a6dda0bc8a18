"""Which stores the user has named on this machine.

A sweep's folder may come from somebody else, and MLflow sends the credentials of the environment to
whatever server it talks to. So an address that only the folder names is no reason to connect.
"""

import os
import stat
from pathlib import Path

from sweeper.core.files import open_inside, write_text
from sweeper.core.uris import remove_credentials

from .store import sqlite_file

VARIABLE = "MLFLOW_TRACKING_URI"


def state_folder() -> Path | None:
    """Return the folder where sweeper keeps what it knows about the user; None for a user without a
    home.

    https://specifications.freedesktop.org/basedir-spec/latest/
    """
    named = Path(os.environ.get("XDG_STATE_HOME", ""))
    if named.is_absolute():
        return named / "sweeper"
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 (`Path.expanduser` raises for a user without a home)
    if not home.is_absolute():
        return None
    return home / ".local/state/sweeper"


def environment_uri() -> str | None:
    return os.environ.get(VARIABLE, "").strip() or None


def normalize(uri: str) -> str:
    """Return the address by which a store is known: without credentials, and not relative to a
    folder.
    """
    file = sqlite_file(uri)
    return f"sqlite:///{file}" if file else remove_credentials(uri).rstrip("/")


def is_known(uri: str) -> bool:
    """Say whether an earlier command of this user named the store."""
    return normalize(uri) in _read()


def remember(uri: str) -> None:
    """Remember a store that the command line or the environment names. Raises OSError when that is
    impossible.
    """
    folder, known, address = state_folder(), _read(), normalize(uri)
    if folder is None or address in known or "\n" in address:
        return
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    before = os.umask(0o077)
    try:
        write_text(folder / "stores", "\n".join([*known, address, ""]))
    finally:
        os.umask(before)


def _read() -> list[str]:
    """Read the list; empty unless it is the user's own and nobody else can write to it, or replace
    it or a folder above it.
    """
    folder = state_folder()
    if folder is None:
        return []
    try:
        above = (folder, *folder.parents, folder.resolve(), *folder.resolve().parents)
        if not all(map(_is_kept_from_others, above)):
            return []
        with open_inside(folder, "stores", max_bytes=1 << 20) as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                return []
            return file.read().decode("utf-8", "replace").splitlines()
    except OSError:  # there is no list yet, or none that can be read: no store is known
        return []


def _is_kept_from_others(folder: Path) -> bool:
    """Whether nobody but the user and root can put a file of theirs in place of one in it."""
    status = folder.stat()
    others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    is_sticky = status.st_mode & stat.S_ISVTX
    return status.st_uid in (0, os.geteuid()) and bool(is_sticky or not others_write)
