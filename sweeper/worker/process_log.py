"""What a worker process has measured so far, phase by phase; it is kept when the process fails."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from sweeper.core.protocol import Outcome, Phase
from sweeper.core.record import Diagnostics, Process
from sweeper.core.serialization import Json

from .compilation.counters import CompileCounters
from .failures import count_failed_allocations
from .lease import Lease


@dataclass(frozen=True)
class ProcessSlot:
    """Which process of a trial this is, and what earlier processes have found."""

    index: int = 0
    draw: int = 0
    cold: bool = True
    # the artifact that passed the check; a process that compiles it again skips the check
    checked: str | None = None
    steps_per_block: int | None = None


@dataclass
class ProcessLog:
    """What a process has measured so far."""

    say: Callable[[Phase], None]
    process: Process
    lease: Lease
    slot: ProcessSlot = ProcessSlot()
    phase: str = "starting"
    environment: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Json] = field(default_factory=dict)
    parameters: dict[str, int] = field(default_factory=dict)  # how many numbers of each format
    counters: CompileCounters | None = None
    diagnostics: Diagnostics | None = None  # of another process, in place of what the counters say
    # in the accuracy check, which retries with less memory; not the trial's
    check_failed_allocations: int = 0

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

    def add(self, **values: Any) -> None:
        """Set fields of the process."""
        self.process = replace(self.process, **values)

    def outcome(self, status: str, phase: str | None = None, message: str | None = None) -> Outcome:
        if (failed := count_failed_allocations()) is not None:
            failed -= self.check_failed_allocations
        self.add(waited_s=self.lease.away_s, failed_allocations=failed)
        diagnostics = self.diagnostics
        if self.counters:
            diagnostics = self.counters.report(self.settings, self.parameters)
        return Outcome(status, phase, message, self.process, diagnostics, dict(self.environment))
