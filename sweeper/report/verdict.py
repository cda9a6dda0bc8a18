"""The verdict of a report: what to do in plain sentences, what is worth another run, and what failed.

Plain data, made once of the tables, for the end of the terminal, the head of report.md and the head of the page.
"""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

from sweeper.analysis.flags import UNVERIFIED
from sweeper.analysis.metrics import MIN_PROCESSES_IF_HOST_BOUND
from sweeper.core.text import printable
from sweeper.loading.sources import Source
from sweeper.report.formatting import (
    TRIAL_AXES,
    find_varying,
    finite,
    interval,
    ratio,
    read_texts,
    sentence,
    shorten_names,
    sort_rows,
    text,
    trial_name,
)
from sweeper.report.table import Row, Table
from sweeper.report.tables.decision import NOISE, NOT_KNOWN
from sweeper.report.text.provenance import read_invocations

GAIN = f"more than {100 * NOISE:.0f} %"
MAX_MESSAGE_CHARACTERS = 90
MAX_FLAGS = 2  # that a sentence names, or fewer where it gets longer than `MAX_CHARACTERS`
MAX_CHARACTERS = 100
_CASE = ("model", "suite", "workload", "variant", "precision", "batch_size")  # what a recommendation is for
_NOT_RUN = ("unavailable", "interrupted")  # statuses of which a log says least
_WORKLOADS = {"train": "training"}
_OWN_KEYS = ("dry_run", "retry")  # of a command, which would be wrong in the next one


@dataclass(frozen=True)
class Again:
    """Trials that are worth another run: why, which models, and what to type; "" where no command is known."""

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


@dataclass(frozen=True)
class Failure:
    """A trial that is not ok. `log` is the path of the worker's log; "" where there is none."""

    trial: str
    status: str
    message: str  # its first line, shortened
    log: str = ""


@dataclass(frozen=True)
class Verdict:
    """What a reader should know first."""

    sentences: tuple[str, ...] = ()  # whether to compile, which mode, how sure
    again: tuple[Again, ...] = ()
    failed: str = ""  # counts the trials that are not ok by status; "" where there are none
    failures: tuple[Failure, ...] = ()


def make_verdict(tables: Mapping[str, Table], sources: Sequence[Source]) -> Verdict:
    """Make the verdict of the tables of a report; `tables` has them by name."""
    rows, trials = tables["recommendations"].rows, tables["speedups"].rows
    failed = tables["failures"].rows
    return Verdict(
        tuple(filter(None, (*_answer_whether(rows), _answer_which(rows), _answer_how_sure(rows, trials)))),
        tuple(_list_again(rows, trials, sources)),
        _count_failures(failed, len(trials)),
        tuple(_list_failures(failed, trials)),
    )


def classify(row: Row) -> str:
    """Name the answer of a recommendation: a mode, `stay eager`, `not known`, or `try MODE`."""
    not_tried = read_texts(row, "not_tried")
    return f"try {' and '.join(not_tried)}" if not_tried else text(row["recommended"])


def has_doubts(row: Row) -> bool:
    """Whether doubt flags are on the trial that the answer rests on."""
    return bool(row["doubts"])


def _gains(row: Row, more_than: float = NOISE) -> bool:
    return row["mode"] is not None and (finite(row, "speedup") or 0.0) > 1 + more_than


def _answer_whether(rows: Sequence[Row]) -> list[str]:
    """Answer in a sentence for each workload whether to compile, the precision first in which more models gain."""
    if len(rows) == 1:
        return [sentence(f"{_describe_one(rows[0])}{_explain_one(rows[0])}")]
    sentences = []
    by_workload: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        by_workload[text(row["workload"])][text(row["precision"])].append(row)
    for workload, by_precision in by_workload.items():
        order = sorted(by_precision.values(), key=lambda found: -sum(map(_gains, found)) / len(found))
        parts = [_describe_one(found[0]) if len(found) == 1 else _describe_precision(found) for found in order]
        if parts[0].startswith("compile "):  # what it has said, the others need not
            parts[1:] = [part.removeprefix("compile ").replace(f" gain {GAIN}", "") for part in parts[1:]]
        line = "; ".join(parts)
        line = f"{_WORKLOADS.get(workload, workload)}: {line}" if len(by_workload) > 1 else line
        sentences.append(sentence(line))
    return sentences


def _describe_precision(rows: Sequence[Row]) -> str:
    """Describe the models in one precision, e.g. `compile in AMP: 34 of 42 gain more than 5 %, median 1.40x`.

    The median is over the models with an answer, each in its best mode; where none is taken, the step stays what it is.
    """
    precision = _name_precision(rows[0])
    judged = [row for row in rows if row["recommended"] is not None]
    if not judged:
        return f"in {precision} none of {len(rows)} could be compared"
    gain, unknown = sum(map(_gains, judged)), sum(map(_is_open, judged))
    speedups = [finite(row, "speedup") or 1.0 for row in judged if row["recommended"] != NOT_KNOWN]
    if 2 * gain >= len(judged):
        return f"compile in {precision}: {gain} of {len(judged)} gain {GAIN}, median {median(speedups):.2f}x"
    if 2 * (gain + unknown) >= len(judged):
        return f"in {precision} {gain} of {len(judged)} gain {GAIN}, and {unknown} are open"
    taken = sum(_gains(row, more_than=0.0) for row in judged)
    if 2 * taken >= len(judged):
        return f"in {precision} {taken} of {len(judged)} gain, {gain or 'none'} of them {GAIN}"
    return f"in {precision} it mostly does not pay ({gain} of {len(judged)})"


def _is_open(row: Row) -> bool:
    """Whether another run may change the answer from no to yes."""
    return row["recommended"] == NOT_KNOWN or bool(row["not_tried"])


def _name_precision(row: Row) -> str:
    return "AMP" if row["precision"] == "amp" else text(row["precision"])


def _describe_one(row: Row) -> str:
    model = f"in {_name_precision(row)} {text(row['model'])}"
    if row["recommended"] is None:
        return f"{model}: not compared"
    if row["mode"] is None:
        return f"{model}: {text(row['recommended'])}"
    bounds = f" {found}" if (found := interval(row, "speedup")) else ""
    return f"{model}: {text(row['recommended'])}, {ratio(finite(row, 'speedup'))} times eager's speed{bounds}"


def _explain_one(row: Row) -> str:
    """Give the reason where no mode is recommended; where one is, the answer has the figure."""
    return f" ({text(row['reason'])})" if row["mode"] is None else ""


def _answer_which(rows: Sequence[Row]) -> str:
    """Count the answers, the most frequent first; a single one stands in the first sentence."""
    answers = Counter(classify(row) for row in rows if row["recommended"] is not None)
    named = ", ".join(f"{answer} for {count}" for answer, count in answers.most_common())
    return f"Which mode: {named}." if named and len(rows) > 1 else ""


def _answer_how_sure(rows: Sequence[Row], trials: Sequence[Row]) -> str:
    """Say how many answers rest on several processes and no doubt, what the others lack, and what may be wrong."""
    unverified = sum(UNVERIFIED in read_texts(row, "flags") for row in trials if row["status"] == "ok")
    not_verified = f"{unverified} not verified" if unverified else ""
    answered = [row for row in rows if row["certainty"] and not _is_open(row)]
    if not answered:
        return sentence(not_verified)
    sure = sum(row["certainty"] == "tested" and not has_doubts(row) for row in answered)
    found = (flag for row in answered for flag in read_texts(row, "doubts") if flag != UNVERIFIED)
    flags = Counter(found).most_common()
    single = sum(row["certainty"] == "single_process" for row in answered)
    if len(rows) == 1:
        lacks = [*(["a single process"] if single else []), *filter(None, [not_verified]), *(flag for flag, _ in flags)]
        return f"Sure: {'yes' if sure else 'no'}{f' ({shorten_names(lacks)})' if lacks else ''}."
    rest = [f"{single} {'rests' if single == 1 else 'rest'} on one process"] if single else []
    named = [f"{count} flagged {flag}" for flag, count in flags[:MAX_FLAGS]]
    while True:
        lacks = [*rest, *named, *filter(None, [not_verified])]
        line = f"Sure: {sure or 'none'} of {len(answered)}{': ' if lacks else ''}{', '.join(lacks)}."
        if len(line) <= MAX_CHARACTERS or not named:
            return line
        named.pop()


def _count_failures(failed: Sequence[Row], trials: int) -> str:
    counts = Counter(text(row["status"]) for row in failed).most_common()
    named = ", ".join(f"{count} {status}" for status, count in counts)
    return f"{len(failed)} of {trials} trial{'' if trials == 1 else 's'} failed: {named}" if failed else ""


def _list_failures(failed: Sequence[Row], trials: Sequence[Row]) -> list[Failure]:
    axes = find_varying(trials, TRIAL_AXES)
    return [
        Failure(
            trial_name(row, axes),
            text(row["status"]),
            _shorten(text(row["message"]).partition(" | ")[0]),
            text(row["log"]),
        )
        for row in sorted(sort_rows(failed), key=lambda row: row["status"] in _NOT_RUN)
    ]


def _shorten(line: str) -> str:
    return line if len(line) <= MAX_MESSAGE_CHARACTERS else f"{line[: MAX_MESSAGE_CHARACTERS - 1]}…"


class _Model(NamedTuple):
    """A model as tables name it; the options of suites are in folders of their own."""

    name: str
    is_in_suite: bool = False


class _Need(NamedTuple):
    """What a model lacks, and the command that ran it; "" where that is not known."""

    recommended: str
    not_tried: tuple[str, ...]  # modes; without one, it is the speedup that is not known
    unknown: tuple[str, ...]  # `mode` or `mode backend`, whose speedup is not known
    command: str
    sweep: str

    def describe(self, models: Sequence[_Model], precisions: Sequence[str]) -> Again:
        """Describe what these models lack in these precisions, with the command for it."""
        changes = {"precision": ",".join(precisions)}
        if self.not_tried:
            why = self.recommended
            changes |= {"mode": ",".join(self.not_tried), "sweep": self.sweep}
            if "backend" in self.command:  # else it is Inductor's
                changes["backend"] = "inductor"
        else:
            why = "speedup not known; more processes on an idle machine may tell"
            options = [name.partition(" ")[::2] for name in self.unknown]
            changes["mode"] = ",".join(dict.fromkeys(mode for mode, _ in options))
            if "backend" in self.command or any(backend for _, backend in options):
                changes["backend"] = ",".join(dict.fromkeys(backend or "inductor" for _, backend in options))
            changes |= {"measure.processes": str(MIN_PROCESSES_IF_HOST_BOUND), "sweep": f"{self.sweep}-again"}
        command = narrow(self.command, models, changes) if self.command else ""
        return Again(why, tuple(model.name for model in models), tuple(precisions), command)


def _list_again(rows: Sequence[Row], trials: Sequence[Row], sources: Sequence[Source]) -> list[Again]:
    """List what is worth another run, with one command for several precisions where the same models lack the same."""
    commands = _find_commands(trials, sources)
    lacking: dict[tuple[_Need, str], dict[_Model, None]] = defaultdict(dict)  # models in order, by precision
    for row in rows:
        if _is_open(row):
            command = commands.get(_name_case(row), ("", ""))
            need = _Need(text(row["recommended"]), read_texts(row, "not_tried"), read_texts(row, "unknown"), *command)
            lacking[need, text(row["precision"])][_Model(text(row["model"]), row["suite"] is not None)] = None
    precisions: dict[tuple[_Need, tuple[_Model, ...]], list[str]] = defaultdict(list)
    for (need, precision), models in lacking.items():
        precisions[need, tuple(models)].append(precision)
    return [need.describe(models, found) for (need, models), found in precisions.items()]


def _name_case(row: Row) -> tuple[str, ...]:
    return tuple(text(row[name]) for name in _CASE)


def _find_commands(trials: Sequence[Row], sources: Sequence[Source]) -> dict[tuple[str, ...], tuple[str, str]]:
    """Find the last command that planned a trial of each case, and the name of its sweep."""
    by_trial: dict[tuple[str, str], str] = {}
    for source in sources:
        sweep = printable(source.folder.resolve().name)
        for invocation in read_invocations(source)[0]:
            command, plan = invocation.get("command"), invocation.get("plan")
            if isinstance(command, str) and isinstance(plan, list) and _split(command):
                by_trial |= {(sweep, str(item.get("trial_id"))): command for item in plan if isinstance(item, Mapping)}
    keys = ((row, (text(row["sweep"]), text(row["trial_id"]))) for row in trials)
    return {_name_case(row): (by_trial[key], key[0]) for row, key in keys if key in by_trial}


def _split(command: str) -> tuple[list[str], list[str]] | None:
    """Split a command that runs a sweep into the program and its arguments; None for any other command."""
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    if not command.isprintable():  # it would reach a terminal as it is
        return None
    if words[1:3] == ["-m", "sweeper"]:
        return ["python", "-m", "sweeper"], words[3:]
    is_script = len(words) > 1 and Path(words[1]).name == "sweeper"
    return (["sweeper"], words[2:]) if is_script else None


def narrow(command: str, models: Sequence[_Model], changes: Mapping[str, str]) -> str:
    """Narrow the command of a sweep to some models, and change overrides."""
    parts = _split(command)
    assert parts is not None
    program, arguments = parts
    given = {key.lstrip("+"): value for key, _, value in (word.partition("=") for word in arguments)}
    options = _find_options(given.get("model"), models)
    changes = {**({"model": ",".join(options)} if options else {}), **changes}
    kept = [
        word
        for word in arguments
        if word not in ("-m", "--multirun") and word.partition("=")[0].lstrip("+") not in (*changes, *_OWN_KEYS)
    ]
    return shlex.join([*program, "-m", *kept, *(f"{key}={value}" for key, value in changes.items())])


def _find_options(given: str | None, models: Sequence[_Model]) -> list[str]:
    """Find the options of the group `model` for models; none where the command has one, or one is unknown."""
    if given and "," not in given and "(" not in given:
        return []
    from sweeper.config.schema import conf_folder  # Hydra takes a quarter of a second to import

    folder = conf_folder() / "model"
    files = (path.relative_to(folder).with_suffix("").as_posix() for path in sorted(folder.rglob("*.yaml")))
    known = given.split(",") if given and "(" not in given else files
    options = {_Model(option.rpartition("/")[2], "/" in option): option for option in known}
    return [options[model] for model in models] if options.keys() >= set(models) else []
