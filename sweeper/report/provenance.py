"""Where the numbers come from: dates, devices and versions, as lines at the head of a report."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sweeper.paths import SweepPaths
from sweeper.report.load import Entry
from sweeper.report.readable import printable


def describe(sweeps: Sequence[Path], entries: Iterable[Entry]) -> list[str]:
    """Lines such as `device: NVIDIA H200`; what is not known is left out."""
    environments = [entry.record.environment for entry in entries]
    devices = {str(name) for environment in environments if (name := _mapping(environment, "device").get("name"))}
    versions: dict[str, set[str]] = {}
    for environment in environments:
        for package, version in _mapping(environment, "versions").items():
            versions.setdefault(str(package), set()).add(str(version))
    facts = {
        "sweeps": ", ".join(folder.resolve().name for folder in sweeps),
        "started": "; ".join(date for folder in sweeps if (date := _date(folder))),
        "device": ", ".join(sorted(devices)),
        "versions": ", ".join(f"{package} {' and '.join(sorted(found))}" for package, found in versions.items()),
    }
    return [printable(f"{name}: {value}") for name, value in facts.items() if value]


def _mapping(environment: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The mapping under `key`; the environment of a record is free, and older records may have none."""
    found = environment.get(key) if isinstance(environment, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _date(sweep: Path) -> str | None:
    """When the sweep was first and last started, after `sweep.json`."""
    try:
        invocations = json.loads(SweepPaths(sweep).sweep.read_text(encoding="utf-8"))["invocations"]
        started = [str(invocation["started"]) for invocation in invocations]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # a folder of records need not be a sweep of ours
    return ", last ".join(dict.fromkeys((started[0], started[-1]))) if started else None
