"""failures.csv: a row per trial that is not ok.

`phase` is where it ended, `message` all of what was said, on one line (` | ` for a line break),
`log` the path of the worker's log. `in_pass_rate` says whether the trial counts in `models` of
summary.csv. These do not: eager-side failures, `unavailable`, `interrupted`, any trial of a model
that has one of those, precisions without a weight and mode=eager.
"""

from __future__ import annotations

from collections.abc import Sequence

from sweeper.loading.entries import Entry
from sweeper.report.findings import Findings
from sweeper.report.formatting import TRIAL_AXES, axis_columns, sort_rows, text, text_column
from sweeper.report.spec import TableSpec
from sweeper.report.table import MARKDOWN, PAGE, TERMINAL, Column, Row, Table, TextColumn
from sweeper.report.tables import speedups

_TRIAL = (
    "trial_id",
    "model",
    "family",
    "workload",
    "mode",
    "backend",
    "precision",
    "batch_size",
    "variant",
    "status",
)


def failures(findings: Findings) -> Table:
    judged = {
        entry
        for group in findings.groups
        for unit in group.judged
        for entry in unit.entries.values()
    }
    columns: tuple[Column[Entry], ...] = (
        *speedups.select_columns(_TRIAL, lambda entry: entry),
        Column("phase", lambda entry: entry.record.phase),
        Column(
            "message", lambda entry: " | ".join((entry.record.message or "").splitlines()) or None
        ),
        Column(
            "log",
            lambda entry: (
                (entry.folder / entry.record.log).as_posix() if entry.record.log else None
            ),
        ),
        Column("in_pass_rate", lambda entry: entry in judged, bool),
        *speedups.select_columns(("sweep",), lambda entry: entry),
    )
    return Table.make(columns, select_failed(findings))


def select_failed(findings: Findings) -> list[Entry]:
    return [entry for entry in findings.entries if entry.record.status != "ok"]


def _text_columns(rows: Sequence[Row], trials: Sequence[Row]) -> list[TextColumn]:
    names = (text_column(name, is_name=True) for name in ("precision", "mode"))
    said = map(text_column, ("status", "phase"))
    message = text_column("message", media=(MARKDOWN, TERMINAL))
    first_line = TextColumn(
        "message", lambda row: text(row["message"]).partition(" | ")[0], media=(PAGE,)
    )
    # rows of the page open to its end, and to all of the message
    log = text_column("log", media=(MARKDOWN, TERMINAL))
    return [
        text_column("model"),
        *axis_columns(trials or rows, TRIAL_AXES),
        *names,
        *said,
        message,
        first_line,
        log,
    ]


def _explain(_findings: Findings, rows: Sequence[Row]) -> str:
    left_out = sum(row["in_pass_rate"] is not True for row in rows)
    verb = "trial is" if len(rows) == 1 else "trials are"
    all_ = "it" if len(rows) == 1 else "all of them"
    counted = (
        f"leave {all_ if left_out == len(rows) else f'{left_out} of them'} out"
        if left_out
        else f"count {all_}"
    )
    return f"{len(rows)} {verb} not ok; pass rates {counted}."


def _describe(row: Row) -> tuple[str, str]:
    phase = f" while {text(row['phase'])}" if row["phase"] else ""
    message = f": {text(row['message'])}" if row["message"] else ""
    return text(row["status"]), phase + message


SPEC = TableSpec(
    "failures",
    "Failures",
    failures,
    _text_columns,
    arrange=sort_rows,
    explain=_explain,
    as_line=_describe,
    entries=select_failed,
    shows_log=True,
    max_terminal_rows=20,
)
