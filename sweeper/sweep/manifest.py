"""The manifest of a sweep, `sweep.json`: what each command was told, what it planned, with which
versions.
"""

import datetime as dt
import importlib.metadata
import json
import platform
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from sweeper.core.errors import ConfigError
from sweeper.core.files import read_json, write_text
from sweeper.core.libraries import library_packages
from sweeper.core.paths import SweepPaths
from sweeper.core.serialization import get_mapping, to_json
from sweeper.core.settings import Settings
from sweeper.core.system.command_line import list_words
from sweeper.core.uris import remove_credentials, remove_passwords

from .plan import Plan


def add_invocation(paths: SweepPaths, settings: Settings, plan: Plan, device: str) -> list[str]:
    """Add this command to the manifest; what differs from the command before, such as `torch 2.12
    -> 2.13`.

    Raises ConfigError when the folder cannot be written or its sweep.json is not ours.
    """
    uri = settings.tracking.uri
    tracking = replace(settings.tracking, uri=uri and remove_credentials(uri))
    versions = {"python": platform.python_version()}
    others = ("hydra-core", "omegaconf", "mlflow", "pandas")
    for package in ("sweeper", "torch", *library_packages(), *others):
        # a checkout, or a package that is not needed
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    invocation: dict[str, Any] = {
        "command": shlex.join(remove_passwords(word, uri) for word in list_words()),
        "started": dt.datetime.now().astimezone().isoformat(timespec="seconds"),
        "versions": versions,
        "device": device,
        "settings": to_json(replace(settings, tracking=tracking)),
        "plan": [{"trial_id": trial.id, "label": trial.label} for trial in plan.trials],
        "left_out": [
            {"trial_id": item.trial.id, "label": item.trial.label, "reason": item.reason}
            for item in plan.left_out
        ],
    }
    path = paths.sweep
    try:
        earlier = list(read_json(path)["invocations"])
    except FileNotFoundError:
        earlier = []
    except (OSError, ValueError, LookupError, TypeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"{path} cannot be used: {why}; take another sweep=NAME or move it away"
        ) from error
    invocations = [*earlier, invocation]
    try:
        write_text(
            path, json.dumps({"sweep": settings.sweep, "invocations": invocations}, indent=1)
        )
    except OSError as error:
        raise ConfigError(
            f"cannot write to {paths.folder}: {error.strerror}; nothing was started"
        ) from error
    before, now = _flatten(invocations[-2:][0]), _flatten(invocation)
    differences = []
    for name in before | now:
        was, is_now = before.get(name), now.get(name)
        if was != is_now:
            differences.append(f"{name} {was} -> {is_now}")
    return differences


def _flatten(invocation: Mapping[str, Any]) -> dict[str, Any]:
    """What may differ between the runs of a sweep, by name."""
    found = dict(get_mapping(invocation, "versions"))
    for name, value in get_mapping(invocation, "settings", "measure").items():
        found[f"measure.{name}"] = value
    return found
