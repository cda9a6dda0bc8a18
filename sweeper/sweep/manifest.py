"""`sweep.json`: every invocation of a sweep, what it was told, what it planned, with which versions.

Place in the flow: `app` adds one before the first trial starts, and tells the user what differs from the one before.
"""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import json
import platform
import shlex
import sys
from pathlib import Path
from typing import Any

from sweeper.core.errors import ConfigError
from sweeper.core.libraries import library_packages
from sweeper.core.paths import SweepPaths, write_text
from sweeper.core.serialization import to_json
from sweeper.core.settings import Settings
from sweeper.sweep.plan import Plan


def add(paths: SweepPaths, settings: Settings, planned: Plan, device: str) -> list[str]:
    """Write this invocation behind the earlier ones; the names of what differs from the last (versions, measure, ...).

    Raises ConfigError when the folder cannot be written or its sweep.json is not ours.
    """
    invocation = {
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
        "started": dt.datetime.now().astimezone().isoformat(timespec="seconds"),
        "versions": _versions(),
        "device": device,
        "settings": to_json(settings),
        "plan": [{"trial_id": trial.id, "label": trial.label} for trial in planned.trials],
        "left_out": [
            {"trial_id": item.trial.id, "label": item.trial.label, "reason": item.reason} for item in planned.left_out
        ],
    }
    earlier = _earlier(paths.sweep)
    try:
        write_text(paths.sweep, json.dumps({"sweep": settings.sweep, "invocations": [*earlier, invocation]}, indent=1))
    except OSError as error:
        raise ConfigError(f"cannot write to {paths.folder}: {error.strerror}; nothing was started") from error
    return _differences(earlier[-1], invocation) if earlier else []


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    changed = [key for key in ("versions", "device") if before.get(key) != now[key]]
    if before.get("settings", {}).get("measure") != now["settings"]["measure"]:
        changed.append("measure")
    return changed


def _earlier(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    try:
        invocations: list[dict[str, Any]] = json.loads(path.read_text())["invocations"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not a sweep's file ({error}); take another sweep=NAME or move it away") from error
    return invocations


def _versions() -> dict[str, str]:
    """Versions of installed packages, without importing them."""
    versions = {"python": platform.python_version()}
    for package in ("sweeper", "torch", *library_packages(), "hydra-core", "omegaconf", "mlflow", "pandas"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue  # run from a checkout, or a package that this sweep does not need
    return versions
