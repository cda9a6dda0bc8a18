"""What records of several sweeps do not have in common, as lines: a mean over them should not hide it.

Place in the flow: `build` puts them among the notes. Different devices are told apart by `variant` (`devices`), the
rest is said and stays together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from sweeper.core.serialization import get_mapping
from sweeper.core.text import printable
from sweeper.loading.entries import Entry
from sweeper.report.formatting import shortened

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


def mixtures(entries: Sequence[Entry]) -> list[str]:
    """A line for each of: devices, versions of torch, ways to time, global switches of one precision."""
    return [
        printable(line)
        for line in (_devices(entries), _versions(entries), _clocks(entries), *_switches(entries))
        if line
    ]


def _devices(entries: Iterable[Entry]) -> str:
    variants = (
        part for entry in entries for part in entry.variant.split("; ") if part.startswith(("device=", "gpu=", "cpu="))
    )
    found = sorted(set(variants))
    return f"trials ran on different devices, which no mean mixes: {', '.join(found)} (in variant)" if found else ""


def _versions(entries: Iterable[Entry]) -> str:
    """Versions that the grid did not ask for: `worker.python` is an axis of its own, in the variant."""
    found: dict[str, set[str]] = defaultdict(set)
    for entry in entries:
        version = get_mapping(entry.record.environment, "versions").get("torch")
        if version is not None:
            found[entry.variant].add(str(version))
    mixed = sorted(set().union(*(versions for versions in found.values() if len(versions) > 1)))
    return f"means hold trials of different versions of torch: {', '.join(mixed)}" if mixed else ""


def _clocks(entries: Iterable[Entry]) -> str:
    ways: dict[tuple[str, str], set[bool]] = defaultdict(set)
    for entry in entries:
        if entry.result.eager_step_s is not None:
            ways[entry.record.trial.workload, entry.variant].add("eager_p50_s" in entry.result.readings)
    mixed = any(len(found) > 1 for found in ways.values())
    return "means hold trials timed step by step (measure.clock=step) beside others" if mixed else ""


def _switches(entries: Iterable[Entry]) -> list[str]:
    values: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for entry in entries:
        diagnostics, trial = entry.record.diagnostics, entry.record.trial
        for name in SWITCHES if diagnostics is not None else ():
            if diagnostics is not None and name in diagnostics.settings:
                values[name, trial.labels.precision, entry.variant].add(str(diagnostics.settings[name]))
    mixed: dict[str, set[str]] = defaultdict(set)
    for (name, precision, _), found in values.items():
        if len(found) > 1:
            mixed[f"{name} ({precision})"] |= found
    return [
        f"means hold trials with different settings: {name} {shortened(sorted(found))}" for name, found in mixed.items()
    ]
