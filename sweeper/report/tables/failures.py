"""failures.csv: a row for each trial that is not ok.

`phase` is where it ended, `message` all of what was said, on one line (` | ` for a line break), `log` the path of the
worker's log. `in_pass_rate` says whether the trial counts in `models` of summary.csv; these do not: eager-side
failures, `unavailable`, `interrupted`, any trial of a model that has one of those, precisions without a weight and
mode=eager.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from sweeper.loading.entries import Entry
from sweeper.report.formatting import AXES, as_text, varying
from sweeper.report.table import Column, Row, Table
from sweeper.report.tables.speedups import COLUMNS as SPEEDUP_COLUMNS

_NAMED = {column.name: column for column in SPEEDUP_COLUMNS}


def failures(entries: Iterable[Entry], judged: Collection[Entry]) -> Table:
    """`judged` are the entries behind the pass rates of the summary."""
    columns: tuple[Column[Entry], ...] = (
        *(_NAMED[name] for name in ("trial_id", "model", "family", "workload", "mode", "backend", "precision")),
        *(_NAMED[name] for name in ("batch_size", "variant", "status")),
        Column("phase", lambda entry: entry.record.phase),
        Column("message", lambda entry: " | ".join((entry.record.message or "").splitlines()) or None),
        Column("log", lambda entry: (entry.folder / entry.record.log).as_posix() if entry.record.log else None),
        Column("in_pass_rate", lambda entry: entry in judged),
    )
    return Table.of(columns, (entry for entry in entries if entry.record.status != "ok"))


def failure_columns(rows: Sequence[Row]) -> tuple[Column[Row], ...]:
    """Columns of text over rows of failures.csv."""
    return (
        as_text("model"),
        *(as_text(name) for name in varying(rows, AXES)),
        as_text("precision"),
        as_text("mode"),
        as_text("status"),
        as_text("phase"),
        as_text("message"),
        as_text("log"),
    )
