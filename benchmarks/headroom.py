"""Does host headroom predict the step time on a slower host? One table row per arm of a model and slowdown.

    python benchmarks/headroom.py --output headroom.jsonl                  on a GPU, about a minute per model
    python benchmarks/headroom.py --output headroom.jsonl --models vit_b16 --overrides "precision=amp batch_size=16"

A slower host is made by stopping the worker, with all its threads, for a part of each hundredth of a second, while
the device goes on. A model that is host-bound already (`--reference`) says how many times longer the host then takes,
x. Each other arm takes h seconds of the host and d of the device per step. Its step should then take max(h x, d). The
speed of a host changes by itself, so all times of a model are taken in turn, several times.

What the output file has is printed and not measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import median

from sweeper.analysis.derive import predict_step_s
from sweeper.core.protocol import Job
from sweeper.core.record import ARMS, Round
from sweeper.core.settings import Measure
from sweeper.core.system.gpus import visible_gpus
from sweeper.core.trial import Trial

MODELS = {  # both arms of each have fewer launches than the queue of the device takes, so that h is known
    "resnet18": "",
    "mobilenet_v2": "",
    "distilbert_base": "text=none",  # eager transformers asks the device whether a mask has padding
    "vit_b16": "",
}
REFERENCE = (
    "model=densenet121 batch_size=4 precision=amp mode=eager"  # hundreds of layers, each of them little work for a GPU
)
FACTORS = (1.0, 1.5, 2.5)  # by which the host is slowed down, nominally
RUNNING_S = 5e-3  # between two stops; a sleep is some 0.1 ms longer than asked for
BLOCK_S, REPETITIONS = 0.7, 3
WARM_UP_S = 3.0
NEAR = 0.8, 1.25  # h x / d at which host and device are about equally fast
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
HEADINGS = ("arm", "h ms", "d ms", "slowed", "x", "h x / d", "predicted ms", "measured ms", "difference", "")


@dataclass(frozen=True)
class Figures:
    """What was measured of a model: seconds per step by arm, wall seconds by nominal factor and arm."""

    host_s: Mapping[str, float] = field(default_factory=dict)
    device_s: Mapping[str, float] = field(default_factory=dict)
    wall_s: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # a factor is a text, as in JSON
    missing: str = ""  # why a figure is not there


@dataclass(frozen=True)
class Prediction:
    """What was predicted of a step, beside what was measured."""

    load: float  # seconds of the slowed host over seconds of the device
    predicted_s: float
    difference: float  # of the measured time from the predicted one, as a share
    is_near: bool  # host and device are about equally fast, so that neither can be left out

    @property
    def is_right(self) -> bool:
        return abs(self.difference) <= MAX_DIFFERENCE


def judge(host_s: float, device_s: float, slowdown: float, wall_s: float) -> Prediction:
    """Compare a step that took `wall_s` on the slowed host with its prediction."""
    predicted_s, load = predict_step_s(host_s, device_s, slowdown), host_s * slowdown / device_s
    return Prediction(load, predicted_s, wall_s / predicted_s - 1, NEAR[0] < load < NEAR[1])


def find_slowdowns(reference: Figures) -> dict[str, float]:
    """Find x by nominal factor: the host-bound reference takes as many times longer as the host.

    Raises ValueError for a reference that is not known to be host-bound in eager.
    """
    host_s, device_s = reference.host_s.get("eager"), reference.device_s.get("eager")
    if not host_s or not device_s:
        raise ValueError(f"the reference has no host time or no device step time: {reference.missing}")
    if host_s < NEAR[1] * device_s:
        raise ValueError(f"the reference is not host-bound: h / d is {host_s / device_s:.2f}, it must be {NEAR[1]}")
    seconds = {factor: sum(wall_s.values()) for factor, wall_s in reference.wall_s.items()}  # both arms run eager code
    return {factor: slowed_s / seconds[str(FACTORS[0])] for factor, slowed_s in seconds.items()}


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


def measure(trial: Trial) -> Figures:
    """Measure a trial in this process."""
    from sweeper.worker import session
    from sweeper.worker.compilation import compiler
    from sweeper.worker.compilation.counters import CompileCounters
    from sweeper.worker.lease import Lease
    from sweeper.worker.measurement import host_time
    from sweeper.worker.measurement.bench import STEPS_BEFORE_BLOCK, complete, without_collector

    host_s: dict[str, list[float]] = defaultdict(list)
    wall_s: dict[tuple[float, str], list[float]] = defaultdict(list)

    def task(job: Job, _part: session.Part, notes: session.Notes) -> None:
        session.begin(job, notes)
        setup = session.build(job, notes)
        bench = setup.bench
        bench.run(setup.eager, bench.round_up(session.EAGER_STEPS))
        arms = setup.eager, setup.compile(CompileCounters(keep_compiled=setup.eager.compiles_kernels))
        bench.first_steps_s(setup.compiled)
        compiler.end_compile_workers()
        step_s = {arm.name: complete(bench.warm_up(arm, WARM_UP_S))[0] for arm in arms}
        for _ in range(REPETITIONS):
            for name, seconds in complete(host_time.time_arms(bench, arms, step_s)).items():
                host_s[name].append(seconds)
            for factor, arm in product(FACTORS, arms):
                steps = bench.round_up(BLOCK_S / step_s[arm.name])
                with without_collector(), slow_down(factor):
                    bench.run(arm, bench.round_up(STEPS_BEFORE_BLOCK))
                    seconds = complete(bench.block_s(arm, steps, "fail_on_recompile"))
                wall_s[factor, arm.name].append(seconds / steps)
        once = Round("AB", *(median(wall_s[FACTORS[0], arm.name]) for arm in arms))
        notes.add(steps_per_block=1, rounds=(once,))
        if setup.device.type == "cuda":  # last, since launches take longer in a process that has profiled
            complete(session.profile(setup, notes))

    outcome = session.run(Job(trial, Measure()), session.Part(), lambda _phase: None, Lease(), task)
    process = outcome.process
    assert process is not None
    reasons = (outcome.message, process.host_time_missing, process.device_time_missing)
    known, device_s = (
        {arm: found for arm in ARMS if (found := getattr(times, arm, None))}
        for times in (process.host_step_s, process.device_step_s)
    )
    walls = {
        str(factor): {arm: median(times) for (of, arm), times in wall_s.items() if of == factor} for factor in FACTORS
    }
    host = {arm: median(host_s[arm]) for arm in known}  # those of which nothing is known may hold a wait for the device
    return Figures(host, device_s, walls, "; ".join(filter(None, reasons)))


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


def describe(name: str, figures: Figures, slowdowns: Mapping[str, float]) -> Iterator[Row]:
    """Yield the texts of a row in the order of HEADINGS, and its prediction where there is one."""
    for arm in ARMS:
        host_s, device_s = figures.host_s.get(arm), figures.device_s.get(arm)
        for factor, slowdown in slowdowns.items():
            texts = [f"{name} {arm}", *("" if value is None else f"{value * 1e3:.3f}" for value in (host_s, device_s))]
            texts += [factor, f"{slowdown:.3f}"]
            wall_s = figures.wall_s.get(factor, {}).get(arm)
            if host_s is None or device_s is None or wall_s is None:
                measured = "" if wall_s is None else f"{wall_s * 1e3:.3f}"
                yield [*texts, "", "", measured, "", f"unknown: {figures.missing}"], None
                continue
            found = judge(host_s, device_s, slowdown, wall_s)
            texts += [f"{found.load:.2f}", f"{found.predicted_s * 1e3:.3f}", f"{wall_s * 1e3:.3f}"]
            verdict = "near" if found.is_near else "" if found.is_right else "WRONG"
            yield [*texts, f"{found.difference:+.1%}", verdict], found


def print_row(texts: Iterable[str]) -> None:
    print(f"| {' | '.join(text.replace('|', '/').replace(chr(10), ' ') for text in texts)} |", flush=True)


def read(file: Path, machine: Mapping[str, object]) -> dict[str, Figures]:
    """Read what was measured, by overrides. Raises SystemExit for another machine's, or an older file."""
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
    if any(line.get("machine") != machine for line in lines):
        raise SystemExit(f"{file} is not of {machine}: give another --output")
    return {line["overrides"]: Figures(**line["figures"]) for line in lines}


def main(options: argparse.Namespace) -> None:
    machine = {
        "device": next((gpu.name for gpu in visible_gpus()), "cpu"),
        "factors": list(FACTORS),
        "running_s": RUNNING_S,
    }
    stored = read(options.output, machine)

    def find(overrides: str, again: str = "") -> Figures:
        if (key := overrides + again) not in stored:
            trial = make_trial(shlex.split(overrides))
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:  # a compiler's state is that of a process
                stored[key] = pool.submit(measure, trial).result()
            line = {"overrides": key, "machine": machine, "figures": asdict(stored[key])}
            with options.output.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        return stored[key]

    slowdowns = find_slowdowns(find(options.reference))
    print_row(HEADINGS)
    print("|---" * len(HEADINGS) + "|", flush=True)
    judged = []
    for name in options.models:
        figures = find(f"model={name} {MODELS.get(name, '')} {options.overrides}")
        for texts, found in describe(name, figures, slowdowns):
            print_row(texts)
            if found and texts[3] != str(FACTORS[0]):
                judged.append(found)
    far = [found for found in judged if not found.is_near]
    right = sum(found.is_right for found in far)
    print(f"\n{right} of {len(far)} predictions for a slowed host lie within {MAX_DIFFERENCE:.0%}; ", end="")
    print(f"{len(judged) - len(far)} more have h x / d between {NEAR[0]} and {NEAR[1]}")
    later = find_slowdowns(find(options.reference, " (again)"))
    print("x by the reference, measured again:", ", ".join(f"{later[factor]:.3f}" for factor in slowdowns))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="JSON lines, one per model")
    parser.add_argument("--models", default=",".join(MODELS), help="default: %(default)s")
    parser.add_argument("--reference", default=REFERENCE, metavar="OVERRIDES", help="default: %(default)s")
    parser.add_argument("--overrides", default="precision=amp", help="of all models, default: %(default)s")
    chosen = parser.parse_args()
    chosen.models = chosen.models.split(",")
    main(chosen)
