"""Findings: the answers that every table, text and figure of a report is made of, computed once."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

from sweeper.core.grouping import group_by
from sweeper.core.libraries import SCRIPT
from sweeper.loading.entries import Entry
from sweeper.loading.ladder import find_ladders

from .ablations import AblationAnswer, find_ablations
from .causes import Cause, find_causes
from .decision import NO_LIMITS, Answer, Limits, choose_all
from .groups import Group, group_by_suite, make_groups
from .ladders import LadderAnswer, answer_ladders
from .model_points import ModelPoints, collect
from .provenance import name_amp_format
from .scripts import ScriptAnswer
from .trials import TRIAL_AXES, find_varying


@dataclass(frozen=True)
class Findings:
    """Trials, and the limits of the job that modes are recommended for."""

    entries: Sequence[Entry]
    limits: Limits = NO_LIMITS

    @cached_property
    def failed(self) -> list[Entry]:
        return [entry for entry in self.entries if not entry.is_ok]

    @cached_property
    def axes(self) -> list[str]:
        """The axes in which the trials differ."""
        return find_varying(self.entries, TRIAL_AXES)

    @cached_property
    def model_points(self) -> ModelPoints:
        return collect(self.entries)

    @cached_property
    def groups(self) -> list[Group]:
        return make_groups(self.model_points.points)

    @cached_property
    def suites(self) -> list[Group]:
        return group_by_suite(self.groups)

    @cached_property
    def answers(self) -> list[Answer]:
        return choose_all(self.entries, self.limits)

    @cached_property
    def causes(self) -> list[Cause]:
        return find_causes(self.entries)

    @cached_property
    def causes_of(self) -> dict[Entry, list[Cause]]:
        return group_by(map(attrgetter("entry"), self.causes), self.causes)

    @cached_property
    def scripts(self) -> list[ScriptAnswer]:
        return [ScriptAnswer(entry) for entry in self.entries if entry.trial.workload == SCRIPT]

    @cached_property
    def ladders(self) -> list[LadderAnswer]:
        return answer_ladders(find_ladders(self.entries))

    @cached_property
    def ablations(self) -> list[AblationAnswer]:
        return find_ablations(self.entries)

    @cached_property
    def amp(self) -> str:
        """The number format that carried the weight amp."""
        return name_amp_format(self.entries)
