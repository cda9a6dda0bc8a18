"""What records of several sweeps do not have in common, as lines: a mean over them should not hide
it.

Different devices are told apart by `variant`, and enter no common mean. Trials that differ in
anything else do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

from sweeper.core.serialization import get_mapping
from sweeper.core.text import printable
from sweeper.loading.entries import Entry
from sweeper.report.formatting import shorten_names

# Of `diagnostics.settings`: what the environment may change behind equal axes.
SWITCHES = (
    "float32_matmul_precision",
    "matmul_allow_tf32",
    "matmul_reduced_bf16",
    "matmul_reduced_fp16",
    "cudnn_allow_tf32",
    "cudnn_benchmark",
    "deterministic_algorithms",
    "autocast",
    "grad_scaler",
)

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", str, bool)


def find_mixtures(entries: Sequence[Entry]) -> list[str]:
    """Make a line for each of: devices, versions of torch, ways to time, global switches of one
    precision.
    """
    lines = []
    parts = {part for entry in entries for part in entry.variant.split("; ")}
    if devices := sorted(part for part in parts if part.startswith(("device=", "gpu=", "cpu="))):
        lines.append(
            f"trials ran on different devices, which no mean mixes: {', '.join(devices)} (in "
            "variant)"
        )
    # The variant has what the grid asked for, such as `worker.python`.
    versions = (
        (entry, get_mapping(entry.record.environment, "versions").get("torch")) for entry in entries
    )
    if mixed := _find_mixed(
        (entry.variant, str(version)) for entry, version in versions if version is not None
    ):
        different = sorted(set().union(*mixed.values()))
        lines.append(f"means hold trials of different versions of torch: {', '.join(different)}")
    timed = (entry for entry in entries if entry.result.eager_step_s is not None)
    if _find_mixed(
        ((e.record.trial.workload, e.variant), "eager_p50_s" in e.result.readings) for e in timed
    ):
        lines.append("means hold trials timed step by step (measure.clock=step) beside others")
    switches: dict[str, set[str]] = defaultdict(set)
    for (name, precision, _), values in _find_mixed(_list_switches(entries)).items():
        switches[f"{name} ({precision})"] |= values
    for switch, values in switches.items():
        lines.append(
            f"means hold trials with different settings: {switch} {shorten_names(sorted(values))}"
        )
    return [printable(line) for line in lines]


def _find_mixed(pairs: Iterable[tuple[K, V]]) -> dict[K, set[V]]:
    """Collect the values of each key that has several."""
    values: dict[K, set[V]] = defaultdict(set)
    for key, value in pairs:
        values[key].add(value)
    return {key: found for key, found in values.items() if len(found) > 1}


def _list_switches(entries: Iterable[Entry]) -> Iterator[tuple[tuple[str, str, str], str]]:
    for entry in entries:
        settings = entry.record.diagnostics.settings if entry.record.diagnostics else {}
        for name in SWITCHES:
            if name in settings:
                yield (
                    (name, entry.record.trial.labels.precision, entry.variant),
                    str(settings[name]),
                )
