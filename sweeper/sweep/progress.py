"""The sweep as it goes: a live view on a terminal, plain lines elsewhere.

A watcher of `execute`. It draws once a second at most: the parent must leave the processor to the workers.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.text import Text

from sweeper.analysis.metrics import derive
from sweeper.core.paths import SweepPaths
from sweeper.core.record import Record
from sweeper.core.trial import Trial
from sweeper.execution.execute import Watcher


@dataclass
class _Current:
    """A trial that runs; `number` counts from 1 in the order of starts."""

    trial: Trial
    number: int
    begin: float
    phase: str = "starting"
    process: int = 0


class Progress(Watcher):
    """Use as a context manager around `execute`."""

    def __init__(self, trials: int, processes: int, console: Console) -> None:
        self._total = trials
        self._processes = processes
        self._console = console
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

    def trial_started(self, trial: Trial) -> None:
        self._started += 1
        current = self._current[trial.id] = _Current(trial, self._started, time.monotonic())
        if not self._console.is_terminal:
            self._print(f"{self._place(current)} {escape(trial.label)}: starting")

    def phase_started(self, trial: Trial, phase: str, process: int) -> None:
        current = self._current[trial.id]
        current.phase, current.process = phase, process
        if not self._console.is_terminal:
            self._print(f"{self._place(current)} {escape(trial.label)}: {self._phase(current)}")

    def trial_finished(self, record: Record) -> None:
        current = self._current.pop(record.trial_id)
        self._done += 1
        took = duration(time.monotonic() - current.begin)
        self._print(f"{self._place(current)} {escape(record.label)}: {_outcome(record)}  ({took})")
        if record.inspection is not None:
            self._print(f"{self._place(current)} {escape(record.label)}: {escape(_inspection(record))}")

    def _place(self, current: _Current) -> str:
        return f"[{current.number}/{self._total}]"

    def _print(self, line: str) -> None:
        self._console.print(line, soft_wrap=True, highlight=False)

    def _phase(self, current: _Current) -> str:
        beyond = current.process >= self._processes  # an inspection is none of those that are timed
        which = "" if self._processes == 1 or beyond else f", process {current.process + 1} of {self._processes}"
        return f"{current.phase}{which}"

    def _view(self) -> Group:
        elapsed_s = time.monotonic() - self._begin
        lines: list[Text | ProgressBar] = []
        for current in self._current.values():
            took = duration(time.monotonic() - current.begin)
            lines.append(Text(f"{current.trial.label}: {self._phase(current)}  {took}", style="bold"))
        lines.append(ProgressBar(total=self._total, completed=self._done, width=40))
        lines.append(
            Text(f"{self._done}/{self._total} trials, {duration(elapsed_s)} elapsed{self._expected(elapsed_s)}")
        )
        return Group(*lines)

    def _expected(self, elapsed_s: float) -> str:
        """When the rest would be done if it took as long, a trial, as what is done."""
        if not self._done or self._done == self._total:
            return ""
        left_s = max(elapsed_s / self._done * (self._total - self._done), 0.0)
        return (
            f", about {duration(left_s)} to go, done at {time.strftime('%H:%M', time.localtime(time.time() + left_s))}"
        )


def duration(seconds: float) -> str:
    """`42 s`, `3 min 05 s` or `2 h 07 min`."""
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def _inspection(record: Record) -> str:
    """Where the inspection of a trial lies, and what is missing of it."""
    found, paths = record.inspection, SweepPaths.of(record.sweep).trial(record.label, record.trial_id)
    assert found is not None
    first = f"not inspected in full: {' '.join(found.missing.splitlines()[:1])}" if found.missing else ""
    where = f"what the compiler did: {paths.folder / found.folder / 'summary.md'}" if found.folder else ""
    return "; ".join(filter(None, [where, first]))


def _outcome(record: Record) -> str:
    if record.status != "ok":
        first = (record.message or "").splitlines()[:1]
        return f"[red]{record.status}[/red] while {record.phase}: {escape(' '.join(first))}"
    result = derive(record)
    text = f"{result.speedup:.3f}x" if result.speedup else "ok"
    if result.speedup_low and result.speedup_high:
        text += f" [{result.speedup_low:.3f}, {result.speedup_high:.3f}]"
    elif result.speedup_min and result.speedup_max:
        text += f" ({result.speedup_min:.3f} to {result.speedup_max:.3f}, host-bound)"
    return f"[green]{escape(text)}[/green]"
