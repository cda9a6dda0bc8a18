"""Every path under `runs/`, the one way to write there, and the one way to read what somebody else may have put there.

A file is written under a temporary name and then renamed. `docs/formats.md` describes the files, and
`docs/security.md` says who is trusted with what.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from sweeper.core.errors import ConfigError
from sweeper.core.leftovers import make_prefix

RUNS = Path("runs")
RESERVED = ("mlflow.db", "mlartifacts")  # MLflow's own, beside the sweeps
MAX_NAME_CHARACTERS = 200  # file systems take 255 bytes
MAX_LOG_BYTES = 1 << 30
READ_ONLY = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # without O_NONBLOCK a pipe that nobody fills is waited for
SWEEP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def check_sweep_name(name: str) -> str:
    """Return `name` if a folder can have it. Raises ConfigError otherwise."""
    if not SWEEP_NAME.fullmatch(name) or len(name) > 100 or name in RESERVED:
        raise ConfigError(
            f"sweep={name}: a sweep's name starts with a letter or digit, goes on with letters, digits, '.', '_' or "
            "'-', has at most 100 characters and is none of the names that MLflow's store has; e.g. sweep=resnets-h200"
        )
    return name


def write_text(path: Path, text: str) -> None:
    """Replace `path` as a whole or not at all, so that a reader never sees half a file. A link is replaced, too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{make_prefix(f'.{path.name}')}{secrets.token_hex(8)}")
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
    """Open a regular file under `folder` for reading. No link is followed below `folder`, which itself may be one.

    Raises OSError, whose `strerror` says why, for what is missing, a link, no regular file, elsewhere or too large.
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
            handle = os.open(parts[-1], READ_ONLY, dir_fd=at)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise OSError(error.errno, "a link, which is not followed", str(path)) from error
        raise
    try:
        require_regular(handle, path)
        if (size := os.fstat(handle).st_size) > max_bytes:
            raise OSError(errno.EFBIG, f"{size:,} bytes, more than {max_bytes:,}", str(path))
        return os.fdopen(handle, "rb")
    except OSError:
        os.close(handle)
        raise


def require_regular(handle: int, path: Path) -> None:
    """Raise OSError unless an open file is a regular one."""
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        raise OSError(errno.EINVAL, "no regular file", str(path))


def read_text(path: Path, max_bytes: int) -> str:
    """Read a regular file. Raises OSError as `open_inside` does, and UnicodeDecodeError."""
    with open_inside(path.parent, path.name, max_bytes) as file:
        return file.read().decode()


def move_aside(path: Path) -> Path:
    """Rename a file that cannot be read to `NAME.unreadable-TIME`, which replaces nothing, and return its new path."""
    moved = path.with_name(f"{path.name}.unreadable-{time.strftime('%Y%m%d-%H%M%S')}")
    number = 1
    while os.path.lexists(aside := moved if number == 1 else moved.with_name(f"{moved.name}-{number}")):
        number += 1
    return path.rename(aside)


class TrialPaths:
    """The files of one trial."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trial = folder / "trial.json"
        self.record = folder / "record.json"
        self.inspection = folder / "inspect"  # files about the compiler's work, from `inspect=true`

    def log(self, process: int | str) -> Path:
        return self.folder / f"worker-{process}.log"

    def cache(self, draw: int | str) -> Path:
        """The private compile cache of a draw, or of an inspection; it exists while the trial runs."""
        return self.folder / f"cache-{draw}"

    def clear_caches(self) -> None:
        """Remove the caches of every draw, also those that a killed driver left."""
        for folder in self.folder.glob("cache-*"):
            _remove_folder(folder)

    def clear_logs(self) -> None:
        """Remove logs and inspection of an earlier attempt."""
        _remove_folder(self.inspection)
        for log in self.folder.glob("worker-*.log"):
            log.unlink()


def _remove_folder(folder: Path) -> None:
    """Remove a folder with everything in it, or a link in its place, through which workers would write elsewhere."""
    if folder.is_symlink():
        folder.unlink()
    shutil.rmtree(folder, ignore_errors=True)


class SweepPaths:
    """The files of one sweep under `runs/<sweep>/`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sweep = folder / "sweep.json"
        self.lock = folder / ".lock"  # held by the driver that runs the sweep
        self.report = folder / "report"

    @staticmethod
    def of(sweep: str, runs: Path = RUNS) -> SweepPaths:
        return SweepPaths(runs / check_sweep_name(sweep))

    def report_with(self, others: Sequence[Path]) -> Path:
        """The folder for tables of this sweep and others; they do not replace its own tables."""
        names = "-".join(path.resolve().name for path in others)
        return self.folder / f"report-with-{names}"[:MAX_NAME_CHARACTERS] if others else self.report

    def require_no_links(self) -> None:
        """Raise ConfigError if the folder holds links: what a sweep writes would land elsewhere."""
        links = sorted(path.name for path in self.folder.iterdir() if path.is_symlink()) if self.folder.is_dir() else ()
        if links:
            named = f"{links[0]!a} is a link{f', like {len(links) - 1} more' if links[1:] else ''}"
            raise ConfigError(f"{self.folder}: {named}, and a sweep writes through none; move it away")

    def trial(self, label: str, trial_id: str) -> TrialPaths:
        """The folder of a trial: the one that ends in its id, or a new `<label>-<id>`."""
        existing = sorted(self.folder.glob(f"*-{trial_id}"))
        return TrialPaths(existing[0] if existing else self.folder / f"{label}-{trial_id}")

    def trials(self) -> dict[str, TrialPaths]:
        """The folders of trials by the trial's id."""
        folders = self.folder.iterdir() if self.folder.is_dir() else ()
        return {path.name.rpartition("-")[2]: TrialPaths(path) for path in folders if "-" in path.name}

    def records(self) -> list[Path]:
        """Every record of the sweep, ordered by path."""
        return sorted(self.folder.glob("*/record.json"))
