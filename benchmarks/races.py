"""What ends a mode after one process costs: grids of modes with races and without.

    python benchmarks/races.py [--repeats 1000]

Simulated grids have five modes whose true speedups are known. Each process goes through the rules
of the runner, and the report's rules choose a mode. Then the stored grids of one process per mode:
how many modes would have ended after it, and whether the same modes are recommended. Prints the
Markdown tables of docs/results/races.md. The seed is fixed.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from threading import Event

import numpy as np
from coverage import APART, SEED, records

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/support"))
from archives import names, unpack

from sweeper.analysis.derive import derive
from sweeper.analysis.flags import find_disturbances, find_flags
from sweeper.analysis.gains import beats, can_become_sure, find_gain_so_far
from sweeper.core.record import Record
from sweeper.core.settings import Measure, Settings
from sweeper.core.system.gpus import Device
from sweeper.core.trial import MODES
from sweeper.execution.placement import DeviceSlot
from sweeper.execution.turns import Turns
from sweeper.loading.entries import Entry, load_from
from sweeper.loading.sources import SweepFolder
from sweeper.report.answers.candidates import find_candidate
from sweeper.report.answers.decision import NO_LIMITS, Answer, choose, choose_all

GRID = tuple(mode for mode in MODES if mode != "eager")
MEASURE, SLOT = Measure(), DeviceSlot(Device("cuda"))
# standard deviations of logs: of the grid's modes about their common speedup
BETWEEN_MODES = (0.05, 0.2)


@dataclass(frozen=True)
class Grid:
    """What the rules make of a grid."""

    processes: int
    loss: float  # 1 - true speedup of the mode that is chosen / the best true speedup
    is_sure: bool


def run_grid(whole: Sequence[Record], truths: Sequence[float], *, races: bool) -> Grid:
    """Run the modes of a grid in turns, `whole` with all the processes that each could get."""
    measure = MEASURE if races else Measure(processes=1)  # with which there is no race
    turns = Turns([one.trial for one in whole], Settings("s", measure=measure), Event())
    counts = dict.fromkeys((one.trial.mode for one in whole), 0)
    by_mode = {one.trial.mode: one for one in whole}
    while entrant := turns.take(SLOT):
        mode, more = entrant.trial.mode, True
        if counts[mode]:
            more = turns.gets_another(entrant)
        if more:
            counts[mode] += 1
            record = _cut(by_mode[mode], counts[mode])
            result = derive(record)
            more = counts[mode] < MEASURE.process_limit
            more &= counts[mode] < 2 or can_become_sure(record, result, MEASURE)
            entrant.gain = find_gain_so_far(record, result, MEASURE)
        if more:
            turns.give_back(entrant, entrant.gain)
        else:
            turns.end(entrant, ok=True)
    entries = [_make_entry(_cut(one, counts[mode])) for mode, one in by_mode.items()]
    answer = choose(entries, NO_LIMITS)
    best = answer.best
    chosen = truths[entries.index(best.entry)] if answer.chosen and best else 1.0
    return Grid(sum(counts.values()), 1 - chosen / max(1.0, *truths), answer.is_sure)


def _cut(record: Record, count: int) -> Record:
    return replace(record, processes=record.processes[:count])


def _make_entry(record: Record) -> Entry:
    result = derive(record)
    flags = find_flags(record, result, MEASURE)
    disturbances = find_disturbances(replace(record, flags=flags))
    return Entry(record, result, Path(), flags=flags, disturbances=disturbances)


def simulate(
    repeats: int, *, sd: float, between: float, host: bool = False
) -> Iterator[tuple[Grid, Grid]]:
    """Each grid with races and without."""
    random = np.random.default_rng([SEED, int(1e4 * sd), int(1e4 * between), host])
    for _ in range(repeats):
        logs = random.uniform(math.log(0.9), math.log(2.5)) + random.normal(0, between, len(GRID))
        noisy = logs[:, None] + random.normal(0, sd, (len(GRID), MEASURE.process_limit))
        if host:
            noisy += APART * (random.random(noisy.shape) < 0.5)
        draws = [0] * MEASURE.process_limit
        whole = []
        for mode, record in zip(GRID, records(random, noisy, draws, host=host), strict=True):
            whole.append(replace(record, trial=replace(record.trial, mode=mode)))
        truths = np.exp(logs).tolist()
        yield run_grid(whole, truths, races=True), run_grid(whole, truths, races=False)


def list_grids(folder: Path) -> Iterator[Answer]:
    """The answers of a stored sweep that choose between several modes of one process each."""
    loaded = load_from([SweepFolder(folder)])
    for answer in choose_all(loaded.entries):
        ok = [entry for entry in answer.entries if entry.is_ok]
        if len(ok) > 1 and all(entry.result.processes == 1 for entry in ok):
            yield answer


def ends_early(entry: Entry, answer: Answer) -> bool:
    """Whether another mode of a grid beats one."""
    own = find_candidate(entry)
    others = [find_candidate(other) for other in answer.entries if other.is_ok]
    return own is not None and any(other and beats(other, own) for other in others)


def main() -> None:
    parser = argparse.ArgumentParser(description="Races between modes.")
    parser.add_argument("--repeats", type=int, default=1000, help="grids of each row")
    repeats = parser.parse_args().repeats
    print(
        "| modes differ by | simulated | processes | with races | sure | with races | slower than "
        "the best mode by | with races |\n" + "| --- " * 8 + "|"
    )
    for between in BETWEEN_MODES:
        for sd, host in ((0.001, False), (0.01, False), (0.03, False), (0.01, True)):
            grids = list(simulate(repeats, sd=sd, between=between, host=host))
            cells = [f"sd {between:.0%}", f"sd {sd:.1%}" + ", host of two speeds" * host]
            raced, whole = zip(*grids, strict=True)
            for of in (whole, raced):
                cells.append(f"{fmean(one.processes for one in of):.1f}")
            for of in (whole, raced):
                cells.append(f"{fmean(one.is_sure for one in of):.1%}")
            for of in (whole, raced):
                cells.append(f"{fmean(one.loss for one in of):.2%}")
            print("| " + " | ".join(cells) + " |", flush=True)
    print("\n| stored sweep | grids | modes | end after one process | same mode |")
    print("| --- " * 5 + "|")
    for name in names():
        with tempfile.TemporaryDirectory() as temporary:
            answers = list(list_grids(unpack(name, Path(temporary))))
            if not answers:
                continue
            modes = ended = same = 0
            for answer in answers:
                left = [one for one in answer.entries if not ends_early(one, answer)]
                modes += len(answer.entries)
                ended += len(answer.entries) - len(left)
                same += choose(left, answer.limits).recommended == answer.recommended
            print(f"| {name} | {len(answers)} | {modes} | {ended} | {same} |", flush=True)


if __name__ == "__main__":
    main()
