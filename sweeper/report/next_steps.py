"""What to type next: which trials of a report are worth another run, and the command that runs
exactly these.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sweeper.analysis.derive import MIN_PROCESSES_IF_HOST_BOUND
from sweeper.core.text import printable
from sweeper.core.trial import OWN_PRECISION
from sweeper.loading.sources import Source
from sweeper.report.formatting import read_texts, shorten_names, text
from sweeper.report.table import Row
from sweeper.report.tables.decision import NOT_KNOWN
from sweeper.report.text.provenance import read_invocations

# what a recommendation is for
_CASE = ("model", "suite", "workload", "variant", "precision", "batch_size")
_OWN_KEYS = ("dry_run", "retry")  # of a command, which would be wrong in the next one


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


def is_open(row: Row) -> bool:
    """Whether another run may change the answer from no to yes."""
    return row["recommended"] == NOT_KNOWN or bool(row["not_tried"])


class ReportedModel(NamedTuple):
    """A model as tables name it: models of several suites may have one name."""

    name: str
    suite: str | None = None


class _Need(NamedTuple):
    """What a model lacks, and the command that ran it; "" where that is not known."""

    not_tried: tuple[str, ...]  # modes; without one, it is the speedup that is not known
    unknown: tuple[str, ...]  # `mode` or `mode backend`, whose speedup is not known
    command: str
    sweep: str

    def describe(self, models: Sequence[ReportedModel], precisions: Sequence[str]) -> Again:
        """Describe what these models lack in these precisions, with the command for it."""
        changes = {} if OWN_PRECISION in precisions else {"precision": ",".join(precisions)}
        if self.not_tried:
            why = f"no sure gain so far; {shorten_names(self.not_tried)} not tried"
            changes |= {"mode": ",".join(self.not_tried), "sweep": self.sweep}
            if "backend" in self.command:  # else it is Inductor's
                changes["backend"] = "inductor"
        else:
            why = "speedup not known; more processes on an idle machine may tell"
            options = [name.partition(" ")[::2] for name in self.unknown]
            changes["mode"] = ",".join(dict.fromkeys(mode for mode, _ in options))
            if "backend" in self.command or any(backend for _, backend in options):
                changes["backend"] = ",".join(
                    dict.fromkeys(backend or "inductor" for _, backend in options)
                )
            changes |= {
                "measure.processes": str(MIN_PROCESSES_IF_HOST_BOUND),
                "sweep": f"{self.sweep}-again",
            }
        # whose modes are rungs, with the one-liners of those before
        if "experiment=ladder" in self.command:
            changes.pop("backend", None)
            changes["rung"] = changes.pop("mode")
        command = narrow(self.command, models, changes) if self.command else ""
        return Again(why, tuple(model.name for model in models), tuple(precisions), command)


def list_again(
    rows: Sequence[Row], trials: Sequence[Row], sources: Sequence[Source]
) -> list[Again]:
    """List what is worth another run, with one command for several precisions where the same models
    lack the same.
    """
    commands = _find_commands(trials, sources)
    # models in order, by precision
    lacking: dict[tuple[_Need, str], dict[ReportedModel, None]] = defaultdict(dict)
    for row in rows:
        if is_open(row):
            command = commands.get(_name_case(row), ("", ""))
            suite = text(row["suite"]) or None
            need = _Need(read_texts(row, "not_tried"), read_texts(row, "unknown"), *command)
            lacking[need, text(row["precision"])][ReportedModel(text(row["model"]), suite)] = None
    precisions: dict[tuple[_Need, tuple[ReportedModel, ...]], list[str]] = defaultdict(list)
    for (need, precision), models in lacking.items():
        precisions[need, tuple(models)].append(precision)
    return [need.describe(models, found) for (need, models), found in precisions.items()]


def _name_case(row: Row) -> tuple[str, ...]:
    return tuple(text(row[name]) for name in _CASE)


def _find_commands(
    trials: Sequence[Row], sources: Sequence[Source]
) -> dict[tuple[str, ...], tuple[str, str]]:
    """Find the last command that planned a trial of each case, and the name of its sweep."""
    by_trial: dict[tuple[str, str], str] = {}
    for key, command in _read_plans(sources):
        if isinstance(command, str) and _split(command):
            by_trial[key] = command
    keys = ((row, (text(row["sweep"]), text(row["trial_id"]))) for row in trials)
    return {_name_case(row): (by_trial[key], key[0]) for row, key in keys if key in by_trial}


def list_planned(sources: Sequence[Source]) -> set[tuple[str, str]]:
    """List the trials that commands of these sweeps planned, by sweep and id."""
    return {key for key, _ in _read_plans(sources)}


def _read_plans(sources: Sequence[Source]) -> Iterator[tuple[tuple[str, str], object]]:
    """Yield the sweep and the id of each trial that a command planned, and the command."""
    for source in sources:
        sweep = printable(source.folder.resolve().name)
        for invocation in read_invocations(source)[0]:
            plan = invocation.get("plan")
            for item in plan if isinstance(plan, list) else ():
                if isinstance(item, Mapping):
                    yield (sweep, str(item.get("trial_id"))), invocation.get("command")


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
    is_script = len(words) > 1 and Path(words[1]).name == "sweeper"
    return (["sweeper"], words[2:]) if is_script else None


def narrow(command: str, models: Sequence[ReportedModel], changes: Mapping[str, str]) -> str:
    """Narrow the command of a sweep to some models, and change overrides."""
    parts = _split(command)
    assert parts is not None
    program, arguments = parts
    given = {
        key.lstrip("+"): value for key, _, value in (word.partition("=") for word in arguments)
    }
    options = _find_options(given.get("model"), models)
    changes = {**({"model": ",".join(options)} if options else {}), **changes}
    kept = [
        word
        for word in arguments
        if word not in ("-m", "--multirun")
        and word.partition("=")[0].lstrip("+") not in (*changes, *_OWN_KEYS)
    ]
    return shlex.join(
        [*program, "-m", *kept, *(f"{key}={value}" for key, value in changes.items())]
    )


def _find_options(given: str | None, models: Sequence[ReportedModel]) -> list[str]:
    """Find the options of the group `model` for models; none where the command has one, or one is
    unknown.
    """
    if given and "," not in given and "(" not in given:
        return []
    from sweeper.config.schema import conf_folder  # Hydra takes a quarter of a second to import

    folder = conf_folder() / "model"
    is_listed = given is not None and "(" not in given
    if given and is_listed:
        known = given.split(",")
    else:
        known = [
            path.relative_to(folder).with_suffix("").as_posix()
            for path in sorted(folder.rglob("*.yaml"))
        ]
    found = []
    for model in models:
        named = [option for option in known if option.rpartition("/")[2] == model.name]
        if len(named) > 1 or not is_listed:
            named = [
                option for option in named if _read_suite(folder / f"{option}.yaml") == model.suite
            ]
        if len(named) != 1:
            return []
        found += named
    return found


def _read_suite(option: Path) -> str | None:
    """The suite that the file of an option names; None without one, and for a file that is in
    another folder.
    """
    from omegaconf import OmegaConf  # as with Hydra

    return OmegaConf.select(OmegaConf.load(option), "suite") if option.exists() else None
