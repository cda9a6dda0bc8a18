"""What else changed between BASE and HEAD: devices, versions, switches and how trials were measured.

Only facts that both sides have are compared.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sweeper.compare.pairs import Pair
from sweeper.compare.sides import Side
from sweeper.core.serialization import get_mapping
from sweeper.core.text import printable
from sweeper.loading.sources import Source, read_settings

MAX_CHARACTERS = 80  # of a value
# Ends of environment variables that differ from trial to trial and say nothing about how it ran.
PER_TRIAL = ("_CACHE_DIR", "CUDA_VISIBLE_DEVICES")


def list_device_changes(pairs: Iterable[Pair]) -> list[str]:
    """A line for each two different devices whose times would be compared with each other."""
    both = Counter((base.device, head.device) for base, head in _with_records(pairs))
    unlike = [(base, head, count) for (base, head), count in both.items() if base and head and not base.is_like(head)]
    return [_line("device", base.name_among([head]), head.name_among([base]), count) for base, head, count in unlike]


def list_environment_changes(pairs: Sequence[Pair]) -> list[str]:
    """A line for each version, switch or other fact that differs, with the number of rows unless it is all of them."""
    both = _with_records(pairs)
    found: Counter[tuple[str, str, str]] = Counter()
    for in_base, in_head in ((_facts(base), _facts(head)) for base, head in both):
        for group in in_base.keys() & in_head.keys():
            names = in_base[group].keys() | in_head[group].keys()
            values = ((name, in_base[group].get(name, "none"), in_head[group].get(name, "none")) for name in names)
            found.update((f"{group} {name}".strip(), base, head) for name, base, head in values if base != head)
    return [_line(*change, count if count < len(both) else None) for change, count in sorted(found.items())]


def list_setting_changes(base: Source, head: Source) -> list[str]:
    """A line for each setting of `measure` that differs between the last runs of two sweeps."""
    in_base, in_head = read_settings(base, "measure"), read_settings(head, "measure")
    changed = [name for name, value in in_base.items() if name in in_head and value != in_head[name]]
    return [_line(f"measure.{name}", _text(in_base[name]), _text(in_head[name])) for name in changed]


def _with_records(pairs: Iterable[Pair]) -> list[tuple[Side, Side]]:
    return [pair.both for pair in pairs if pair.both and not any(side.lost for side in pair.both)]


def _facts(side: Side) -> dict[str, dict[str, str]]:
    """Facts by group; a group that the record does not have is left out, or all of its facts would seem to be gone."""
    environment = side.environment
    device, variables = get_mapping(environment, "device"), get_mapping(environment, "variables")
    groups: dict[str, Mapping[str, Any]] = {
        "": get_mapping(environment, "versions"),
        "GPU": {name: device[name] for name in ("driver", "power_limit_w") if device.get(name) is not None},
        "CPU": get_mapping(environment, "cpu"),
        "variable": {name: value for name, value in variables.items() if not str(name).endswith(PER_TRIAL)},
        "setting": side.settings,
        "record": {name: environment[name] for name in ("inductor_config", "commit", "system") if name in environment},
    }
    return {name: {str(key): _text(value) for key, value in group.items()} for name, group in groups.items() if group}


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _line(name: str, base: str, head: str, rows: int | None = None) -> str:
    where = "" if rows is None else f" ({rows} row{'' if rows == 1 else 's'})"
    values = (value if len(value) <= MAX_CHARACTERS else f"{value[: MAX_CHARACTERS - 1]}…" for value in (base, head))
    return printable(f"{name}: {' → '.join(value or 'none' for value in values)}{where}")
