"""The progress of a sweep: a line per trial that ends, and on a terminal a live view of phases
below.

The view is drawn once per second at most: the driver must leave the processor to the workers.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.text import Text

from sweeper.analysis.gains import read_gain
from sweeper.analysis.result import Result
from sweeper.analysis.stats import ratio_of
from sweeper.core.grouping import group_by
from sweeper.core.paths import SweepPaths
from sweeper.core.record import Record, say_while
from sweeper.core.settings import Measure
from sweeper.core.trial import Trial, name_variants
from sweeper.execution.scheduler import Event, Finished, Started
from sweeper.report.answers.candidates import show_bounds
from sweeper.report.columns.formats import duration, prefix, ratio

MAX_PART = 0.9  # of a trial that has not ended, however many processes have


@dataclass
class _Current:
    """A trial that runs; `place` is its number in the order of starts, and the number of trials."""

    name: str
    place: str
    begin: float
    phase: str = "starting"
    processes: int = 0  # that have ended


class Progress:
    """Shows the events of a sweep while `live` is entered."""

    def __init__(self, trials: Sequence[Trial], measure: Measure, console: Console) -> None:
        self._total, self._measure, self._console = len(trials), measure, console
        self._names = dict(_name_trials(trials))
        self._done = 0
        self.has_unsure = False  # whether a speedup was shown with the mark of what is not sure
        self._begin = time.monotonic()
        # of a trial; a cluster's jobs have all ended by then
        self._first_begin: float | None = None
        self._end = 0.0  # as it was estimated when a process last ended
        self._current: dict[str, _Current] = {}
        self.live: AbstractContextManager[object] = nullcontext()
        if console.is_terminal:
            self.live = Live(
                console=console, refresh_per_second=1, transient=True, get_renderable=self._view
            )

    def show(self, event: Event) -> None:
        if isinstance(event, Finished):
            self._done += 1
            record = event.record
            current = self._current.pop(record.trial_id)
            self._estimate_end()
            took = duration(time.monotonic() - current.begin)
            result = self._describe_result(record, event.result)
            text = f"{current.place} {escape(current.name)}: {result}  ({took})"
            if (found := record.inspection) and found.folder:
                folder = SweepPaths.of(record.sweep).trial(record.label, record.trial_id).folder
                summary = folder / found.folder / "summary.md"
                text += f"; what the compiler did: {escape(str(summary))}"
            if found and found.missing:
                text += f"; not inspected in full: {escape(found.missing.splitlines()[0])}"
            # a log has no live view, so its lines have the time of day and the time left
            if not self._console.is_terminal:
                left = "" if record.status == "interrupted" else self._describe_left("; ")
                text = f"{time.strftime('%H:%M:%S')} {text}{left}"
            self._console.print(text, soft_wrap=True, highlight=False)
        elif isinstance(event, Started):
            now = time.monotonic()
            self._first_begin = self._first_begin or now
            place = f"[{self._done + len(self._current) + 1}/{self._total}]"
            self._current[event.trial.id] = _Current(self._names[event.trial.id], place, now)
        else:
            phase = event.phase
            # an inspection is none of them
            processes = self._measure.process_limit
            if processes > 1 and event.process < processes:
                phase += f", process {event.process + 1} of {processes}"
            current = self._current[event.trial.id]
            has_ended = event.process != current.processes
            current.phase, current.processes = phase, event.process
            if has_ended:
                self._estimate_end()
            if event.note:
                text = f"{current.place} {current.name}, {phase}: {event.note}"
                self._console.print(Text(text))

    def _describe_result(self, record: Record, result: Result) -> str:
        """The speedup that the answer takes, with a mark where it is not sure, or the status with
        the first line of why.
        """
        if record.status != "ok":
            why = "" if record.status == "interrupted" else f": {escape(record.first_line)}"
            return f"[red]{record.status}[/red]{say_while(record.phase)}{why}"
        one = read_gain(record, result)
        if one is None:
            return f"[green]ok[/green]{prefix(': ', escape(record.first_line))}"
        mark = "?" if one.why_unsure else ""
        self.has_unsure |= bool(mark)
        bounds = "" if one.is_unbounded else f" {show_bounds(one.gain)}"
        text = f"{ratio(one.gain.value)}x{mark}{bounds}"
        if one.of_loop:
            text = f"loop {text}, step {ratio(ratio_of(result.speedup))}x"
        return f"[green]{escape(text)}[/green]"

    def _view(self) -> Group:
        lines = []
        for current in self._current.values():
            if current.phase.startswith("waiting"):  # many features of an ablation may
                continue
            took = duration(time.monotonic() - current.begin)
            lines.append(Text(f"{current.name}: {current.phase}  {took}", style="bold"))
        elapsed = duration(time.monotonic() - self._begin)
        text = f"{self._done}/{self._total} trials, {elapsed} elapsed{self._describe_left(', ')}"
        bar = ProgressBar(total=self._total, completed=self._done, width=40)
        return Group(*lines, bar, Text(text))

    def _estimate_end(self) -> None:
        """Estimate when the sweep ends, if each trial takes as long as those that are done; one
        that runs is a part of a trial. The time left falls until the next process ends.
        """
        done: float = self._done
        for current in self._current.values():
            done += min(current.processes / self._measure.process_minimum, MAX_PART)
        if done and self._first_begin is not None:
            now = time.monotonic()
            self._end = now + (now - self._first_begin) / done * (self._total - done)

    def _describe_left(self, separator: str) -> str:
        """Say how long the rest takes, behind the separator; empty where none is left, or where it
        takes longer than that.
        """
        left_s = self._end - time.monotonic()
        if not self._done or self._done == self._total or left_s < 0:
            return ""
        end = time.strftime("%H:%M", time.localtime(time.time() + left_s))
        return f"{separator}about {duration(left_s)} to go, done at {end}"


def _name_trials(trials: Sequence[Trial]) -> Iterator[tuple[str, str]]:
    """Yield the id and the name of each trial: its label, and in what it differs from others of
    this label, e.g. `bert_base-train-fp32-default-b16 [compile.start=mega_cache]`.
    """
    for label, alike in group_by([trial.label for trial in trials], trials).items():
        variants = [name.split("; ") for name in name_variants(alike)]
        common = {""}.union(set(variants[0]).intersection(*variants))
        for trial, variant in zip(alike, variants, strict=True):
            own = "; ".join(part for part in variant if part not in common)
            yield trial.id, f"{label} [{own}]" if own else label
