"""Where the numbers come from: dates, devices, versions and settings, as lines at the head of a
report.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sweeper.core.errors import explain_unreadable
from sweeper.core.record import Record
from sweeper.core.serialization import get_mapping, parse_json
from sweeper.core.text import printable
from sweeper.loading.entries import Entry
from sweeper.loading.sources import Source
from sweeper.report.formatting import shorten_names

MAX_CHARACTERS = 60  # of one setting
PRESETS = {
    "pt2": ", the settings of the figures of 2022: TF32, float16 autocast without gradient scaler, "
    "no optimizer"
}


def describe(sources: Sequence[Source], entries: Iterable[Entry]) -> list[str]:
    """Make lines such as `device: NVIDIA H200`; what is not known is left out."""
    entries = list(entries)
    environments = [entry.record.environment for entry in entries]
    devices = [get_mapping(environment, "device") for environment in environments]
    limits_w = [device.get("power_limit_w") for device in devices]
    presets = [entry.record.trial.labels.preset for entry in entries]
    invocations = [read_invocations(source)[0] for source in sources]
    facts = {
        "sweeps": ", ".join(source.folder.resolve().name for source in sources),
        "started": "; ".join(filter(None, map(_describe_start, invocations))),
        "measured": _describe_measuring([item for found in invocations for item in found], entries),
        "device": ", ".join(sorted(_distinct(device.get("name") for device in devices))),
        "driver": ", ".join(_distinct(device.get("driver") for device in devices)),
        "power limit": ", ".join(
            _distinct(f"{item:g} W" for item in limits_w if isinstance(item, (int, float)))
        ),
        "versions": _describe_versions(environments),
        "commit": ", ".join(
            _distinct(get_mapping(environment).get("commit") for environment in environments)
        ),
        "inductor config": _describe_inductor_config(environments),
        "settings": _describe_settings([entry.record for entry in entries]),
        "amp": name_amp_format(entries),
        "preset": "; ".join(
            _distinct(f"{name}{PRESETS.get(name, '')}" for name in presets if name)
        ),
    }
    return [printable(f"{name}: {value}") for name, value in facts.items() if value]


def _distinct(values: Iterable[object]) -> list[str]:
    """Return the values that are there, as text, each once, in the order in which they came."""
    return list(dict.fromkeys(str(value) for value in values if value is not None and value != ""))


def name_amp_format(entries: Iterable[Entry]) -> str:
    """Name what carried the weight amp, e.g. `bfloat16 autocast without gradient scaler`; empty
    where nobody knows.
    """
    trials = ((entry.record, entry.record.trial) for entry in entries)
    formats = (
        _name_format(record)
        for record, trial in trials
        if trial.mode != "eager" and trial.labels.weight == "amp"
    )
    return printable(" or ".join(_distinct(formats)))


def _name_format(record: Record) -> str | None:
    """Name the number format of a step as it came out, and its option where that is not `amp`."""
    settings = _get_settings(record)
    if "autocast" not in settings:
        return None
    autocast, label = settings["autocast"], record.trial.labels.precision
    numbers = (
        f"{autocast} autocast"
        if autocast
        else f"{record.trial.precision.parameters} parameters, no autocast,"
    )
    scaler = "with" if settings.get("grad_scaler") else "without"
    return f"{numbers} {scaler} gradient scaler" + (
        "" if label == "amp" else f" (precision={label})"
    )


def _get_settings(record: Record) -> Mapping[str, Any]:
    return record.diagnostics.settings if record.diagnostics else {}


def _describe_settings(records: Sequence[Record]) -> str:
    """List every setting that was equal in both arms with its values, and how many records have it
    if not all do.
    """
    # many share one
    shared = {id(settings): settings for record in records if (settings := _get_settings(record))}
    keys = ((record.trial.labels.precision, id(_get_settings(record))) for record in records)
    counts = Counter(key for key in keys if key[1] in shared)
    values: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    having: Counter[str] = Counter()
    for (label, identity), count in counts.items():
        for name, value in shared[identity].items():
            values[name][label].append(_show_setting(value))
            having[name] += count
    total = counts.total()
    rare = {
        name: f" in {count:,} of {total:,} records"
        for name, count in having.items()
        if count < total
    }
    return "; ".join(
        f"{name} {_join_values(by_label)}{rare.get(name, '')}" for name, by_label in values.items()
    )


def _join_values(by_label: Mapping[str, Sequence[str]]) -> str:
    """Join `bfloat16 (amp), none (fp32)` where the precision decides, else all values by `or`."""
    distinct = _distinct(value for values in by_label.values() for value in values)
    if len(distinct) == 1 or any(len(set(values)) > 1 for values in by_label.values()):
        return " or ".join(distinct)
    labels = {
        value: [label for label, values in by_label.items() if values[0] == value]
        for value in distinct
    }
    return ", ".join(f"{value} ({', '.join(found)})" for value, found in labels.items())


def _show_setting(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "none", True: "on", False: "off"}[value]
    text = str(value)
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 1]}…"


def _describe_versions(environments: Iterable[Mapping[str, Any]]) -> str:
    versions: dict[str, set[str]] = defaultdict(set)
    for environment in environments:
        for package, version in get_mapping(environment, "versions").items():
            versions[str(package)].add(str(version))
    return ", ".join(
        f"{package} {' and '.join(sorted(found))}" for package, found in versions.items()
    )


def _describe_inductor_config(environments: Iterable[Mapping[str, Any]]) -> str:
    """Count Inductor's settings that are not at their defaults, and list the first few."""
    lists = [get_mapping(environment).get("inductor_config") for environment in environments]
    items = _distinct(item for items in lists if isinstance(items, list) for item in items)
    if not items:
        return ""
    count = (
        "1 setting differs from its default"
        if len(items) == 1
        else f"{len(items)} settings differ from defaults"
    )
    return f"{count}: {shorten_names([_show_setting(item) for item in items])}"


def list_unreadable_manifests(sources: Iterable[Source]) -> list[str]:
    """Make a line for each sweep whose `sweep.json` is there and cannot be read."""
    return [printable(problem) for source in sources if (problem := read_invocations(source)[1])]


def read_invocations(source: Source) -> tuple[list[Mapping[str, Any]], str]:
    """Read the invocations in `sweep.json`, and say why it cannot be read; records alone are no
    sweep of ours.
    """
    try:
        manifest = parse_json(source.read_manifest())
    except FileNotFoundError:
        return [], ""
    except (OSError, ValueError) as error:
        name = source.folder.resolve().name
        return (
            [],
            f"sweep.json of {name}: {explain_unreadable(error)}; when and how it was measured is "
            "not known",
        )
    found = manifest.get("invocations") if isinstance(manifest, Mapping) else None
    return [item for item in found if isinstance(item, Mapping)] if isinstance(
        found, list
    ) else [], ""


def _describe_measuring(invocations: Iterable[Mapping[str, Any]], entries: Iterable[Entry]) -> str:
    """Say how often was measured, e.g. `processes 3, draws 1; 2 to 10 rounds of 10 asked (2 in 5 of
    9 processes)`.

    Processes and draws are as the invocations asked for. Rounds are those of trials that are ok,
    without void ones.
    """
    settings = [get_mapping(get_mapping(item).get("settings"), "measure") for item in invocations]
    names = ("processes", "draws", "target")
    texts = (
        ", ".join(f"{name} {item[name]}" for name in names if item.get(name) is not None)
        for item in settings
    )
    asked = _distinct(item.get("rounds") for item in settings)
    found: Counter[int] = Counter()
    for entry in entries:
        found.update(entry.blocks.num_rounds)
    return "; ".join(filter(None, (" and ".join(_distinct(texts)), _describe_rounds(found, asked))))


def _describe_rounds(found: Counter[int], asked: Sequence[str]) -> str:
    """Say how many rounds processes had, fewer than asked for where they ended early; `found`
    counts the processes.
    """
    if not found:
        return f"{' or '.join(asked)} rounds asked" if asked else ""
    few, many = min(found), max(found)
    (usual, count), total = found.most_common(1)[0], found.total()
    text = f"{few} rounds" if few == many else f"{few} to {many} rounds"
    if asked and (few != many or asked != [str(few)]):
        text += f" of {' or '.join(asked)} asked"
    return text + (f" ({usual} in {count:,} of {total:,} processes)" if few != many else "")


def _describe_start(invocations: Iterable[Mapping[str, Any]]) -> str:
    """Say when the sweep was first and last started."""
    started = [str(item["started"]) for item in invocations if "started" in item]
    return ", last ".join(dict.fromkeys((started[0], started[-1]))) if started else ""
