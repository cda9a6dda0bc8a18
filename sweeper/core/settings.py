"""Settings: everything about a sweep that does not change what a trial is.

The dataclasses are not frozen, because Hydra's schema uses `Measure`, `Tracking` and `Scheduler` as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sweeper.core.errors import ConfigError, nearest
from sweeper.core.record import PHASES

MIN_PROCESSES_FOR_TARGET = 5  # stopping early at a narrow interval by chance makes intervals too narrow
MAX_TARGET = 0.5
POSITIVE = (
    "processes", "draws", "max_processes", "rounds", "rounds_s", "target", "timeout_s", "warmup_s", "block_s",
    "block_steps",
)  # fmt: skip
CLOCKS = ("block", "step")
RETRIES = ("failed", "none", "all")


@dataclass
class Measure:
    """How long and how often to measure. None: chosen by the kind of device, see `sweeper.worker.measurement.bench`."""

    processes: int = 3
    "Fresh worker processes per draw."
    draws: int = 1
    "Private compile caches, each compiled cold once."
    target: float | None = None
    "Go on with more processes until the interval's half-width is this share of the speedup, e.g. 0.01."
    max_processes: int = 15
    "Maximum of processes of a trial with a target."
    rounds: int = 10
    "Maximum of rounds of a process; each times one block of both arms."
    rounds_s: float | None = None
    "Wall seconds of rounds after which no other pair of rounds begins; null: all rounds run, however long they take."
    block_s: float | None = None
    "Minimum of wall seconds of a block of the faster arm."
    block_steps: int | None = None
    "Minimum of steps of a block."
    clock: str = "block"
    "block: the steps of a block run without waits, as in training; step: each step is waited for, for percentiles."
    energy: bool = False
    "Joules per step of each arm, in a separate pass of about fourteen seconds."
    warmup_s: float = 10.0
    "Maximum of wall seconds of warm-up of an arm; it ends earlier when the step time is flat."
    timeout_s: float = 1800.0
    "Maximum of wall seconds of one worker process, without waits."
    phase_timeouts_s: dict[str, float] = field(default_factory=dict)
    "Maximum of wall seconds of single phases of a process, e.g. measure.phase_timeouts_s.compiling=600."
    back_off: bool = True
    "Halve the batch for both arms and start again when a trial runs out of memory."
    seed: int = 1337
    "Seed of weights, inputs and labels."

    @property
    def process_limit(self) -> int:
        """The maximum of processes of one trial."""
        return self.processes * self.draws if self.target is None else max(self.processes, self.max_processes)


@dataclass
class Tracking:
    """Where MLflow keeps the runs."""

    enabled: bool = True
    uri: str | None = None
    "None: sqlite in `runs/mlflow.db`."


@dataclass
class Scheduler:
    """How trials share a device."""

    prepare: int | None = None
    "Trials in flight per device: they prepare at the same time and are measured alone. null: from the machine."


@dataclass
class Settings:
    """How to run a sweep."""

    sweep: str
    device: str | None = None  # cpu, cuda, cuda:N; None: the GPU where there is one
    dry_run: bool = False
    retry: str = "failed"  # trials to run again: failed ones, none, or all, those with an ok record too
    inspect: bool = False  # one more process per trial writes what the compiler did; it changes no figure
    measure: Measure = field(default_factory=Measure)
    tracking: Tracking = field(default_factory=Tracking)
    scheduler: Scheduler = field(default_factory=Scheduler)


def check_scheduler(scheduler: Scheduler) -> Scheduler:
    """Return valid settings as they are. Raises ConfigError for others."""
    if scheduler.prepare is not None and scheduler.prepare < 1:
        raise ConfigError(
            f"scheduler.prepare={scheduler.prepare}: a whole number of at least 1; 1 is one trial after the other"
        )
    return scheduler


def check_measure(measure: Measure) -> Measure:
    """Return valid settings as they are. Raises ConfigError for others."""
    limits = {f"phase_timeouts_s.{phase}": limit_s for phase, limit_s in measure.phase_timeouts_s.items()}
    for name, value in {**{name: getattr(measure, name) for name in POSITIVE}, **limits}.items():
        if value is not None and not value > 0:
            raise ConfigError(f"measure.{name}={value}: it must be greater than 0")
    if measure.clock not in CLOCKS:
        raise ConfigError(f"measure.clock={measure.clock}: allowed are {', '.join(CLOCKS)}")
    for phase in measure.phase_timeouts_s:
        if phase not in PHASES:
            known = f"{nearest(phase, PHASES)}\nphases: {', '.join(PHASES)}"
            raise ConfigError(f"measure.phase_timeouts_s.{phase}: there is no such phase; {known}")
    if measure.target is not None and measure.target > MAX_TARGET:
        raise ConfigError(
            f"measure.target={measure.target}: a share of the speedup, at most {MAX_TARGET}; write 0.02 for 2 %"
        )
    if measure.target is not None and (measure.draws > 1 or measure.max_processes < MIN_PROCESSES_FOR_TARGET):
        raise ConfigError(
            f"measure.target={measure.target}: it wants measure.draws=1 and measure.max_processes of at least "
            f"{MIN_PROCESSES_FOR_TARGET}, so many processes are measured before the first look at the interval"
        )
    return measure
