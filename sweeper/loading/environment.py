"""The environment and settings of a record as typed values: where a trial ran, and how."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sweeper.core.record import Record
from sweeper.core.serialization import get_mapping

from .entries import Entry

Facts = Mapping[str, Mapping[str, str]]  # texts by group and name
LIBRARIES = ""  # the group of their versions, which need no other name
# Ends of environment variables that differ from trial to trial and say nothing about how it ran.
PER_TRIAL = (
    "_CACHE_DIR",
    "CUDA_VISIBLE_DEVICES",
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_RUN_ID",
)


@dataclass(frozen=True)
class Environment:
    """Where a trial ran; what its record does not say is None or empty."""

    device: str | None
    driver: str | None
    power_limit_w: float | None
    uuid: str | None  # of the GPU
    versions: Mapping[str, str]  # of packages, CUDA and Python
    commit: str | None
    inductor_config: tuple[str, ...]  # settings that are not at their defaults

    @property
    def torch(self) -> str | None:
        return self.versions.get("torch")


@lru_cache(maxsize=2**16)
def read_environment(entry: Entry) -> Environment:
    """Read the environment of a trial, whatever shape it has."""
    environment = entry.record.environment
    device = get_mapping(environment, "device")
    versions = get_mapping(environment, "versions")
    power_limit_w = device.get("power_limit_w")
    if not isinstance(power_limit_w, int | float):
        power_limit_w = None
    inductor_config = environment.get("inductor_config")
    if not isinstance(inductor_config, list):
        inductor_config = []
    return Environment(
        _read_text(device, "name"),
        _read_text(device, "driver"),
        power_limit_w,
        _read_text(device, "uuid"),
        {package: str(version) for package, version in versions.items()},
        _read_text(environment, "commit"),
        tuple(map(str, inductor_config)),
    )


def _read_text(found: Mapping[str, Any], name: str) -> str | None:
    value = found.get(name)
    return str(value) if value else None


def read_version_facts(record: Record) -> Facts:
    """Read the versions of libraries, CUDA and Python, and that of the GPU's driver."""
    return {
        LIBRARIES: show_facts(get_mapping(record.environment, "versions")),
        "GPU": _read_fact_of_gpu(record, "driver"),
    }


def read_other_facts(record: Record) -> Facts:
    """Read how a trial ran, without its device and its versions."""
    environment = record.environment
    variables = show_facts(get_mapping(environment, "variables"))
    names = ("inductor_config", "commit", "system")
    return {
        "GPU": _read_fact_of_gpu(record, "power_limit_w"),
        "CPU": show_facts(get_mapping(environment, "cpu")),
        "variable": {
            name: value for name, value in variables.items() if not name.endswith(PER_TRIAL)
        },
        "setting": show_facts(record.settings),
        "record": show_facts({name: environment[name] for name in names if name in environment}),
    }


def _read_fact_of_gpu(record: Record, name: str) -> dict[str, str]:
    value = get_mapping(record.environment, "device").get(name)
    return {} if value is None else {name: show_fact(value)}


def show_facts(group: Mapping[str, Any]) -> dict[str, str]:
    return {name: show_fact(value) for name, value in group.items()}


def show_fact(value: object) -> str:
    """Show text as it is, and any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


@dataclass(frozen=True)
class NumberFormat:
    """The number format of a step as it came out."""

    autocast: str | None  # None: no autocast
    grad_scaler: bool


def read_number_format(record: Record) -> NumberFormat | None:
    """Read the number format of a step; None where the record does not say."""
    if "autocast" not in record.settings:
        return None
    autocast = _read_text(record.settings, "autocast")
    return NumberFormat(autocast, bool(record.settings.get("grad_scaler")))


def read_text_form(record: Record) -> str | None:
    """Read the form of the texts that the model got; None for a model without texts."""
    found = record.settings.get("text")
    if found is None or not record.trial.has_texts:
        return None
    return str(found)


def read_attention(record: Record, arm: str) -> str | None:
    """Read the kinds of attention kernels that an arm ran."""
    return _read_text(record.settings, f"attention_ran_{arm}")
