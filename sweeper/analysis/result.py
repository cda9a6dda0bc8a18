"""The figures of a trial, as every table has them; `derive` makes them of a record."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from sweeper.core.record import PerArm, ScriptRun

from .stats import NOT_KNOWN, Bounded, Estimate, ratio_of

MetricValue = None | int | float | str
NO_ARMS = PerArm()


@dataclass(frozen=True)
class Start:
    """How those processes of a trial started that had an empty cache, or a filled one: medians, the
    counts of caches in the first of them, and the bypasses in any.
    """

    cold: bool
    first_step_s: float | None  # from the start of a process to the end of its first compiled step
    steady_s: float | None  # to the end of its first compiled steps, which end when they are steady
    step_ms: float | None  # of the compiled step, later
    device_step_ms: float | None  # of the device's own time for it
    # `hits`, `misses` and `bypassed`
    autograd_cache: Mapping[str, int]
    compile_cache: Mapping[str, int]
    bypasses: Mapping[str, int]  # torch's reasons, and how often it gave each


@dataclass(frozen=True)
class Result:
    """The figures of a record. Missing figures are None.

    Speedups are log ratios eager / compiled. Steps are logs of wall seconds per step; they have no
    variance where host noise allows none.
    """

    processes: int
    draws: int
    interval: str = "none"  # none, processes or draws: what the interval is taken over
    speedup: Estimate | None = None
    speedup_min: float | None = None  # the smallest of several processes
    speedup_max: float | None = None
    device_speedup: Estimate | None = None
    loop_speedup: Estimate | None = None  # of a script, whose loop runs with one arm throughout
    # share of wall time in which the device waits for the host, in the worse arm
    host_bound_fraction: float | None = None
    compiled_waits_fraction: float | None = None
    host_bound_arms: str | None = None  # eager, compiled, both; None: neither, or unknown
    host_share: PerArm = NO_ARMS  # host time of a step over its device step time
    speedup_host_2x_faster: float | None = None
    speedup_host_2x_slower: float | None = None
    eager_step: Estimate | None = None
    compiled_step: Estimate | None = None
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    # at both ends of the speedup; without a `high` beside a `low` perhaps never
    break_even_steps: Bounded = NOT_KNOWN
    break_even_warm_steps: Bounded = NOT_KNOWN
    graph_breaks: int | None = None
    recompiles: int | None = None
    artifacts: int | None = None
    code: str | None = None  # the fingerprint of the code of the first process that has one
    device_time_missing: str | None = None  # why device_speedup is missing
    memory_missing: str | None = None  # why a peak memory is missing
    seen_of_script: ScriptRun | None = None  # by the first process
    # metrics with `of_process`; missing ones are left out
    readings: Mapping[str, float] = field(default_factory=dict)
    starts: tuple[Start, ...] = ()  # with an empty cache, and with a filled one

    @cached_property
    def figures(self) -> Mapping[str, MetricValue]:
        """All metrics by their names: a figure has its ends as `NAME_low` and `NAME_high`, and its
        arms as `eager_NAME` and `compiled_NAME`.
        """
        figures: dict[str, MetricValue] = {**self.readings}
        for name, part in {**vars(self), "step_s": self.step_s}.items():
            if isinstance(part, Estimate):
                part = Bounded(part.ratio, *(part.interval() or ()))
            if isinstance(part, Bounded):
                figures |= {name: part.value, f"{name}_low": part.low, f"{name}_high": part.high}
            elif isinstance(part, PerArm):
                figures |= {f"eager_{name}": part.eager, f"compiled_{name}": part.compiled}
            else:
                figures[name] = part
        return figures

    @property
    def step_s(self) -> PerArm:
        """Wall seconds per step."""
        return PerArm(ratio_of(self.eager_step), ratio_of(self.compiled_step))

    @property
    def compiled_waits(self) -> bool:
        """Whether the device waits for the host in a compiled step."""
        return self.host_bound_arms in ("compiled", "both")

    @property
    def length(self) -> int | None:
        """Steps of a script's whole training, where it ended by itself."""
        return self.seen_of_script.length if self.seen_of_script else None

    @property
    def compile_cold_s(self) -> float | None:
        """Seconds of compiling with an empty cache."""
        return self.readings.get("compile_cold_s")

    @property
    def compile_warm_s(self) -> float | None:
        """Seconds of compiling with a filled cache."""
        return self.readings.get("compile_warm_s")

    @property
    def peak_memory_bytes(self) -> PerArm:
        """Peak device memory, less what was in use before the model."""
        return self._read("eager_peak_memory_bytes", "compiled_peak_memory_bytes")

    @property
    def device_step_s(self) -> PerArm:
        """Device seconds per step."""
        return self._read("eager_device_step_s", "compiled_device_step_s")

    @property
    def exposed_s(self) -> PerArm:
        """Seconds per step in which collectives run on the device and nothing else."""
        return self._read("eager_exposed_s", "compiled_exposed_s")

    @property
    def host_step_s(self) -> PerArm:
        """Seconds in which the host prepares and launches a step."""
        return self._read("eager_host_step_s", "compiled_host_step_s")

    @property
    def loop_step_s(self) -> PerArm:
        """Wall seconds per step of a script's loop."""
        return self._read("eager_loop_step_s", "compiled_loop_step_s")

    @property
    def loader_share(self) -> PerArm:
        """The share of that time in which the loop waits for its loader."""
        return self._read("eager_loader_share", "compiled_loader_share")

    def _read(self, *names: str) -> PerArm:
        return PerArm(*map(self.readings.get, names))
