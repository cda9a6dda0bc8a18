"""The verdict of a report: what to do in plain sentences, what is worth another run, and what
failed.

Plain data, made once of the findings, for the end of the terminal, the head of report.md and the
head of the page.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from sweeper.analysis.flags import UNVERIFIED
from sweeper.core.libraries import SCRIPT
from sweeper.core.text import printable
from sweeper.loading.entries import Entry
from sweeper.loading.invocations import Manifest
from sweeper.report.answers import ladders, scripts
from sweeper.report.answers.candidates import NOISE
from sweeper.report.answers.decision import NOT_KNOWN, NOTHING_FITS, Choice
from sweeper.report.answers.findings import Findings
from sweeper.report.answers.trials import name_sweep, name_trial, sort_trials
from sweeper.report.columns.cell import show
from sweeper.report.columns.formats import (
    count,
    interval,
    join,
    percent,
    prefix,
    ratio,
    sentence,
    shorten,
)

from .next_steps import Again, list_again, list_planned

GAIN = f"more than {percent(NOISE)}"
MAX_MESSAGE_CHARACTERS = 90
MAX_SCRIPTS = 4  # that have a sentence
MAX_FLAGS = 2  # that a sentence names, or fewer where it gets longer than `MAX_CHARACTERS`
MAX_CHARACTERS = 100
NOT_RUN = ("unavailable", "interrupted")  # statuses of which a log says least
WORKLOADS = {"train": "training"}


@dataclass(frozen=True)
class Verdict:
    """What a reader should know first."""

    sentences: tuple[str, ...] = ()  # whether to compile, which mode, how sure
    again: tuple[Again, ...] = ()
    # counts the trials that are not ok by status, and those without a record; "": there are none
    failed: str = ""
    first_failed: str = ""  # a trial that is not ok, and the first line of its message, shortened
    log: str = ""  # the path of its worker's log; "" where there is none


def make_verdict(findings: Findings, manifests: Sequence[Manifest]) -> Verdict:
    """Make the verdict of a report."""
    choices, entries = findings.choices, findings.entries
    climbed, adding = set(), set()  # models of ladders; where torch.compile adds something
    for answer in findings.ladders:
        if answer.is_whole:
            climbed.add(_name_model(answer.built.entry))
        if answer.is_whole and answer.adds:
            adding.add(_name_model(answer.built.entry))
    of_scripts, models = [], []
    for choice in choices:
        if choice.trial.workload == SCRIPT:
            of_scripts.append(choice)
        elif _name_model(choice.entries[0]) not in climbed:  # else the ladder says more
            models.append(choice)
    limits = prefix("modes are chosen for ", str(findings.limits))
    said = [limits, *scripts.conclude(of_scripts)[:MAX_SCRIPTS]]
    said += ladders.conclude(findings.ladders)
    if len(choices) == 1 and _name_model(choices[0].entries[0]) in adding:
        said.append(_answer_beside_ladder(choices[0]))
    if models or not (findings.scripts or climbed):
        said += _answer_whether(models)
    said.append(_compare_eager(entries))
    sentences = [*map(sentence, said), _answer_which(models, entries)]
    sentences.append(_answer_how_sure(choices, entries))
    found = {(printable(name_sweep(entry)), entry.record.trial_id) for entry in entries}
    # Not begun, removed or not to be read.
    missing = len(list_planned(manifests) - found)
    lost = ""
    if missing:
        lost = f"{missing} planned {'has' if missing == 1 else 'have'} no record"
    failed, first_failed, log = _describe_failures(findings)
    again = tuple(list_again(choices, entries, manifests))
    return Verdict(tuple(filter(None, sentences)), again, join((lost, failed)), first_failed, log)


def _name_model(entry: Entry) -> tuple[object, ...]:
    trial = entry.trial
    return (
        trial.labels.model,
        trial.labels.precision,
        trial.workload,
        entry.record.known_batch_size,
    )


def _answer_beside_ladder(choice: Choice) -> str:
    """Name the mode to take where a ladder compares rungs."""
    return prefix("which mode: ", f"{choice.recommended or ''}{_explain_one(choice)}")


def _compare_eager(entries: Sequence[Entry]) -> str:
    """Say how far from 1 the speedups of eager over eager are, where nothing else was measured."""
    by_wall, by_device = [], []
    for entry in entries:
        if entry.trial.mode != "eager":
            return ""
        if entry.is_ok:
            by_wall.append(entry.result.speedup)
            by_device.append(entry.result.device_speedup)
    if not by_wall:
        return ""
    parts = []
    for clock, speedups in (("the wall clock", by_wall), ("device time", by_device)):
        found = list(filter(None, speedups))
        if found:
            ends = dict.fromkeys((f"{ratio(min(found))}x", f"{ratio(max(found))}x"))
            parts.append(f"{' to '.join(ends)} by {clock}")
    return f"eager against eager in {count(len(by_wall), 'trial')}: {', '.join(parts)}"


def _gains(choice: Choice) -> bool:
    return choice.gain > 1 + NOISE


def _answer_whether(choices: Sequence[Choice]) -> list[str]:
    """Answer in a sentence for each workload whether to compile, the precision first in which more
    models gain; later ones need not repeat what the first has said.
    """
    if len(choices) == 1:
        return [f"{_describe_one(choices[0])}{_explain_one(choices[0])}"]
    by_workload: dict[str, dict[str, list[Choice]]] = defaultdict(lambda: defaultdict(list))
    for choice in choices:
        by_workload[choice.trial.workload][choice.trial.labels.precision].append(choice)
    lines = []
    for workload, by_precision in by_workload.items():
        parts: list[str] = []
        is_short = False
        for found in sorted(by_precision.values(), key=_rank_precision):
            if len(found) == 1:
                parts.append(_describe_one(found[0]))
            else:
                parts.append(_describe_precision(found, is_short))
                is_short |= len(parts) == 1 and _pays_mostly(_select_judged(found))
        named = WORKLOADS.get(workload, workload)
        line = "; ".join(parts)
        lines.append(f"{named}: {line}" if len(by_workload) > 1 else line)
    return lines


def _rank_precision(choices: Sequence[Choice]) -> float:
    return -sum(map(_gains, choices)) / len(choices)


def _select_judged(choices: Iterable[Choice]) -> list[Choice]:
    return [choice for choice in choices if choice.recommended is not None]


def _pays_mostly(judged: Sequence[Choice]) -> bool:
    return bool(judged) and 2 * sum(map(_gains, judged)) >= len(judged)


def _describe_precision(choices: Sequence[Choice], is_short: bool) -> str:
    """Describe the models in one precision, e.g. `compile in AMP: 34 of 42 gain more than 5 %`.

    The median is over the models with an answer, each in its best mode; where none is taken, the
    step stays what it is.
    """
    precision = _name_precision(choices[0])
    judged = _select_judged(choices)
    if not judged:
        return f"in {precision} none of {len(choices)} could be compared"
    gain = sum(map(_gains, judged))
    of_judged = f"{gain} of {len(judged)}"
    said = of_judged if is_short else f"{of_judged} gain {GAIN}"
    if _pays_mostly(judged):
        middle = median(
            choice.speedup or 1.0 for choice in judged if choice.recommended != NOT_KNOWN
        )
        verb = "in" if is_short else "compile in"
        return f"{verb} {precision}: {said}, median over all answers {middle:.2f}x"
    unknown = sum(choice.is_open for choice in judged)
    if 2 * (gain + unknown) >= len(judged):
        return f"in {precision} {said}, and {unknown} are open"
    taken = sum(choice.gain > 1 for choice in judged)
    if 2 * taken >= len(judged):
        return f"in {precision} {taken} of {len(judged)} gain, {gain or 'none'} of them {GAIN}"
    return f"in {precision} it mostly does not pay ({of_judged})"


def _name_precision(choice: Choice) -> str:
    name = choice.trial.labels.precision
    if name == "amp":
        return "AMP"
    return show(name)


def _describe_one(choice: Choice) -> str:
    model = f"in {_name_precision(choice)} {show(choice.trial.labels.model)}"
    if choice.recommended is None:
        return f"{model}: not compared"
    if choice.chosen is None:
        return f"{model}: {choice.recommended}"
    bounds = interval(choice.chosen.times.low, choice.chosen.times.high)
    speed = f"{ratio(choice.speedup)} times eager's speed"
    return f"{model}: {choice.recommended}, {join((speed, bounds), ' ')}"


def _explain_one(choice: Choice) -> str:
    """Give the reason where no mode is recommended; where one is, the answer has the figure."""
    if choice.chosen is None:
        return f" ({show(choice.reason)})"
    return ""


def _answer_which(choices: Sequence[Choice], entries: Sequence[Entry]) -> str:
    """Count the answers, the most frequent first, and say where the sweep compares no modes.

    A single answer stands in the first sentence.
    """
    answers = Counter(choice.answer for choice in _select_judged(choices))
    if not answers or len(choices) == 1:
        return ""
    named = ", ".join(f"{answer} for {number}" for answer, number in answers.most_common())
    tried = set()
    for entry in entries:
        if entry.trial.mode != "eager":
            tried.add((entry.trial.mode, entry.trial.backend))
    if len(tried) > 1:
        return f"Which mode: {named}."
    mode, backend = tried.pop()
    only = backend if mode == "default" and backend != "inductor" else mode
    return _choose_shorter(
        [f"Which mode: {named}; no other mode was tried.", f"Only {only} tried: {named}."]
    )


def _answer_how_sure(choices: Sequence[Choice], entries: Sequence[Entry]) -> str:
    """Say how many answers rest on several processes and no doubt, what the others lack, and what
    may be wrong.
    """
    not_verified = _describe_unverified(choices, entries)
    counts: Counter[str] = Counter()
    doubted: list[set[str]] = []
    sure = single = 0
    for choice in choices:
        if choice.certainty and not choice.is_open and choice.recommended != NOTHING_FITS:
            counts.update(choice.doubts)
            doubted.append({*choice.doubts} - {UNVERIFIED})
            sure += choice.certainty == "tested" and not choice.doubts
            single += choice.certainty == "single_process"
    if not doubted:
        return sentence(not_verified)
    del counts[UNVERIFIED]
    flags = counts.most_common()
    if len(choices) == 1:
        process = "a single process" if single else ""
        lacks = join([process, not_verified, *counts], ", ")
        return f"Sure: {'yes' if sure else 'no'}{f' ({lacks})' if lacks else ''}."
    rest = ""
    if single == len(doubted) > 1:
        rest = "all rest on one process"
    elif single:
        rest = f"{single} {'rests' if single == 1 else 'rest'} on one process"
    named = [f"{number} flagged {flag}" for flag, number in flags[:MAX_FLAGS]]
    lines = []
    for shown in range(len(named), -1, -1):
        names = dict(flags[:shown]).keys()
        more = sum(bool(doubts) and names.isdisjoint(doubts) for doubts in doubted)
        others = f"{more} {'more ' if shown else ''}flagged" if more else ""
        lacks = join([rest, *named[:shown], others, not_verified], ", ")
        answers = f"Sure: {sure or 'none'} of {count(len(doubted), 'answer')}"
        lines.append(f"{join((answers, lacks), ': ')}.")
    return _choose_shorter(lines)


def _describe_unverified(choices: Sequence[Choice], entries: Sequence[Entry]) -> str:
    unverified = [entry for entry in entries if entry.is_ok and UNVERIFIED in entry.flags]
    if not unverified:
        return ""
    if len(choices) > 1:
        models = {(entry.trial.labels.model, entry.trial.labels.suite) for entry in unverified}
        return f"{count(len(models), 'model')} not verified"
    if len(entries) == 1 or any(UNVERIFIED in choice.doubts for choice in choices):
        return "not verified"
    return f"{count(len(unverified), 'trial')} not verified"


def _choose_shorter(lines: Sequence[str]) -> str:
    """Choose the first line that a terminal need not break, else the last."""
    for line in lines:
        if len(line) <= MAX_CHARACTERS:
            return line
    return lines[-1]


def _describe_failures(findings: Findings) -> tuple[str, str, str]:
    """Count the trials that are not ok, name the first one with its message, and return the path of
    its log.
    """
    if not findings.failed:
        return "", "", ""
    counts = Counter(entry.record.status for entry in findings.failed).most_common()
    named = ", ".join(f"{number} {status}" for status, number in counts)
    trials = count(len(findings.entries), "trial")
    failed = f"{len(findings.failed)} of {trials} failed: {named}"
    ordered = sort_trials(findings.failed)
    first = min(ordered, key=lambda entry: entry.record.status in NOT_RUN)
    message = shorten(show(first.record.first_line), MAX_MESSAGE_CHARACTERS)
    return failed, join((name_trial(first, findings.axes), message), ": "), show(first.log)
