"""What is not as it was between BASE and HEAD, beside the figures: devices, versions, switches, how it was measured.

Place in the flow: `Pair -> lines`, for the head of a comparison. Only what both sides know is compared.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sweeper.compare.pairs import Pair
from sweeper.compare.sides import Side
from sweeper.core.serialization import mapping_at
from sweeper.core.text import printable
from sweeper.loading.sources import Source

MAX_CHARACTERS = 80  # of a value
# Environment variables that are another for every trial, and say nothing of how it ran.
OF_A_TRIAL = ("_CACHE_DIR", "CUDA_VISIBLE_DEVICES")


def other_devices(pairs: Iterable[Pair]) -> list[str]:
    """A line for each two devices whose times would be compared with each other."""
    both = ((base.device, head.device) for base, head in _both(pairs))
    found = Counter((base, head) for base, head in both if base and head and not base.is_like(head))
    return [
        _line("device", base.name_among([head]), head.name_among([base]), count)
        for (base, head), count in found.items()
    ]


def what_changed(pairs: Sequence[Pair]) -> list[str]:
    """A line for each version, switch or other fact that differs, and in how many rows where not in all."""
    both = _both(pairs)
    found: Counter[tuple[str, str, str]] = Counter()
    for base, head in both:
        of_base, of_head = _facts(base), _facts(head)
        found.update(
            (f"{group} {name}".strip(), *values)
            for group in of_base.keys() & of_head.keys()
            for name in of_base[group].keys() | of_head[group].keys()
            if len(set(values := (of_base[group].get(name, "none"), of_head[group].get(name, "none")))) > 1
        )
    return [
        _line(name, base, head, count if count < len(both) else None)
        for (name, base, head), count in sorted(found.items())
    ]


def measured_otherwise(base: Source, head: Source) -> list[str]:
    """A line for each setting of `measure` that the last runs of two sweeps do not share."""
    of_base, of_head = _measure(base), _measure(head)
    return [
        _line(f"measure.{name}", _text(of_base[name]), _text(of_head[name]))
        for name in of_base
        if name in of_head and of_base[name] != of_head[name]
    ]


def _both(pairs: Iterable[Pair]) -> list[tuple[Side, Side]]:
    return [pair.both for pair in pairs if pair.both and not any(side.lost for side in pair.both)]


def _facts(side: Side) -> dict[str, dict[str, str]]:
    """By group, so that a group which a record does not have is not taken for one in which everything is missing."""
    environment = side.environment
    device, cpu = mapping_at(environment, "device"), mapping_at(environment, "cpu")
    variables = mapping_at(environment, "variables")
    groups: dict[str, Mapping[str, Any]] = {
        "": mapping_at(environment, "versions"),
        "GPU": {name: device[name] for name in ("driver", "power_limit_w") if device.get(name) is not None},
        "CPU": cpu,
        "variable": {name: value for name, value in variables.items() if not str(name).endswith(OF_A_TRIAL)},
        "setting": side.settings,
        "record": {name: environment[name] for name in ("inductor_config", "commit", "system") if name in environment},
    }
    return {
        name: {str(key): _text(value) for key, value in group.items()} for name, group in groups.items() if len(group)
    }


def _text(value: object) -> str:
    return str(value) if isinstance(value, str) else json.dumps(value, default=str)


def _line(name: str, base: str | None, head: str | None, rows: int | None = None) -> str:
    where = "" if rows is None else f" ({rows} row{'' if rows == 1 else 's'})"
    return printable(f"{name}: {_cut(base)} → {_cut(head)}{where}")


def _cut(value: str | None) -> str:
    text = value or "none"
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 1]}…"


def _measure(source: Source) -> Mapping[str, Any]:
    """Settings of the last invocation; nothing for a folder of records that is no sweep of ours."""
    try:
        return mapping_at(json.loads(source.read_manifest())["invocations"][-1]["settings"]["measure"])
    except (OSError, ValueError, LookupError, TypeError):
        return {}
