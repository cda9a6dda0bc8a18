"""What records of several sweeps do not have in common, as lines: a mean over them should not hide
it.

Different devices are told apart by `variant`, and enter no common mean. Trials that differ in
anything else do.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence

from sweeper.core.ladder import ONE_LINERS
from sweeper.core.text import printable
from sweeper.loading.entries import Entry
from sweeper.loading.environment import read_environment
from sweeper.report.columns.formats import shorten_names

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


def find_mixtures(entries: Sequence[Entry]) -> list[str]:
    """Make a line for each of: devices, versions of torch, ways to time, global switches of one
    precision.
    """
    devices: set[str] = set()
    torches: dict[Hashable, set[str]] = defaultdict(set)
    clocks: dict[Hashable, set[str]] = defaultdict(set)
    switches: dict[tuple[str, str], set[str]] = defaultdict(set)
    for entry in entries:
        trial, variant = entry.trial, entry.variant
        devices.update(part for part in entry.origin if not part.startswith("torch="))
        # The variant has what the grid asked for, such as `worker.python`.
        if torch := read_environment(entry).torch:
            torches[variant].add(torch)
        if entry.result.eager_step:
            clock = "step" if "eager_p50_s" in entry.result.readings else "block"
            clocks[trial.workload, variant].add(clock)
        settings = entry.record.settings
        # a model has the one-liners of its rung as far as they apply to it
        own = ONE_LINERS if trial.labels.rung else ()
        for name in SWITCHES:
            if name in settings and name not in own:
                switch = f"{name} ({trial.labels.precision})"
                switches[switch, variant].add(str(settings[name]))
    lines = []
    if devices:
        lines.append(
            f"trials ran on different devices, which no mean mixes: {', '.join(sorted(devices))} "
            "(in variant)"
        )
    if mixed := _find_mixed(torches.values()):
        different = ", ".join(sorted(mixed))
        lines.append(f"means hold trials of different versions of torch: {different}")
    if _find_mixed(clocks.values()):
        lines.append("means hold trials timed step by step (measure.clock=step) beside others")
    differing: dict[str, set[str]] = defaultdict(set)
    for (switch, _), found in switches.items():
        if len(found) > 1:
            differing[switch] |= found
    for switch, found in differing.items():
        values = shorten_names(sorted(found))
        lines.append(f"means hold trials with different settings: {switch} {values}")
    return [printable(line) for line in lines]


def _find_mixed(groups: Iterable[set[str]]) -> set[str]:
    """Find the values of the groups that have several."""
    mixed = set()
    for found in groups:
        if len(found) > 1:
            mixed |= found
    return mixed
