"""The progress of a sweep: a live view on a terminal, plain lines elsewhere.

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

from sweeper.analysis.metrics import Result
from sweeper.core.paths import SweepPaths
from sweeper.core.record import Inspection, Record
from sweeper.core.trial import Trial
from sweeper.execution.scheduler import Event, Finished, Started


@dataclass
class _Current:
    """A trial that runs; `place` is its number in the order of starts, and the number of trials."""

    trial: Trial
    place: str
    begin: float
    phase: str = "starting"


class Progress:
    """Shows the events of a sweep; a context manager. `processes` is the number of timed processes per trial."""

    def __init__(self, trials: int, processes: int, console: Console) -> None:
        self._total, self._processes, self._console = trials, processes, console
        self._started = self._done = 0
        self._begin = time.monotonic()
        self._current: dict[str, _Current] = {}
        self._live = Live(console=console, refresh_per_second=1, transient=True, get_renderable=self._view)

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._live.stop()

    def show(self, event: Event) -> None:
        if isinstance(event, Finished):
            record, self._done = event.record, self._done + 1
            current = self._current.pop(record.trial_id)
            took = format_duration(time.monotonic() - current.begin)
            self._print(current, f"{_describe_result(record, event.result)}  ({took})")
            if record.inspection:
                self._print(current, escape(_describe_inspection(record, record.inspection)))
            return
        if isinstance(event, Started):
            self._started += 1
            current = _Current(event.trial, f"[{self._started}/{self._total}]", time.monotonic())
            self._current[event.trial.id] = current
        else:
            current = self._current[event.trial.id]
            timed = self._processes > 1 and event.process < self._processes  # an inspection is none of them
            which = f", process {event.process + 1} of {self._processes}" if timed else ""
            current.phase = f"{event.phase}{which}"
        if not self._console.is_terminal:
            self._print(current, current.phase)

    def _print(self, current: _Current, text: str) -> None:
        self._console.print(f"{current.place} {escape(current.trial.label)}: {text}", soft_wrap=True, highlight=False)

    def _view(self) -> Group:
        elapsed_s = time.monotonic() - self._begin
        lines: list[Text | ProgressBar] = []
        for current in self._current.values():
            took = format_duration(time.monotonic() - current.begin)
            lines.append(Text(f"{current.trial.label}: {current.phase}  {took}", style="bold"))
        lines.append(ProgressBar(total=self._total, completed=self._done, width=40))
        text = f"{self._done}/{self._total} trials, {format_duration(elapsed_s)} elapsed"
        if self._done and self._done < self._total:  # the rest is taken to need as long per trial as what is done
            left_s = elapsed_s / self._done * (self._total - self._done)
            end = time.strftime("%H:%M", time.localtime(time.time() + left_s))
            text += f", about {format_duration(left_s)} to go, done at {end}"
        return Group(*lines, Text(text))


def format_duration(seconds: float) -> str:
    """`42 s`, `3 min 05 s` or `2 h 07 min`."""
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def _describe_inspection(record: Record, found: Inspection) -> str:
    """Say where the inspection of a trial lies, and what is missing of it."""
    paths = SweepPaths.of(record.sweep).trial(record.label, record.trial_id)
    first = f"not inspected in full: {' '.join(found.missing.splitlines()[:1])}" if found.missing else ""
    where = f"what the compiler did: {paths.folder / found.folder / 'summary.md'}" if found.folder else ""
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
    return f"[green]{escape(text)}[/green]"
