"""The noise of this machine: a sweep of eager against eager, where every speedup other than 1 is
noise.
"""

import math
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from sweeper.analysis.derive import derive, read_speedup
from sweeper.analysis.stats import median_of, ratio_of, t_quantile
from sweeper.core.paths import SweepPaths
from sweeper.core.record import ARMS, Record
from sweeper.core.system.gpus import Device, visible_gpus

# a CNN, a vision transformer and a language model, all small
MODELS = ("resnet18", "vit_tiny", "bert_small")
MAX_PROCESSES = 100


@dataclass(frozen=True)
class Noise:
    """The noise of one model. Spreads are relative; None where too little was measured."""

    model: str
    status: str
    processes: int
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    # coefficient of variation of an arm's blocks, median over arms and processes
    spread_within: float | None = None
    spread_between: float | None = None  # standard deviation of the processes' log speedups
    # for an interval of +-1 %; None also when `MAX_PROCESSES` are too few
    processes_needed: int | None = None


def run_noise_sweep(device: Device, processes: int) -> tuple[str, int]:
    """Run the sweep as a user would, its output shown as it comes; its name and exit code."""
    name = time.strftime("noise-%Y%m%d-%H%M%S")
    where = ["device=cpu", "batch_size=4"]  # the models' own batches are made for a GPU
    if device.gpu:
        where = [f"device=cuda:{visible_gpus().index(device.gpu)}"]
    command = [
        sys.executable,
        "-m",
        "sweeper",
        "-m",
        f"model={','.join(MODELS)}",
        "mode=eager",
        f"sweep={name}",
        f"measure.processes={processes}",
        "tracking=none",
        *where,
    ]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as sweep:
        try:
            return name, sweep.wait()
        # the terminal has told the sweep as well; it ends its workers itself
        except KeyboardInterrupt:
            sweep.wait()
            raise


def read_noise(sweep: str) -> tuple[Noise, ...]:
    """Read the noise of each model of a sweep."""
    return tuple(compute_noise(Record.read(path)) for path in SweepPaths.of(sweep).records())


def compute_noise(record: Record) -> Noise:
    """Compute what a record of eager against eager says of the machine."""
    speedup = derive(record).speedup
    logs = []
    spreads = []
    for process in record.processes:
        if of_process := read_speedup(process):
            logs.append(math.log(of_process))
        for blocks_s in map(process.blocks_s, ARMS):
            if len(blocks_s) > 1:
                spreads.append(stdev(blocks_s) / fmean(blocks_s))
    low = high = between = needed = None
    if speedup and (bounds := speedup.interval()):
        low, high = bounds
    if len(logs) > 1:
        between = stdev(logs)
        needed = count_processes_needed(between)
    return Noise(
        record.trial.labels.model,
        record.status,
        len(logs),
        ratio_of(speedup),
        low,
        high,
        median_of(spreads),
        between,
        needed,
    )


def count_processes_needed(spread: float) -> int | None:
    """Find the smallest n for which t(n - 1) * spread / sqrt(n) <= 0.01; None when
    `MAX_PROCESSES` are too few.

    The half width of Student's t interval of a mean of n log ratios with standard deviation
    `spread`; 1 % of the speedup is aimed at.
    """
    for n in range(2, MAX_PROCESSES + 1):
        if t_quantile(n - 1) * spread / math.sqrt(n) <= 0.01:
            return n
    return None


def make_card(noises: Sequence[Noise]) -> list[list[str]]:
    """Make the noise card: a heading and one row per model."""
    rows = [
        [
            "model",
            "A/A speedup",
            "95 % interval",
            "within a process",
            "between processes",
            "processes for ±1 %",
        ]
    ]
    for noise in noises:
        speedup = noise.status
        interval = within = between = needed = ""
        if noise.status == "ok" and noise.speedup is not None:
            speedup = f"{noise.speedup:.4f}"
            if noise.speedup_low is not None and noise.speedup_high is not None:
                interval = f"{noise.speedup_low:.4f} to {noise.speedup_high:.4f}"
            if noise.spread_within is not None:
                within = f"{100 * noise.spread_within:.2f} %"
            if noise.spread_between is not None:
                between = f"{100 * noise.spread_between:.2f} %"
                needed = str(noise.processes_needed or f"more than {MAX_PROCESSES}")
        rows.append([noise.model, speedup, interval, within, between, needed])
    return rows
