"""The legend of the page: what the statuses, flags and causes of its tables mean, and which trials
have them.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sweeper.analysis.flags import CONTEXT, DOUBT, FLAGS, HOUSEKEEPING, RANKS
from sweeper.analysis.meanings import CAUSES, STATUSES, Meaning
from sweeper.loading.entries import Entry
from sweeper.report.answers.findings import Findings
from sweeper.report.answers.trials import name_trial
from sweeper.report.columns.formats import count, sentence, shorten_names

PARTS: Mapping[str, tuple[str, Mapping[str, Meaning]]] = {  # titles and terms, by kind
    DOUBT: ("Flags that doubt the number", FLAGS),
    CONTEXT: ("Flags of context", FLAGS),
    "status": ("Statuses other than ok", STATUSES),
    "cause": ("Causes of lost time", CAUSES),
    HOUSEKEEPING: ("Housekeeping flags", FLAGS),
}
UNKNOWN = Meaning("not known to this version of sweeper")


class Term(NamedTuple):
    """A name, its texts, and the trials that have it."""

    name: str
    says: str
    todo: str
    trials: str


class LegendPart(NamedTuple):
    """The terms of one kind."""

    kind: str  # status, doubt, context, housekeeping or cause
    title: str
    note: str
    terms: Sequence[Term]

    @property
    def folded(self) -> bool:
        """Whether they show only when a reader asks for them."""
        return self.kind == HOUSEKEEPING


def make_legend(findings: Findings) -> list[LegendPart]:
    """Make the parts of the legend; what no trial has is left out."""
    having: dict[tuple[str, str], list[Entry]] = defaultdict(list)  # by kind and name
    for entry in findings.entries:
        for flag in entry.flags:
            rank = FLAGS[flag].rank if flag in FLAGS else CONTEXT
            having[rank, flag].append(entry)
    for entry in findings.failed:
        having["status", entry.record.status].append(entry)
    for cause in findings.causes:
        if cause.name in CAUSES:
            having["cause", cause.name].append(cause.entry)
    terms: dict[str, list[Term]] = defaultdict(list)
    for (kind, name), entries in sorted(having.items()):
        _, meanings = PARTS[kind]
        meaning = meanings.get(name, UNKNOWN)
        names = list(dict.fromkeys(name_trial(entry, findings.axes) for entry in entries))
        trials = f"{count(len(names), 'trial')}: {shorten_names(names)}"
        terms[kind].append(Term(name, sentence(meaning.says), meaning.todo, trials))
    parts = []
    for kind, (title, _) in PARTS.items():
        if terms[kind]:
            note = sentence(RANKS.get(kind, ""))
            parts.append(LegendPart(kind, title, note, terms[kind]))
    return parts
