"""How long compiled programs take to start, where `compile.start` varies."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from sweeper.analysis.result import Start
from sweeper.loading.entries import Entry
from sweeper.report.columns.cell import show
from sweeper.report.columns.formats import figure, join


class StartRow(NamedTuple):
    """A trial with one of its starts."""

    entry: Entry
    start: Start

    @property
    def origin(self) -> str:
        return "nothing cached" if self.start.cold else self.entry.trial.compile.start


def list_starts(entries: Sequence[Entry]) -> list[StartRow]:
    """The starts of compiled trials; none where all start alike."""
    compiled = [entry for entry in entries if entry.trial.mode != "eager"]
    if len({entry.trial.compile.start for entry in compiled}) < 2:
        return []
    return [StartRow(entry, start) for entry in compiled for start in entry.result.starts]


def conclude(rows: Sequence[StartRow]) -> list[str]:
    """Say how long each model takes to its first compiled step, e.g. `the first step of
    resnet50 ends after 71 s with nothing cached, 16.4 s from local_cache`.
    """
    found: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.start.first_step_s is not None:
            trial = row.entry.trial
            of_model = found[trial.labels.model, trial.compile.scope]
            of_model[row.origin].append(row.start.first_step_s)
    lines = []
    for (model, scope), times in found.items():
        parts = (
            f"{figure(median(seconds))} s {'with' if ' ' in origin else 'from'} {origin}"
            for origin, seconds in times.items()
        )
        by_blocks = " by blocks" if scope == "blocks" else ""
        lines.append(f"the first step of {show(model)}{by_blocks} ends after {join(parts, ', ')}")
    return lines
