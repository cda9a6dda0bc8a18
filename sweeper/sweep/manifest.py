"""The manifest of a sweep, `sweep.json`: what each command was told, what it planned, with which versions."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import json
import platform
import shlex
import sys
from contextlib import suppress
from typing import Any

from sweeper.core.errors import ConfigError
from sweeper.core.libraries import library_packages
from sweeper.core.paths import SweepPaths, write_text
from sweeper.core.serialization import to_json
from sweeper.core.settings import Settings
from sweeper.sweep.plan import Plan


def add_invocation(paths: SweepPaths, settings: Settings, plan: Plan, device: str) -> list[str]:
    """Add this command to the manifest; the names of what differs from the command before (versions, measure, ...).

    Raises ConfigError when the folder cannot be written or its sweep.json is not ours.
    """
    versions = {"python": platform.python_version()}
    for package in ("sweeper", "torch", *library_packages(), "hydra-core", "omegaconf", "mlflow", "pandas"):
        with suppress(importlib.metadata.PackageNotFoundError):  # a checkout, or a package that is not needed
            versions[package] = importlib.metadata.version(package)
    left_out = [{"trial_id": item.trial.id, "label": item.trial.label, "reason": item.reason} for item in plan.left_out]
    invocation: dict[str, Any] = {
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
        "started": dt.datetime.now().astimezone().isoformat(timespec="seconds"),
        "versions": versions,
        "device": device,
        "settings": to_json(settings),
        "plan": [{"trial_id": trial.id, "label": trial.label} for trial in plan.trials],
        "left_out": left_out,
    }
    path = paths.sweep
    try:
        earlier = json.loads(path.read_text())["invocations"] if path.exists() else []
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not a sweep's file ({error}); take another sweep=NAME or move it away") from error
    try:
        write_text(path, json.dumps({"sweep": settings.sweep, "invocations": [*earlier, invocation]}, indent=1))
    except OSError as error:
        raise ConfigError(f"cannot write to {paths.folder}: {error.strerror}; nothing was started") from error
    before = earlier[-1] if earlier else invocation
    changed = [key for key in ("versions", "device") if before.get(key) != invocation[key]]
    same_measure = before.get("settings", {}).get("measure") == invocation["settings"]["measure"]
    return changed if same_measure else [*changed, "measure"]
