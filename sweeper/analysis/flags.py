"""Flags: what a reader of a number should know, by rules that were fixed before anything was measured.

Place in the flow: `runner` has put a record together from what its workers saw; `flags_of` adds these. A flag never
changes a number. `eager_moved` compares trials with each other and is found where tables are made
(`sweeper.loading.cross_trial`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from sweeper.analysis.metrics import derive
from sweeper.core.record import ARMS, PerArm, Process, Record
from sweeper.core.settings import Measure

SCATTER = {"cuda": 0.05, "cpu": 0.10}  # blocks of an arm may lie so far apart, as a share of the fastest
CLOCKS_APART = 0.01
BUSY_HOST = 0.10  # of the cores that we may use, kept busy by others
THROTTLED = 0.01  # of the time of the rounds, lost to the quota of the cgroup


def flags_of(record: Record, measure: Measure) -> tuple[str, ...]:
    """Every flag of a record, in alphabetical order."""
    found = {name for name, applies in _OF_A_PROCESS.items() if any(applies(record, item) for item in record.processes)}
    found |= {name for name, applies in _OF_A_TRIAL.items() if applies(record)}
    if record.status == "ok" and measure.target is not None and not is_resolved(record, measure.target):
        found.add("unresolved")
    return tuple(sorted(found))


def is_resolved(record: Record, target: float) -> bool:
    """Whether the interval of the speedup reaches no further than `target`, a share of the speedup, to either side."""
    result = derive(record)
    if result.speedup_low is None or result.speedup_high is None:
        return False
    return math.log(result.speedup_high / result.speedup_low) / 2 <= target


def _unsteady(record: Record, process: Process) -> bool:
    """The warm-up of an arm did not become flat, or its blocks scatter."""
    arms = [blocks for arm in ARMS if (blocks := process.blocks_s(arm))]
    scatter = max((max(blocks) / min(blocks) - 1 for blocks in arms), default=0.0)
    return process.warm_up_flat is False or scatter > SCATTER[record.trial.device]


def _recompiled(_record: Record, process: Process) -> bool:
    return any(item.void == "recompiled" for item in process.rounds)


def _shared_gpu(_record: Record, process: Process) -> bool:
    return process.gpu is not None and bool(process.gpu.other_processes)


def _throttled(_record: Record, process: Process) -> bool:
    return process.gpu is not None and bool(process.gpu.slowdowns)


def _gpu_unobserved(record: Record, process: Process) -> bool:
    """Nobody could say whether the GPU was shared or its clocks were lowered."""
    if record.trial.device != "cuda" or not process.rounds:
        return False
    return process.gpu is None or process.gpu.other_processes is None or process.gpu.slowdowns is None


def _clock_mismatch(_record: Record, process: Process) -> bool:
    clock = process.gpu.clock_mhz if process.gpu else PerArm()
    return bool(clock.eager and clock.compiled) and abs((clock.eager or 0) / (clock.compiled or 1) - 1) > CLOCKS_APART


def _compile_contended(_record: Record, process: Process) -> bool:
    return process.host is not None and (process.host.busy_while_compiling or 0.0) > BUSY_HOST


def _host_busy(_record: Record, process: Process) -> bool:
    """Others kept cores busy during the rounds, or the quota of the cgroup held the process back."""
    host = process.host
    if host is None:
        return False
    rounds_s = sum((item.eager_s or 0.0) + (item.compiled_s or 0.0) for item in process.rounds)
    return (host.busy_while_measuring or 0.0) > BUSY_HOST or (host.throttled_s or 0.0) > THROTTLED * rounds_s


def _accuracy_unverified(_record: Record, process: Process) -> bool:
    return bool(process.rounds) and (process.accuracy is None or process.accuracy.passed is None)


def _eager_nondeterministic(_record: Record, process: Process) -> bool:
    return process.accuracy is not None and process.accuracy.nondeterministic


def _unequal_settings(_record: Record, process: Process) -> bool:
    return bool(process.changed_settings)


_OF_A_PROCESS: Mapping[str, Callable[[Record, Process], bool]] = {
    "unsteady": _unsteady,
    "recompiled": _recompiled,
    "shared_gpu": _shared_gpu,
    "throttled": _throttled,
    "gpu_unobserved": _gpu_unobserved,
    "clock_mismatch": _clock_mismatch,
    "compile_contended": _compile_contended,
    "host_busy": _host_busy,
    "accuracy_unverified": _accuracy_unverified,
    "eager_nondeterministic": _eager_nondeterministic,
    "unequal_settings": _unequal_settings,
}


def _several_artifacts(record: Record) -> bool:
    """Processes of one draw ran different code: the cache did not give back what it was given."""
    prints: dict[int, set[tuple[str | None, str | None]]] = {}
    for process in record.processes:
        if process.code_fingerprint:
            prints.setdefault(process.draw, set()).add((process.code_fingerprint, process.autotuning_fingerprint))
    return any(len(found) > 1 for found in prints.values())


def _attention_differs(record: Record) -> bool:
    """The arms ran attention kernels of different kinds, so a part of the speedup is the choice of a kernel."""
    settings = record.diagnostics.settings if record.diagnostics else {}
    ran = [settings.get(f"attention_ran_{arm}") for arm in ("eager", "compiled")]
    return None not in ran and ran[0] != ran[1]


_OF_A_TRIAL: Mapping[str, Callable[[Record], bool]] = {
    "smaller_batch": lambda record: record.smaller_batch_size is not None,
    "single_process": lambda record: record.status == "ok" and len(record.processes) == 1,
    "host_bound": lambda record: record.status == "ok" and derive(record).host_bound_arms is not None,
    "partly_eager": lambda record: bool(record.diagnostics and record.diagnostics.graphs_run_eager),
    "cudagraphs_skipped": lambda record: bool(record.diagnostics and record.diagnostics.cudagraph_skips),
    "several_artifacts": _several_artifacts,
    "attention_differs": _attention_differs,
}
