"""causes.csv: where time goes that compiling could have saved, dearest first, a row for each trial
and cause.

| column | meaning |
|---|---|
| `model batch_size workload precision mode backend variant trial_id` | the trial, of any status \
but `compile_error` |
| `cause` | `host_bound`, `graph_break`, `recompile`, `cudagraph_skip`, `cache_bypass`, \
`throttled` |
| `count` | how often it was seen; empty where it is a state and not an event |
| `lost_ms_per_step` | milliseconds of a compiled step, empty where it cannot be told |
| `lost_fraction` | the same as a share of the compiled step |
| `detail` | the compiler's reason and the place in the user's code |
| `reason fix` | the reason without a place, and what to do; the page groups causes by `cause` and \
`fix` |
| `sweep` | the name of the trial's sweep |
"""

from collections import Counter
from collections.abc import Sequence
from operator import attrgetter

from sweeper.core.grouping import group_by
from sweeper.report.answers.causes import Cause
from sweeper.report.answers.findings import Findings
from sweeper.report.answers.trials import TRIAL_AXES, find_varying, name_trial
from sweeper.report.columns.column import Column, lift
from sweeper.report.columns.formats import join_lines, shorten_names

from .spec import TableSpec, TrialTable
from .trials import NAMES, trial_columns

MAX_TRIALS = 200  # that a cause on the page opens to


class CausesTable(TrialTable[Cause]):
    name = "causes"
    title = "Causes of lost time"
    word = "Causes"
    place = 40
    has_every_axis = True
    max_markdown_rows = 50
    max_terminal_rows = 10
    columns: Sequence[Column[Cause]] = (
        *trial_columns(*NAMES, "trial_id"),
        Column("cause", lambda cause: cause.name, title="cause"),
        Column("count", lambda cause: cause.count, int, title="count"),
        lift(
            Column[float](
                "lost_ms_per_step", lambda lost_s: lost_s * 1e3, float, title="lost ms per step"
            ),
            lambda cause: cause.lost_s,
        ),
        Column("lost_fraction", lambda cause: cause.lost_fraction, float),
        Column("detail", lambda cause: join_lines(cause.detail), title="detail"),
        Column("reason", lambda cause: join_lines(cause.reason)),
        Column("fix", lambda cause: cause.fix),
    )

    def items(self, findings: Findings) -> Sequence[Cause]:
        return findings.causes

    def line(self, item: Cause) -> tuple[str, str]:
        return item.name, item.describe_behind_name()

    def for_page(self) -> TableSpec[list[Cause]]:
        return CauseGroupsTable()


def _name_reasons(causes: Sequence[Cause]) -> str:
    """Name the most frequent reasons, each with the number of its trials where there are
    several.
    """
    trials = dict.fromkeys((join_lines(cause.reason), cause.entry) for cause in causes)
    often = Counter(reason for reason, _ in trials).most_common()
    if len(often) == 1:
        return often[0][0]
    return shorten_names((f"{reason} ({number})" for reason, number in often), between="; ")


class CauseGroupsTable(TableSpec[list[Cause]]):
    """What the page shows of causes: groups of one kind that have one fix, in each the dearest
    first. A group opens to its trials.
    """

    name = CausesTable.name
    title = CausesTable.title
    word = CausesTable.word
    place = CausesTable.place
    columns: Sequence[Column[list[Cause]]] = (
        Column("", lambda causes: causes[0].name, title="cause"),
        Column("", _name_reasons, title="reason"),
        Column("", lambda causes: causes[0].fix, title="fix"),
        Column(
            "",
            lambda causes: causes[0].lost_fraction,
            float,
            title="lost at most",
            text=lambda causes: causes[0].loss,
        ),
        Column("", lambda causes: len(set(map(attrgetter("entry"), causes))), int, title="trials"),
        Column(
            "",
            lambda causes: shorten_names(
                dict.fromkeys(map(attrgetter("entry.trial.labels.model"), causes))
            ),
            title="models",
        ),
    )

    def items(self, findings: Findings) -> Sequence[list[Cause]]:
        kinds = map(attrgetter("name", "fix"), findings.causes)
        return list(group_by(kinds, findings.causes).values())

    def parts(self, item: list[Cause]) -> Sequence[tuple[str, str]]:
        axes = find_varying([cause.entry for cause in item], TRIAL_AXES)
        parts = []
        for cause in item[:MAX_TRIALS]:
            parts.append((name_trial(cause.entry, axes), cause.describe()))
        hidden = len(item) - MAX_TRIALS
        if hidden > 0:
            parts.append(("and more", f"{hidden} in causes.csv"))
        return parts
