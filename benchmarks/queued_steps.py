"""Does the device's step time agree with CUDA events around steps that no host can delay?

    python benchmarks/queued_steps.py
    python benchmarks/queued_steps.py --models alexnet,resnet18 \\
        --overrides "precision=fp32" --json queued.jsonl

The device spins until the host has launched a few steps, and then runs them one after the other.
Events on the device before and after these steps give the time that it needs when everything waits
for it; the profiler is off. Beside it stand `device_step_s` and busy time, by the code that writes
records, from the same process. Both arms of each model are built as a trial builds them, under AMP
by default. The device takes about 1,000 launches ahead of their turn: a model with more of them in
a step is refused, as is a step that waits for the device by itself.
"""

from __future__ import annotations

import argparse
import gc
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles

import torch
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode

from sweeper.config.grid import Composer
from sweeper.config.schema import conf_folder
from sweeper.core.protocol import Job
from sweeper.core.settings import Measure
from sweeper.core.trial import Trial
from sweeper.sweep import hydra_app
from sweeper.worker import models
from sweeper.worker.compilation import compiler
from sweeper.worker.compilation.counters import CompileCounters
from sweeper.worker.lease import Lease
from sweeper.worker.measurement import device_time
from sweeper.worker.measurement.bench import Arm, ModelBench, complete
from sweeper.worker.measurement.host_time import MAX_QUEUED, count_launches
from sweeper.worker.model_subject import ModelSubject
from sweeper.worker.monitoring.round_monitor import RoundMonitor

MAX_STEPS = 10
WARM_UP_S = 5.0
SPIN_CYCLES = 20_000_000  # to find out how many of them a second has
SPIN_FACTOR, MIN_SPIN_S = 1.5, 2e-3  # of the time in which the host launches the steps
MAX_TRIES = 4  # each spins for twice as long
US = 1e6
# Texts come without a mask: eager transformers reads a mask in the step, and waits for the device.
MODELS = {
    "alexnet": "model=alexnet",
    "resnet18": "model=resnet18",
    "resnet50": "model=resnet50",
    "mobilenet_v2": "model=mobilenet_v2",
    "squeezenet1_1": "model=squeezenet1_1",
    # with 128 an H200 runs at its power limit, and a queued step does not
    "vit_b16": "model=vit_b16 batch_size=32",
    "bert_small": "model=bert_small text=none",
    "distilbert_base": "model=distilbert_base text=none",
    "convnext_tiny": "model=convnext_tiny",
}
HEADINGS = (
    "model", "arm", "launches", "steps", "events ms", "device ms", "difference", "busy ms",
    "difference", "gap us",
    "from", "queued gaps us", "with their median", "wall ms",
)  # fmt: skip


class RefusedError(Exception):
    """The steps cannot be queued; the text says why."""


@dataclass(frozen=True)
class Row:
    """One arm of a model, seconds per step; `gaps_s` are the quartiles of gaps before queued
    work.
    """

    model: str
    arm: str
    launches: int
    steps: int
    events_s: float
    device_s: float
    busy_s: float
    gap_s: float
    source: str
    gaps_s: Sequence[float]
    device_by_median_s: float | None  # with the median of those gaps in place of `gap_s`
    wall_s: float

    def texts(self) -> list[str]:
        """The texts of a row, in the order of HEADINGS."""
        by_median = self.device_by_median_s
        return [
            self.model,
            self.arm,
            str(self.launches),
            str(self.steps),
            f"{self.events_s * 1e3:.3f}",
            f"{self.device_s * 1e3:.3f}",
            f"{self.device_s / self.events_s - 1:+.2%}",
            f"{self.busy_s * 1e3:.3f}",
            f"{self.busy_s / self.events_s - 1:+.2%}",
            f"{self.gap_s * US:.2f}",
            self.source,
            " / ".join(f"{gap_s * US:.2f}" for gap_s in self.gaps_s),
            "" if by_median is None else f"{by_median / self.events_s - 1:+.2%}",
            f"{self.wall_s * 1e3:.3f}",
        ]


def choose_steps(launches: int, wanted: int | None) -> int:
    """Return how many steps fit into the queue, or `wanted`. Raises RefusedError where they do not
    fit.
    """
    steps = wanted or min(MAX_STEPS, max(1, MAX_QUEUED // max(launches, 1)))
    if steps * launches > MAX_QUEUED:
        raise RefusedError(
            f"{launches:,} launches a step, times {steps}, are more than {MAX_QUEUED:,}: no queue"
        )
    return steps


def read_trial(overrides: Sequence[str]) -> Trial:
    """Compose the trial as `python -m sweeper` does."""
    with initialize_config_dir(
        version_base="1.3", config_dir=str(conf_folder()), job_name="queued_steps"
    ):
        loader = GlobalHydra.instance().config_loader()
        composer = Composer(loader, loader.load_configuration("config", [], RunMode.RUN))
        return hydra_app.read_point(
            composer.compose(["sweep=queued", *overrides]), composer.repository
        ).trial


def measure(model: str, trial: Trial, wanted: int | None, repeats: int) -> Iterator[Row | str]:
    """Build a trial and measure both arms; a text says why there is no row for an arm."""
    device = torch.device("cuda")
    models.builder(trial.model.library).load(trial.model)
    setup = ModelSubject(Job(trial, Measure()), device, RoundMonitor(device, frozenset), Lease())
    bench = setup.bench
    bench.run(setup.eager, bench.round_up(2))
    setup.compile_arm(CompileCounters())
    complete(bench.first_steps_s(setup.compiled))
    compiler.end_compile_workers()
    arms = (setup.eager, setup.compiled)
    for arm in arms:
        complete(bench.warm_up(arm, WARM_UP_S))
    step_s = {
        arm.name: min(complete(bench.block_s(arm, device_time.STEPS)) for _ in range(3))
        / device_time.STEPS
        for arm in arms
    }
    passes = complete(device_time.profile_arms(bench, arms, step_s))
    cycles_per_s = measure_cycles_per_s()
    for arm in arms:
        of_arm, wall_s = passes[arm.name], step_s[arm.name]
        try:
            launches = complete(count_launches(bench, arm))
            steps = choose_steps(launches, wanted)
            events_s = median(
                time_queued(bench, arm, steps, wall_s, cycles_per_s) for _ in range(repeats)
            )
            busy = device_time.busy_per_step(of_arm, wall_s)
            own = device_time.step_time(of_arm, wall_s, 1, device_time.calibrate_gap_s)
        except (RefusedError, device_time.UnknownError) as error:
            yield f"{model} {arm.name}: {error}"
            continue
        queued_s = [gap.length_s for item in of_arm for gap in item.gaps if gap.queued]
        gaps_s = quantiles(queued_s, n=4, method="inclusive") if len(queued_s) > 1 else []
        by_median_s = None
        if gaps_s:
            by_median_s = device_time.median_pass_s(of_arm, gaps_s[1]) / device_time.STEPS
        yield Row(
            model, arm.name, launches, steps, events_s, own.step_s, busy.busy_s, own.gap_s,
            own.source, gaps_s,
            by_median_s, wall_s,
        )  # fmt: skip


def measure_cycles_per_s() -> float:
    """Measure how many of the cycles that torch's spin kernel counts a second has."""
    for _ in range(2):  # the first launch loads the kernel
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.cuda._sleep(SPIN_CYCLES)
        end.record()
        torch.cuda.synchronize()
    return SPIN_CYCLES / (begin.elapsed_time(end) * 1e-3)


def time_queued(
    bench: ModelBench, arm: Arm, steps: int, wall_s: float, cycles_per_s: float
) -> float:
    """Return the seconds per step on the device of steps that all were launched before the first of
    them began.

    Raises RefusedError where the device began while the host still launched.
    """
    # as before a profiled pass
    bench.run(arm, max(device_time.STEPS_BEFORE, round(device_time.BEFORE_S / wall_s)))
    bench.synchronize()
    start = time.perf_counter()
    bench.run(arm, steps)
    spin_s = max(SPIN_FACTOR * (time.perf_counter() - start), MIN_SPIN_S)
    gc.collect()
    gc.disable()
    try:
        for _ in range(MAX_TRIES):
            bench.synchronize()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(int(spin_s * cycles_per_s))
            begin.record()
            bench.run(arm, steps)
            end.record()
            still_spins = not begin.query()
            bench.synchronize()
            if still_spins:
                return begin.elapsed_time(end) * 1e-3 / steps
            spin_s *= 2
    finally:
        gc.enable()
    raise RefusedError(
        f"the device had begun when the host had launched {steps} steps, after a spin of "
        f"{spin_s / 2 * 1e3:.0f} ms: "
        "the step waits for the device by itself, or has more launches than the queue takes"
    )


def print_row(texts: Sequence[str]) -> None:
    print(f"| {' | '.join(texts)} |", flush=True)


def main(options: argparse.Namespace) -> int:
    """Print the rows of all models, each measured in a process of its own; 1 where a process
    failed.
    """
    if not torch.cuda.is_available():
        print("queued_steps.py needs an NVIDIA GPU: its clock is CUDA events", file=sys.stderr)
        return 2
    if not options.bare:
        print_row(HEADINGS)
        print("|---" * len(HEADINGS) + "|", flush=True)
        given = ["--overrides", options.overrides, "--repeats", str(options.repeats), "--bare"]
        given += ["--steps", str(options.steps)] if options.steps else []
        given += ["--json", str(options.json)] if options.json else []
        commands = [
            [sys.executable, __file__, *given, "--models", model]
            for model in options.models.split(",")
        ]
        return max([subprocess.run(command, check=False).returncode != 0 for command in commands])
    trial = read_trial(
        [*shlex.split(MODELS[options.models]), "precision=amp", *shlex.split(options.overrides)]
    )
    for found in measure(options.models, trial, options.steps, options.repeats):
        if isinstance(found, str):
            print(f"| {found} |", flush=True)
            continue
        print_row(found.texts())
        if options.json:
            with options.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(found)) + "\n")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(MODELS), help="default: %(default)s")
    parser.add_argument(
        "--overrides", default="", help="of sweeper, for every model, e.g. 'mode=reduce-overhead'"
    )
    parser.add_argument(
        "--steps", type=int, metavar="K", help=f"default: as many as fit, at most {MAX_STEPS}"
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="of the queued steps; the median counts"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="add a line of JSON for each row")
    parser.add_argument(
        "--bare", action="store_true", help="one model in this process, without headings"
    )
    chosen = parser.parse_args()
    if unknown := set(chosen.models.split(",")) - set(MODELS):
        parser.error(f"no such models: {', '.join(sorted(unknown))}; there are {', '.join(MODELS)}")
    sys.exit(main(chosen))
