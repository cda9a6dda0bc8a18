"""Does host headroom predict the step time on a slower host? One table row per arm of a model and
slowdown.

    python benchmarks/headroom.py --output headroom.jsonl   on a GPU, three minutes per model
    python benchmarks/headroom.py --output headroom.jsonl --models vit_b16 \\
        --overrides "precision=amp batch_size=16"

A slower host is made by stopping the worker, with all its threads, for a part of each hundredth of
a second, while the device goes on. A reference in the same process, which is host-bound, says how
many times longer the host then takes, x. An arm takes h seconds of the host and d of the device per
step. Its step should then take max(h x, d). The speed of a host changes by itself within half a
second, so a block of an arm, and the steps that give its h, lie between two short blocks of the
reference, turn after turn. h, x and the step are means over these turns, and leaving out one turn
after the other gives the standard error of the difference between a step and its prediction. Where
a step waits for its host, h is its own wall time on the host at hand, as in a report, so rows of a
host that is not slowed down are not judged. Events on the device time the blocks, since the host
may be stopped when a block ends.

What the output file has is printed and not measured again.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import shlex
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import Any

import torch

from sweeper.analysis.derive import MIN_WAITING, find_host_s, predict_step_s
from sweeper.core.protocol import Job
from sweeper.core.record import ARMS, Process, Round
from sweeper.core.settings import Measure
from sweeper.core.system.gpus import visible_gpus
from sweeper.core.trial import Trial
from sweeper.worker import session
from sweeper.worker.compilation import compiler
from sweeper.worker.compilation.counters import CompileCounters
from sweeper.worker.lease import Lease
from sweeper.worker.measurement.bench import STEPS_BEFORE_BLOCK, Arm, complete, without_collector
from sweeper.worker.measurement.host_time import host_per_step
from sweeper.worker.setup import TrialSetup

# both arms of each have fewer launches than the queue of the device takes, so that h is known
MODELS = {
    "alexnet": "",
    "mobilenet_v2": "",
    "distilbert_base": "text=none",  # eager transformers asks the device whether a mask has padding
    "vit_b16": "",
}
# little work for a GPU, and short steps
REFERENCE = "model=resnet18 batch_size=4 precision=amp mode=eager"
FACTORS = (1.0, 1.5, 2.5)  # by which the host is slowed down, nominally
ALONE = str(FACTORS[0])
RUNNING_S = 2e-3  # between two stops; a sleep is some 0.1 ms longer than asked for
TURNS = 32
HOST_STEPS = 2  # of an arm and turn, each from an idle device
BLOCK_S, REFERENCE_BLOCK_S = 0.1, 0.05  # of a block at factor 1
WARM_UP_S = 3.0
NEAR = 0.8, MIN_WAITING  # h x / d at which host and device are about equally fast
MAX_DIFFERENCE = 0.03
STOPPER = """
import os, select, signal, sys, time
pid, running_s, stopped_s = int(sys.argv[1]), *map(float, sys.argv[2:])

for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda *_: sys.exit(1))
print("ready", flush=True)
try:
    while not select.select([sys.stdin], [], [], 0)[0]:  # until its standard input is closed
        os.kill(pid, signal.SIGSTOP)
        time.sleep(stopped_s)
        os.kill(pid, signal.SIGCONT)
        time.sleep(running_s)
finally:
    os.kill(pid, signal.SIGCONT)
"""
HEADINGS = (
    "arm",
    "h ms",
    "d ms",
    "slowed",
    "x",
    "h x / d",
    "predicted ms",
    "measured ms",
    "difference",
    "standard error",
    "",
)


@dataclass(frozen=True)
class Turn:
    """Wall seconds per step that were taken within seconds, by nominal factor; factors are texts,
    as in JSON.
    """

    wall_s: Mapping[str, float]
    reference_s: Mapping[str, float]
    host_s: float  # until the call of a step returns, on the host at hand


@dataclass(frozen=True)
class Figures:
    """What was measured of a model, by arm; seconds are per step."""

    turns: Mapping[str, Sequence[Turn]] = field(default_factory=dict)
    # of the arms whose host time is known, too
    device_s: Mapping[str, float] = field(default_factory=dict)
    missing: str = ""  # why a figure is not there


@dataclass(frozen=True)
class Prediction:
    """What was predicted of a step, beside what was measured: means over turns."""

    host_s: float  # not slowed down
    slowdown: float  # x
    load: float  # seconds of the slowed host over seconds of the device
    predicted_s: float
    measured_s: float
    error: float | None = None  # standard error of the difference; None for a single turn

    @property
    def difference(self) -> float:
        """Of the measured from the predicted time, as a share."""
        return self.measured_s / self.predicted_s - 1

    @property
    def is_near(self) -> bool:
        """Whether host and device are about equally fast, so that neither can be left out."""
        return NEAR[0] < self.load < NEAR[1]

    @property
    def is_right(self) -> bool:
        return abs(self.difference) <= MAX_DIFFERENCE


def judge(turns: Sequence[Turn], device_s: float, factor: str) -> Prediction:
    """Compare the step on a slowed host with its prediction, with a standard error by the jackknife
    over turns.
    """
    found = _predict(turns, device_s, factor)
    if len(turns) == 1:
        return found
    rest = [
        _predict([*turns[:left_out], *turns[left_out + 1 :]], device_s, factor)
        for left_out in range(len(turns))
    ]
    differences = [one.difference for one in rest]
    return replace(found, error=math.sqrt(len(turns) - 1) * pstdev(differences))


def _predict(turns: Sequence[Turn], device_s: float, factor: str) -> Prediction:
    slowdown = fmean(turn.reference_s[factor] for turn in turns) / fmean(
        turn.reference_s[ALONE] for turn in turns
    )
    alone_s = fmean(turn.wall_s[ALONE] for turn in turns)
    host_s = find_host_s(fmean(turn.host_s for turn in turns), device_s, alone_s)
    predicted_s = predict_step_s(host_s, device_s, slowdown)
    measured_s = fmean(turn.wall_s[factor] for turn in turns)
    return Prediction(host_s, slowdown, host_s * slowdown / device_s, predicted_s, measured_s)


def require_host_bound(reference: Process) -> None:
    """Raise ValueError unless the reference waits for its host, and for that alone."""
    step_s, device_s = reference.step_s("eager"), reference.read_arm("device_step_s", "eager")
    if not step_s or not device_s or step_s < NEAR[1] * device_s:
        said = f"is {step_s / device_s:.2f}" if step_s and device_s else "is not known"
        raise ValueError(
            f"a step of the reference over its device step time {said}, it must be {NEAR[1]} at "
            "least"
        )


def make_trial(overrides: Iterable[str]) -> Trial:
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    from sweeper.config.grid import make_repository, split_off_hydra
    from sweeper.config.schema import conf_folder
    from sweeper.sweep.hydra_app import read_point

    given = list(overrides)
    with initialize_config_dir(str(conf_folder()), version_base="1.3"):
        cfg = compose("config", ["sweep=headroom", *given], return_hydra_config=True)
        files = make_repository(GlobalHydra.instance().config_loader(), cfg.hydra)
        return read_point(split_off_hydra(cfg, given), files).trial


@dataclass(frozen=True)
class Subject:
    """A trial that is built and warm, with the seconds of a step by arm."""

    setup: TrialSetup
    step_s: Mapping[str, float]

    @staticmethod
    def build(job: Job, notes: session.Notes) -> Subject:
        session.begin(job, notes)
        setup = session.build(job, notes)
        bench = setup.bench
        bench.run(setup.eager, bench.round_up(session.EAGER_STEPS))
        arms = (
            setup.eager,
            setup.compile(CompileCounters(keep_compiled=setup.eager.compiles_kernels)),
        )
        bench.first_steps_s(setup.compiled)
        return Subject(
            setup, {arm.name: complete(bench.warm_up(arm, WARM_UP_S))[0] for arm in arms}
        )

    @property
    def arms(self) -> tuple[Arm, Arm]:
        return self.setup.eager, self.setup.compiled

    def time_arm(self, arm: Arm, block_s: float) -> float:
        """Seconds per step of an arm, over as many steps as take `block_s` on a host that is not
        slowed down.
        """
        bench = self.setup.bench
        steps = bench.round_up(block_s / self.step_s[arm.name])
        bench.run(arm, bench.round_up(STEPS_BEFORE_BLOCK))
        if self.setup.device.type != "cuda":
            return complete(bench.block_s(arm, steps)) / steps
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        bench.synchronize()
        begin.record()
        bench.run(arm, steps)
        end.record()
        bench.synchronize()
        return begin.elapsed_time(end) * 1e-3 / steps

    def time_host(self, arm: Arm) -> float:
        """Seconds until the call of a step returns, from an idle device."""
        bench = self.setup.bench
        times_s = complete(bench.steps_s(arm, HOST_STEPS * bench.num_sizes, until_idle=False))
        return host_per_step(times_s, bench.num_sizes)


def take_turn(subject: Subject, reference: Subject) -> dict[str, Turn]:
    """Time both arms once for each factor, each between two blocks of the reference; turns by
    arm.
    """
    walls_s, references_s = (
        defaultdict[str, dict[str, float]](dict),
        defaultdict[str, dict[str, float]](dict),
    )
    hosts_s: dict[str, float] = {}
    for factor in FACTORS:
        with without_collector(), slow_down(factor):  # to collect takes longer than a block
            before_s = reference.time_arm(reference.setup.eager, REFERENCE_BLOCK_S)
            for arm in subject.arms:
                walls_s[arm.name][str(factor)] = subject.time_arm(arm, BLOCK_S)
                if factor == 1:
                    hosts_s[arm.name] = subject.time_host(arm)
                after_s = reference.time_arm(reference.setup.eager, REFERENCE_BLOCK_S)
                references_s[arm.name][str(factor)] = (before_s + after_s) / 2
                before_s = after_s
    return {
        arm.name: Turn(walls_s[arm.name], references_s[arm.name], hosts_s[arm.name])
        for arm in subject.arms
    }


def measure(trial: Trial, reference: Trial) -> Figures:
    """Measure a trial in this process, with the reference in turns. Raises RuntimeError when it
    fails.
    """
    turns: dict[str, list[Turn]] = defaultdict(list)
    begin = time.monotonic()

    def say(what: str) -> None:
        print(
            f"{trial.label}, {time.monotonic() - begin:.0f} s: {what}", file=sys.stderr, flush=True
        )

    def task(job: Job, _part: session.Part, notes: session.Notes) -> None:
        of_reference = session.Notes(notes.say, Process(0, 0, cold=True), notes.lease)
        other = Subject.build(Job(reference, Measure()), of_reference)
        subject = Subject.build(job, notes)
        compiler.end_compile_workers()
        gc.collect()
        gc.freeze()
        say("compiled and warm")
        for _ in range(TURNS):
            for arm, turn in take_turn(subject, other).items():
                turns[arm].append(turn)
        say(f"{TURNS} turns taken")
        walls_s = [median(turn.wall_s[ALONE] for turn in turns[arm]) for arm in ARMS]
        notes.add(steps_per_block=1, rounds=(Round("AB", *walls_s),))
        reference_s = median(turn.reference_s[ALONE] for turn in turns["eager"])
        # both arms are eager
        of_reference.add(steps_per_block=1, rounds=(Round("AB", reference_s, reference_s),))
        # last, since launches take longer in a process that has profiled
        if subject.setup.device.type == "cuda":
            complete(session.profile(subject.setup, notes))
            complete(session.profile(other.setup, of_reference))
            require_host_bound(of_reference.process)

    outcome = session.run(Job(trial, Measure()), session.Part(), lambda _phase: None, Lease(), task)
    say(outcome.status)
    process = outcome.process
    if outcome.status != "ok" or process is None:
        raise RuntimeError(f"{trial.label}: {outcome.status}: {outcome.message}")
    reasons = (process.host_time_missing, process.device_time_missing)
    known = {
        arm: process.read_arm("device_step_s", arm)
        for arm in ARMS
        if process.read_arm("host_step_s", arm)
    }
    device_s = {arm: seconds for arm, seconds in known.items() if seconds}
    return Figures(dict(turns), device_s, "; ".join(filter(None, reasons)))


@contextmanager
def slow_down(factor: float) -> Iterator[None]:
    """Have this process run 1 / `factor` of the time, in turns of `RUNNING_S`.

    Raises RuntimeError when it did not.
    """
    if factor == 1:
        yield
        return
    times = str(RUNNING_S), str(RUNNING_S * (factor - 1))
    command = [sys.executable, "-c", STOPPER, str(os.getpid()), *times]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stopper:
        assert stopper.stdin is not None
        assert stopper.stdout is not None
        ready = stopper.stdout.readline()
        try:
            yield
        finally:
            stopper.stdin.close()  # a kill could come while this process is stopped, for ever
    if not ready or stopper.returncode:
        raise RuntimeError(f"what slows this process down ended with {stopper.returncode}")


Row = tuple[list[str], Prediction | None]


def describe(name: str, figures: Figures) -> Iterator[Row]:
    """Yield the texts of a row in the order of HEADINGS, and its prediction where there is one."""
    for arm, factor in product(ARMS, map(str, FACTORS)):
        turns, device_s = figures.turns.get(arm), figures.device_s.get(arm)
        if not turns or device_s is None:
            yield (
                [
                    f"{name} {arm}",
                    "",
                    "",
                    factor,
                    *[""] * 6,
                    f"unknown: {figures.missing or 'no GPU'}",
                ],
                None,
            )
            continue
        found = judge(turns, device_s, factor)
        times = [found.host_s, device_s, found.predicted_s, found.measured_s]
        host, device, predicted, measured = (f"{seconds * 1e3:.3f}" for seconds in times)
        verdict = "near" if found.is_near else "" if found.is_right or factor == ALONE else "WRONG"
        texts = [
            f"{name} {arm}",
            host,
            device,
            factor,
            f"{found.slowdown:.3f}",
            f"{found.load:.2f}",
        ]
        error = "" if found.error is None else f"{found.error:.1%}"
        yield [*texts, predicted, measured, f"{found.difference:+.1%}", error, verdict], found


def print_row(texts: Iterable[str]) -> None:
    print(
        f"| {' | '.join(text.replace('|', '/').replace(chr(10), ' ') for text in texts)} |",
        flush=True,
    )


def read(file: Path, machine: Mapping[str, object]) -> dict[str, Figures]:
    """Read what was measured, by overrides. Raises SystemExit for another machine's, or an older
    file.
    """
    lines = (
        [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        if file.exists()
        else []
    )
    if any(line.get("machine") != machine for line in lines):
        raise SystemExit(f"{file} is not of {machine}: give another --output")
    return {line["overrides"]: _load(**line["figures"]) for line in lines}


def _load(turns: Mapping[str, Sequence[Mapping[str, Any]]], **figures: Any) -> Figures:
    return Figures(
        {arm: [Turn(**turn) for turn in found] for arm, found in turns.items()}, **figures
    )


def main(options: argparse.Namespace) -> None:
    machine = {
        "device": next((gpu.name for gpu in visible_gpus()), "cpu"),
        "factors": list(FACTORS),
        "running_s": RUNNING_S,
        "host_steps": HOST_STEPS,
        "block_s": BLOCK_S,
        "timed_by": "events",
        "reference": options.reference,
    }
    stored = read(options.output, machine)

    def find(overrides: str) -> Figures:
        if overrides not in stored:
            trials = [make_trial(shlex.split(text)) for text in (overrides, options.reference)]
            # a compiler's state is that of a process
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                stored[overrides] = pool.submit(measure, *trials).result()
            line = {
                "overrides": overrides,
                "machine": machine,
                "figures": asdict(stored[overrides]),
            }
            with options.output.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        return stored[overrides]

    print_row(HEADINGS)
    print("|---" * len(HEADINGS) + "|", flush=True)
    judged = []
    for name in options.models:
        try:
            figures = find(f"model={name} {MODELS.get(name, '')} {options.overrides}")
        except RuntimeError as error:
            figures = Figures(missing=str(error))
        for texts, found in describe(name, figures):
            print_row(texts)
            if found and texts[3] != str(FACTORS[0]):
                judged.append(found)
    far = [found for found in judged if not found.is_near]
    right = sum(found.is_right for found in far)
    print(
        f"\n{right} of {len(far)} predictions for a slowed host lie within {MAX_DIFFERENCE:.0%}; ",
        end="",
    )
    print(f"{len(judged) - len(far)} more have h x / d between {NEAR[0]} and {NEAR[1]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FILE", help="JSON lines, one per model"
    )
    parser.add_argument("--models", default=",".join(MODELS), help="default: %(default)s")
    parser.add_argument(
        "--reference", default=REFERENCE, metavar="OVERRIDES", help="default: %(default)s"
    )
    parser.add_argument(
        "--overrides", default="precision=amp", help="of all models, default: %(default)s"
    )
    chosen = parser.parse_args()
    chosen.models = chosen.models.split(",")
    main(chosen)
