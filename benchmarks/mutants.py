"""Does the accuracy check see wrong code? Faults planted in the compiled steps of tiny models: a
mutation score.

    python benchmarks/mutants.py --jobs 16 --output docs/results/mutants.md
        every model, fp32 and AMP
    python benchmarks/mutants.py --model vit,resnet18 --precision fp32 --per-model 10
    python benchmarks/mutants.py --per-model 0 --inductor 30   a sample, through Inductor

A model is traced once; a mutant is a copy of one of its ATen graphs with one fault in it, which
runs in eager kernels. It passes through the check as a worker makes it. The classes of faults are
in `mutation/faults.py`, the models in `mutation/trials.py`, the rule of what counts in
`mutation/report.py`. The same seed plants the same faults.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import torch
from mutation import trials
from mutation.faults import FAULTS
from mutation.report import write_report
from mutation.score import Plan, Scored, score, through_inductor

PER_MODEL, PER_MODEL_OF_INDUCTOR = 12, 3
SEED = 1337
# Of the sample through Inductor: they compile in seconds, and have every class of faults among
# them.
SMALL = (
    "causal_transformer "
    "(step)", "autoencoder (step)", "embedding_bag", "vit", "deit3", "bert", "gpt2", "convnext",
    "mixture_of_experts", "resnet18",
)  # fmt: skip


@dataclass(frozen=True)
class Options:
    """What was asked for on the command line."""

    models: tuple[str, ...]
    precisions: tuple[str, ...]
    faults: tuple[str, ...]
    per_model: int
    inductor: int
    device: str
    jobs: int
    seed: int
    output: Path | None
    json: Path | None


def make_plans(options: Options) -> Iterator[Plan]:
    """The trials of each precision; then the sample that goes through Inductor, a few mutants of
    each trial.
    """
    found = [
        trial
        for precision in options.precisions
        for trial in trials.trials(precision, options.device)
        if _is_chosen(trial.labels.model, options)
    ]
    if options.per_model:
        yield from (Plan(trial, options.faults, options.per_model, options.seed) for trial in found)
    sample = [
        through_inductor(trial) for trial in found if options.models or trial.labels.model in SMALL
    ]
    random.Random(options.seed).shuffle(sample)
    for left, trial in zip(
        range(options.inductor, 0, -PER_MODEL_OF_INDUCTOR), sample, strict=False
    ):
        yield Plan(trial, options.faults, min(left, PER_MODEL_OF_INDUCTOR), options.seed)


def _is_chosen(name: str, options: Options) -> bool:
    return not options.models or name.split()[0] in options.models


def run(plans: Sequence[Plan], options: Options) -> Iterator[Scored]:
    """Score trials in processes, as they get finished; in this process where it is one.

    A mutant that reads out of bounds takes the context of its GPU with it, so there each trial has
    its own process.
    """
    if options.jobs == 1 and options.device == "cpu":
        yield from map(score, plans)
        return
    trials_per_process = 1 if options.device == "cuda" else None
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, spawn, max_tasks_per_child=trials_per_process) as pool:
        for future in as_completed([pool.submit(score, plan) for plan in plans]):
            yield future.result()


def describe_progress(scored: Scored, done: int, of: int, elapsed_s: float) -> str:
    effective = [mutant for mutant in scored.mutants if mutant.is_effective]
    killed = sum(mutant.is_killed for mutant in effective)
    name = f"{scored.model} {scored.precision}{'' if scored.backend == trials.AOT else ' inductor'}"
    text = (
        f"[{done}/{of}, {elapsed_s:.0f} s] {name}: {killed} of {len(effective)} effective "
        "mutants killed"
    )
    text += f", {len(scored.mutants)} planted, {scored.took_s:.0f} s"
    if scored.unmutated.outcome != "passed":
        text = (
            f"[{done}/{of}] {name}: THE UNMUTATED STEP DOES NOT PASS, so its mutants prove "
            "nothing: "
        )
        text += f"{scored.unmutated.outcome}: {scored.unmutated.text}"
    return text


def describe_versions(options: Options) -> list[str]:
    device = (
        torch.cuda.get_device_name()
        if options.device == "cuda"
        else f"CPU ({torch.backends.cpu.get_cpu_capability()})"
    )
    return [f"torch {torch.__version__}, {device}, seed {options.seed}."]


def parse(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--model",
        type=_one_of(trials.MODELS),
        dest="models",
        default=(),
        help="names, joined by commas; default: all",
    )
    add(
        "--precision",
        type=_one_of(trials.PRECISIONS),
        dest="precisions",
        default=tuple(trials.PRECISIONS),
    )
    add(
        "--classes",
        type=_one_of(FAULTS),
        dest="faults",
        default=tuple(FAULTS),
        help="faults, joined by commas",
    )
    add("--per-model", type=int, default=PER_MODEL, help="mutants of each trial")
    add(
        "--inductor",
        type=int,
        default=0,
        help="mutants that go through Inductor, of all precisions",
    )
    add("--device", default="cpu", choices=("cpu", "cuda"))
    add("--jobs", type=int, default=1, help="processes; each takes one trial at a time")
    add("--seed", type=int, default=SEED)
    add("--output", type=Path, help="a Markdown file for the report; default: the terminal")
    add("--json", type=Path, help="a file to which each trial adds a line of JSON")
    return Options(**vars(parser.parse_args(arguments)))


def _one_of(known: Iterable[str]) -> Callable[[str], tuple[str, ...]]:
    """A parser of names that are joined by commas."""

    def split(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        if unknown := set(names) - set(known):
            raise argparse.ArgumentTypeError(
                f"{', '.join(sorted(unknown))}: there is {', '.join(known)}"
            )
        return names

    return split


def main() -> None:
    options = parse(sys.argv[1:])
    header, plans, start = (
        describe_versions(options),
        list(make_plans(options)),
        time.perf_counter(),
    )
    print(*header, sep="\n", flush=True)
    found = []
    for scored in run(plans, options):
        found.append(scored)
        print(
            describe_progress(scored, len(found), len(plans), time.perf_counter() - start),
            flush=True,
        )
        if options.json:
            with options.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(scored.to_json()) + "\n")
    order = [(plan.trial.labels.model, plan.trial.labels.precision, plan.backend) for plan in plans]
    found.sort(key=lambda scored: order.index((scored.model, scored.precision, scored.backend)))
    report = write_report(found, header)
    if options.output:
        options.output.write_text(report, encoding="utf-8")
    else:
        print(report)


if __name__ == "__main__":
    main()
