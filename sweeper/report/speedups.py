"""speedups.csv: a row a trial, failed ones included.

| column | meaning |
|---|---|
| `trial_id model family suite library` | the trial, the model as people call it, its labels, who builds it |
| `workload mode backend precision` | names of config options; `backend` is empty for mode=eager |
| `batch_size` | the one used |
| `variant` | every other axis that is not at its default, and the device type where the records at hand have several |
| `status flags` | one status; flags joined by `;` |
| `interval` | what the interval is taken over: `none`, `processes` (one compiled artifact) or `draws` |
| `speedup speedup_low speedup_high` | eager / compiled step time with a 95 % interval; empty unless the status is ok |
| `processes draws` | how many of each were measured |
| `device_speedup` | the same ratio of the time in which the device was busy |
| `host_bound_fraction` | share of wall time in which the device waits for the host |
| `eager_step_ms compiled_step_ms samples_per_s` | medians over processes; samples of the compiled arm |
| `compile_cold_s compile_warm_s` | extra wall seconds of the first compiled steps, with empty and filled cache |
| `break_even_steps break_even_warm_steps` | steps after which compiling has paid; empty when it never does |
| `eager_peak_memory_mib compiled_peak_memory_mib` | device memory, MiB |
| `graph_breaks recompiles` | counts |
| `message` | the first line of what went wrong |
"""

from __future__ import annotations

from collections.abc import Iterable

from sweeper.report.load import Entry
from sweeper.report.table import Column, Table

MIB = 2**20

COLUMNS: tuple[Column[Entry], ...] = (
    Column("trial_id", lambda entry: entry.record.trial_id),
    Column("model", lambda entry: entry.record.trial.labels.model),
    Column("family", lambda entry: entry.record.trial.labels.family),
    Column("suite", lambda entry: entry.record.trial.labels.suite),
    Column("library", lambda entry: entry.record.trial.model.library),
    Column("workload", lambda entry: entry.record.trial.workload),
    Column("mode", lambda entry: entry.record.trial.mode),
    Column("backend", lambda entry: backend(entry)),
    Column("precision", lambda entry: entry.record.trial.labels.precision),
    Column("batch_size", lambda entry: entry.record.trial.batch_size),
    Column("variant", lambda entry: entry.variant),
    Column("status", lambda entry: entry.record.status),
    Column("flags", lambda entry: entry.record.flags),
    Column("interval", lambda entry: entry.result.interval),
    Column("speedup", lambda entry: entry.result.speedup),
    Column("speedup_low", lambda entry: entry.result.speedup_low),
    Column("speedup_high", lambda entry: entry.result.speedup_high),
    Column("processes", lambda entry: entry.result.processes),
    Column("draws", lambda entry: entry.result.draws),
    Column("device_speedup", lambda entry: entry.result.device_speedup),
    Column("host_bound_fraction", lambda entry: entry.result.host_bound_fraction),
    Column("eager_step_ms", lambda entry: _milliseconds(entry.result.eager_step_s)),
    Column("compiled_step_ms", lambda entry: _milliseconds(entry.result.compiled_step_s)),
    Column("samples_per_s", lambda entry: entry.result.samples_per_s),
    Column("compile_cold_s", lambda entry: entry.result.compile_cold_s),
    Column("compile_warm_s", lambda entry: entry.result.compile_warm_s),
    Column("break_even_steps", lambda entry: entry.result.break_even_steps),
    Column("break_even_warm_steps", lambda entry: entry.result.break_even_warm_steps),
    Column("eager_peak_memory_mib", lambda entry: _mebibytes(entry.result.eager_peak_memory_bytes)),
    Column("compiled_peak_memory_mib", lambda entry: _mebibytes(entry.result.compiled_peak_memory_bytes)),
    Column("graph_breaks", lambda entry: entry.result.graph_breaks),
    Column("recompiles", lambda entry: entry.result.recompiles),
    Column("message", lambda entry: _first_line(entry.record.message)),
)


def speedups(entries: Iterable[Entry]) -> Table:
    return Table.of(COLUMNS, entries)


def backend(entry: Entry) -> str | None:
    """The backend's name; None where nothing is compiled."""
    return entry.record.trial.backend if entry.record.trial.mode != "eager" else None


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def _mebibytes(size: float | None) -> float | None:
    return None if size is None else size / MIB


def _first_line(message: str | None) -> str | None:
    return next((line for line in (message or "").splitlines() if line.strip()), None)
