"""Settings: everything about a sweep that does not change what a trial is.

Place in the flow: `config` makes them, `execute` and `runner` follow them. Plain dataclasses, because Hydra's schema
uses `Measure` and `Tracking` as they are. Standard library only.
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
    "Fresh worker processes of each draw."
    draws: int = 1
    "Private compile caches, each compiled cold once."
    target: float | None = None
    "Go on with more processes until the interval's half-width is this share of the speedup, e.g. 0.01."
    max_processes: int = 15
    "Most processes of a trial with a target."
    rounds: int = 10
    "Most rounds of a process; each times one block of both arms."
    rounds_s: float | None = None
    "Wall seconds of rounds after which no other pair of them begins; null: all rounds, whatever they take."
    block_s: float | None = None
    "Least wall seconds of a block of the faster arm."
    block_steps: int | None = None
    "Least steps of a block."
    clock: str = "block"
    "block: the steps of a block run through, as in training; step: each is waited for, which gives percentiles."
    energy: bool = False
    "Joules a step of each arm, in a pass of its own of about fourteen seconds."
    warmup_s: float = 10.0
    "Most wall seconds of warm-up of an arm; it ends earlier when the step time is flat."
    timeout_s: float = 1800.0
    "Most wall seconds of one worker process, waiting not counted."
    phase_timeouts_s: dict[str, float] = field(default_factory=dict)
    "The same of single phases of a process, e.g. measure.phase_timeouts_s.compiling=600."
    back_off: bool = True
    "Halve the batch for both arms and start again when a trial runs out of memory."
    seed: int = 1337
    "Seed of weights, inputs and labels."

    @property
    def process_limit(self) -> int:
        """Of one trial."""
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
    "Trials that a device has in hand: they prepare beside each other and are measured alone. null: from the machine."


@dataclass
class Settings:
    """How to run a sweep."""

    sweep: str
    device: str | None = None  # cpu, cuda, cuda:N; None: the GPU where there is one
    dry_run: bool = False
    retry: str = (
        "failed"  # trials with a record that is not ok: failed runs them again, none does not, all runs everything
    )
    inspect: bool = False  # one more process a trial writes what the compiler did; it changes no figure
    measure: Measure = field(default_factory=Measure)
    tracking: Tracking = field(default_factory=Tracking)
    scheduler: Scheduler = field(default_factory=Scheduler)


def check_scheduler(scheduler: Scheduler) -> Scheduler:
    """Return `scheduler` when one can schedule so. Raises ConfigError otherwise."""
    if scheduler.prepare is not None and scheduler.prepare < 1:
        raise ConfigError(
            f"scheduler.prepare={scheduler.prepare}: a whole number of at least 1; 1 is one trial after the other"
        )
    return scheduler


def check_measure(measure: Measure) -> Measure:
    """Return `measure` when one can measure so. Raises ConfigError otherwise."""
    for name in POSITIVE:
        value = getattr(measure, name)
        if value is not None and not value > 0:
            raise ConfigError(f"measure.{name}={value}: it must be greater than 0")
    if measure.clock not in CLOCKS:
        raise ConfigError(f"measure.clock={measure.clock}: allowed are {', '.join(CLOCKS)}")
    for phase, limit_s in measure.phase_timeouts_s.items():
        if phase not in PHASES:
            known = f"{nearest(phase, PHASES)}\nphases: {', '.join(PHASES)}"
            raise ConfigError(f"measure.phase_timeouts_s.{phase}: there is no such phase; {known}")
        if not limit_s > 0:
            raise ConfigError(f"measure.phase_timeouts_s.{phase}={limit_s}: it must be greater than 0")
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
