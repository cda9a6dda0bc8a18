"""The legend of the page: what the statuses, flags and causes of its tables mean, and which trials
have them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sweeper.analysis.flags import FLAGS, HOUSEKEEPING, RANKS
from sweeper.analysis.meanings import CAUSES, STATUSES, Meaning
from sweeper.report import formatting
from sweeper.report.formatting import TRIAL_AXES, sentence, shorten_names, text, trial_name
from sweeper.report.table import Row

TITLES = {
    "doubt": "Flags that doubt the number",
    "context": "Flags of context",
    HOUSEKEEPING: "Housekeeping flags",
}


@dataclass(frozen=True)
class Term:
    """A name, its texts, and the trials that have it."""

    name: str
    says: str
    todo: str
    trials: str


@dataclass(frozen=True)
class Part:
    """The terms of one kind; those that are `folded` show when a reader asks for them."""

    kind: str  # status, doubt, context, housekeeping or cause
    title: str
    note: str
    terms: Sequence[Term]
    folded: bool = False


def make_legend(rows: Sequence[Row], causes: Sequence[Row]) -> list[Part]:
    """Make the parts of the legend for the rows of speedups and of causes; what no row has is left
    out.
    """
    axes = formatting.find_varying(rows, TRIAL_AXES)
    flags = _name_trials(((flag, row) for row in rows for flag in formatting.flags(row)), axes)
    statuses = _name_trials(
        ((text(row["status"]), row) for row in rows if row["status"] != "ok"), axes
    )
    found = _name_trials(((text(row["cause"]), row) for row in causes), axes)
    ranks = {name: FLAGS[name].rank if name in FLAGS else "context" for name in flags}
    parts = []
    for rank, note in RANKS.items():
        of_rank = {name: trials for name, trials in flags.items() if ranks[name] == rank}
        parts.append(
            Part(
                rank,
                TITLES[rank],
                sentence(note),
                _make_terms(of_rank, FLAGS),
                rank == HOUSEKEEPING,
            )
        )
    others = {name: trials for name, trials in found.items() if name in CAUSES}
    parts.append(Part("status", "Statuses other than ok", "", _make_terms(statuses, STATUSES)))
    parts.append(Part("cause", "Causes of lost time", "", _make_terms(others, CAUSES)))
    return sorted((part for part in parts if part.terms), key=lambda part: part.folded)


def _name_trials(pairs: Iterable[tuple[str, Row]], axes: Sequence[str]) -> dict[str, str]:
    """Name the first few trials that have each name, e.g. `24 trials: resnet50 amp default and 23
    more`.
    """
    having: dict[str, dict[str, None]] = {}
    for name, row in pairs:
        having.setdefault(name, {})[trial_name(row, axes)] = None
    return {
        name: f"{len(trials)} trial{'' if len(trials) == 1 else 's'}: {shorten_names(list(trials))}"
        for name, trials in sorted(having.items())
    }


def _make_terms(names: Mapping[str, str], meanings: Mapping[str, Meaning]) -> list[Term]:
    unknown = Meaning("not known to this version of sweeper")
    known = ((name, meanings.get(name, unknown), trials) for name, trials in names.items())
    return [
        Term(name, sentence(meaning.says), meaning.todo, trials) for name, meaning, trials in known
    ]
