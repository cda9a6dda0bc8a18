"""Findings: what every table of a report is made of, computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from sweeper.loading.entries import Entry
from sweeper.loading.ladder import Ladder, find_ladders
from sweeper.report.tables.decision import NO_LIMITS, Limits
from sweeper.report.tables.groups import Group, groups
from sweeper.report.tables.units import Units, collect
from sweeper.report.text.provenance import name_amp_format


@dataclass(frozen=True)
class Findings:
    """Trials, and the limits of the job that modes are recommended for."""

    entries: Sequence[Entry]
    limits: Limits = NO_LIMITS

    @cached_property
    def units(self) -> Units:
        return collect(self.entries)

    @cached_property
    def groups(self) -> list[Group]:
        return groups(self.units.units)

    @cached_property
    def ladders(self) -> list[Ladder]:
        return find_ladders(self.entries)

    @cached_property
    def amp(self) -> str:
        """The number format that carried the weight amp."""
        return name_amp_format(self.entries)
