"""What to type next: which trials of a report are worth another run, and the command that runs
exactly these.
"""

import math
import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

from sweeper.analysis.derive import MIN_PROCESSES_IF_HOST_BOUND
from sweeper.core.grouping import group_by
from sweeper.core.system.command_line import split_at_dashes
from sweeper.core.trial import OWN_PRECISION
from sweeper.loading.entries import Entry
from sweeper.loading.invocations import Manifest
from sweeper.report.answers.ablations import FeatureAnswer
from sweeper.report.answers.decision import OPEN, Answer
from sweeper.report.answers.findings import Findings
from sweeper.report.answers.trials import name_sweep, show_axes, show_axis
from sweeper.report.columns.cell import show
from sweeper.report.columns.formats import duration, shorten_names

# What a recommendation is for.
CASE = ("model", "suite", "workload", "variant", "precision", "batch_size")
# of a command, which would be wrong in the next one
OWN_KEYS = ("dry_run", "retry", "sweep_time_s")

TrialKey = tuple[str, str]  # the sweep and the id of a trial


@dataclass(frozen=True)
class Again:
    """Trials that are worth another run: why, which models, and what to type; "" where no command
    is known.
    """

    why: str
    models: tuple[str, ...]
    precisions: tuple[str, ...]
    command: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{model} ({', '.join(self.precisions)})" for model in self.models)

    @property
    def line(self) -> str:
        return f"{shorten_names(self.names)}: {self.why}"


class ReportedModel(NamedTuple):
    """A model as tables name it: models of several suites may have one name."""

    name: str
    suite: str | None

    @staticmethod
    def of(entry: Entry) -> "ReportedModel":
        return ReportedModel(show_axis(entry, "model"), show_axis(entry, "suite") or None)


class _Need(NamedTuple):
    """What a model lacks, and the command that ran it; "" where that is not known."""

    why: str
    mode: str  # to run; one that was tried needs more processes
    backend: str
    is_new: bool  # whether the mode was not tried
    processes: int  # of each trial
    command: str
    sweep: str
    features: tuple[str, ...]  # to run, where the command is of an ablation

    def describe(
        self,
        models: Sequence[ReportedModel],
        precisions: Sequence[str],
        answers: Sequence[Answer],
        unsure: Mapping[Entry, Sequence[FeatureAnswer]],
    ) -> Again:
        """Describe what these models lack in these precisions, with the command for it and how long
        that takes; `answers` are those of the command that ran them.
        """
        options = find_options(self.command, models)
        process_s = 0.0
        for answer in answers:
            # a command that names no models runs those of the earlier one
            will_run = ReportedModel.of(answer.entry) in models or (self.command and not options)
            if will_run and show_axis(answer.entry, "precision") in precisions:
                entry = self._find_entry(answer)
                process_s += _find_process_s(entry)
                for one in unsure.get(entry, ()):
                    if one.name in self.features:
                        process_s += _find_process_s(one.entry)
        why = self.why
        if not math.isnan(process_s):
            why += f" (about {duration(process_s * self.processes)})"
        again = Again(why, tuple(model.name for model in models), tuple(precisions))
        if not self.command:
            return again
        changes: dict[str, str] = {}
        if OWN_PRECISION not in precisions:
            changes |= {"precision": ",".join(precisions)}
        if self.features:
            changes |= {"feature": ",".join(self.features)}
        # The modes of a ladder are rungs, with the one-liners of those before.
        if "experiment=ladder" in self.command:
            changes |= {"rung": self.mode}
        else:
            changes |= {"mode": self.mode}
            if "backend" in self.command or self.backend != "inductor":
                changes |= {"backend": self.backend}
        if self.is_new:
            changes |= {"sweep": self.sweep}
        else:
            changes |= {"measure.processes": str(self.processes), "sweep": f"{self.sweep}-again"}
        return replace(again, command=narrow(self.command, options, changes))

    def _find_entry(self, answer: Answer) -> Entry:
        """Find the trial of the mode to run, or of the mode that the answer rests on."""
        entry = answer.best.entry if answer.best else answer.entry
        for one in answer.entries:
            if (one.trial.mode, one.trial.backend) == (self.mode, self.backend):
                entry = one
        return entry


def _find_process_s(entry: Entry) -> float:
    """Find the wall seconds of a process; not a number where they are not known."""
    return (entry.record.wall_s or math.nan) / max(entry.result.processes, 1)


def list_again(findings: Findings, manifests: Sequence[Manifest]) -> Iterator[Again]:
    """List what is worth another run, with one command for several precisions where the same models
    lack the same.
    """
    answers, planned = findings.answers, list_planned(manifests)
    unsure = {ablation.default: ablation.list_unsure() for ablation in findings.ablations}
    commands = {}  # by case, the last one that planned a trial of it, and the name of its sweep
    for entry in findings.entries:
        sweep = show(name_sweep(entry))
        command = planned.get((sweep, entry.record.trial_id))
        if command:
            commands[show_axes(entry, CASE)] = command, sweep
    cases = [commands.get(show_axes(answer.entry, CASE), ("", "")) for answer in answers]
    by_command = group_by(cases, answers)
    # Models in order, by what they lack and their precision.
    lacking: dict[tuple[_Need, str], dict[ReportedModel, None]] = defaultdict(dict)
    for answer, (command, sweep) in zip(answers, cases, strict=True):
        need = _find_need(answer, command, sweep, unsure)
        if need:
            precision, model = show_axis(answer.entry, "precision"), ReportedModel.of(answer.entry)
            lacking[need, precision][model] = None
    precisions: dict[tuple[_Need, tuple[ReportedModel, ...]], list[str]] = defaultdict(list)
    for (need, precision), models in lacking.items():
        precisions[need, tuple(models)].append(precision)
    for (need, names), found in precisions.items():
        yield need.describe(names, found, by_command[need.command, need.sweep], unsure)


def _find_need(
    answer: Answer, command: str, sweep: str, unsure: Mapping[Entry, Sequence[FeatureAnswer]]
) -> _Need | None:
    """Find what would settle an answer: a mode that was not tried, or more processes, also of the
    `unsure` features that its trial is compared with.
    """
    features: tuple[str, ...] = ()
    if "feature=" in command or "experiment=ablation" in command:
        features = ("null",)
    if answer.not_tried:
        (mode,) = answer.not_tried
        tried = any(entry.trial.backend == "inductor" for entry in answer.entries)
        name = mode if tried else "inductor"
        processes = max(1, *(entry.result.processes for entry in answer.entries))
        return _Need(
            f"{name} not tried", mode, "inductor", True, processes, command, sweep, features
        )
    if answer.best is None or "unverified" in answer.why_unsure:
        return None
    entry = answer.best.entry
    if features:
        features += tuple(
            one.name
            for one in unsure.get(entry, ())
            if one.gains or one.entry.record.may_end_differently
        )
    why = "more processes on an idle machine can make it sure"
    if answer.verdict == OPEN:
        why = "open; more processes on an idle machine may tell"
    elif answer.is_sure:
        if not any(one.gains for one in unsure.get(entry, ())):
            return None
        why = "more processes on an idle machine may settle its features"
    mode, backend = entry.trial.mode, entry.trial.backend or "inductor"
    processes = max(MIN_PROCESSES_IF_HOST_BOUND, 2 * entry.result.processes)
    return _Need(why, mode, backend, False, processes, command, sweep, features)


def list_planned(manifests: Sequence[Manifest]) -> dict[TrialKey, str]:
    """List the trials that commands of these sweeps planned, each with the last of these commands
    that can be typed again; "" without one.
    """
    planned: dict[TrialKey, str] = {}
    for manifest in manifests:
        for invocation in manifest.invocations:
            command = invocation.command if _split(invocation.command) else ""
            for key in product([manifest.sweep], invocation.trial_ids):
                planned[key] = command or planned.get(key, "")
    return planned


def _split(command: str) -> tuple[list[str], list[str]] | None:
    """Split a command that runs a sweep into the program and its arguments; None for any other
    command.
    """
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    # not what was typed, or not to be typed again
    if not command.isprintable() or "\ufffd" in command:
        return None
    if words[1:3] == ["-m", "sweeper"]:
        return ["python", "-m", "sweeper"], words[3:]
    if len(words) > 1 and Path(words[1]).name == "sweeper":
        return ["sweeper"], words[2:]
    return None


def narrow(command: str, options: Sequence[str], changes: Mapping[str, str]) -> str:
    """Narrow the command of a sweep to options of the group `model`, if there are any, and change
    overrides.
    """
    parts = _split(command)
    assert parts is not None
    program, words = parts
    arguments, of_script = split_at_dashes(words)
    if options:
        changes = {"model": ",".join(options), **changes}
    left_out = ("-m", "--multirun", *changes, *OWN_KEYS)
    kept = []
    for word in arguments:
        if word.partition("=")[0].lstrip("+") not in left_out:
            kept.append(word)
    changed = map("=".join, changes.items())
    return shlex.join([*program, "-m", *kept, *changed, *of_script])


def find_options(command: str, models: Sequence[ReportedModel]) -> list[str]:
    """Find the options of the group `model` for models of a command; none where it has one or is
    not known, or where one of the options is not.
    """
    parts = _split(command)
    if parts is None:
        return []
    given = ""
    for word in split_at_dashes(parts[1])[0]:
        key, _, value = word.partition("=")
        if key.lstrip("+") == "model":
            given = value
    if "(" in given:
        given = ""
    if given and "," not in given:
        return []
    from sweeper.config.schema import conf_folder  # Hydra takes a quarter of a second to import

    folder = conf_folder() / "model"
    known = given.split(",")
    if not given:
        files = sorted(folder.rglob("*.yaml"))
        known = [file.relative_to(folder).with_suffix("").as_posix() for file in files]
    found = []
    for model in models:
        named = [option for option in known if option.rpartition("/")[2] == model.name]
        if len(named) > 1 or not given:
            named = [name for name in named if _read_suite(folder, name) == model.suite]
        if len(named) != 1:
            return []
        found += named
    return found


def _read_suite(folder: Path, option: str) -> str | None:
    """The suite that the file of an option names; None without one, and for a file that is in
    another folder.
    """
    from omegaconf import OmegaConf  # as with Hydra

    file = folder / f"{option}.yaml"
    return OmegaConf.select(OmegaConf.load(file), "suite") if file.exists() else None
