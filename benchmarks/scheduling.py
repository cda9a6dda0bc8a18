"""Where the time of a sweep goes, and whether trials that prepare beside others measure the same.

    python benchmarks/scheduling.py quick   eight cold trials, several in hand: seconds a trial
    python benchmarks/scheduling.py quick --then-one-by-one
        and again one by one, with the same compile caches
    python benchmarks/scheduling.py trusted model=resnet18
        other overrides take the place of the eight trials' own

Four models in AMP and fp32, training, mode default. Prints seconds a trial, a table of where they
went, and with `--then-one-by-one` the figures of both sweeps side by side.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean

from sweeper.__main__ import main as sweeper
from sweeper.analysis.derive import derive
from sweeper.core.paths import SweepPaths, TrialPaths
from sweeper.core.record import PHASES, Record

EIGHT = ("model=resnet50,bert_base,vit_b16,mobilenet_v2", "precision=amp,fp32")


def keep_caches(folder: Path) -> None:
    """Have every trial use compile caches in `folder` that outlive it, so that two sweeps run the
    same code.
    """
    TrialPaths.cache = lambda self, draw: folder / self.folder.name / str(draw)  # type: ignore[method-assign]
    TrialPaths.clear_caches = lambda _self: None  # type: ignore[method-assign]


def run(name: str, overrides: Sequence[str]) -> tuple[list[Record], float]:
    """The records of a sweep, and its wall seconds from the command to the tables."""
    sys.argv = ["sweeper", "-m", *overrides, f"sweep={name}", "tracking.enabled=false"]
    begin = time.perf_counter()
    try:
        sweeper()
    except SystemExit as end:
        if end.code not in (0, 1):
            raise
    records = [Record.loads(path.read_text()) for path in SweepPaths.of(name).records()]
    return records, time.perf_counter() - begin


def print_times(records: Sequence[Record], wall_s: float) -> None:
    print(f"\n{wall_s:.1f} s for {len(records)} trials: {wall_s / len(records):.1f} s a trial")
    print(
        f"{'seconds of a process':34}"
        + "".join(f"{phase[:9]:>10}" for phase in (*PHASES[1:], "waited", "trial"))
    )
    for record in records:
        for process in record.processes:
            spent = [process.phases_s.get(phase, math.nan) for phase in PHASES[1:]]
            spent += [process.waited_s or 0.0, record.wall_s or math.nan]
            print(
                f"{f'{record.label} {process.index}':34}"
                + "".join(f"{seconds:10.1f}" for seconds in spent)
            )
    processes = [process for record in records for process in record.processes]
    means = [
        mean(process.phases_s.get(phase, 0.0) for process in processes) for phase in PHASES[1:]
    ]
    print(f"{'mean':34}" + "".join(f"{seconds:10.1f}" for seconds in means))


def compare(first: Sequence[Record], second: Sequence[Record]) -> None:
    """Figures of the same trials in two sweeps, and by how much the second is higher, in per
    cent.
    """
    figures: dict[str, Callable[[Record], float | None]] = {
        "speedup": lambda record: derive(record).speedup,
        "device": lambda record: derive(record).device_speedup,
        "eager ms": lambda record: 1e3 * (derive(record).eager_step_s or math.nan),
        "compiled ms": lambda record: 1e3 * (derive(record).compiled_step_s or math.nan),
        "memory MiB": lambda record: (
            (derive(record).compiled_peak_memory_bytes or math.nan) / 2**20
        ),
    }
    of_second = {record.trial_id: record for record in second}
    print(f"\n{'several in hand, one by one, %':34}" + "".join(f"{name:>26}" for name in figures))
    for record in first:
        other, line = of_second[record.trial_id], f"{record.label:34}"
        for figure in figures.values():
            a, b = figure(record) or math.nan, figure(other) or math.nan
            line += f"{a:10.4g}{b:10.4g}{100 * (b / a - 1):6.2f}"
        print(line, record.flags, other.flags, record.status, other.status)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("measure", choices=("quick", "trusted"))
    parser.add_argument("--then-one-by-one", action="store_true")
    parser.add_argument("--name", default="scheduling")
    options, overrides = parser.parse_known_args()
    own = [f"measure={options.measure}", *(overrides or EIGHT)]
    if options.then_one_by_one:
        keep_caches(Path(f"runs/{options.name}-caches").absolute())
    first, wall_s = run(options.name, own)
    print_times(first, wall_s)
    if options.then_one_by_one:
        second, wall_s = run(f"{options.name}-one-by-one", [*own, "scheduler.prepare=1"])
        print_times(second, wall_s)
        compare(first, second)


if __name__ == "__main__":
    main()
