"""failures.csv: a row per trial that is not ok.

`phase` is where it ended, `message` all of what was said, on one line (` | ` for a line break),
`log` the path of the worker's log. `in_pass_rate` says whether the trial counts in `models` of
summary.csv. These do not: eager-side failures, `unavailable`, `interrupted`, any trial of a model
that has one of those, precisions without a weight and mode=eager.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sweeper.core.backends import STAGES
from sweeper.core.record import FAULTS, say_while
from sweeper.loading.entries import Entry
from sweeper.report.answers.findings import Findings
from sweeper.report.answers.trials import name_sweep, rank_trial
from sweeper.report.columns.cell import show
from sweeper.report.columns.column import MARKDOWN, PAGE, TERMINAL, Column
from sweeper.report.columns.formats import count, join_lines, prefix

from .spec import TrialTable
from .trials import NAMES, file_columns, trial_columns


@dataclass(frozen=True)
class FailedTrial:
    """A trial that is not ok, and whether pass rates count it."""

    entry: Entry
    in_pass_rate: bool

    @property
    def message(self) -> str | None:
        return join_lines(self.entry.record.message or "") or None


def _name_bisection(failed: FailedTrial) -> str | None:
    record = failed.entry.record
    known = record.trial.backend in STAGES and not record.trial.has_loop
    if record.status not in FAULTS or not known:
        return None
    return f"python -m sweeper.bisect {name_sweep(failed.entry)} {record.trial_id}"


class FailuresTable(TrialTable[FailedTrial]):
    name = "failures"
    title = "Failures"
    place = 10
    has_every_axis = True
    shows_log = True
    max_terminal_rows = 20
    columns: Sequence[Column[FailedTrial]] = (
        *trial_columns(*NAMES),
        *file_columns("trial_id", "family"),
        Column(
            "status",
            lambda failed: failed.entry.record.status,
            title="status",
            is_name=True,
            is_filter=True,
        ),
        Column("phase", lambda failed: failed.entry.record.phase, title="phase", is_name=True),
        Column(
            "message", lambda failed: failed.message, title="message", media=(MARKDOWN, TERMINAL)
        ),
        Column("", lambda failed: failed.entry.record.first_line, title="message", media=(PAGE,)),
        Column("", _name_bisection, title="to find the reason", media=(MARKDOWN, PAGE)),
        # Rows of the page open to the end of the log, and to all of the message.
        Column("log", lambda failed: failed.entry.log, title="log", media=(MARKDOWN, TERMINAL)),
        Column("in_pass_rate", lambda failed: failed.in_pass_rate, bool),
    )

    def items(self, findings: Findings) -> Sequence[FailedTrial]:
        judged: set[Entry] = set()
        for group in findings.groups:
            for point in group.judged:
                judged.update(point.entries.values())
        return [FailedTrial(entry, entry in judged) for entry in findings.failed]

    def arrange(self, items: Sequence[FailedTrial]) -> Sequence[FailedTrial]:
        return sorted(items, key=lambda failed: rank_trial(failed.entry))

    def explain(self, findings: Findings) -> str:
        items = self.items(findings)
        left_out = sum(not failed.in_pass_rate for failed in items)
        verb, counted = "are", "all of them"
        if len(items) == 1:
            verb, counted = "is", "it"
        rates = f"count {counted}"
        if left_out == len(items):
            rates = f"leave {counted} out"
        elif left_out:
            rates = f"leave {left_out} of them out"
        return f"{count(len(items), 'trial')} {verb} not ok; pass rates {rates}."

    def line(self, item: FailedTrial) -> tuple[str, str]:
        record = item.entry.record
        phase = say_while(show(record.phase))
        return record.status, f"{phase}{prefix(': ', show(item.message))}"
