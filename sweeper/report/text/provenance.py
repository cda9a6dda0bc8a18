"""Where the numbers come from: dates, devices, versions and settings, as lines at the head of a report."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sweeper.core.record import Record
from sweeper.core.serialization import get_mapping
from sweeper.core.text import printable
from sweeper.loading.entries import Entry
from sweeper.loading.sources import Source, explain_unreadable
from sweeper.report.formatting import shortened

MAX_CHARACTERS = 60  # of one setting
PRESETS = {"pt2": ", the settings of the figures of 2022: TF32, float16 autocast without gradient scaler, no optimizer"}


def describe(sources: Sequence[Source], entries: Iterable[Entry]) -> list[str]:
    """Lines such as `device: NVIDIA H200`; what is not known is left out."""
    entries = list(entries)
    environments = [entry.record.environment for entry in entries]
    devices = [get_mapping(environment, "device") for environment in environments]
    invocations = [_invocations(source) for source in sources]
    facts = {
        "sweeps": ", ".join(source.folder.resolve().name for source in sources),
        "started": "; ".join(date for of_sweep in invocations if (date := _date(of_sweep))),
        "measured": "; ".join(_different(map(_measured, invocations))),
        "device": ", ".join(sorted(_different(device.get("name") for device in devices))),
        "driver": ", ".join(_different(device.get("driver") for device in devices)),
        "power limit": ", ".join(_different(_watts(device.get("power_limit_w")) for device in devices)),
        "versions": _versions(environments),
        "commit": ", ".join(_different(get_mapping(environment).get("commit") for environment in environments)),
        "inductor config": _inductor_config(environments),
        "settings": _settings([entry.record for entry in entries]),
        "amp": weighted_as_amp(entries),
        "preset": "; ".join(_different(_preset(entry.record) for entry in entries)),
    }
    return [printable(f"{name}: {value}") for name, value in facts.items() if value]


def _preset(record: Record) -> str | None:
    name = record.trial.labels.preset
    return f"{name}{PRESETS.get(name, '')}" if name else None


def weighted_as_amp(entries: Iterable[Entry]) -> str:
    """What carried the weight amp, e.g. `bfloat16 autocast without gradient scaler`; empty where records do not say."""
    records = [entry.record for entry in entries if entry.record.trial.mode != "eager"]
    formats = (_format(record) for record in records if record.trial.labels.weight == "amp")
    return printable(" or ".join(_different(formats)))


def _format(record: Record) -> str | None:
    """The number format of a step as it came out; the name of its option where that is not just `amp`."""
    settings = _settings_of(record)
    if "autocast" not in settings:
        return None
    autocast, label = settings["autocast"], record.trial.labels.precision
    numbers = f"{autocast} autocast" if autocast else f"{record.trial.precision.parameters} parameters, no autocast,"
    scaler = "with" if settings.get("grad_scaler") else "without"
    return f"{numbers} {scaler} gradient scaler" + ("" if label == "amp" else f" (precision={label})")


def _settings(records: Iterable[Record]) -> str:
    """Every setting that was equal in both arms, with its value, or its values and where each was in force; and how
    many records have it, where some do not.
    """
    found: dict[str, dict[str, list[str]]] = {}
    having: Counter[str] = Counter()
    sharing: dict[tuple[str, int], list[Record]] = {}  # many share one
    for record in records:
        if _settings_of(record):
            sharing.setdefault((record.trial.labels.precision, id(_settings_of(record))), []).append(record)
    for (label, _), alike in sharing.items():
        for key, value in _settings_of(alike[0]).items():
            found.setdefault(key, {}).setdefault(label, []).append(_value(value))
            having[key] += len(alike)
    every = sum(map(len, sharing.values()))
    rare = {key: f" in {count:,} of {every:,} records" for key, count in having.items() if count < every}
    return "; ".join(f"{key} {_by_precision(values)}{rare.get(key, '')}" for key, values in found.items())


def _by_precision(values: Mapping[str, Sequence[str]]) -> str:
    """One value; or `bfloat16 (amp), none (fp32)` where the precision decides; or all values joined by `or`."""
    different = _different(value for of_label in values.values() for value in of_label)
    if len(different) == 1:
        return different[0]
    if any(len(set(of_label)) > 1 for of_label in values.values()):
        return " or ".join(different)
    labels = {value: [label for label, of_label in values.items() if of_label[0] == value] for value in different}
    return ", ".join(f"{value} ({', '.join(found)})" for value, found in labels.items())


def _value(value: object) -> str:
    named = {None: "none", True: "on", False: "off"}
    return named[value] if value is None or isinstance(value, bool) else _cut(str(value))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 1]}…"


def _settings_of(record: Record) -> Mapping[str, Any]:
    return record.diagnostics.settings if record.diagnostics else {}


def _versions(environments: Iterable[Mapping[str, Any]]) -> str:
    versions: dict[str, set[str]] = {}
    for environment in environments:
        for package, version in get_mapping(environment, "versions").items():
            versions.setdefault(str(package), set()).add(str(version))
    return ", ".join(f"{package} {' and '.join(sorted(found))}" for package, found in versions.items())


def _inductor_config(environments: Iterable[Mapping[str, Any]]) -> str:
    """How many of Inductor's settings are not at their defaults, and the first few."""
    lists = [get_mapping(environment).get("inductor_config") for environment in environments]
    items = _different(item for items in lists if isinstance(items, list) for item in items)
    if not items:
        return ""
    count = "1 setting differs from its default" if len(items) == 1 else f"{len(items)} settings differ from defaults"
    return f"{count}: {shortened([_cut(item) for item in items])}"


def _different(values: Iterable[object]) -> list[str]:
    """The values that are there, as text, each once, in the order in which they came."""
    return list(dict.fromkeys(str(value) for value in values if value is not None and value != ""))


def _watts(value: object) -> str | None:
    return f"{value:g} W" if isinstance(value, (int, float)) else None


def without_invocations(sources: Iterable[Source]) -> list[str]:
    """A line for each sweep whose `sweep.json` is there and cannot be read."""
    found = []
    for source in sources:
        try:
            json.loads(source.read_manifest())
        except FileNotFoundError:  # a folder of records that is no sweep of ours
            pass
        except (OSError, ValueError) as error:
            name = source.folder.resolve().name
            found.append(f"sweep.json of {name} {explain_unreadable(error)}: when and how it was measured is not known")
    return [printable(line) for line in found]


def _invocations(source: Source) -> list[Mapping[str, Any]]:
    """What `sweep.json` says; nothing in a folder of records that is no sweep of ours."""
    try:
        found = json.loads(source.read_manifest())["invocations"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []


def _measured(invocations: Iterable[Mapping[str, Any]]) -> str | None:
    """How often, by the settings of each invocation, e.g. `processes 3, draws 1, rounds 10`."""
    settings = [get_mapping(get_mapping(item).get("settings"), "measure") for item in invocations]
    names = ("processes", "draws", "target", "rounds")
    texts = (", ".join(f"{name} {item[name]}" for name in names if item.get(name) is not None) for item in settings)
    return " and ".join(_different(texts)) or None


def _date(invocations: Iterable[Mapping[str, Any]]) -> str | None:
    """When the sweep was first and last started."""
    started = [str(item["started"]) for item in invocations if "started" in item]
    return ", last ".join(dict.fromkeys((started[0], started[-1]))) if started else None
