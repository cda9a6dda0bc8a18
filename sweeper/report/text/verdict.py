"""The verdict of a report: what to do in plain sentences, what is worth another run, and what
failed.

Plain data, made once of the findings, for the end of the terminal, the head of report.md and the
head of the page.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from sweeper.analysis.flags import UNVERIFIED
from sweeper.analysis.stats import ratio_of
from sweeper.core.libraries import SCRIPT
from sweeper.core.text import printable
from sweeper.loading.entries import Entry
from sweeper.loading.invocations import Manifest
from sweeper.report.answers import ablations, ladders, scripts, starts
from sweeper.report.answers.decision import COMPILE, OPEN, STAY, Answer
from sweeper.report.answers.findings import Findings
from sweeper.report.answers.trials import name_sweep, name_trial, rank_trial, show_axes
from sweeper.report.columns.cell import show
from sweeper.report.columns.formats import (
    count,
    join,
    prefix,
    ratio,
    sentence,
    shorten,
    show_steps,
)

from .next_steps import Again, list_again, list_planned

MAX_MESSAGE_CHARACTERS = 90
FEW = 4  # scripts that have a sentence each, and models of which is said when they pay back
WORKLOADS = {"train": "training"}


class FirstFailure(NamedTuple):
    """A trial that failed."""

    name: str
    message: str  # its first line, shortened
    log: str  # the path of its worker's log; "" where there is none


@dataclass(frozen=True)
class Verdict:
    """What a reader should know first."""

    sentences: tuple[str, ...]  # whether to compile, which mode, how sure
    again: tuple[Again, ...]
    # counts the trials that are not ok by status, and those without a record; "": there are none
    failed: str
    first_failed: FirstFailure | None

    @property
    def lines(self) -> list[str]:
        """The sentences, and last what failed or was interrupted; empty where nothing did."""
        return [*self.sentences, sentence(self.failed)]


def make_verdict(findings: Findings, manifests: Sequence[Manifest]) -> Verdict:
    """Make the verdict of a report."""
    answers, entries = findings.answers, findings.entries
    climbed, adds = set(), False
    for ladder in findings.ladders:
        if ladder.is_whole:
            climbed.add(_name_model(ladder.built.entry))
            adds |= ladder.adds
    of_scripts, models = [], []
    for answer in answers:
        if answer.trial.workload == SCRIPT:
            of_scripts.append(answer)
        elif _name_model(answer.entry) not in climbed or (len(answers) == 1 and adds):
            models.append(answer)
    said = [prefix("modes are chosen for ", str(findings.limits))]
    said += scripts.conclude(of_scripts)[:FEW]
    said += ladders.conclude(findings.ladders)
    said += ablations.conclude(findings.ablations)
    said += starts.conclude(starts.list_starts(entries))
    said += _say_answers(models)
    if models or of_scripts:
        said += [_say_modes(models), _say_why_unsure(answers)]
    said += [_count_unverified(answers, entries), _compare_eager(entries)]
    found = {(printable(name_sweep(entry)), entry.record.trial_id) for entry in entries}
    # Not begun, removed or not to be read.
    missing = len(list_planned(manifests).keys() - found)
    lost = ""
    if missing:
        lost = f"{count(missing, 'planned trial')} {'has' if missing == 1 else 'have'} no record"
    failed = _count_failures(findings)
    again = tuple(list_again(findings, manifests))
    sentences = tuple(map(sentence, filter(None, said)))
    return Verdict(sentences, again, join((lost, failed)), _find_first_failure(findings))


def _name_model(entry: Entry) -> tuple[str, ...]:
    return show_axes(entry, ("model", "precision", "workload", "batch_size"))


def _say_answers(answers: Sequence[Answer]) -> list[str]:
    """Say a single answer; count several in a sentence for each workload and precision."""
    if len(answers) == 1:
        (answer,) = answers
        return [
            f"in {_name_precision(answer)} {show(answer.trial.labels.model)}: {show(str(answer))}"
        ]
    groups: dict[tuple[str, str], list[Answer]] = defaultdict(list)
    for answer in answers:
        groups[answer.trial.workload, _name_precision(answer)].append(answer)
    workloads = {workload for workload, _ in groups}
    lines = []
    for (workload, precision), found in groups.items():
        named = WORKLOADS.get(workload, workload)
        of = f"{named} in {precision}" if len(workloads) > 1 else f"in {precision}"
        lines.append(f"{of}: {_count_answers(found)}")
    return lines


def _count_answers(answers: Sequence[Answer]) -> str:
    """Count the answers for what was measured, and how many of them are sure, e.g. `compile 3 of 5
    (2 sure), median 1.41x, pays back after 766 to 3,030 steps; stay eager with 1 (none sure); 1 is
    open`.
    """
    measured: dict[str, list[Answer]] = {COMPILE: [], STAY: [], OPEN: []}
    for answer in answers:
        if answer.best:
            measured[answer.verdict].append(answer)
    taken, stay, crossing = measured.values()
    number = len(taken) + len(stay) + len(crossing)
    if not number:
        return f"{len(answers)} could not be compared"
    parts = []
    if taken:
        middle = median(answer.gain for answer in taken)
        compiled = f"compile {len(taken)} of {number}"
        paid = prefix(", pays back after ", _show_pay_back(taken))
        parts.append(f"{compiled} ({_count_sure(taken)}), median {middle:.2f}x{paid}")
    if stay:
        parts.append(f"stay eager with {len(stay)} ({_count_sure(stay)})")
    if crossing:
        parts.append(f"{len(crossing)} {'is' if len(crossing) == 1 else 'are'} open")
    return join(parts)


def _show_pay_back(answers: Sequence[Answer]) -> str:
    """Show the fewest and the most steps until compiling a few models has paid; "" where they are
    not known.
    """
    modes = [answer.chosen for answer in answers if answer.chosen]
    needed = [steps for mode in modes if (steps := mode.result.break_even_steps.value) is not None]
    if not needed or len(answers) > FEW:
        return ""
    bounds = dict.fromkeys(map(show_steps, (min(needed), max(needed))))
    return f"{' to '.join(bounds)} steps"


def _count_sure(answers: Sequence[Answer]) -> str:
    number = sum(answer.is_sure for answer in answers)
    return f"{number or 'none'} sure"


def _say_modes(answers: Sequence[Answer]) -> str:
    """Count the modes to take, where several were tried."""
    tried: set[tuple[str, str | None]] = set()
    taken: Counter[str] = Counter()
    for answer in answers:
        tried.update((entry.trial.mode, entry.trial.backend) for entry in answer.entries)
        if answer.chosen:
            taken[answer.recommended] += 1
    if len(tried) < 2 or len(answers) < 2 or not taken:
        return ""
    named = ", ".join(f"{mode} for {number}" for mode, number in taken.most_common())
    return f"modes to take: {named}"


def _say_why_unsure(answers: Sequence[Answer]) -> str:
    """Count the answers by what keeps them from being sure; one answer says it itself."""
    reasons: Counter[str] = Counter()
    for answer in answers:
        reasons.update(answer.why_unsure)
    if len(answers) < 2 or not reasons:
        return ""
    named = "; ".join(f"{reason} ({number})" for reason, number in reasons.most_common())
    return f"not sure: {named}"


def _count_unverified(answers: Sequence[Answer], entries: Sequence[Entry]) -> str:
    """Count the trials whose result could not be judged, and say why of most. Where one of several
    answers rests on such a trial, the answers have been counted instead.
    """
    number, reasons = 0, Counter[str]()
    for entry in entries:
        if entry.is_ok and UNVERIFIED in entry.flags:
            number += 1
            if entry.worst and entry.worst.unverified:
                reasons[entry.worst.unverified.splitlines()[0]] += 1
    is_said = any("unverified" in answer.why_unsure for answer in answers)
    if not number or (is_said and (len(answers) > 1 or not reasons)):
        return ""
    text = f"{count(number, 'trial')} not verified"
    for reason, _ in reasons.most_common(1):
        text += f": {shorten(show(reason), MAX_MESSAGE_CHARACTERS)}"
    return text


def _name_precision(answer: Answer) -> str:
    name = answer.trial.labels.precision
    return "AMP" if name == "amp" else show(name)


def _compare_eager(entries: Sequence[Entry]) -> str:
    """Say how far from 1 the speedups of eager over eager are, where nothing else was measured."""
    by_wall, by_device = [], []
    for entry in entries:
        if entry.trial.mode != "eager":
            return ""
        if entry.is_ok:
            by_wall.append(ratio_of(entry.result.speedup))
            by_device.append(ratio_of(entry.result.device_speedup))
    if not by_wall:
        return ""
    parts = []
    for clock, speedups in (("the wall clock", by_wall), ("device time", by_device)):
        found = list(filter(None, speedups))
        if found:
            ends = dict.fromkeys((f"{ratio(min(found))}x", f"{ratio(max(found))}x"))
            parts.append(f"{' to '.join(ends)} by {clock}")
    return f"eager against eager in {count(len(by_wall), 'trial')}: {', '.join(parts)}"


def _count_failures(findings: Findings) -> str:
    """Count the trials that were interrupted, and those that failed by status; "" where all are
    ok.
    """
    counts = Counter(entry.record.status for entry in findings.failed)
    said, interrupted = [], counts.pop("interrupted", 0)
    if interrupted:
        said.append(
            f"{count(interrupted, 'trial')} {'was' if interrupted == 1 else 'were'} interrupted"
        )
    if counts:
        named = ", ".join(f"{number} {status}" for status, number in counts.most_common())
        trials = count(len(findings.entries), "trial")
        said.append(f"{counts.total()} of {trials} failed: {named}")
    return join(said)


def _find_first_failure(findings: Findings) -> FirstFailure | None:
    """Find the trial that failed of which its log says most."""
    failed = [entry for entry in findings.failed if entry.record.status != "interrupted"]
    if not failed:
        return None
    first = min(
        sorted(failed, key=rank_trial),
        key=lambda one: (not one.record.judges_the_compiler, one.record.status == "unavailable"),
    )
    message = shorten(show(first.record.first_line), MAX_MESSAGE_CHARACTERS)
    if len(findings.entries) == len(findings.answers) == 1:  # the answer has said it
        message = ""
    return FirstFailure(name_trial(first, findings.axes), message, show(first.log))
