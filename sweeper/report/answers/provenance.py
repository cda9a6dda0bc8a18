"""Where the numbers come from: dates, devices, versions and settings, at the head of a report.

Which packages a record has versions of is decided in `sweeper.worker.monitoring.environment`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from sweeper.core.text import printable
from sweeper.loading.entries import Entry
from sweeper.loading.environment import (
    Environment,
    read_environment,
    read_number_format,
)
from sweeper.loading.invocations import Manifest
from sweeper.report.columns.formats import join, shorten, shorten_names

TORCH = "torch"
MAX_CHARACTERS = 60  # of one setting
PRESETS = {
    "pt2": ", the settings of the figures of 2022: TF32, float16 autocast without gradient scaler, "
    "no optimizer"
}
ASKED = ("processes", "draws", "target")  # settings of measuring that people want to know


class Fact(NamedTuple):
    """A fact by its name, e.g. `device`, `NVIDIA H200`."""

    name: str
    value: str

    @property
    def line(self) -> str:
        return f"{self.name}: {self.value}"


@dataclass(frozen=True)
class Provenance:
    """Where the numbers of a report come from; what is not known is empty."""

    facts: tuple[Fact, ...]
    sweeps: str
    machine: str  # what the figures hold for, e.g. `NVIDIA H200 · torch 2.11.0+cu130`
    precedence: str  # of several sweeps: whose trial counts where two have the same


def describe(
    manifests: Sequence[Manifest], entries: Sequence[Entry], limits: str = ""
) -> Provenance:
    """Describe where the numbers come from. `limits` are those that modes are recommended for."""
    environments = [read_environment(entry) for entry in entries]
    names = [manifest.sweep for manifest in manifests]
    sweeps = ", ".join(names)
    presets = dict.fromkeys(entry.trial.labels.preset or "" for entry in entries)
    devices, drivers, power_limits, commits = [], [], [], []
    versions: dict[str, set[str]] = defaultdict(set)
    for environment in environments:
        devices.append(environment.device or "")
        drivers.append(environment.driver)
        commits.append(environment.commit)
        if environment.power_limit_w is not None:
            power_limits.append(f"{environment.power_limit_w:g} W")
        for package, version in environment.versions.items():
            versions[package].add(version)
    described = {name: f"{name} {' and '.join(sorted(found))}" for name, found in versions.items()}
    device = _list_distinct(sorted(devices))
    precedence = ""
    if len(set(names)) > 1:
        precedence = (
            f"where several of {_list_distinct(names)} tried one model, precision, batch and mode, "
            "means and recommendations take the trial of the sweep named last; recommendations "
            "take an earlier one where the last is not ok"
        )
    started = []
    for manifest in manifests:
        times = [found.started for found in manifest.invocations if found.started]
        started.append(_list_distinct((*times[:1], *times[-1:]), ", last "))
    values = {
        "sweeps": sweeps,
        "started": join(started),
        "measured": _describe_measuring(manifests, entries),
        "device": device,
        "driver": _list_distinct(drivers),
        "power limit": _list_distinct(power_limits),
        "versions": ", ".join(described.values()),
        "commit": _list_distinct(commits),
        "inductor config": _describe_inductor_config(environments),
        "settings": _describe_settings(entries),
        "amp": name_amp_format(entries),
        "preset": join(f"{name}{PRESETS.get(name, '')}" for name in presets),
        "recommended for": limits,
        "same trial twice": precedence,
    }
    facts = [Fact(name, printable(value)) for name, value in values.items() if value]
    machine = join((device, described.get(TORCH, "")), " · ")
    return Provenance(tuple(facts), sweeps, machine, precedence)


def _list_distinct(values: Iterable[str | None], between: str = ", ") -> str:
    """Join the values that are there, each once, in the order in which they came."""
    return between.join(filter(None, dict.fromkeys(values)))


def name_amp_format(entries: Iterable[Entry]) -> str:
    """Name what carried the weight amp, e.g. `bfloat16 autocast without gradient scaler`; empty
    where it is not known.
    """
    formats = []
    for entry in entries:
        if entry.trial.mode != "eager" and entry.trial.labels.weight == "amp":
            formats.append(_name_format(entry))
    return printable(_list_distinct(formats, " or "))


def _name_format(entry: Entry) -> str | None:
    """Name the number format of a step as it came out, and its option where that is not `amp`."""
    found, label = read_number_format(entry.record), entry.trial.labels.precision
    if found is None:
        return None
    numbers = f"{entry.trial.precision.parameters} parameters, no autocast,"
    if found.autocast:
        numbers = f"{found.autocast} autocast"
    scaler = "with" if found.grad_scaler else "without"
    option = "" if label == "amp" else f" (precision={label})"
    return f"{numbers} {scaler} gradient scaler{option}"


def _describe_settings(entries: Iterable[Entry]) -> str:
    """List every setting that was equal in both arms with its values, and how many records have it
    if not all do.
    """
    values: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    having: Counter[str] = Counter()
    total = 0
    for entry in entries:
        total += bool(entry.record.settings)
        for name, value in entry.record.settings.items():
            values[name][entry.trial.labels.precision].append(_show_setting(value))
            having[name] += 1
    parts = []
    for name, by_label in values.items():
        rare = f" in {having[name]:,} of {total:,} records" if having[name] < total else ""
        parts.append(f"{name} {_join_values(by_label)}{rare}")
    return "; ".join(parts)


def _join_values(by_label: Mapping[str, Sequence[str]]) -> str:
    """Join `bfloat16 (amp), none (fp32)` where the precision decides, else all values by `or`."""
    having: dict[str, list[str]] = defaultdict(list)
    for label, values in by_label.items():
        for value in dict.fromkeys(values):
            having[value].append(label)
    distinct = list(filter(None, having))
    if len(distinct) == 1 or sum(map(len, having.values())) > len(by_label):
        return " or ".join(distinct)
    return ", ".join(f"{value} ({', '.join(having[value])})" for value in distinct)


def _show_setting(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        if value:
            return "on"
        return "off"
    return shorten(str(value), MAX_CHARACTERS)


def _describe_inductor_config(environments: Iterable[Environment]) -> str:
    """Count Inductor's settings that are not at their defaults, and list the first few."""
    items = dict.fromkeys(chain.from_iterable(found.inductor_config for found in environments))
    if not items:
        return ""
    number = f"{len(items)} settings differ from defaults"
    if len(items) == 1:
        number = "1 setting differs from its default"
    return f"{number}: {shorten_names(map(_show_setting, items))}"


def _describe_measuring(manifests: Iterable[Manifest], entries: Iterable[Entry]) -> str:
    """Say how often was measured, e.g. `processes 3, draws 1; 2 to 10 rounds of 10 asked (2 in 5 of
    9 processes)`, with fewer rounds than asked for where processes ended early.

    Processes and draws are as the invocations asked for. Rounds are those of trials that are ok,
    without void ones.
    """
    settings, rounds_asked = [], []
    for manifest in manifests:
        for invocation in manifest.invocations:
            measure = invocation.measure
            known = [f"{name} {measure[name]}" for name in ASKED if measure.get(name) is not None]
            settings.append(", ".join(known))
            rounds_asked.append(invocation.rounds)
    texts, asked = _list_distinct(settings, " and "), _list_distinct(rounds_asked, " or ")
    rounds: Counter[int] = Counter()
    for entry in entries:
        rounds.update(entry.blocks.num_rounds)
    if not rounds:
        return join((texts, f"{asked} rounds asked" if asked else ""))
    few, many = min(rounds), max(rounds)
    text = f"{few} rounds" if few == many else f"{few} to {many} rounds"
    if asked and (few != many or asked != str(few)):
        text += f" of {asked} asked"
    if few != many:
        (usual, number), total = rounds.most_common(1)[0], rounds.total()
        text += f" ({usual} in {number:,} of {total:,} processes)"
    return join((texts, text))
