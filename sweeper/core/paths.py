"""Every path under `runs/`; `docs/formats.md` describes the files."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from .errors import ConfigError
from .system.leftovers import remove

RUNS = Path("runs")
SWEEP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def check_sweep_name(name: str) -> str:
    """Return `name` if a folder can have it. Raises ConfigError otherwise."""
    is_reserved = name in ("mlflow.db", "mlartifacts")  # MLflow's own, beside the sweeps
    if not SWEEP_NAME.fullmatch(name) or len(name) > 100 or is_reserved:
        raise ConfigError(
            f"sweep={name}: a sweep's name starts with a letter or digit, goes on with letters, "
            "digits, '.', '_' or '-', has at most 100 characters and is none of the names that "
            "MLflow's store has; e.g. sweep=resnets-h200"
        )
    return name


class TrialPaths:
    """The files of one trial."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trial = folder / "trial.json"
        self.record = folder / "record.json"
        self.inspection = folder / "inspect"  # files about the compiler's work, from `inspect=true`
        self.bisection = folder / "bisect"  # probes of `python -m sweeper.bisect`

    def log(self, process: int | str) -> Path:
        return self.folder / f"worker-{process}.log"

    def cache(self, draw: int | str) -> Path:
        """The private compile cache of a draw, or of an inspection; it exists while the trial
        runs.
        """
        return self.folder / f"cache-{draw}"

    def clear_caches(self) -> None:
        """Remove the caches of every draw, also those that a killed driver left."""
        for folder in list_folder(self.folder, "cache-*"):
            remove(folder)

    def clear_logs(self) -> None:
        """Remove logs and inspection of an earlier attempt."""
        for path in (self.inspection, *list_folder(self.folder, "worker-*.log")):
            remove(path)


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
        if not others:
            return self.report
        names = "-".join(path.resolve().name for path in others)
        return self.folder / f"report-with-{names}"[:200]  # file systems take 255 bytes

    def require_no_links(self) -> None:
        """Raise ConfigError if the folder holds links: what a sweep writes would land elsewhere."""
        if links := sorted(filter(Path.is_symlink, list_folder(self.folder, "*"))):
            more = f", like {len(links) - 1} more" if links[1:] else ""
            raise ConfigError(
                f"{self.folder}: {links[0].name!a} is a link{more}, and a sweep writes "
                "through none; move it away"
            )

    def trial(self, label: str, trial_id: str) -> TrialPaths:
        """The folder of a trial: the one that ends in its id, or a new `<label>-<id>`."""
        new = self.folder / f"{label}-{trial_id}"
        return TrialPaths(min(list_folder(self.folder, f"*-{trial_id}"), default=new))

    def trials(self) -> dict[str, TrialPaths]:
        """The folders of trials by the trial's id."""
        folders = list_folder(self.folder, "*-*")
        return {path.name.rpartition("-")[2]: TrialPaths(path) for path in folders}

    def records(self) -> list[Path]:
        """Every record of the sweep, ordered by path."""
        records = [path / "record.json" for path in list_folder(self.folder, "*")]
        return sorted(filter(os.path.exists, records))


def list_folder(folder: Path, pattern: str) -> list[Path]:
    """List what a folder holds under names of a pattern; nothing where there is no folder.

    Raises OSError for a folder that cannot be read, which looks empty to `Path.glob`.
    """
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if fnmatchcase(path.name, pattern)]
