"""How often `python -m sweeper.compare` flags sweeps in which nothing changed, and finds a
slowdown.

    python benchmarks/compare_power.py [--repeats 300]
    python benchmarks/compare_power.py --table sizes
    python benchmarks/compare_power.py --records docs/results/records

Pairs of sides go through `judge`, the one that the command uses. Prints the Markdown tables of
docs/results/compare-power.md: of simulated sweeps in which a test decides, of those in which the
size of a change decides, and of pairs of stored records. The seed is fixed.
"""

from __future__ import annotations

import argparse
import itertools
import math
import tarfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sweeper.analysis.margins import MARGINS
from sweeper.compare.pairs import Pair, Sample, Side, make_side
from sweeper.compare.quantities import COMPILED, COMPILED_DEVICE, EAGER, EAGER_DEVICE, STEP_TIMES
from sweeper.compare.unsampled_variance import is_host_bound
from sweeper.compare.verdicts import Comparison, judge
from sweeper.core.record import Record
from sweeper.core.serialization import get_mapping
from sweeper.core.trial import Compile, Labels, Model, Trial

SEED = 20263
REPEATS = 300
MODELS = 100
SLOWDOWN = 0.03
SLOWDOWNS = (0.1, 0.5, 2.0)  # of which size alone decides
EAGER_S, COMPILED_S = 0.03, 0.02
TRIAL = Trial(Model("torchvision", "resnet50"), 32, Labels("resnet50", "amp"))

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Design:
    """What is measured, and what disturbs it. Noise is the standard deviation of a log."""

    draws: int
    processes: int  # of each draw
    process_noise: float
    draw_noise: float = 0.0  # of one draw, in the compiled arm alone
    session_noise: float = 0.0  # of a session, the same for every time in it
    shift: float = 0.0  # by which HEAD's session is slower in any case
    # of the logs of models' process and draw noises; 0: all models are equally noisy
    spread: float = 0.0
    models: int = MODELS
    # by which a process with a slow host is slower, which is half of them; 0: no row is host-bound
    hump: float = 0.0
    device_noise: float | None = None  # of a process by the device's clock; None: it is not known
    slowdown: float = SLOWDOWN

    @property
    def text(self) -> str:
        measured = (
            f"{self.processes} processes"
            if self.draws == 1
            else f"{self.draws} draws of {self.processes}"
        )
        return f"{measured.replace('1 processes', '1 process')}, {self.disturbed}"

    @property
    def disturbed(self) -> str:
        parts = [
            f"process {self.process_noise:.1%}",
            f"draw {self.draw_noise:.1%}",
            f"session {self.session_noise:.0%}",
        ]
        parts += [f"shift {self.shift:.1%}"] if self.shift else []
        parts += ["models differ in noise"] if self.spread else []
        parts += [f"{self.models} models"] if self.models != MODELS else []
        parts += [f"host-bound, slow host {self.hump:.0%}"] if self.hump else []
        parts += [f"device {self.device_noise:.1%}"] if self.device_noise is not None else []
        return ", ".join(parts)


@dataclass(frozen=True)
class Outcome:
    """One comparison: of the models that did not change, and of those that did, how many were found
    SLOWER or FASTER.

    `refused`: eager moved too far for any verdict on a step time.
    """

    refused: bool
    flagged: int
    found: int
    changed: int
    same: int  # SAME, of those that did not change
    unchanged: int


def designs() -> list[Design]:
    """Every row of the table."""
    measured = [(1, 5, (0.0,)), (3, 3, (0.0, 0.005, 0.01)), (5, 3, (0.0, 0.005, 0.01))]
    rows = [
        Design(draws, processes, process_noise, draw_noise, session_noise)
        for draws, processes, draw_noises in measured
        for process_noise in (0.003, 0.006)
        for draw_noise in draw_noises
        for session_noise in (0.0, 0.01)
    ]
    rows += [
        Design(1, 5, 0.006, shift=0.009),
        Design(3, 3, 0.006, 0.01, shift=0.009),
        Design(5, 3, 0.006, 0.01, shift=0.009),
    ]
    rows += [
        Design(1, 5, 0.006, spread=0.5),
        Design(3, 3, 0.006, 0.01, spread=0.5),
        Design(5, 3, 0.006, 0.01, spread=0.5),
    ]
    rows += [
        Design(1, 5, 0.006, models=1),
        Design(3, 3, 0.006, 0.005, models=1),
        Design(1, 3, 0.006, models=1),
    ]
    rows += [
        Design(draws, processes, 0.006, draw_noise, models=10)
        for draws, processes, draw_noise in (
            (1, 5, 0.0),
            (3, 3, 0.005),
            (5, 3, 0.005),
            (5, 3, 0.01),
        )
    ]
    return rows


def outcomes(design: Design, slowed: int, repeats: int) -> Iterator[Outcome]:
    """Comparisons of sweeps in which the first `slowed` models got slower by its slowdown, the rest
    not at all.
    """
    random = np.random.default_rng([SEED, slowed, *design.text.encode()])
    for _ in range(repeats):
        yield outcome(judge(pairs(random, design, slowed)), slowed)


def outcome(comparison: Comparison, slowed: int) -> Outcome:
    verdicts = [row.verdict for row in comparison.rows]
    changed, unchanged = verdicts[:slowed], verdicts[slowed:]
    return Outcome(
        comparison.control.moved,
        sum(verdict in ("SLOWER", "FASTER") for verdict in unchanged),
        changed.count("SLOWER"),
        len(changed),
        unchanged.count("SAME"),
        len(unchanged),
    )


def pairs(random: np.random.Generator, design: Design, slowed: int) -> list[Pair]:
    """Two sweeps of the same models. Sides of one draw share a compiled artifact, unless draws
    differ.
    """
    noises = np.exp(random.normal(0, design.spread, (2, design.models, 1, 1)))
    effect = np.zeros((design.models, 1, 1))
    effect[:slowed] = math.log1p(design.slowdown)
    base = sides(random, design, noises, np.zeros_like(effect))
    head = sides(random, design, noises, effect, design.shift)
    return [Pair(*both) for both in zip(base, head, strict=True)]


def sides(
    random: np.random.Generator, design: Design, noises: Floats, effect: Floats, shift: float = 0.0
) -> list[Side]:
    """One session; `noises` [2, models, 1, 1] multiply those of processes and draws, `effect` is on
    compiled logs.
    """
    shape = (design.models, design.draws, design.processes)
    session = shift + random.normal(0, design.session_noise)
    eager = session + noises[0] * random.normal(0, design.process_noise, shape)
    luck = noises[1] * random.normal(0, design.draw_noise, (design.models, design.draws, 1))
    compiled = session + effect + luck + noises[0] * random.normal(0, design.process_noise, shape)
    if design.hump:
        compiled = compiled + math.log1p(design.hump) * random.integers(0, 2, shape)
    arms = [(EAGER_S, eager), (COMPILED_S, compiled)]
    if design.device_noise is not None:
        noise = random.normal(0, design.device_noise, (2, *shape))
        arms += [(EAGER_S, noise[0]), (COMPILED_S, effect + luck + noise[1])]
    draws = np.repeat(np.arange(design.draws), design.processes).tolist()
    times = zip(
        *((s * np.exp(logs)).reshape(design.models, -1).tolist() for s, logs in arms), strict=True
    )
    artifacts = frozenset(
        {"code-winners"} if design.draws == 1 and not design.draw_noise else {None}
    )
    host_bound_arms = "compiled" if design.hump else None
    return [
        Side(TRIAL, "ok", 32, samples(draws, *of_model), artifacts, host_bound_arms)
        for of_model in times
    ]


def samples(
    draws: Sequence[int],
    eager_s: Sequence[float],
    compiled_s: Sequence[float],
    *device_s: Sequence[float],
) -> dict[str, list[Sample]]:
    """Samples of one model; `device_s`, where it is known, is the device time of the eager and of
    the compiled arm.
    """
    speedups = [eager / compiled for eager, compiled in zip(eager_s, compiled_s, strict=True)]
    named = {"eager_step_s": eager_s, "compiled_step_s": compiled_s, "speedup": speedups}
    named |= zip(("eager_device_step_s", "compiled_device_step_s"), device_s, strict=False)
    return {
        name: [Sample(*pair) for pair in zip(draws, values, strict=True)]
        for name, values in named.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="False alarms and power of sweeper.compare.")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="comparisons of each figure")
    parser.add_argument(
        "--table", choices=("tests", "sizes"), default="tests", help="what decides about a change"
    )
    parser.add_argument(
        "--records",
        type=Path,
        metavar="FOLDER",
        help="archives of records, for a table of their pairs",
    )
    parsed = parser.parse_args()
    if parsed.records:
        print_table(RECORD_TITLES, record_rows(parsed.records))
    elif parsed.table == "sizes":
        print_table(SIZE_TITLES, (size_row(design, parsed.repeats) for design in size_designs()))
    else:
        print_table(TITLES, (row(design, parsed.repeats) for design in designs()))


TITLES = (
    "measured",
    "noise",
    "refused",
    "any flagged",
    "SAME",
    "one slower: found",
    "half slower: found",
)
FOUND = tuple(f"{slowdown:.0%} slower: found" for slowdown in SLOWDOWNS)
SIZE_TITLES = ("measured", "noise", "any SLOWER", "any flagged", *FOUND)
RECORD_TITLES = ("rows", "number", "host-bound", "largest change", "SLOWER", "FASTER", *FOUND)


def print_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    print(f"| {' | '.join(titles)} |\n|{' --- |' * len(titles)}", flush=True)
    for cells in rows:
        print(f"| {' | '.join(cells)} |", flush=True)


def row(design: Design, repeats: int) -> list[str]:
    """Cells; power and SAME are shares of the comparisons that were not refused."""
    none = list(outcomes(design, 0, repeats))
    measured = design.text.removesuffix(f", {design.disturbed}")
    cells = [
        measured,
        design.disturbed,
        f"{refused(none):.0%}",
        f"{alarms(none):.1%}",
        f"{same(none):.0%}",
    ]
    # Half of a sweep gives many cases at once, so it takes fewer sweeps.
    one, half = (1, repeats), (design.models // 2, max(1, repeats // 10))
    powers = [
        power(list(outcomes(design, *slowed))) if slowed[0] else None for slowed in (one, half)
    ]
    return [*cells, *("" if share is None else f"{share:.0%}" for share in powers)]


def refused(found: list[Outcome]) -> float:
    return sum(item.refused for item in found) / len(found)


def alarms(found: list[Outcome]) -> float:
    """Share of all comparisons in which any model that did not change is SLOWER or FASTER."""
    return sum(item.flagged > 0 for item in found) / len(found)


def power(found: list[Outcome]) -> float:
    """Share of the models that got slower which are found SLOWER, where the session allows a
    verdict.
    """
    judged = [item for item in found if not item.refused]
    return sum(item.found for item in judged) / max(1, sum(item.changed for item in judged))


def same(found: list[Outcome]) -> float:
    judged = [item for item in found if not item.refused]
    return sum(item.same for item in judged) / max(1, sum(item.unchanged for item in judged))


def size_designs() -> list[Design]:
    """Sweeps with too few processes or draws for a test of each step, and sweeps with two
    clocks.
    """
    return [
        Design(1, 1, 0.006),
        Design(1, 1, 0.006, device_noise=0.002),
        Design(1, 1, 0.006, 0.005),
        Design(1, 1, 0.006, 0.01),
        Design(1, 3, 0.006, 0.005),
        Design(1, 3, 0.006, 0.01),
        Design(1, 1, 0.01),
        Design(1, 1, 0.013),
        Design(1, 1, 0.006, hump=MARGINS["cuda"].host),
        Design(1, 2, 0.006, hump=MARGINS["cuda"].host),
        Design(1, 3, 0.006, hump=MARGINS["cuda"].host),
        Design(2, 3, 0.006, 0.01),
        Design(1, 2, 0.006, spread=0.5),
        Design(1, 5, 0.006, spread=0.5, device_noise=0.002),
        Design(3, 3, 0.006, 0.01, device_noise=0.002),
        Design(5, 3, 0.006, 0.01, spread=0.5, device_noise=0.006),
    ]


def size_row(design: Design, repeats: int) -> list[str]:
    """Cells: false alarms of comparisons in which nothing changed, and shares found where half of
    the models did.
    """
    random = np.random.default_rng([SEED, *design.text.encode()])
    verdicts = [
        {row.verdict for row in judge(pairs(random, design, 0)).rows} for _ in range(repeats)
    ]
    slower = sum("SLOWER" in of_sweep for of_sweep in verdicts) / repeats
    flagged = sum(not of_sweep.isdisjoint(("SLOWER", "FASTER")) for of_sweep in verdicts) / repeats
    half, few = design.models // 2, max(1, repeats // 10)
    found = (
        power(list(outcomes(replace(design, slowdown=slowdown), half, few)))
        for slowdown in SLOWDOWNS
    )
    measured = design.text.removesuffix(f", {design.disturbed}")
    return [
        measured,
        design.disturbed,
        f"{slower:.1%}",
        f"{flagged:.1%}",
        *(f"{share:.0%}" for share in found),
    ]


def record_rows(folder: Path) -> Iterator[list[str]]:
    """Cells for each kind of pairs of stored records of one program on one kind of device."""
    records = list(read_records(folder))
    for name, make_pairs in RECORD_PAIRS.items():
        one_way = list(make_pairs(records))
        found = [*one_way, *(Pair(pair.head, pair.base) for pair in one_way)]
        rows = judge(found).rows
        verdicts = [row.verdict for row in rows]
        host_bound = [
            pair.both is not None and is_host_bound(pair.both, COMPILED) for pair in found
        ]
        largest = max(abs(row.changes[COMPILED.name].log) for row in rows if row.changes)
        shares = (share_found(found, slowdown) for slowdown in SLOWDOWNS)
        yield [
            name,
            *map(str, (len(rows), sum(host_bound))),
            f"{math.expm1(largest):.0%}",
            *map(str, map(verdicts.count, ("SLOWER", "FASTER"))),
            *(f"{share:.0%}" for share in shares),
        ]


def share_found(found: Sequence[Pair], slowdown: float) -> float:
    """The share of rows that are SLOWER where the compiled step of every HEAD takes longer by
    `slowdown`.
    """
    slow = []
    for base, head in (pair.both for pair in found if pair.both):
        times = {
            item.name: [
                Sample(sample.draw, sample.value * (1 + slowdown))
                for sample in head.samples.get(item.name, ())
            ]
            for item in STEP_TIMES
        }
        slow.append(Pair(base, replace(head, samples={**head.samples, **times})))
    return sum(row.verdict == "SLOWER" for row in judge(slow).rows) / len(slow)


def read_records(folder: Path) -> Iterator[Record]:
    """Records of ok trials in the archives of a folder."""
    for archive in sorted(folder.glob("*.tar.xz")):
        with tarfile.open(archive) as packed:
            for member in packed:
                if Path(member.name).name == "record.json" and (file := packed.extractfile(member)):
                    record = Record.loads(file.read().decode())
                    if record.status == "ok" and any(one.rounds for one in record.processes):
                        yield record


def pair_sweeps(records: Iterable[Record]) -> Iterator[Pair]:
    """One trial in two sweeps, with compile caches of their own."""
    yield from pair_alike(
        records, lambda record: f"{record.trial_id} {record.batch_size}", make_side
    )


def pair_eager_arms(records: Iterable[Record]) -> Iterator[Pair]:
    """The eager arms of two trials with one eager step, each as if it were a compiled one without
    an eager arm.
    """

    def key(record: Record) -> str:
        return (
            f"{replace(record.trial, mode='eager', backend=None, compile=Compile()).id} "
            f"{record.batch_size}"
        )

    def as_compiled(record: Record) -> Side:
        side = make_side(record)
        host_bound_arms = "compiled" if side.host_bound_arms in ("eager", "both") else None
        times = {
            COMPILED.name: side.samples[EAGER.name],
            COMPILED_DEVICE.name: side.samples[EAGER_DEVICE.name],
        }
        return replace(side, samples=times, host_bound_arms=host_bound_arms)

    yield from pair_alike(records, key, as_compiled)


def pair_alike(
    records: Iterable[Record], key: Callable[[Record], str], make: Callable[[Record], Side]
) -> Iterator[Pair]:
    groups: dict[str, list[Side]] = defaultdict(list)
    for record in records:
        if record.trial.device == "cuda":
            device = get_mapping(record.environment, "device").get("name")
            groups[f"{key(record)} {device}"].append(make(record))
    for group in groups.values():
        yield from itertools.starmap(Pair, itertools.combinations(group, 2))


def pair_processes(records: Iterable[Record]) -> Iterator[Pair]:
    """Two processes of a trial on a CPU."""
    for record in records:
        if record.trial.device == "cpu":
            alone = (
                make_side(replace(record, processes=(process,))) for process in record.processes
            )
            yield from itertools.starmap(Pair, itertools.combinations(alone, 2))


def pair_rounds(records: Iterable[Record]) -> Iterator[Pair]:
    """Two rounds of a process on a GPU, each as if it were a process."""
    for record, times in list_rounds(records):
        yield Pair(*(of_rounds(record, [one]) for one in times[:2]))


def pair_drawn(records: Iterable[Record]) -> Iterator[Pair]:
    """Sides of three processes, each a round drawn from those of one process on a GPU."""
    random = np.random.default_rng(SEED)
    for record, times in list_rounds(records):
        drawn = random.integers(0, len(times), (2, 3))
        yield Pair(*(of_rounds(record, [times[i] for i in of_side]) for of_side in drawn))


def list_rounds(records: Iterable[Record]) -> Iterator[tuple[Record, list[tuple[float, float]]]]:
    """Seconds per block of both arms in the rounds of a GPU's processes, of those with two rounds
    that count.
    """
    for record in records:
        for process in record.processes if record.trial.device == "cuda" else ():
            pairs = list(zip(process.blocks_s("eager"), process.blocks_s("compiled"), strict=True))
            if len(pairs) > 1:
                yield record, pairs


def of_rounds(record: Record, times: Sequence[tuple[float, float]]) -> Side:
    """A side with a process for each of the rounds, without device times, whose code is not
    known.
    """
    return replace(
        make_side(record),
        samples=samples([0] * len(times), *zip(*times, strict=True)),
        artifacts=frozenset({None}),
    )


RECORD_PAIRS: Mapping[str, Callable[[Iterable[Record]], Iterator[Pair]]] = {
    "one trial in two sweeps": pair_sweeps,
    "eager arms of one eager step": pair_eager_arms,
    "two rounds of a process": pair_rounds,
    "three rounds, drawn": pair_drawn,
    "two processes on a busy CPU": pair_processes,
}


if __name__ == "__main__":
    main()
