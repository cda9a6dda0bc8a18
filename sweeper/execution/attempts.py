"""Earlier attempts of a trial: what its new record keeps of the record that it replaces."""

from pathlib import Path

from sweeper.analysis.derive import find_worst_accuracy
from sweeper.core.record import Attempt, Record, RecordError
from sweeper.core.system import shortages


def raise_if_passing(error: RecordError) -> None:
    """Raise the OSError for which a record was not read, where it says nothing of the record."""
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno in shortages.PASSING:
        raise cause from None


def read_attempts(path: Path) -> tuple[Attempt, ...]:
    """List the attempts up to the record at `path`, the oldest first; none where it is missing or
    no record.

    Raises OSError where it cannot be read at the moment: a new record in its place would lose them.
    """
    try:
        record = Record.read(path)
    except RecordError as error:  # there is none, or the driver has said that it cannot be read
        raise_if_passing(error)
        return ()
    # nothing was wrong with the trial: it was measured, ended by the user, or could not be tried
    if record.status in ("ok", "interrupted", "unavailable"):
        return record.attempts
    worst = None
    if check := find_worst_accuracy(record):
        worst = check.worst
    last = record.processes[-1:]  # earlier processes were ok
    artifacts = tuple(process.artifact for process in last if process.artifact)
    attempt = Attempt(record.status, record.phase, record.message, worst, artifacts)
    return (*record.attempts, attempt)


def may_replace(record: Record, path: Path) -> bool:
    """Whether a record replaces the one at `path`. That of an interrupted trial only replaces one
    of an earlier interruption, with no more processes.
    """
    if record.status != "interrupted" or not path.exists():
        return True
    try:
        earlier = Record.read(path)
    except RecordError:
        return False
    return earlier.status == "interrupted" and len(earlier.processes) <= len(record.processes)
