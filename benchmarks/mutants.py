"""Does the accuracy check see wrong code? Faults planted in the compiled steps of tiny models: a mutation score.

    python benchmarks/mutants.py --jobs 16 --output docs/results/mutants.md        every model, fp32 and AMP
    python benchmarks/mutants.py --model vit,resnet18 --precision fp32 --per-model 10
    python benchmarks/mutants.py --precision fp32 --per-model 0 --inductor 30      a sample, through Inductor

A model is traced once; a mutant is a copy of one of its ATen graphs with one fault in it, which runs in eager kernels.
It passes through the check as a worker makes it. The classes of faults are in `mutation/faults.py`, the models in
`mutation/trials.py`, the rule of what counts in `mutation/report.py`. The same seed plants the same faults.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import sys
import time
from collections.abc import Iterator, Sequence
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
# Of the sample through Inductor: they compile in seconds, and have every class of faults among them.
SMALL = (
    "causal_transformer (step)", "autoencoder (step)", "embedding_bag", "vit", "deit3", "bert", "gpt2", "convnext",
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


def make_plans(options: Options) -> Iterator[Plan]:
    """The trials of each precision, and the sample that goes through Inductor."""
    for precision in options.precisions:
        found = [trial for trial in trials.trials(precision, options.device) if _is_chosen(trial.labels.model, options)]
        if options.per_model:
            yield from (Plan(trial, options.faults, options.per_model, options.seed) for trial in found)
        sample = [through_inductor(trial) for trial in found if trial.labels.model in SMALL or options.models]
        random.Random(options.seed).shuffle(sample)
        for left in range(options.inductor, 0, -PER_MODEL_OF_INDUCTOR):
            if sample:
                yield Plan(sample.pop(), options.faults, min(left, PER_MODEL_OF_INDUCTOR), options.seed)


def _is_chosen(name: str, options: Options) -> bool:
    return not options.models or name in options.models or name.split()[0] in options.models


def run(plans: Sequence[Plan], jobs: int) -> Iterator[Scored]:
    """Score trials in `jobs` processes, as they get finished; in this one if it is one."""
    if jobs == 1:
        yield from map(score, plans)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        for future in as_completed([pool.submit(score, plan) for plan in plans]):
            yield future.result()


def describe_progress(scored: Scored, done: int, of: int, elapsed_s: float) -> str:
    effective = [mutant for mutant in scored.mutants if mutant.is_effective]
    killed = sum(mutant.is_killed for mutant in effective)
    name = f"{scored.model} {scored.precision}{'' if scored.backend == trials.AOT else ' inductor'}"
    text = f"[{done}/{of}, {elapsed_s:.0f} s] {name}: {killed} of {len(effective)} effective mutants killed"
    text += f", {len(scored.mutants)} planted, {scored.took_s:.0f} s"
    if scored.unmutated.outcome != "passed":
        text = f"[{done}/{of}] {name}: THE UNMUTATED STEP DOES NOT PASS, so its mutants prove nothing: "
        text += f"{scored.unmutated.outcome}: {scored.unmutated.text}"
    return text


def describe_versions(options: Options) -> list[str]:
    device = (
        torch.cuda.get_device_name() if options.device == "cuda" else f"CPU ({torch.backends.cpu.get_cpu_capability()})"
    )
    return [f"torch {torch.__version__}, {device}, seed {options.seed}."]


def parse(arguments: Sequence[str]) -> tuple[Options, argparse.Namespace]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="names of mutation/trials.py, joined by commas; default: all")
    parser.add_argument("--precision", default=",".join(trials.PRECISIONS), help="fp32, amp or both, joined by a comma")
    parser.add_argument("--classes", default=",".join(FAULTS), help="faults, joined by commas; default: all")
    parser.add_argument("--per-model", type=int, default=PER_MODEL, help="mutants of each trial")
    parser.add_argument("--inductor", type=int, default=0, help="mutants of each precision that go through Inductor")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--jobs", type=int, default=1, help="processes; each takes one trial at a time")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--output", type=Path, help="a Markdown file for the report; default: the terminal")
    parser.add_argument("--json", type=Path, help="a file for one line of JSON per trial")
    given = parser.parse_args(arguments)
    for name in given.classes.split(","):
        if name not in FAULTS:
            parser.error(f"--classes: {name!r} is none of {', '.join(FAULTS)}")
    models = tuple(filter(None, given.model.split(",")))
    precisions, faults = tuple(given.precision.split(",")), tuple(given.classes.split(","))
    return (
        Options(models, precisions, faults, given.per_model, given.inductor, given.device, given.jobs, given.seed),
        given,
    )


def main() -> None:
    options, given = parse(sys.argv[1:])
    header, plans, start = describe_versions(options), list(make_plans(options)), time.perf_counter()
    print(*header, sep="\n", flush=True)
    found = []
    for scored in run(plans, options.jobs):
        found.append(scored)
        elapsed_s = time.perf_counter() - start
        print(describe_progress(scored, len(found), len(plans), elapsed_s), flush=True)
        if given.json:
            with given.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(scored.to_json()) + "\n")
    order = {(plan.trial.labels.model, plan.trial.labels.precision, plan.backend): i for i, plan in enumerate(plans)}
    found.sort(key=lambda scored: order[scored.model, scored.precision, scored.backend])
    report = write_report(found, header)
    if given.output:
        given.output.write_text(report, encoding="utf-8")
    else:
        print(report)


if __name__ == "__main__":
    main()
