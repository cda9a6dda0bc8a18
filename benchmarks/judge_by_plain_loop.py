"""Do the speedups of stored sweeps agree with those of a plain training loop? One table row per
trial, printed when its loop ends.

    python benchmarks/judge_by_plain_loop.py h200-timm h200-hf --models repvgg_a2,BertForMaskedLM \\
        --output judged.jsonl --gpus 4

Each trial in training that is `ok` is measured once more by `plain_loop.py`, with compile caches of
its own, if the loop has its step: no other optimizer, backend or option of the compiler. Trials
that the output file has are printed and not run again. The two agree where speedups differ by at
most 3 %: by the time in which the GPU is busy, and by the wall clock where neither says that an arm
waits for the host.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from sweeper.analysis.derive import derive
from sweeper.analysis.stats import median_of
from sweeper.core.paths import SweepPaths
from sweeper.core.record import ARMS, Record, of_arm
from sweeper.core.serialization import get_mapping
from sweeper.core.trial import Model, Precision, Text, Trial

PLAIN_LOOP = Path(__file__).with_name("plain_loop.py")
LIBRARIES = ("timm", "torchvision", "transformers")  # of plain_loop.py
MAX_DIFFERENCE = 0.03
LIMIT_S = 900  # of one loop; then it has failed
LAST_LINES = 3  # of a loop that failed, in the table
HEADINGS = (
    "model", "batch", "precision", "device: sweeper", "plain", "difference", "wall: sweeper",
    "plain", "difference", "waits: sweeper", "plain", "compiled MHz: sweeper", "plain", "verdict",
)  # fmt: skip
Figures = Mapping[str, Any]


class FailedError(Exception):
    """A loop gave no figures; the text says why."""


def read_records(options: argparse.Namespace) -> list[Record]:
    """Return the trials to judge, by `options.sweeps`, `models` and `precision`."""
    paths = [path for sweep in options.sweeps for path in SweepPaths.of(sweep).records()]
    return [
        record
        for record in map(Record.read, paths)
        if derive(record).speedup
        and has_step(record.trial)
        and (not options.models or record.trial.labels.model in options.models)
        and record.trial.labels.precision in options.precision
    ]


def has_step(trial: Trial) -> bool:
    """Whether the loop has the step of a trial."""
    model, precisions = trial.model, (Precision(), Precision(autocast="auto", grad_scaler=True))
    known = Trial(
        Model(
            model.library,
            model.name,
            sequence_length=model.sequence_length,
            dropout=model.dropout,
            arguments=model.arguments,
        ),
        trial.batch_size,
        trial.labels,
        precision=trial.precision,
        mode=trial.mode,
        device=trial.device,
        text=Text(trial.text.form),
    )
    return trial == known and model.library in LIBRARIES and trial.precision in precisions


def read_figures(record: Record) -> dict[str, Any]:
    """Return the figures of a record under the names of plain_loop.py."""
    result = derive(record)
    assert result.eager_step
    assert result.compiled_step
    assert result.speedup
    busy_s = {
        arm: median_of(of_arm(process.device_time_s, arm) for process in record.processes)
        for arm in ARMS
    }
    gpus = [process.gpu for process in record.processes if process.gpu]
    # by busy time, as plain_loop.py, which knows no gaps
    eager, compiled = busy_s["eager"], busy_s["compiled"]
    return {
        "eager_ms": result.eager_step.ratio * 1e3,
        "compiled_ms": result.compiled_step.ratio * 1e3,
        "wall_speedup": result.speedup.ratio,
        **{f"{arm}_busy_ms": time_s and time_s * 1e3 for arm, time_s in busy_s.items()},
        "device_speedup": eager / compiled if eager and compiled else None,
        "compiled_clock_mhz": median_of(of_arm(gpu.clock_mhz, "compiled") for gpu in gpus),
        "waits_for_host": {"both": list(ARMS), None: []}.get(
            result.host_bound_arms, [result.host_bound_arms]
        ),
    }


def list_arguments(record: Record) -> list[str]:
    """Return the step of a record in the words of plain_loop.py."""
    trial, model = record.trial, record.trial.model
    arguments = {
        "batch-size": record.batch_size,
        "sequence-length": model.sequence_length,
        # without position_ids it is "packed without position_ids"
        "text": str(record.settings.get("text") or "none").split()[0],
        "dropout": None if model.dropout else 0,
        "precision": trial.labels.precision,
        "mode": trial.mode,
        "settings": json.dumps(dict(model.arguments)),
    }
    known = [f"--{name}={value}" for name, value in arguments.items() if value is not None]
    return [f"{model.library}/{model.name}", *known]


def measure_by_plain_loop(arguments: list[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return what plain_loop.py found."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {
            name: f"{folder}/{name}" for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
        }
        answer = Path(folder, "figures.json")
        command = [sys.executable, str(PLAIN_LOOP), *arguments, f"--json={answer}"]
        try:
            done = subprocess.run(
                command,
                env={**environment, **caches},
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise FailedError(f"it took over {LIMIT_S} s") from error
        if not answer.exists():
            lines = (done.stdout + done.stderr).strip().splitlines()
            raise FailedError(" ".join(lines[-LAST_LINES:]) or f"exit code {done.returncode}")
        return {**json.loads(answer.read_text(encoding="utf-8")), "arguments": arguments}


def name_row(record: Record) -> list[str]:
    labels = record.trial.labels
    return [labels.model, str(record.batch_size), labels.precision]


def judge(record: Record, plain: Figures) -> list[str]:
    """Return the texts of a row, in the order of HEADINGS."""
    sweeper = read_figures(record)
    waiting = [arm for figures in (sweeper, plain) for arm in figures["waits_for_host"]]
    texts, verdicts = name_row(record), []
    for clock in ("device", "wall"):
        ours, theirs = (figures[f"{clock}_speedup"] for figures in (sweeper, plain))
        if ours is None or theirs is None:
            texts += ["", "", ""]
            verdicts.append(f"{clock} speedup is missing")
            continue
        difference = ours / theirs - 1
        texts += [f"{ours:.3f}", f"{theirs:.3f}", f"{difference:+.1%}"]
        if clock == "device" or not waiting:
            verdicts.append(
                f"{'agrees' if abs(difference) <= MAX_DIFFERENCE else 'DIFFERS'} by {clock}"
            )
    for figures in (sweeper, plain):
        known = figures["device_speedup"] is not None
        texts.append(" and ".join(figures["waits_for_host"]) or ("no arm" if known else "unknown"))
    clocks_mhz = [figures.get("compiled_clock_mhz") for figures in (sweeper, plain)]
    texts += [f"{mhz:.0f}" if mhz else "" for mhz in clocks_mhz]
    gpu = get_mapping(record.environment, "device").get("name")
    if plain["gpu"] not in (None, gpu):
        verdicts.append(f"but sweeper ran on {gpu}, and the loop on {plain['gpu']}")
    return [*texts, ", ".join(verdicts)]


def print_row(texts: Iterable[str]) -> None:
    print(f"| {' | '.join(text.replace('|', '/') for text in texts)} |", flush=True)


def main(options: argparse.Namespace, records: list[Record]) -> bool:
    """Print all rows; whether every trial has figures of the loop."""
    print_row(HEADINGS)
    print("|---" * len(HEADINGS) + "|", flush=True)
    lines = (
        options.output.read_text(encoding="utf-8").splitlines() if options.output.exists() else []
    )
    stored = {row["trial"]: row["plain"] for row in map(json.loads, lines)}
    cores, output_lock = sorted(os.sched_getaffinity(0)), threading.Lock()
    free_gpus: SimpleQueue[int] = SimpleQueue()
    for gpu in range(options.gpus):
        free_gpus.put(gpu)

    def judge_record(record: Record) -> bool:
        """Run the loop on one GPU and its share of the cores; whether it gave figures."""
        if plain := stored.get(record.trial_id):
            print_row(judge(record, plain))
            return True
        gpu = free_gpus.get()
        # The affinity is that of this thread, and of the programs that it starts.
        os.sched_setaffinity(0, cores[gpu :: options.gpus] or cores)
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": options.devices[gpu]}
        try:
            plain = measure_by_plain_loop(list_arguments(record), environment)
        except FailedError as error:
            left = len(HEADINGS) - len(name_row(record)) - 1
            print_row([*name_row(record), *[""] * left, f"failed: {error}"])
            return False
        finally:
            free_gpus.put(gpu)
        with output_lock, options.output.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"trial": record.trial_id, "plain": plain}) + "\n")
        print_row(judge(record, plain))
        return True

    with ThreadPoolExecutor(options.gpus) as pool:
        return all(pool.map(judge_record, records))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sweeps", nargs="+", metavar="SWEEP", help="the name of one in runs/")
    parser.add_argument(
        "--models", type=lambda text: text.split(","), default=[], help="default: all"
    )
    parser.add_argument("--precision", choices=("amp", "fp32"), nargs="+", default=["amp", "fp32"])
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FILE", help="JSON lines, one per trial"
    )
    parser.add_argument(
        "--gpus", type=int, default=1, metavar="N", help="one loop at a time on each of N GPUs"
    )
    chosen = parser.parse_args()
    chosen.devices = os.environ.get(
        "CUDA_VISIBLE_DEVICES", ",".join(map(str, range(chosen.gpus)))
    ).split(",")
    found = read_records(chosen)
    if unknown := set(chosen.models) - {record.trial.labels.model for record in found}:
        parser.error(f"no trial to judge there: {', '.join(sorted(unknown))}")
    if not found:
        parser.error(f"no trial to judge in {', '.join(chosen.sweeps)}")
    if not 1 <= chosen.gpus <= len(chosen.devices):
        parser.error(f"--gpus {chosen.gpus}: give a number from 1 to {len(chosen.devices)}")
    if not chosen.output.absolute().parent.is_dir():
        parser.error(f"--output {chosen.output}: there is no such folder")
    sys.exit(not main(chosen, found))
