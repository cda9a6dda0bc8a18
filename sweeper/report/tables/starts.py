"""starts.csv: how long a compiled program takes to start, a row per trial and state of its caches.
It is for sweeps in which `compile.start` varies.

| column | meaning |
|---|---|
| `model batch_size workload precision mode backend variant trial_id sweep` | the trial, of any \
status |
| `starts_from` | `nothing cached`, or what `compile.start` says |
| `first_step_s` | seconds from the start of a process to the end of its first compiled step |
| `steady_s` | seconds to the end of its first compiled steps, which end when they are steady |
| `step_ms` | wall time of the compiled step in this state |
| `device_step_ms` | the device's own time for it; empty where it is not known, as on a CPU |
| `autograd_cache compile_cache` | hits, misses and bypasses of the caches of AOTAutograd and \
Inductor |
| `bypasses` | torch's reasons, joined by ` \\| ` |
| `status message` | of the trial |
"""

from collections.abc import Sequence
from operator import attrgetter

from sweeper.report.answers.findings import Findings
from sweeper.report.answers.starts import StartRow, list_starts
from sweeper.report.columns.column import Column
from sweeper.report.columns.formats import join

from .spec import TrialTable
from .trials import NAMES, file_columns, trial_columns


def _time(name: str, title: str) -> Column[StartRow]:
    return Column(name, attrgetter(f"start.{name}"), float, title=title)


def _counts(name: str, title: str) -> Column[StartRow]:
    def show(row: StartRow) -> str:
        return "/".join(map(str, getattr(row.start, name).values()))

    return Column(name, show, title=title, meaning=f"{title} are hits/misses/bypasses of its cache")


class StartsTable(TrialTable[StartRow]):
    name = "starts"
    title = "How compiled programs start"
    word = "Starts"
    place = 72
    has_every_axis = True
    columns: Sequence[Column[StartRow]] = (
        *trial_columns(*NAMES),
        *file_columns("trial_id"),
        Column("starts_from", lambda row: row.origin, title="starts from", is_name=True),
        _time("first_step_s", "first step s"),
        _time("steady_s", "steady s"),
        _time("step_ms", "step ms"),
        _time("device_step_ms", "device ms"),
        _counts("autograd_cache", "AOTAutograd"),
        _counts("compile_cache", "Inductor"),
        Column("bypasses", lambda row: join(row.start.bypasses, " | "), title="bypasses"),
        Column("status", lambda row: row.entry.record.status, title="status"),
        Column("message", lambda row: row.entry.record.first_line, title="message"),
    )

    def items(self, findings: Findings) -> Sequence[StartRow]:
        return list_starts(findings.entries)
