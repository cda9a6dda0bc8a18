"""The progress of a sweep: a line per trial that ends, and on a terminal a live view of phases
below.

The view is drawn once per second at most: the driver must leave the processor to the workers.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.text import Text

from sweeper.analysis.result import Result
from sweeper.core.paths import SweepPaths
from sweeper.core.record import Inspection, Record
from sweeper.core.trial import Trial
from sweeper.execution.scheduler import Event, Finished, Started
from sweeper.report.formatting import format_duration


@dataclass
class _Current:
    """A trial that runs; `place` is its number in the order of starts, and the number of trials."""

    trial: Trial
    place: str
    begin: float
    phase: str = "starting"


class Progress:
    """Shows the events of a sweep; a context manager. `processes` is the number of timed processes
    per trial.
    """

    def __init__(self, trials: int, processes: int, console: Console) -> None:
        self._total, self._processes, self._console = trials, processes, console
        self._started = self._done = 0
        self._begin = time.monotonic()
        # of a trial; a cluster's jobs have all ended by then
        self._first_begin: float | None = None
        self._current: dict[str, _Current] = {}
        self._live = Live(
            console=console, refresh_per_second=1, transient=True, get_renderable=self._view
        )

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._live.stop()

    def show(self, event: Event) -> None:
        if isinstance(event, Finished):
            self._done += 1
            self._print(self._current.pop(event.record.trial_id), event)
        elif isinstance(event, Started):
            now = time.monotonic()
            self._first_begin = self._first_begin or now
            self._started += 1
            self._current[event.trial.id] = _Current(
                event.trial, f"[{self._started}/{self._total}]", now
            )
        else:
            # an inspection is none of them
            timed = self._processes > 1 and event.process < self._processes
            which = f", process {event.process + 1} of {self._processes}" if timed else ""
            self._current[event.trial.id].phase = f"{event.phase}{which}"

    def _print(self, current: _Current, event: Finished) -> None:
        """Print the line of a trial; a log has no live view, so its lines have the time of day and
        the time left.
        """
        record = event.record
        took = format_duration(time.monotonic() - current.begin)
        text = (
            f"{current.place} {escape(current.trial.label)}: "
            f"{_describe_result(record, event.result)}  ({took})"
        )
        text += (
            f"; {escape(_describe_inspection(record, record.inspection))}"
            if record.inspection
            else ""
        )
        if not self._console.is_terminal:
            left = f"; {left}" if (left := self._describe_left()) else ""
            text = f"{time.strftime('%H:%M:%S')} {text}{left}"
        self._console.print(text, soft_wrap=True, highlight=False)

    def _view(self) -> Group:
        lines: list[Text | ProgressBar] = []
        for current in self._current.values():
            took = format_duration(time.monotonic() - current.begin)
            lines.append(Text(f"{current.trial.label}: {current.phase}  {took}", style="bold"))
        lines.append(ProgressBar(total=self._total, completed=self._done, width=40))
        parts = [
            f"{self._done}/{self._total} trials",
            f"{format_duration(time.monotonic() - self._begin)} elapsed",
        ]
        return Group(*lines, Text(", ".join(filter(None, [*parts, self._describe_left()]))))

    def _describe_left(self) -> str:
        """Say how long the rest takes, if each trial takes as long as those that are done; empty
        where none is left.
        """
        if not self._done or self._done == self._total or self._first_begin is None:
            return ""
        left_s = (time.monotonic() - self._first_begin) / self._done * (self._total - self._done)
        end = time.strftime("%H:%M", time.localtime(time.time() + left_s))
        return f"about {format_duration(left_s)} to go, done at {end}"


def _describe_inspection(record: Record, found: Inspection) -> str:
    """Say where the inspection of a trial lies, and what is missing of it."""
    paths = SweepPaths.of(record.sweep).trial(record.label, record.trial_id)
    first = (
        f"not inspected in full: {' '.join(found.missing.splitlines()[:1])}"
        if found.missing
        else ""
    )
    where = (
        f"what the compiler did: {paths.folder / found.folder / 'summary.md'}"
        if found.folder
        else ""
    )
    return "; ".join(filter(None, [where, first]))


def _describe_result(record: Record, result: Result) -> str:
    """The speedup with its interval or range, or the status with the first line of why."""
    if record.status != "ok":
        first = (record.message or "").splitlines()[:1]
        return f"[red]{record.status}[/red] while {record.phase}: {escape(' '.join(first))}"
    text = f"{result.speedup:.3f}x" if result.speedup else "ok"
    if result.speedup_low and result.speedup_high:
        text += f" [{result.speedup_low:.3f}, {result.speedup_high:.3f}]"
    elif result.speedup_min and result.speedup_max:
        text += f" ({result.speedup_min:.3f} to {result.speedup_max:.3f}, host-bound)"
    if result.loop_speedup:
        text = f"step {text}, loop {result.loop_speedup:.3f}x"
    return f"[green]{escape(text)}[/green]"
