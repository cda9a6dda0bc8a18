"""The verdict of a report: what to do in plain sentences, what is worth another run, and what
failed.

Plain data, made once of the tables, for the end of the terminal, the head of report.md and the head
of the page.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from sweeper.analysis.flags import UNVERIFIED
from sweeper.core.libraries import SCRIPT
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
from sweeper.report.next_steps import Again, is_open, list_again, list_planned
from sweeper.report.table import Row, Table
from sweeper.report.tables import ladder, scripts
from sweeper.report.tables.candidates import NOISE
from sweeper.report.tables.decision import NO_LIMITS, NOT_KNOWN, NOTHING_FITS, Limits
from sweeper.report.tables.recommendations import classify

GAIN = f"more than {100 * NOISE:.0f} %"
MAX_MESSAGE_CHARACTERS = 90
MAX_SCRIPTS = 4  # that have a sentence
MAX_FLAGS = 2  # that a sentence names, or fewer where it gets longer than `MAX_CHARACTERS`
MAX_CHARACTERS = 100
_NOT_RUN = ("unavailable", "interrupted")  # statuses of which a log says least
_WORKLOADS = {"train": "training"}


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
    # counts the trials that are not ok by status, and those without a record; "": there are none
    failed: str = ""
    failures: tuple[Failure, ...] = ()


def make_verdict(
    tables: Mapping[str, Table], sources: Sequence[Source], limits: Limits = NO_LIMITS
) -> Verdict:
    """Make the verdict of the tables of a report; `tables` has them by name, and modes were chosen
    within `limits`.
    """
    rows, trials = tables["recommendations"].rows, tables["speedups"].rows
    failed, own = tables["failures"].rows, tables["scripts"].rows
    answers = ladder.read_answers(tables["ladder"].rows)
    climbed = {_name_model(answer.built) for answer in answers}  # a ladder says more of them
    models = [row for row in rows if row["workload"] != SCRIPT and _name_model(row) not in climbed]
    said = [
        *([f"modes are chosen for {limits}"] if str(limits) else ()),
        *scripts.conclude(own, [row for row in rows if row["workload"] == SCRIPT])[:MAX_SCRIPTS],
        *ladder.conclude(answers, ladder.find_axes(tables["ladder"].rows)),
        *(_answer_beside_ladder(rows[0], answers) if len(rows) == 1 else ()),
        *(_answer_whether(models) if models or not (own or climbed) else ()),
        *_compare_eager(trials),
    ]
    return Verdict(
        tuple(
            filter(
                None,
                (
                    *map(sentence, said),
                    _answer_which(models, trials),
                    _answer_how_sure(rows, trials),
                ),
            )
        ),
        tuple(list_again(rows, trials, sources)),
        "; ".join(
            filter(None, (_count_missing(trials, sources), _count_failures(failed, len(trials))))
        ),
        tuple(_list_failures(failed, trials)),
    )


def _name_model(row: Row) -> tuple[object, ...]:
    return row["model"], row["precision"], row["workload"], row["batch_size"]


def _answer_beside_ladder(row: Row, answers: Sequence[ladder.Answer]) -> list[str]:
    """Name the mode to take where a ladder compares rungs, unless that says that torch.compile adds
    nothing.
    """
    adds = any(answer.adds and _name_model(answer.built) == _name_model(row) for answer in answers)
    return (
        [f"which mode: {text(row['recommended'])}{_explain_one(row)}"]
        if adds and row["recommended"]
        else []
    )


def _compare_eager(trials: Sequence[Row]) -> list[str]:
    """Say how far from 1 the speedups of eager over eager are, where nothing else was measured."""
    measured = [row for row in trials if row["status"] == "ok"]
    if not measured or any(row["mode"] != "eager" for row in trials):
        return []
    said = [
        f"{' to '.join(dict.fromkeys(f'{ratio(end)}x' for end in (min(found), max(found))))} by "
        f"{clock}"
        for name, clock in (("speedup", "the wall clock"), ("device_speedup", "device time"))
        if (found := [value for row in measured if (value := finite(row, name))])
    ]
    count = f"{len(measured)} trial{'' if len(measured) == 1 else 's'}"
    return [f"eager against eager in {count}: {', '.join(said)}"]


def has_doubts(row: Row) -> bool:
    """Whether doubt flags are on the trial that the answer rests on."""
    return bool(row["doubts"])


def _gains(row: Row, more_than: float = NOISE) -> bool:
    return row["mode"] is not None and (finite(row, "speedup") or 0.0) > 1 + more_than


def _answer_whether(rows: Sequence[Row]) -> list[str]:
    """Answer in a sentence for each workload whether to compile, the precision first in which more
    models gain.
    """
    if len(rows) == 1:
        return [sentence(f"{_describe_one(rows[0])}{_explain_one(rows[0])}")]
    sentences = []
    by_workload: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        by_workload[text(row["workload"])][text(row["precision"])].append(row)
    for workload, by_precision in by_workload.items():
        order = sorted(
            by_precision.values(), key=lambda found: -sum(map(_gains, found)) / len(found)
        )
        parts = [
            _describe_one(found[0]) if len(found) == 1 else _describe_precision(found)
            for found in order
        ]
        if parts[0].startswith("compile "):  # what it has said, the others need not
            parts[1:] = [
                part.removeprefix("compile ").replace(f" gain {GAIN}", "") for part in parts[1:]
            ]
        line = "; ".join(parts)
        line = f"{_WORKLOADS.get(workload, workload)}: {line}" if len(by_workload) > 1 else line
        sentences.append(sentence(line))
    return sentences


def _describe_precision(rows: Sequence[Row]) -> str:
    """Describe the models in one precision, e.g. `compile in AMP: 34 of 42 gain more than 5 %,
    ...`.

    The median is over the models with an answer, each in its best mode; where none is taken, the
    step stays what it is.
    """
    precision = _name_precision(rows[0])
    judged = [row for row in rows if row["recommended"] is not None]
    if not judged:
        return f"in {precision} none of {len(rows)} could be compared"
    gain, unknown = sum(map(_gains, judged)), sum(map(is_open, judged))
    speedups = [finite(row, "speedup") or 1.0 for row in judged if row["recommended"] != NOT_KNOWN]
    if 2 * gain >= len(judged):
        middle = f"median over all answers {median(speedups):.2f}x"
        return f"compile in {precision}: {gain} of {len(judged)} gain {GAIN}, {middle}"
    if 2 * (gain + unknown) >= len(judged):
        return f"in {precision} {gain} of {len(judged)} gain {GAIN}, and {unknown} are open"
    taken = sum(_gains(row, more_than=0.0) for row in judged)
    if 2 * taken >= len(judged):
        return f"in {precision} {taken} of {len(judged)} gain, {gain or 'none'} of them {GAIN}"
    return f"in {precision} it mostly does not pay ({gain} of {len(judged)})"


def _name_precision(row: Row) -> str:
    return "AMP" if row["precision"] == "amp" else text(row["precision"])


def _describe_one(row: Row) -> str:
    model = f"in {_name_precision(row)} {text(row['model'])}"
    if row["recommended"] is None:
        return f"{model}: not compared"
    if row["mode"] is None:
        return f"{model}: {text(row['recommended'])}"
    bounds = f" {found}" if (found := interval(row, "speedup")) else ""
    return (
        f"{model}: {text(row['recommended'])}, {ratio(finite(row, 'speedup'))} times eager's "
        f"speed{bounds}"
    )


def _explain_one(row: Row) -> str:
    """Give the reason where no mode is recommended; where one is, the answer has the figure."""
    return f" ({text(row['reason'])})" if row["mode"] is None else ""


def _answer_which(rows: Sequence[Row], trials: Sequence[Row]) -> str:
    """Count the answers, the most frequent first, and say where the sweep compares no modes.

    A single answer stands in the first sentence.
    """
    answers = Counter(classify(row) for row in rows if row["recommended"] is not None)
    named = ", ".join(f"{answer} for {count}" for answer, count in answers.most_common())
    if not named or len(rows) == 1:
        return ""
    tried = {(text(row["mode"]), text(row["backend"])) for row in trials if row["mode"] != "eager"}
    if len(tried) > 1:
        return f"Which mode: {named}."
    ((mode, backend),) = tried
    only = backend if mode == "default" and backend != "inductor" else mode
    return _choose_shorter(
        [f"Which mode: {named}; no other mode was tried.", f"Only {only} tried: {named}."]
    )


def _answer_how_sure(rows: Sequence[Row], trials: Sequence[Row]) -> str:
    """Say how many answers rest on several processes and no doubt, what the others lack, and what
    may be wrong.
    """
    right = [row for row in trials if row["status"] == "ok"]
    unverified = [row for row in right if UNVERIFIED in read_texts(row, "flags")]
    if len(rows) > 1:
        not_verified = _count_unverified(
            len({(row["model"], row["suite"]) for row in unverified}), "model"
        )
    elif len(trials) == 1 or any(UNVERIFIED in read_texts(row, "doubts") for row in rows):
        not_verified = "not verified" if unverified else ""
    else:
        not_verified = _count_unverified(len(unverified), "trial")
    answered = [
        row
        for row in rows
        if row["certainty"] and not is_open(row) and row["recommended"] != NOTHING_FITS
    ]
    if not answered:
        return sentence(not_verified)
    sure = sum(row["certainty"] == "tested" and not has_doubts(row) for row in answered)
    doubted = [
        [flag for flag in read_texts(row, "doubts") if flag != UNVERIFIED] for row in answered
    ]
    flags = Counter(flag for doubts in doubted for flag in doubts).most_common()
    single = sum(row["certainty"] == "single_process" for row in answered)
    if len(rows) == 1:
        lacks = [
            *(["a single process"] if single else []),
            *filter(None, [not_verified]),
            *(flag for flag, _ in flags),
        ]
        return f"Sure: {'yes' if sure else 'no'}{f' ({shorten_names(lacks)})' if lacks else ''}."
    resting = (
        "all rest"
        if single == len(answered) > 1
        else f"{single} {'rests' if single == 1 else 'rest'}"
    )
    rest = [f"{resting} on one process"] if single else []
    named = [f"{count} flagged {flag}" for flag, count in flags[:MAX_FLAGS]]
    lines = []
    for count in range(len(named), -1, -1):
        shown = {flag for flag, _ in flags[:count]}
        more = sum(bool(doubts) and shown.isdisjoint(doubts) for doubts in doubted)
        others = [f"{more} {'more ' if count else ''}flagged"] if more else []
        lacks = [*rest, *named[:count], *others, *filter(None, [not_verified])]
        answers = f"{sure or 'none'} of {len(answered)} answer{'' if len(answered) == 1 else 's'}"
        lines.append(f"Sure: {answers}{': ' if lacks else ''}{', '.join(lacks)}.")
    return _choose_shorter(lines)


def _count_unverified(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'} not verified" if count else ""


def _count_missing(trials: Sequence[Row], sources: Sequence[Source]) -> str:
    """Count the trials that commands planned and that have no record: not begun, removed or not to
    be read.
    """
    missing = list_planned(sources) - {
        (text(row["sweep"]), text(row["trial_id"])) for row in trials
    }
    return (
        f"{len(missing)} planned {'has' if len(missing) == 1 else 'have'} no record"
        if missing
        else ""
    )


def _choose_shorter(lines: Sequence[str]) -> str:
    """Choose the first line that a terminal need not break, else the last."""
    return next((line for line in lines if len(line) <= MAX_CHARACTERS), lines[-1])


def _count_failures(failed: Sequence[Row], trials: int) -> str:
    counts = Counter(text(row["status"]) for row in failed).most_common()
    named = ", ".join(f"{count} {status}" for status, count in counts)
    return (
        f"{len(failed)} of {trials} trial{'' if trials == 1 else 's'} failed: {named}"
        if failed
        else ""
    )


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
