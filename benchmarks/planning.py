"""Planning large sweeps: wall seconds and peak memory of the driver, without running a trial.

    python benchmarks/planning.py

Composes 163 models x 5 modes x 2 precisions and 50 models x 32 batch sizes, and goes on with a sweep whose 10,000
trials have records, once as a dry run and once with its report. Options and records are made in a temporary folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sweeper.paths import SweepPaths, write_text
from sweeper.record import Process, Record, Round
from sweeper.trial import Labels, Model, Precision, Trial

MODES = "eager,default,reduce-overhead,max-autotune,max-autotune-no-cudagraphs"
MODELS, FINISHED_MODELS, FINISHED_SIZES = 163, 100, 100


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_options(folder / "conf" / "model")
        all_models, some = _models(MODELS), _models(50)
        print(f"{'':44} {'trials':>7} {'s':>6} {'MiB':>5}")
        _row(folder, "163 models x 5 modes x 2 precisions", 1630, all_models, f"mode={MODES}", "precision=fp32,amp")
        _row(folder, "50 models x 32 batch sizes", 1600, some, f"batch_size={_numbers(32)}")
        _write_records(folder)
        finished = [_models(FINISHED_MODELS), f"batch_size={_numbers(FINISHED_SIZES)}", "sweep=finished"]
        _row(folder, "all finished, dry run", 10_000, *finished)
        _row(folder, "all finished, with the report", 10_000, *finished, "tracking=none", dry=False)


def _models(count: int) -> str:
    return "model=" + ",".join(f"m{number:03}" for number in range(count))


def _numbers(count: int) -> str:
    return ",".join(str(number + 1) for number in range(count))


def _row(folder: Path, what: str, trials: int, *overrides: str, dry: bool = True) -> None:
    command = [sys.executable, "-m", "sweeper", "--config-dir", str(folder / "conf"), "-m", "device=cpu", *overrides]
    if dry:
        command.append("dry_run=true")
    start = time.perf_counter()
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if status:
        sys.exit((folder / "output").read_text())
    print(f"{what:44} {trials:7} {seconds:6.1f} {usage.ru_maxrss / 1024:5.0f}", flush=True)


def _write_options(folder: Path) -> None:
    folder.mkdir(parents=True)
    for number in range(MODELS):
        text = f"library: timm\nname: model_{number:03}\nfamily: cnn\nbatch_size: {number + 1}\n"
        (folder / f"m{number:03}.yaml").write_text(text)


def _write_records(folder: Path) -> None:
    """What the trials of the finished sweep would have left, three processes each."""
    rounds = tuple(Round(order, 0.1, 0.05) for order in ("AB", "BA") * 5)
    phases = dict.fromkeys(("building", "eager", "compiling", "warming", "checking", "measuring"), 1.25)
    processes = tuple(
        Process(index, 0, index == 0, compile_s=3.0, first_steps_s=(1.0,) * 8, steps_per_block=10, rounds=rounds,
                phases_s=phases)
        for index in range(3)
    )  # fmt: skip
    paths = SweepPaths.of("finished", folder / "runs")
    for number in range(FINISHED_MODELS):
        for size in range(1, FINISHED_SIZES + 1):
            name = f"model_{number:03}"
            labels = Labels(f"m{number:03}", "fp32", "cnn", weight="fp32")
            trial = Trial(Model("timm", name), size, labels, precision=Precision(), device="cpu")
            record = Record(trial.id, "finished", trial.label, "ok", trial, processes=processes)
            write_text(paths.trial(trial.label, trial.id).record, record.dumps())


if __name__ == "__main__":
    main()
