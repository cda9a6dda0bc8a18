"""How often `python -m sweeper.compare` flags sweeps in which nothing changed, and finds a slowdown of 3 %.

    python benchmarks/compare_power.py [--repeats 300]

Simulated sides go through `judge`, the one that the command uses. Prints the Markdown table of
docs/results/compare-power.md. The seed is fixed.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sweeper.compare.pairs import Pair, Sample, Side
from sweeper.compare.verdicts import Comparison, judge
from sweeper.core.trial import Labels, Model, Trial

SEED = 20263
REPEATS = 300
MODELS = 100
SLOWDOWN = 0.03
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
    spread: float = 0.0  # of the logs of models' process and draw noises; 0: all models are equally noisy
    models: int = MODELS

    @property
    def text(self) -> str:
        measured = f"{self.processes} processes" if self.draws == 1 else f"{self.draws} draws of {self.processes}"
        return f"{measured}, {self.disturbed}"

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
        return ", ".join(parts)


@dataclass(frozen=True)
class Outcome:
    """One comparison: of the models that did not change, and of those that did, how many were found SLOWER or FASTER.

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
    rows += [Design(1, 5, 0.006, models=1), Design(3, 3, 0.006, 0.005, models=1), Design(1, 3, 0.006, models=1)]
    rows += [
        Design(draws, processes, 0.006, draw_noise, models=10)
        for draws, processes, draw_noise in ((1, 5, 0.0), (3, 3, 0.005), (5, 3, 0.005), (5, 3, 0.01))
    ]
    return rows


def outcomes(design: Design, slowed: int, repeats: int) -> Iterator[Outcome]:
    """Comparisons of sweeps in which the first `slowed` models got slower by `SLOWDOWN`, the rest not at all."""
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
    """Two sweeps of the same models. Sides of one draw share a compiled artifact, those of several have one a draw."""
    noises = np.exp(random.normal(0, design.spread, (2, design.models, 1, 1)))
    effect = np.zeros((design.models, 1, 1))
    effect[:slowed] = math.log1p(SLOWDOWN)
    base = sides(random, design, noises, np.zeros_like(effect))
    head = sides(random, design, noises, effect, design.shift)
    return [Pair(*both) for both in zip(base, head, strict=True)]


def sides(
    random: np.random.Generator, design: Design, noises: Floats, effect: Floats, shift: float = 0.0
) -> list[Side]:
    """One session; `noises` [2, models, 1, 1] multiply those of processes and draws, `effect` is on compiled logs."""
    shape = (design.models, design.draws, design.processes)
    session = shift + random.normal(0, design.session_noise)
    eager = session + noises[0] * random.normal(0, design.process_noise, shape)
    luck = noises[1] * random.normal(0, design.draw_noise, (design.models, design.draws, 1))
    compiled = session + effect + luck + noises[0] * random.normal(0, design.process_noise, shape)
    draws = np.repeat(np.arange(design.draws), design.processes).tolist()
    times = zip(
        *(
            (s * np.exp(logs)).reshape(design.models, -1).tolist()
            for s, logs in ((EAGER_S, eager), (COMPILED_S, compiled))
        ),
        strict=True,
    )
    artifacts = frozenset({"code-winners"} if design.draws == 1 else {None})
    return [Side(TRIAL, "ok", 32, samples(draws, *of_model), artifacts) for of_model in times]


def samples(draws: list[int], eager_s: list[float], compiled_s: list[float]) -> dict[str, list[Sample]]:
    speedups = [eager / compiled for eager, compiled in zip(eager_s, compiled_s, strict=True)]
    named = {"eager_step_s": eager_s, "compiled_step_s": compiled_s, "speedup": speedups}
    return {name: [Sample(*pair) for pair in zip(draws, values, strict=True)] for name, values in named.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="False alarms and power of sweeper.compare on simulated sweeps.")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="comparisons of each figure")
    repeats = parser.parse_args().repeats
    titles = ("measured", "noise", "refused", "any flagged", "SAME", "one slower: found", "half slower: found")
    print(f"| {' | '.join(titles)} |\n|{' --- |' * len(titles)}", flush=True)
    for design in designs():
        print(f"| {' | '.join(row(design, repeats))} |", flush=True)


def row(design: Design, repeats: int) -> list[str]:
    """Cells; power and SAME are shares of the comparisons that were not refused."""
    none = list(outcomes(design, 0, repeats))
    measured = design.text.removesuffix(f", {design.disturbed}")
    cells = [measured, design.disturbed, f"{refused(none):.0%}", f"{alarms(none):.1%}", f"{same(none):.0%}"]
    # Half of a sweep gives many cases at once, so it takes fewer sweeps.
    one, half = (1, repeats), (design.models // 2, max(1, repeats // 10))
    powers = [power(list(outcomes(design, *slowed))) if slowed[0] else None for slowed in (one, half)]
    return [*cells, *("" if share is None else f"{share:.0%}" for share in powers)]


def refused(found: list[Outcome]) -> float:
    return sum(item.refused for item in found) / len(found)


def alarms(found: list[Outcome]) -> float:
    """Share of all comparisons in which any model that did not change is SLOWER or FASTER."""
    return sum(item.flagged > 0 for item in found) / len(found)


def power(found: list[Outcome]) -> float:
    """Share of the models that got slower which are found SLOWER, where the session allows a verdict."""
    judged = [item for item in found if not item.refused]
    return sum(item.found for item in judged) / max(1, sum(item.changed for item in judged))


def same(found: list[Outcome]) -> float:
    judged = [item for item in found if not item.refused]
    return sum(item.same for item in judged) / max(1, sum(item.unchanged for item in judged))


if __name__ == "__main__":
    main()
