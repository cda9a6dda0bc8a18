"""The figures of a trial, as every table has them; `derive` makes them of a record."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sweeper.core.record import ScriptRun

from .stats import Estimate


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of a record. Speedups are eager / compiled; times are wall seconds. Missing
    figures are None.
    """

    processes: int
    draws: int
    interval: str = "none"  # none, processes or draws: what the interval is taken over
    estimate: Estimate | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    speedup_min: float | None = None
    speedup_max: float | None = None
    device_estimate: Estimate | None = None
    device_speedup: float | None = None
    device_speedup_low: float | None = None
    device_speedup_high: float | None = None
    host_bound_fraction: float | None = None
    host_bound_arms: str | None = None  # eager, compiled, both; None: neither, or unknown
    eager_step_s: float | None = None
    compiled_step_s: float | None = None
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    break_even_steps: float | None = None
    break_even_steps_low: float | None = None
    break_even_steps_high: float | None = None  # None beside a `low`: perhaps never
    break_even_warm_steps: float | None = None
    break_even_warm_steps_low: float | None = None
    break_even_warm_steps_high: float | None = None
    graph_breaks: int | None = None
    recompiles: int | None = None
    artifacts: int | None = None
    # Of log seconds per step, to compare trials of one eager step; no variance where host noise
    # allows none.
    eager_estimate: Estimate | None = None
    compiled_estimate: Estimate | None = None
    compiled_waits_fraction: float | None = None  # of the compiled arm's wall time, for the host
    eager_host_share: float | None = None  # host time of a step over its device step time
    compiled_host_share: float | None = None
    speedup_host_2x_faster: float | None = None
    speedup_host_2x_slower: float | None = None
    device_time_missing: str | None = None  # why device_speedup is missing
    memory_missing: str | None = None  # why a peak memory is missing
    loop_estimate: Estimate | None = None  # of a script, whose loop runs with one arm throughout
    loop_speedup: float | None = None
    loop_speedup_low: float | None = None
    loop_speedup_high: float | None = None
    seen_of_script: ScriptRun | None = None  # by the first process
    # whether the trial ended since a script did more than train in its rounds
    is_void_by_script: bool = False
    # metrics with `of_process`; missing ones are left out
    readings: Mapping[str, float] = field(default_factory=dict)

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
    def eager_peak_memory_bytes(self) -> float | None:
        return self.readings.get("eager_peak_memory_bytes")

    @property
    def compiled_peak_memory_bytes(self) -> float | None:
        return self.readings.get("compiled_peak_memory_bytes")

    @property
    def eager_loop_step_s(self) -> float | None:
        """Wall seconds per step of a script's loop in eager."""
        return self.readings.get("eager_loop_step_s")

    @property
    def eager_loader_share(self) -> float | None:
        """The share of that time in which the loop waits for its loader."""
        return self.readings.get("eager_loader_share")

    @property
    def compiled_loader_share(self) -> float | None:
        return self.readings.get("compiled_loader_share")
