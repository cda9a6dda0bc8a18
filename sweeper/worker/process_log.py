"""What a worker process has measured so far, phase by phase; it is kept when the process fails.

Nothing here needs torch: a worker that leads the runs of a script does without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sweeper.core.protocol import Job, Known, Message, Outcome, Phase, ProcessSlot
from sweeper.core.record import Diagnostics, Process, ScriptRun
from sweeper.core.serialization import Json
from sweeper.core.system.pipes import log_error, write_log

from .failures import choose_status
from .lease import Lease
from .source_lines import describe_in_script

if TYPE_CHECKING:
    from .compilation.counters import CompileCounters


@dataclass
class ProcessLog:
    """What a process has measured so far."""

    say: Callable[[Message], None]
    process: Process
    lease: Lease
    slot: ProcessSlot = field(default_factory=ProcessSlot)
    phase: str = "starting"
    environment: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Json] = field(default_factory=dict)
    parameters: dict[str, int] = field(default_factory=dict)  # how many numbers of each format
    counters: CompileCounters | None = None
    diagnostics: Diagnostics | None = None  # of another process, in place of what the counters say
    # in the accuracy check, which retries with less memory; not the trial's
    check_failed_allocations: int = 0

    @property
    def known(self) -> Known:
        """What earlier processes have found; nothing before the first time on the device."""
        return self.lease.known

    @contextmanager
    def enter(self, phase: str) -> Iterator[None]:
        """Announce a phase and note how long it took, also when it fails; a phase may come several
        times.
        """
        self.announce(phase)
        start = self.lease.clock()
        try:
            yield
        finally:
            spent_s = self.process.phases_s.get(phase, 0.0) + self.lease.clock() - start
            self.add(phases_s={**self.process.phases_s, phase: spent_s})

    def announce(self, phase: str) -> None:
        self.phase = phase
        self.say(Phase(phase))

    def note(self, text: str) -> None:
        """Say what goes on in the phase, to whoever watches the sweep and in the log."""
        write_log(f"{text}\n")
        self.say(Phase(self.phase, text))

    def add(self, **values: Any) -> None:
        """Set fields of the process."""
        self.process = replace(self.process, **values)

    def add_to_script(self, **values: Any) -> None:
        """Set fields of what was seen of its script."""
        self.add(script=replace(self.process.script or ScriptRun(), **values))

    def outcome(self, error: BaseException | None = None) -> Outcome:
        """What was measured, and what went wrong, if anything."""
        self.add(waited_s=self.lease.away_s, held_bytes=self.lease.held_bytes)
        diagnostics = self.diagnostics
        if self.counters:
            diagnostics = self.counters.report(self.settings, self.parameters)
        done = Outcome("ok", None, None, self.process, diagnostics, dict(self.environment))
        if error is None:
            return done
        status, message = choose_status(error, self.phase), describe_in_script(error)
        return replace(done, status=status, phase=self.phase, message=message)


Task = Callable[[Job, ProcessLog], None]  # what a process does, phase by phase


def run(
    job: Job, slot: ProcessSlot, say: Callable[[Message], None], lease: Lease, task: Task
) -> Outcome:
    """Run the phases of a task. Always returns: any exception in them becomes a status."""
    log = ProcessLog(say, Process(slot.index, slot.draw, slot.cold), lease, slot)
    try:
        task(job, log)
    except BaseException as error:  # noqa: BLE001  # the one place where anything at all becomes a status
        log_error(error)
        return log.outcome(error)
    return log.outcome()
