"""Do sweeper's speedups agree with those of a plain training loop? One table row per cell, printed
as the cell ends.

    python benchmarks/judge_by_plain_loop.py --output judged.jsonl
    python benchmarks/judge_by_plain_loop.py --output judged.jsonl --gpus 4 --cells bert_base,gpt2
    python benchmarks/judge_by_plain_loop.py --output tiny.jsonl --cells bert_base \\
        --sweeper "device=cpu batch_size=2" --plain "--device cpu --batch-size 2"

A cell is one training step under AMP. `python -m sweeper` measures it, then `plain_loop.py`, on one
GPU, each with compile caches of its own. Cells that the output file has are printed and not run
again. The two agree where speedups differ by at most 3 %: by device time, and by the wall clock
where neither says that an arm waits for the host.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from sweeper.analysis.derive import derive
from sweeper.core.paths import SweepPaths
from sweeper.core.record import ARMS, Record, of_arm

PLAIN_LOOP = Path(__file__).with_name("plain_loop.py")
MAX_DIFFERENCE = 0.03
LIMIT_S = 900  # of one program; then the cell has failed
LAST_LINES = 3  # of a program that failed, in the table
TRANSFORMERS = "model=transformers model.family=nlp"
LLAMA = (
    "hidden_size:1024,num_hidden_layers:8,num_attention_heads:16,"
    "num_key_value_heads:8,intermediate_size:2816"
)
CELLS = {  # the names of plain_loop.py, and what they are for sweeper
    "resnet50": "model=resnet50",
    "mobilenet_v2": "model=mobilenet_v2",
    "vit_b_16": "model=torchvision model.name=vit_b_16 model.family=vit batch_size=128",
    "swin_tiny_patch4_window7_224": "model=swin_tiny",
    "bert_base": "model=bert_base",
    "distilbert": "model=distilbert_base model.sequence_length=256 batch_size=64",
    "roberta": f"{TRANSFORMERS} model.name=RobertaForSequenceClassification "
    "model.sequence_length=256 batch_size=32",
    "albert": f"{TRANSFORMERS} model.name=AlbertForMaskedLM model.sequence_length=512 batch_size=4",
    "t5": f"{TRANSFORMERS} model.name=T5ForConditionalGeneration model.sequence_length=512 "
    "batch_size=16",
    "bart": f"{TRANSFORMERS} model.name=BartForConditionalGeneration model.sequence_length=512 "
    "batch_size=16",
    "gpt2": f"{TRANSFORMERS} model.name=GPT2LMHeadModel model.sequence_length=1024 batch_size=8",
    "llama": f"{TRANSFORMERS} model.name=LlamaForCausalLM model.sequence_length=1024 batch_size=4 "
    f"model.arguments={{{LLAMA},vocab_size:32000}}",
}
HEADINGS = (
    "cell", "device: sweeper", "plain", "difference", "wall: sweeper", "plain", "difference",
    "waits: sweeper", "plain",
    "verdict",
)  # fmt: skip
Figures = Mapping[str, Any]


class FailedError(Exception):
    """A program gave no figures; the text says why."""


def measure_by_sweeper(
    cell: str, options: argparse.Namespace, environment: Mapping[str, str]
) -> dict[str, Any]:
    """Return the figures of sweeper's record under the names of plain_loop.py."""
    sweep = f"{options.sweep}-{cell}"
    axes = [*shlex.split(CELLS[cell]), f"precision={options.precision}", f"mode={options.mode}"]
    settings = [
        f"sweep={sweep}",
        "retry=all",
        "measure=quick",
        "measure.back_off=false",
        "tracking.enabled=false",
    ]
    overrides = [*axes, *settings, *shlex.split(options.sweeper)]
    before = time.time()
    output = _run([sys.executable, "-m", "sweeper", *overrides], environment)
    found = [path for path in SweepPaths.of(sweep).records() if path.stat().st_mtime >= before]
    if len(found) != 1:
        raise FailedError(f"sweeper wrote {len(found)} records: {output}")
    record = Record.loads(found[0].read_text(encoding="utf-8"))
    if record.status != "ok":
        raise FailedError(f"sweeper: {record.status}: {record.message}")
    result, (process,) = derive(record), record.processes
    assert result.eager_step
    assert result.compiled_step
    assert result.speedup
    busy = {arm: of_arm(process.device_time_s, arm) for arm in ARMS}
    device_speedup = None  # by busy time, as plain_loop.py, which knows no gaps
    if busy["eager"] and busy["compiled"]:
        device_speedup = busy["eager"] / busy["compiled"]
    return {
        "eager_ms": result.eager_step.ratio * 1e3,
        "compiled_ms": result.compiled_step.ratio * 1e3,
        "wall_speedup": result.speedup.ratio,
        **{f"{arm}_busy_ms": busy_s and busy_s * 1e3 for arm, busy_s in busy.items()},
        "device_speedup": device_speedup,
        "waits_for_host": {"both": list(ARMS), None: []}.get(
            result.host_bound_arms, [result.host_bound_arms]
        ),
        "flags": record.flags,
        "device": record.environment["device"],
        "versions": record.environment["versions"],
        "overrides": overrides,
    }


def measure_by_plain_loop(
    cell: str, options: argparse.Namespace, environment: Mapping[str, str]
) -> dict[str, Any]:
    """Return what plain_loop.py printed."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {
            name: f"{folder}/{name}" for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
        }
        arguments = [
            cell,
            "--precision",
            options.precision,
            "--mode",
            options.mode,
            *shlex.split(options.plain),
        ]
        answer = Path(folder, "figures.json")
        output = _run(
            [sys.executable, str(PLAIN_LOOP), *arguments, "--json", str(answer)],
            {**environment, **caches},
        )
        if not answer.exists():
            raise FailedError(f"plain loop: {output}")
        return {**json.loads(answer.read_text(encoding="utf-8")), "arguments": arguments}


def _run(command: list[str], environment: Mapping[str, str]) -> str:
    """Run a program to its end and return the last lines that it wrote."""
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise FailedError(f"{command[1:3]} took over {LIMIT_S} s") from error
    lines = (done.stdout + done.stderr).strip().splitlines()
    return " ".join(lines[-LAST_LINES:]) or f"exit code {done.returncode}"


def judge(cell: str, sweeper: Figures, plain: Figures) -> list[str]:
    """Return the texts of a row, in the order of HEADINGS."""
    waiting = [arm for figures in (sweeper, plain) for arm in figures["waits_for_host"]]
    texts, verdicts = [cell], []
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
    return [*texts, ", ".join(verdicts)]


def print_row(texts: Iterable[str]) -> None:
    print(f"| {' | '.join(text.replace('|', '/') for text in texts)} |", flush=True)


def main(options: argparse.Namespace) -> bool:
    """Print all rows; whether every cell has figures."""
    print_row(HEADINGS)
    print("|---" * len(HEADINGS) + "|", flush=True)
    lines = (
        options.output.read_text(encoding="utf-8").splitlines() if options.output.exists() else []
    )
    stored = {row["cell"]: row for row in map(json.loads, lines)}
    for cell in filter(stored.get, options.cells):
        print_row(judge(cell, stored[cell]["sweeper"], stored[cell]["plain"]))
    cores, output_lock = sorted(os.sched_getaffinity(0)), threading.Lock()
    free_gpus: SimpleQueue[int] = SimpleQueue()
    for gpu in range(options.gpus):
        free_gpus.put(gpu)

    def run_cell(cell: str) -> bool:
        """Run both programs one after the other, on one GPU and its share of the cores; whether
        both gave figures.
        """
        start, gpu = time.monotonic(), free_gpus.get()
        # The affinity is that of this thread, and of the programs that it starts.
        os.sched_setaffinity(0, cores[gpu :: options.gpus] or cores)
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": options.devices[gpu]}
        try:
            sweeper = measure_by_sweeper(cell, options, environment)
            plain = measure_by_plain_loop(cell, options, environment)
        except FailedError as error:
            print_row([cell, *[""] * (len(HEADINGS) - 2), f"failed: {error}"])
            return False
        finally:
            free_gpus.put(gpu)
        row = {"cell": cell, "took_s": time.monotonic() - start, "sweeper": sweeper, "plain": plain}
        with output_lock, options.output.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print_row(judge(cell, sweeper, plain))
        return True

    with ThreadPoolExecutor(options.gpus) as pool:
        return all(pool.map(run_cell, [cell for cell in options.cells if cell not in stored]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FILE", help="JSON lines, one per cell"
    )
    parser.add_argument("--cells", default=",".join(CELLS), help="default: %(default)s")
    parser.add_argument(
        "--gpus", type=int, default=1, metavar="N", help="one cell at a time on each of N GPUs"
    )
    parser.add_argument("--mode", default="default")
    parser.add_argument("--precision", choices=("amp", "fp32"), default="amp")
    parser.add_argument(
        "--sweep", default="judge", help="sweeper's records are in runs/SWEEP-CELL/"
    )
    parser.add_argument(
        "--sweeper", default="", metavar="OVERRIDES", help="more overrides for sweeper"
    )
    parser.add_argument(
        "--plain", default="", metavar="ARGUMENTS", help="more arguments for plain_loop.py"
    )
    chosen = parser.parse_args()
    chosen.cells = chosen.cells.split(",")
    chosen.devices = os.environ.get(
        "CUDA_VISIBLE_DEVICES", ",".join(map(str, range(chosen.gpus)))
    ).split(",")
    if unknown := set(chosen.cells) - set(CELLS):
        parser.error(f"no such cells: {', '.join(sorted(unknown))}; there are {', '.join(CELLS)}")
    if not 1 <= chosen.gpus <= len(chosen.devices):
        parser.error(f"--gpus {chosen.gpus}: give a number from 1 to {len(chosen.devices)}")
    if not chosen.output.absolute().parent.is_dir():
        parser.error(f"--output {chosen.output}: there is no such folder")
    sys.exit(not main(chosen))
