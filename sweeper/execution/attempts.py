"""Earlier attempts of a trial: what its new record keeps of the record that it replaces."""

from __future__ import annotations

from pathlib import Path

from sweeper.analysis.metrics import find_worst_accuracy
from sweeper.core.record import Attempt, Record, RecordError

# Nothing was wrong with the trial: it was measured, ended by the user, or could not be tried.
NOT_KEPT = ("ok", "interrupted", "unavailable")


def read_attempts(path: Path) -> tuple[Attempt, ...]:
    """List the attempts up to the record at `path`, the oldest first; none where it is missing or cannot be read."""
    try:
        record = Record.read(path)
    except RecordError:  # there is none, or the driver has said that it cannot be read
        return ()
    return (*record.attempts, *([] if record.status in NOT_KEPT else [_make_attempt(record)]))


def _make_attempt(record: Record) -> Attempt:
    worst = find_worst_accuracy(record)
    last = record.processes[-1].artifact if record.processes else None  # earlier processes were ok
    artifacts = (last,) if last else ()
    return Attempt(record.status, record.phase, record.message, worst.worst if worst else None, artifacts)
