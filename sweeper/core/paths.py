"""Every path under `runs/`, how to write there (to a temporary name, then rename) and how to read what others wrote.

`docs/formats.md` describes the files.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from sweeper.core.errors import ConfigError

RUNS = Path("runs")
RESERVED = ("mlflow.db", "mlartifacts")  # MLflow's own, beside the sweeps
MAX_NAME_CHARACTERS = 200  # file systems take 255 bytes
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
    """Replace `path` as a whole or not at all, so that a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink()
        raise


def read_text(path: Path, max_bytes: int) -> str:
    """Read a regular file. Raises OSError for a link, a pipe and a file with more bytes, UnicodeDecodeError."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "a symbolic link, which is not followed", str(path)) from error
        raise
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if found.st_size > max_bytes:
            raise OSError(errno.EFBIG, f"larger than {max_bytes / 2**20:.0f} MiB", str(path))
        with os.fdopen(handle, "rb", buffering=0, closefd=False) as file:
            return file.read().decode()
    finally:
        os.close(handle)


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
            shutil.rmtree(folder, ignore_errors=True)

    def clear_logs(self) -> None:
        """Remove logs and inspection of an earlier attempt."""
        shutil.rmtree(self.inspection, ignore_errors=True)
        for log in self.folder.glob("worker-*.log"):
            log.unlink()


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
