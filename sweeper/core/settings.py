"""Settings: everything about a sweep that does not change what a trial is.

The dataclasses are not frozen, because Hydra's schema, `config.schema.Config`, extends `Settings`.
The comments of their fields are the help of the command line.
"""

from dataclasses import dataclass, field

from .errors import ConfigError, nearest
from .record import PHASES

MIN_PROCESSES, MAX_PROCESSES = 2, 8  # of a trial whose answer decides how many
# stopping early at a narrow interval by chance makes intervals too narrow
MIN_PROCESSES_FOR_TARGET, MAX_PROCESSES_FOR_TARGET = 5, 15
MAX_TARGET = 0.5
POSITIVE = (
    "processes", "draws", "max_processes", "rounds", "rounds_s", "target", "timeout_s", "warmup_s",
    "block_s",
    "block_steps",
)  # fmt: skip
CLOCKS = ("block", "step")
# Settings of `Measure` that change figures. The rest are limits at which a process gives up or
# stops to warm up, and `back_off`, whose smaller batch the row itself names.
# what is sampled, and how often
SAMPLING = ("processes", "draws", "target", "max_processes", "seed")
# what one process measures
TIMING = ("rounds", "rounds_s", "block_s", "block_steps", "clock", "energy")
RETRIES = ("failed", "changed", "none", "all")


@dataclass
class Measure:
    """How long and how often to measure. None: chosen by the kind of device, see
    `sweeper.worker.measurement.bench`.
    """

    # fresh worker processes per draw; null: two, then more until the answer of the trial is sure
    processes: int | None = None
    draws: int = 1  # private compile caches, each compiled cold once
    # Go on with more processes until the interval's half-width is this share of the speedup, e.g.
    # 0.01.
    target: float | None = None
    # maximum of processes where the answer (null: 8) or the target (null: 15) decides how many
    max_processes: int | None = None
    rounds: int = 10  # maximum of rounds of a process; each times one block of both arms
    # Wall seconds of rounds, to half a pair of rounds: two of them at least; null: all rounds run,
    # however long they take.
    rounds_s: float | None = None
    block_s: float | None = None  # minimum of wall seconds of a block of the faster arm
    block_steps: int | None = None  # minimum of steps of a block
    # block: the steps of a block run without waits, as in training; step: each step is waited for,
    # for percentiles.
    clock: str = "block"
    # joules per step of each arm, in a separate pass of about fourteen seconds
    energy: bool = False
    # maximum of wall seconds of warm-up of an arm; it ends earlier when the step time is flat
    warmup_s: float = 10.0
    timeout_s: float = 1800.0  # maximum of wall seconds of one worker process, without waits
    # Maximum of wall seconds of single phases of a process, e.g.
    # measure.phase_timeouts_s.compiling=600.
    phase_timeouts_s: dict[str, float] = field(default_factory=dict)
    # halve the batch for both arms and start again when a trial runs out of memory
    back_off: bool = True
    seed: int = 1337  # of weights, inputs and labels

    @property
    def goes_on_until_sure(self) -> bool:
        """Whether the answer of a trial decides how many processes it gets."""
        return self.processes is None and self.draws == 1 and self.target is None

    @property
    def per_draw(self) -> int:
        """The processes of a draw, at least."""
        return self.processes or MIN_PROCESSES

    @property
    def process_limit(self) -> int:
        """The maximum of processes of one trial."""
        if self.target is not None:
            most = self.max_processes or MAX_PROCESSES_FOR_TARGET
        elif self.goes_on_until_sure:
            most = self.max_processes or MAX_PROCESSES
        else:
            return self.per_draw * self.draws
        return max(self.per_draw, most)

    @property
    def process_minimum(self) -> int:
        """The minimum of processes of one trial that goes well."""
        if self.target is None:
            return self.per_draw * self.draws
        return max(self.per_draw, MIN_PROCESSES_FOR_TARGET)

    def figure_settings(self) -> dict[str, object]:
        """The settings that change figures, by name; a number of processes that the answer decides
        is none, and only a target has a maximum.
        """
        settings = {name: getattr(self, name) for name in (*SAMPLING, *TIMING)}
        if self.target is None:
            del settings["max_processes"]
        if self.goes_on_until_sure:
            del settings["processes"]
        return settings


@dataclass
class Tracking:
    """Where MLflow keeps the runs."""

    enabled: bool = True  # false: no MLflow
    uri: str | None = None  # null: sqlite in `runs/mlflow.db`


@dataclass
class Scheduler:
    """How trials share a device."""

    # Trials in flight per device: they prepare at the same time and are measured alone. null: from
    # the machine.
    prepare: int | None = None
    # false: no locks, for file systems without; then you see to it that one driver runs the sweep
    # and has its devices
    locks: bool = True


@dataclass
class Settings:
    """How to run a sweep."""

    sweep: str
    device: str | None = None  # cpu, cuda or cuda:N; null: the GPU where there is one
    # Maximum of wall seconds of the sweep: then no other process begins, and trials end with those
    # that they have. Trials with the fewest processes go first. null: no limit.
    sweep_time_s: float | None = None
    dry_run: bool = False  # print the plan, check it as a sweep would, estimate its time, and stop
    # Which trials of an earlier run of this sweep run again. failed: all without an ok record;
    # changed: also those that were measured under another measure; none: those without any record;
    # all: every trial.
    retry: str = "failed"
    # true: one more process of each trial that runs keeps what the compiler did: code, graphs,
    # breaks, a summary
    inspect: bool = False
    measure: Measure = field(default_factory=Measure)
    tracking: Tracking = field(default_factory=Tracking)
    scheduler: Scheduler = field(default_factory=Scheduler)


def check_settings(settings: Settings) -> Settings:
    """Return valid settings as they are. Raises ConfigError for others."""
    prepare, measure = settings.scheduler.prepare, settings.measure
    limits = {name: getattr(measure, name) for name in POSITIVE}
    for phase, limit_s in measure.phase_timeouts_s.items():
        if phase not in PHASES:
            known = f"{nearest(phase, PHASES)}\nphases: {', '.join(PHASES)}"
            raise ConfigError(f"measure.phase_timeouts_s.{phase}: there is no such phase; {known}")
        limits[f"phase_timeouts_s.{phase}"] = limit_s
    checked = {f"measure.{name}": value for name, value in limits.items()}
    checked["sweep_time_s"] = settings.sweep_time_s
    for name, value in checked.items():
        if value is not None and not value > 0:
            raise ConfigError(f"{name}={value}: it must be greater than 0")
    if measure.target is not None:
        target = f"measure.target={measure.target}"
        if measure.target > MAX_TARGET:
            raise ConfigError(
                f"{target}: a share of the speedup, at most {MAX_TARGET}; write 0.02 for 2 %"
            )
        if measure.draws > 1 or measure.process_limit < MIN_PROCESSES_FOR_TARGET:
            raise ConfigError(
                f"{target}: it wants measure.draws=1 and measure.max_processes of at least "
                f"{MIN_PROCESSES_FOR_TARGET}, so many processes are measured before the first look "
                "at the interval"
            )
    if prepare is not None and prepare < 1:
        raise ConfigError(
            f"scheduler.prepare={prepare}: a whole number of at least 1; 1 is one trial after the "
            "other"
        )
    return settings
