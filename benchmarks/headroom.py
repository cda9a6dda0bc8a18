"""Does host headroom predict the step time on a slower host? One table row per arm of a model and slowdown.

    python benchmarks/headroom.py --output headroom.jsonl                  on a GPU, about 90 seconds per model
    python benchmarks/headroom.py --output headroom.jsonl --models vit_b16 --overrides "precision=amp batch_size=16"

The host is slowed down by one busy process, and by two, on the one core to which a worker is pinned with all its
threads: backward runs in a thread of its own, and both must be slowed alike. A model that is host-bound already
(`--reference`) says how many times longer the host then takes, x. Each other arm takes h seconds of the host and d of
the device per step, measured on the same core with nothing beside it. Its step should then take max(h x, d).

What the output file has is printed and not measured again.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from statistics import median

from sweeper.analysis.metrics import predict_step_s
from sweeper.core.protocol import Job
from sweeper.core.record import ARMS, Round
from sweeper.core.settings import Measure
from sweeper.core.trial import Trial

MODELS = {
    "resnet50": "",
    "mobilenet_v2": "",
    "bert_base": "text=none",  # eager transformers asks the device whether a mask has padding
    "vit_b16": "",
}
REFERENCE = (
    "model=densenet121 batch_size=4 precision=amp mode=eager"  # hundreds of layers, each of them little work for a GPU
)
COMPETITORS = (0, 1, 2)  # busy processes beside the worker, on its core
BLOCK_S, BLOCKS = 1.0, 3  # long beside the slices of the scheduler
WARM_UP_S = 5.0
NEAR = 0.8, 1.25  # h x / d at which host and device are about equally fast
MAX_DIFFERENCE = 0.03
BUSY = """
from sweeper.worker.process import die_with_parent
die_with_parent()
print("ready", flush=True)
while True:
    pass
"""
HEADINGS = ("arm", "h ms", "d ms", "beside", "x", "h x / d", "predicted ms", "measured ms", "difference", "")


@dataclass(frozen=True)
class Figures:
    """What was measured of a model: seconds per step by arm, wall seconds by number of competitors and arm as well."""

    host_s: Mapping[str, float] = field(default_factory=dict)
    device_s: Mapping[str, float] = field(default_factory=dict)
    wall_s: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # a number is a text, as in JSON
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
    """Find x by number of competitors: the host-bound reference takes as many times longer as the host.

    Raises ValueError for a reference that is not known to be host-bound in eager.
    """
    host_s, device_s = reference.host_s.get("eager"), reference.device_s.get("eager")
    if not host_s or not device_s:
        raise ValueError(f"the reference has no host time or no device step time: {reference.missing}")
    if host_s < NEAR[1] * device_s:
        raise ValueError(f"the reference is not host-bound: h / d is {host_s / device_s:.2f}, it must be {NEAR[1]}")
    alone_s = reference.wall_s["0"]["eager"]
    return {number: wall_s["eager"] / alone_s for number, wall_s in reference.wall_s.items()}


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


def measure(trial: Trial, core: int) -> Figures:
    """Measure a trial in this process, which stays pinned to the core afterwards."""
    from sweeper.worker import session
    from sweeper.worker.compilation import compiler
    from sweeper.worker.compilation.counters import CompileCounters
    from sweeper.worker.lease import Lease
    from sweeper.worker.measurement.bench import complete

    wall_s: dict[str, dict[str, float]] = {}

    def task(job: Job, _part: session.Part, notes: session.Notes) -> None:
        session.begin(job, notes)
        setup = session.build(job, notes)
        bench = setup.bench
        bench.run(setup.eager, bench.round_up(session.EAGER_STEPS))
        arms = setup.eager, setup.compile(CompileCounters(keep_compiled=setup.eager.compiles_kernels))
        bench.first_steps_s(setup.compiled)
        compiler.end_compile_workers()
        pin(core)
        step_s = {arm.name: complete(bench.warm_up(arm, WARM_UP_S))[0] for arm in arms}
        gc.collect()
        gc.freeze()
        for number in COMPETITORS:
            with compete(core, number):
                blocks: dict[str, list[float]] = {arm.name: [] for arm in arms}
                for arm in arms * BLOCKS:
                    steps = bench.round_up(BLOCK_S / step_s[arm.name])
                    bench.run(arm, bench.round_up(2))
                    gc.disable()
                    blocks[arm.name].append(complete(bench.block_s(arm, steps, "fail_on_recompile")) / steps)
                    gc.enable()
            wall_s[str(number)] = {arm: median(times) for arm, times in blocks.items()}
        once = Round("AB", wall_s["0"]["eager"], wall_s["0"]["compiled"])
        notes.add(steps_per_block=1, rounds=(once,))
        if setup.device.type == "cuda":  # last, since launches take longer in a process that has profiled
            complete(session.profile(setup, notes))

    outcome = session.run(Job(trial, Measure()), session.Part(), lambda _phase: None, Lease(), task)
    process = outcome.process
    assert process is not None
    reasons = (outcome.message, process.host_time_missing, process.device_time_missing)
    both = (process.host_step_s, process.device_step_s)
    host_s, device_s = ({arm: found for arm in ARMS if (found := getattr(times, arm, None))} for times in both)
    return Figures(host_s, device_s, wall_s, "; ".join(filter(None, reasons)))


def pin(core: int) -> None:
    """Pin all threads of this process to a core, and with them those that they will start."""
    for task in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(task.name), {core})


@contextmanager
def compete(core: int, number: int) -> Iterator[None]:
    """Keep a core busy with as many processes."""
    with ExitStack() as stack:
        for _ in range(number):
            busy = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE)
            stack.callback(busy.wait)
            stack.callback(busy.kill)
            os.sched_setaffinity(busy.pid, {core})
            assert busy.stdout is not None
            busy.stdout.readline()
        yield


Row = tuple[list[str], Prediction | None]


def describe(name: str, figures: Figures, slowdowns: Mapping[str, float]) -> Iterator[Row]:
    """Yield the texts of a row in the order of HEADINGS, and its prediction where there is one."""
    for arm in ARMS:
        host_s, device_s = figures.host_s.get(arm), figures.device_s.get(arm)
        for number, slowdown in slowdowns.items():
            texts = [f"{name} {arm}", *("" if value is None else f"{value * 1e3:.3f}" for value in (host_s, device_s))]
            texts += [number, f"{slowdown:.3f}"]
            wall_s = figures.wall_s.get(number, {}).get(arm)
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


def main(options: argparse.Namespace) -> None:
    core = max(os.sched_getaffinity(0))
    lines = options.output.read_text(encoding="utf-8").splitlines() if options.output.exists() else []
    stored = {line["overrides"]: Figures(**line["figures"]) for line in map(json.loads, lines)}

    def find(overrides: str) -> Figures:
        if overrides not in stored:
            trial = make_trial(shlex.split(overrides))
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:  # a compiler's state is that of a process
                stored[overrides] = pool.submit(measure, trial, core).result()
            line = {"overrides": overrides, "figures": asdict(stored[overrides])}
            with options.output.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        return stored[overrides]

    slowdowns = find_slowdowns(find(options.reference))
    print_row(HEADINGS)
    print("|---" * len(HEADINGS) + "|", flush=True)
    judged = []
    for name in options.models:
        figures = find(f"model={name} {MODELS.get(name, '')} {options.overrides}")
        for texts, found in describe(name, figures, slowdowns):
            print_row(texts)
            if found and texts[3] != "0":
                judged.append(found)
    far = [found for found in judged if not found.is_near]
    right = sum(found.is_right for found in far)
    print(f"\n{right} of {len(far)} predictions for a slowed host lie within {MAX_DIFFERENCE:.0%}; ", end="")
    print(f"{len(judged) - len(far)} more have h x / d between {NEAR[0]} and {NEAR[1]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="JSON lines, one per model")
    parser.add_argument("--models", default=",".join(MODELS), help="default: %(default)s")
    parser.add_argument("--reference", default=REFERENCE, metavar="OVERRIDES", help="default: %(default)s")
    parser.add_argument("--overrides", default="precision=amp", help="of all models, default: %(default)s")
    chosen = parser.parse_args()
    chosen.models = chosen.models.split(",")
    main(chosen)
