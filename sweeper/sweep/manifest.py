"""The manifest of a sweep, `sweep.json`: what each command was told, what it planned, with which
versions.
"""

import datetime as dt
import json
import platform
import shlex
from collections.abc import Mapping
from typing import Any

from sweeper.core.errors import ConfigError, explain_unreadable
from sweeper.core.files import read_json, write_text
from sweeper.core.libraries import library_packages, read_versions
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
    uri, kept = settings.tracking.uri, to_json(settings)
    kept["tracking"]["uri"] = uri and remove_credentials(uri)
    versions = read_versions(
        ("sweeper", "torch", *library_packages(), "hydra-core", "omegaconf", "mlflow", "pandas")
    )
    invocation: dict[str, Any] = {
        "command": shlex.join(remove_passwords(word, uri) for word in list_words()),
        "started": dt.datetime.now().astimezone().isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), **versions},
        "device": device,
        "settings": kept,
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
        raise ConfigError(
            f"{path} cannot be used: {explain_unreadable(error)}; take another sweep=NAME or move "
            "it away"
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
