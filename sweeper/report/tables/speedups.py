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
| `eager_step_ms compiled_step_ms samples_per_s` | geometric means over processes; samples of the compiled arm |
| `compile_cold_s compile_warm_s` | extra wall seconds of the first compiled steps, with empty and filled cache |
| `break_even_steps break_even_warm_steps` | steps after which compiling has paid; empty when it never does |
| `eager_peak_memory_mib compiled_peak_memory_mib` | device memory, MiB |
| `graph_breaks recompiles` | counts |
| `message` | the first line of what went wrong |
| `speedup_min speedup_max` | the smallest and largest speedup of a process; from two processes on |
| `speedup_moderated_low speedup_moderated_high` | moderated t interval, see `across`; never the one that is printed |
| `device_speedup_low device_speedup_high` | 95 % interval, by the same rule of draws and processes |
| `host_bound_arms` | `eager`, `compiled` or `both`: where the device waits for the host for more than 5 % of the time |
| `break_even_steps_low break_even_steps_high` | from the bounds of the speedup; no `high`: perhaps never; `warm` too |
| `first_step_cold_s first_step_warm_s` | from the start of the process to the end of its first compiled step |
| `compile_dynamo_s compile_aot_autograd_s compile_inductor_s compile_autotuning_s` | parts of compiling cold |
| `artifacts` | how many different compiled programs the processes ran |
| `accuracy_reference accuracy_worst` | what the compiled step was compared with; its worst tensor, by error / bound |
| `accuracy_error accuracy_bound` | root mean squares against the reference: that tensor's, and what is allowed |
| `tokens_per_s` | of the compiled arm, of models that read text |
| `eager_p50_ms eager_p90_ms eager_p99_ms` and `compiled_...` | percentiles of single steps, with `measure.clock=step` |
| `eager_energy_j compiled_energy_j` | joules of the whole GPU a step, with `measure.energy=true` |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from sweeper.core.record import Accuracy
from sweeper.loading.entries import Entry
from sweeper.report.table import Column, Table, Value

MIB = 2**20


def _of_accuracy(name: str, value: Callable[[Accuracy], Value]) -> Column[Entry]:
    return Column(name, lambda entry: value(entry.worst) if entry.worst else None)


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
    Column("batch_size", lambda entry: entry.record.batch_size),
    Column("variant", lambda entry: entry.variant),
    Column("status", lambda entry: entry.record.status),
    Column("flags", lambda entry: entry.flags),
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
    # What stands above is a contract: names and order stay. What is new is added at the end.
    Column("speedup_min", lambda entry: entry.result.speedup_min),
    Column("speedup_max", lambda entry: entry.result.speedup_max),
    Column("speedup_moderated_low", lambda entry: entry.moderated.low if entry.moderated else None),
    Column("speedup_moderated_high", lambda entry: entry.moderated.high if entry.moderated else None),
    Column("device_speedup_low", lambda entry: entry.result.device_speedup_low),
    Column("device_speedup_high", lambda entry: entry.result.device_speedup_high),
    Column("host_bound_arms", lambda entry: entry.result.host_bound_arms),
    Column("break_even_steps_low", lambda entry: entry.result.break_even_steps_low),
    Column("break_even_steps_high", lambda entry: entry.result.break_even_steps_high),
    Column("break_even_warm_steps_low", lambda entry: entry.result.break_even_warm_steps_low),
    Column("break_even_warm_steps_high", lambda entry: entry.result.break_even_warm_steps_high),
    Column("first_step_cold_s", lambda entry: entry.result.first_step_cold_s),
    Column("first_step_warm_s", lambda entry: entry.result.first_step_warm_s),
    Column("compile_dynamo_s", lambda entry: entry.result.compile_dynamo_s),
    Column("compile_aot_autograd_s", lambda entry: entry.result.compile_aot_autograd_s),
    Column("compile_inductor_s", lambda entry: entry.result.compile_inductor_s),
    Column("compile_autotuning_s", lambda entry: entry.result.compile_autotuning_s),
    Column("artifacts", lambda entry: entry.result.artifacts),
    _of_accuracy("accuracy_reference", lambda accuracy: accuracy.reference),
    _of_accuracy("accuracy_worst", lambda accuracy: accuracy.worst),
    _of_accuracy("accuracy_error", lambda accuracy: accuracy.compiled_error),
    _of_accuracy("accuracy_bound", lambda accuracy: accuracy.bound),
    Column("sweep", lambda entry: _name_of(entry.folder.parent)),
    Column("tokens_per_s", lambda entry: entry.result.tokens_per_s),
    Column("eager_p50_ms", lambda entry: _milliseconds(entry.result.eager_p50_s)),
    Column("eager_p90_ms", lambda entry: _milliseconds(entry.result.eager_p90_s)),
    Column("eager_p99_ms", lambda entry: _milliseconds(entry.result.eager_p99_s)),
    Column("compiled_p50_ms", lambda entry: _milliseconds(entry.result.compiled_p50_s)),
    Column("compiled_p90_ms", lambda entry: _milliseconds(entry.result.compiled_p90_s)),
    Column("compiled_p99_ms", lambda entry: _milliseconds(entry.result.compiled_p99_s)),
    Column("eager_energy_j", lambda entry: entry.result.eager_energy_j),
    Column("compiled_energy_j", lambda entry: entry.result.compiled_energy_j),
)


def _name_of(sweep: Path) -> str:
    """That of the folder itself; to resolve every path takes ten times as long as to ask whether it is a link."""
    return sweep.resolve().name if sweep.is_symlink() or sweep.name in ("", "..") else sweep.name


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
