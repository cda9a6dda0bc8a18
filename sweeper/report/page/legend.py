"""The legend of the page: what the statuses, flags and causes of its tables mean, and which trials
have them.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sweeper.analysis.flags import FLAGS, HOUSEKEEPING, RANKS
from sweeper.analysis.meanings import CAUSES, STATUSES, Meaning
from sweeper.loading.entries import Entry
from sweeper.report.answers.findings import Findings
from sweeper.report.answers.trials import name_trial
from sweeper.report.columns.formats import count, sentence, shorten_names

TITLES = {
    "doubt": "Flags that doubt the number",
    "context": "Flags of context",
    HOUSEKEEPING: "Housekeeping flags",
}
UNKNOWN = Meaning("not known to this version of sweeper")


@dataclass(frozen=True)
class Term:
    """A name, its texts, and the trials that have it."""

    name: str
    says: str
    todo: str
    trials: str


@dataclass(frozen=True)
class LegendPart:
    """The terms of one kind."""

    kind: str  # status, doubt, context, housekeeping or cause
    title: str
    note: str
    terms: Sequence[Term]

    @property
    def folded(self) -> bool:
        """Whether they show only when a reader asks for them."""
        return self.kind == HOUSEKEEPING


Having = dict[str, list[Entry]]  # the trials that have a name


def make_legend(findings: Findings) -> list[LegendPart]:
    """Make the parts of the legend; what no trial has is left out."""
    of_rank: dict[str, Having] = {rank: defaultdict(list) for rank in RANKS}
    statuses: Having = defaultdict(list)
    causes: Having = defaultdict(list)
    for entry in findings.entries:
        for flag in entry.flags:
            rank = FLAGS[flag].rank if flag in FLAGS else "context"
            of_rank[rank][flag].append(entry)
    for entry in findings.failed:
        statuses[entry.record.status].append(entry)
    for cause in findings.causes:
        if cause.name in CAUSES:
            causes[cause.name].append(cause.entry)
    parts = []
    for rank, note in RANKS.items():
        terms = _make_terms(of_rank[rank], FLAGS, findings)
        parts.append(LegendPart(rank, TITLES[rank], sentence(note), terms))
    of_statuses = _make_terms(statuses, STATUSES, findings)
    of_causes = _make_terms(causes, CAUSES, findings)
    parts.append(LegendPart("status", "Statuses other than ok", "", of_statuses))
    parts.append(LegendPart("cause", "Causes of lost time", "", of_causes))
    return sorted((part for part in parts if part.terms), key=lambda part: part.folded)


def _make_terms(having: Having, meanings: Mapping[str, Meaning], findings: Findings) -> list[Term]:
    """Make the terms in alphabetical order, each with the first few trials that have it."""
    terms = []
    for name, entries in sorted(having.items()):
        meaning = meanings.get(name, UNKNOWN)
        names = list(dict.fromkeys(name_trial(entry, findings.axes) for entry in entries))
        trials = f"{count(len(names), 'trial')}: {shorten_names(names)}"
        terms.append(Term(name, sentence(meaning.says), meaning.todo, trials))
    return terms
