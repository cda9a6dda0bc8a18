"""How often the 95 % intervals of the program hold the truth, and how often its sure answers are
wrong, on simulated records whose truth is known.

    python benchmarks/coverage.py [--repeats 4000]

Each simulated process has a true log ratio and blocks that scatter around it; records of such
processes go through `derive` like measured ones, medians and all. Prints the Markdown tables
of docs/results/coverage.md. The seed is fixed.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from sweeper.analysis import stats
from sweeper.analysis.derive import derive
from sweeper.analysis.flags import find_disturbances, find_flags, is_resolved
from sweeper.analysis.gains import MIN_GAIN, can_become_sure, find_gain
from sweeper.analysis.stats import Interval
from sweeper.core.record import Accuracy, PerArm, Process, Record, Round
from sweeper.core.settings import MIN_PROCESSES_FOR_TARGET, Measure
from sweeper.core.trial import Labels, Model, Trial
from sweeper.loading.entries import Entry

SEED = 20240
REPEATS = 4000
ROUNDS = 10
STEPS = 10  # of a block
EAGER_S = 0.02  # a step
BLOCK_SD = 0.005  # of the log of a block's time, in each arm
SPEEDUP = 1.5
LOG = math.log(SPEEDUP)
TRIAL = Trial(Model("torchvision", "resnet50"), 32, Labels("resnet50", "fp32", weight="fp32"))

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Outcome:
    """One interval and the truth that it should hold; None where the rules give no interval."""

    interval: Interval | None
    truth: float = SPEEDUP
    processes: int = 0
    says: str | None = None  # the sure answer; None: it is not sure


@dataclass(frozen=True)
class Scenario:
    """A row of the table; `simulate(random, repeats)` gives about so many outcomes."""

    kind: str
    text: str
    simulate: Callable[[np.random.Generator, int], Iterator[Outcome]]
    nominal: bool = True  # whether the coverage should be near 95 %


def block_noise(
    random: np.random.Generator, shape: tuple[int, ...], autocorrelation: float
) -> Floats:
    """Logs of block times about their process's own, [..., rounds]; AR(1) along the last axis."""
    noise = random.normal(0, BLOCK_SD, shape)
    for index in range(1, shape[-1]):
        kept = math.sqrt(1 - autocorrelation**2)
        noise[..., index] = autocorrelation * noise[..., index - 1] + kept * noise[..., index]
    return noise


def records(
    random: np.random.Generator,
    logs: Floats,
    draws: Sequence[int],
    autocorrelation: float = 0.0,
    host: bool = False,
) -> Iterator[Record]:
    """A record for each row of `logs` [records, processes], the true log ratios of its processes.

    With `host` the device is busy for half of a compiled step, so that the trial is host-bound;
    else nothing is known.
    """
    shape = (*logs.shape, ROUNDS)
    eager_s = EAGER_S * STEPS * np.exp(block_noise(random, shape, autocorrelation))
    compiled_s = (
        EAGER_S * STEPS * np.exp(block_noise(random, shape, autocorrelation) - logs[..., None])
    )
    half_s = EAGER_S * np.exp(-logs.mean(axis=1)) / 2
    for *of_record, busy_s in zip(
        eager_s.tolist(), compiled_s.tolist(), half_s.tolist(), strict=True
    ):
        processes = [
            Process(
                index,
                draw,
                cold=False,
                steps_per_block=STEPS,
                rounds=tuple(Round("AB", *blocks) for blocks in zip(eager, compiled, strict=True)),
                device_time_s=PerArm(EAGER_S, busy_s) if host else None,
                device_kernels=PerArm(100, 100),
                accuracy=Accuracy("float64", True),
            )
            for index, (draw, eager, compiled) in enumerate(zip(draws, *of_record, strict=True))
        ]
        yield Record(
            "0" * 12, "simulated", "simulated", "ok", trial=TRIAL, processes=tuple(processes)
        )


def interval_of(record: Record) -> Interval | None:
    result = derive(record)
    return result.speedup.interval() if result.speedup else None


def one_draw(
    random: np.random.Generator,
    repeats: int,
    *,
    processes: int,
    sd: float,
    autocorrelation: float = 0.0,
) -> Iterator[Outcome]:
    """Processes that share one artifact; the truth is what infinitely many of them would give."""
    logs = random.normal(LOG, sd, (repeats, processes))
    for record in records(random, logs, [0] * processes, autocorrelation):
        yield Outcome(interval_of(record))


def several_draws(
    random: np.random.Generator,
    repeats: int,
    *,
    draws: int,
    processes: int,
    draw_sd: float,
    sd: float = 0.003,
) -> Iterator[Outcome]:
    """Artifacts of different luck. From three on the truth is that of all artifacts, before that of
    those at hand.
    """
    luck = random.normal(0, draw_sd, (repeats, draws))
    logs = (
        LOG
        + np.repeat(luck, processes, axis=1)
        + random.normal(0, sd, (repeats, draws * processes))
    )
    found = records(random, logs, np.repeat(np.arange(draws), processes).tolist())
    for record, own in zip(found, luck.mean(axis=1).tolist(), strict=True):
        yield Outcome(interval_of(record), SPEEDUP if draws > 2 else math.exp(LOG + own))


def sequential(
    random: np.random.Generator, repeats: int, *, sd: float, target: float = 0.01
) -> Iterator[Outcome]:
    """One process after the other until the interval is narrow enough, by the rule of the
    runner.
    """
    most = Measure(target=target).process_limit
    for record in records(random, random.normal(LOG, sd, (repeats, most)), [0] * most):
        for count in range(MIN_PROCESSES_FOR_TARGET, most + 1):
            so_far = replace(record, processes=record.processes[:count])
            if count == most or is_resolved(derive(so_far), target):
                yield Outcome(interval_of(so_far))
                break


TRUTHS = 0.7, 3.0  # speedups, uniform in their logs
NEAR_TRUTHS = 1.0, 1.1
OUTLIER = 0.05  # of the log, in one process of twenty


def until_sure(
    random: np.random.Generator,
    repeats: int,
    *,
    sd: float,
    truths: tuple[float, float] = TRUTHS,
    apart: float = 0.0,
    drift: float = 0.0,
    outliers: float = 0.0,
    host: bool = False,
) -> Iterator[Outcome]:
    """One process after the other until the answer is sure, by the rule of the runner.

    With `apart` a process has one of two speeds; by `drift` each process is slower than the one
    before it; `outliers` is the share of processes that are off by `OUTLIER`.
    """
    measure = Measure()
    most, shape = measure.process_limit, (repeats, measure.process_limit)
    logs_of_truth = random.uniform(*map(math.log, truths), repeats)
    logs = logs_of_truth[:, None] + random.normal(0, sd, shape)
    logs += apart * ((random.random(shape) < 0.5) - 0.5)
    logs += drift * (np.arange(most) - (most - 1) / 2)
    logs += OUTLIER * random.choice([-1, 0, 1], shape, p=[outliers / 2, 1 - outliers, outliers / 2])
    truths_of_records = np.exp(logs_of_truth).tolist()
    for record, truth in zip(
        records(random, logs, [0] * most, host=host), truths_of_records, strict=True
    ):
        for count in range(measure.process_minimum, most + 1):
            so_far = replace(record, processes=record.processes[:count])
            result = derive(so_far)
            if count == most or not can_become_sure(so_far, result, measure):
                break
        flagged = replace(so_far, flags=find_flags(so_far, result, measure))
        disturbances = find_disturbances(flagged)
        found = find_gain(TRIAL.device, result, flagged.flags, disturbances, None)
        says = None
        if found and not found.why_unsure:
            says = "compile" if found.gain.low > found.turn else "stay eager"
        yield Outcome(interval_of(so_far), truth, count, says)


TRIALS = 16  # of a mixed sweep, half of them host-bound
# host-bound or not: typical standard deviation, processes
HALVES = {False: (0.003, 3), True: (0.01, 5)}
SPREAD = 0.5  # of the logs of standard deviations, within a half


def mixed_sweep(
    random: np.random.Generator, repeats: int, *, host: bool, moderated: bool
) -> Iterator[Outcome]:
    """Sweeps of trials that differ in noise; outcomes of one half, with the plain or the moderated
    interval.
    """
    for _ in range(max(1, repeats // (TRIALS // 2))):
        halves = {of_half: half_of_sweep(random, of_half) for of_half in HALVES}
        estimates = {entry: entry.result.speedup for entry in halves[host]}
        if moderated:
            of_one_cause = stats.moderate_variances(list(estimates.values()))
            estimates = dict(zip(estimates, of_one_cause, strict=True))
        for estimate in estimates.values():
            yield Outcome(estimate.interval())


def half_of_sweep(random: np.random.Generator, host: bool) -> list[Entry]:
    typical, processes = HALVES[host]
    sds = typical * np.exp(random.normal(0, SPREAD, (TRIALS // 2, 1)))
    found = records(
        random, random.normal(LOG, sds, (TRIALS // 2, processes)), [0] * processes, host=host
    )
    return [Entry(record, derive(record), Path(), "") for record in found]


def these_models(
    random: np.random.Generator, repeats: int, *, models: int, spread: float
) -> Iterator[Outcome]:
    """The weighted mean of models that are given, each with a noise of its own; both precisions by
    three processes.
    """
    truths = {
        "amp": random.normal(math.log(1.5), 0.2, models),
        "fp32": random.normal(math.log(1.2), 0.1, models),
    }
    sds = {name: 0.005 * np.exp(random.normal(0, spread, (models, 1))) for name in truths}
    whole = stats.weighted(*(math.exp(logs.mean()) for logs in truths.values()))
    for _ in range(repeats):
        means = []
        for name, logs in truths.items():
            found = records(random, random.normal(logs[:, None], sds[name], (models, 3)), [0] * 3)
            estimates = [derive(record).speedup for record in found]
            means.append(
                stats.geomean_of_these_models([estimate for estimate in estimates if estimate])
            )
        yield Outcome(stats.weighted_of_these_models(*means).interval(), whole)


def new_model(random: np.random.Generator, repeats: int, *, models: int) -> Iterator[Outcome]:
    """Models drawn from a population in which AMP and fp32 go together; the truth is the next one's
    own value.
    """
    common = random.normal(0, 0.2, (repeats, models + 1))
    amp = math.log(1.5) + common + random.normal(0, 0.1, common.shape)
    fp32 = math.log(1.2) + common / 2 + random.normal(0, 0.05, common.shape)
    for amp_logs, fp32_logs in zip(amp.tolist(), fp32.tolist(), strict=True):
        logs = zip(amp_logs, fp32_logs, strict=True)
        *values, truth = [stats.weighted(math.exp(one), math.exp(other)) for one, other in logs]
        yield Outcome(stats.predict_new_model(values).interval(), truth)


# of the same order as the differences in docs/results/h200-repeatability.md: mobilenet_v2
APART = math.log(1.27)


def two_humps(random: np.random.Generator, repeats: int, *, processes: int) -> Iterator[Outcome]:
    """Each process falls into one of two humps with probability one half; host-boundness is not
    told to the rules.
    """
    logs = random.normal(LOG, 0.005, (repeats, processes)) + APART * (
        random.random((repeats, processes)) < 0.5
    )
    for record in records(random, logs, [0] * processes):
        yield Outcome(interval_of(record), math.exp(LOG + APART / 2))


def scenarios() -> list[Scenario]:
    """Every row of the table."""
    rows = [
        Scenario(
            "processes",
            f"{processes} processes, sd {sd:.1%} between "
            f"them{', blocks AR(1) 0.8' if correlated else ''}",
            partial(one_draw, processes=processes, sd=sd, autocorrelation=correlated),
        )
        for sd in (0.003, 0.01)
        for processes in (3, 5)
        for correlated in (0.0, 0.8)
    ]
    rows += [
        Scenario(
            "draws",
            f"3 draws of {processes}, sd {draw_sd:.1%} between draws",
            partial(several_draws, draws=3, processes=processes, draw_sd=draw_sd),
        )
        for draw_sd in (0.0, 0.005, 0.01)
        for processes in (1, 3)
    ]
    rows += [
        Scenario(
            "two draws",
            f"2 draws of {processes}, sd {draw_sd:.1%} between draws; truth: these artifacts",
            partial(several_draws, draws=2, processes=processes, draw_sd=draw_sd),
        )
        for draw_sd in (0.0, 0.01)
        for processes in (2, 3)
    ]
    rows += [
        Scenario(
            "mixed sweep",
            f"{TRIALS // 2} {'host-bound' if host else 'other'} trials of {HALVES[host][1]} "
            "processes, "
            f"{'moderated' if moderated else 'plain'} t",
            partial(mixed_sweep, host=host, moderated=moderated),
        )
        for host in HALVES
        for moderated in (False, True)
    ]
    rows += [
        Scenario(
            "these models",
            f"weighted mean, {models} models{', noise of very different size' if spread else ''}",
            partial(these_models, models=models, spread=spread),
        )
        for models in (1, 3, 12)
        for spread in (0.0, 1.0)
    ]
    rows += [
        Scenario("new model", f"prediction from {models} models", partial(new_model, models=models))
        for models in (3, 12)
    ]
    rows += [
        Scenario(
            "sequential",
            f"5 to 15 processes until ±1 %, sd {sd:.1%}",
            partial(sequential, sd=sd),
            nominal=False,
        )
        for sd in (0.005, 0.01, 0.02)
    ]
    rows += [
        Scenario(
            "two humps",
            f"{processes} processes, two humps 27 % apart",
            partial(two_humps, processes=processes),
            nominal=False,
        )
        for processes in (3, 5, 10)
    ]
    return rows


def sequential_scenarios() -> list[Scenario]:
    """Every row of the table of answers."""
    rows = [
        Scenario("any speedup", f"sd {sd:.1%}", partial(until_sure, sd=sd))
        for sd in (0.001, 0.003, 0.01, 0.03)
    ]
    rows += [
        Scenario("1.0 to 1.1", f"sd {sd:.1%}", partial(until_sure, sd=sd, truths=NEAR_TRUTHS))
        for sd in (0.001, 0.003, 0.01, 0.03)
    ]
    rows += [
        Scenario(
            "any speedup",
            "two speeds of the host, 27 % apart, sd 1.0%",
            partial(until_sure, sd=0.01, apart=APART, host=True),
        ),
        *(
            Scenario(
                speedups,
                f"host-bound, sd {sd:.1%}",
                partial(until_sure, sd=sd, truths=truths, host=True),
            )
            for speedups, truths, sd in (
                ("any speedup", TRUTHS, 0.03),
                ("any speedup", TRUTHS, 0.08),
                ("1.0 to 1.1", NEAR_TRUTHS, 0.08),
            )
        ),
        Scenario(
            "any speedup",
            "drift of 0.2% a process, sd 0.3%",
            partial(until_sure, sd=0.003, drift=0.002),
        ),
        Scenario(
            "any speedup",
            "one process of 20 off by 5%, sd 0.3%",
            partial(until_sure, sd=0.003, outliers=0.05),
        ),
    ]
    return rows


def share_wrong(found: Sequence[Outcome]) -> float:
    """Share of the sure answers that are wrong."""
    sure = [item for item in found if item.says]
    wrong = [item for item in sure if (item.says == "compile") != (item.truth > 1 + MIN_GAIN)]
    return len(wrong) / len(sure) if sure else math.nan


def outcomes(scenario: Scenario, repeats: int) -> list[Outcome]:
    """Simulated anew from a seed of the scenario's own, whatever else runs."""
    random = np.random.default_rng([SEED, *scenario.text.encode()])
    return list(scenario.simulate(random, repeats))


def coverage(found: Sequence[Outcome]) -> float:
    """Share of the outcomes whose interval holds the truth."""
    held = [
        item.interval
        for item in found
        if item.interval and item.interval.low <= item.truth <= item.interval.high
    ]
    return len(held) / len(found)


def half_width(found: Sequence[Outcome]) -> float:
    """Median half width of the intervals, relative to the speedup."""
    return median(
        math.log(item.interval.high / item.interval.low) / 2 for item in found if item.interval
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Coverage of nominal 95 % intervals on simulated records."
    )
    parser.add_argument("--repeats", type=int, default=REPEATS, help="intervals of each row")
    repeats = parser.parse_args().repeats
    print(
        "| intervals over | simulated | coverage | median half-width |\n| --- | --- | --- | --- |"
    )
    for scenario in scenarios():
        found = outcomes(scenario, repeats)
        print(
            f"| {scenario.kind} | {scenario.text} | {coverage(found):.1%} | "
            f"{half_width(found):.2%} |",
            flush=True,
        )
    print(
        "\n| speedups | simulated | sure | of these wrong | processes | coverage |\n"
        "| --- | --- | --- | --- | --- | --- |"
    )
    for scenario in sequential_scenarios():
        found = outcomes(scenario, repeats)
        with_interval = [item for item in found if item.interval]
        sure = sum(item.says is not None for item in found) / len(found)
        processes = fmean(item.processes for item in found)
        print(
            f"| {scenario.kind} | {scenario.text} | {sure:.1%} | {share_wrong(found):.1%} | "
            f"{processes:.1f} | {coverage(with_interval):.1%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
