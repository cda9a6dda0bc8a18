"""Planning large sweeps: wall seconds and peak memory of the driver, without running a trial.

    python benchmarks/planning.py

Composes 163 models x 5 modes x 2 precisions and 50 models x 32 batch sizes, and goes on with a
sweep whose 10,000 trials have records, once as a dry run and once with its report. Options and
records are made in a temporary folder. The models do not exist: a program that finds no fault
answers the check before a sweep, in place of torch.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sweeper.core.files import write_text
from sweeper.core.paths import SweepPaths
from sweeper.core.record import Accuracy, Diagnostics, Process, Record, Round
from sweeper.core.trial import Labels, Model, Precision, Trial

MODES = "eager,default,reduce-overhead,max-autotune,max-autotune-no-cudagraphs"
MODELS, FINISHED_MODELS, FINISHED_SIZES = 163, 100, 100
ANSWER = '{"problems": [], "notes": []}'
FINDS_NO_FAULT = f"#!{sys.executable}\nimport sys\nopen(sys.argv[-1], 'w').write({ANSWER!r})\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_options(folder / "conf" / "model")
        write_text(program := folder / "finds_no_fault", FINDS_NO_FAULT)
        program.chmod(0o755)
        checked = f"worker.python={program}"
        all_models, some = [_models(MODELS), checked], [_models(50), checked]
        print(f"{'':44} {'trials':>7} {'s':>6} {'MiB':>5}")
        _row(
            folder,
            "163 models x 5 modes x 2 precisions",
            1630,
            *all_models,
            f"mode={MODES}",
            "precision=fp32,amp",
        )
        _row(folder, "50 models x 32 batch sizes", 1600, *some, f"batch_size={_numbers(32)}")
        write_records(folder)
        finished = [*grid(), "sweep=finished"]
        _row(folder, "all finished, dry run", 10_000, *finished)
        _row(folder, "all finished, with the report", 10_000, *finished, "tracking=none", dry=False)


def grid(sizes: int = FINISHED_SIZES) -> list[str]:
    """The overrides of the finished sweep, or of one with fewer batch sizes for each of its 100
    models.
    """
    return [_models(FINISHED_MODELS), f"batch_size={_numbers(sizes)}"]


def _models(count: int) -> str:
    return "model=" + ",".join(f"m{number:03}" for number in range(count))


def _numbers(count: int) -> str:
    return ",".join(str(number + 1) for number in range(count))


def _row(folder: Path, what: str, trials: int, *overrides: str, dry: bool = True) -> None:
    seconds, mebibytes = measure(
        folder, "sweeper", *sweep(folder), *overrides, *(["dry_run=true"] if dry else [])
    )
    print(f"{what:44} {trials:7} {seconds:6.1f} {mebibytes:5.0f}", flush=True)


def sweep(folder: Path) -> list[str]:
    """What every sweep here is told."""
    return ["--config-dir", str(folder / "conf"), "-m", "device=cpu"]


def measure(folder: Path, module: str, *arguments: str) -> tuple[float, float]:
    """Run `python -m module` in a folder: wall seconds, and MiB of the process that had most of
    them at once.
    """
    start = time.perf_counter()
    with (folder / "output").open("wb") as output:
        command = [sys.executable, "-m", module, *arguments]
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if status:
        sys.exit((folder / "output").read_text())
    return seconds, usage.ru_maxrss / 1024


def write_options(folder: Path) -> None:
    folder.mkdir(parents=True)
    for number in range(MODELS):
        text = f"library: timm\nname: model_{number:03}\nfamily: cnn\nbatch_size: {number + 1}\n"
        (folder / f"m{number:03}.yaml").write_text(text)


def write_records(folder: Path, python: str | None = None) -> None:
    """What the trials of the finished sweep would have left: 12 kB each, three processes, by
    `python`.
    """
    paths = SweepPaths.of("finished", folder / "runs")
    for number in range(FINISHED_MODELS):
        for size in range(1, FINISHED_SIZES + 1):
            record = _record(f"m{number:03}", f"model_{number:03}", size, python)
            write_text(paths.trial(record.label, record.trial_id).record, record.dumps())


def process(index: int = 0) -> Process:
    """What a worker measured."""
    phases = dict.fromkeys(
        ("building", "eager", "compiling", "warming", "checking", "measuring"), 1.25
    )
    worst = Accuracy(
        "float64",
        True,
        None,
        False,
        100,
        0,
        "gradient of layer1.0.conv1.weight",
        False,
        1e-7,
        1e-7,
        1e-4,
    )
    return Process(
        index,
        draw=0,
        cold=index == 0,
        compile_s=3.0,
        compile_parts_s=dict.fromkeys(("dynamo", "aot_autograd", "inductor", "autotuning"), 0.75),
        first_steps_s=(1.0,) * 8,
        code_fingerprint="0" * 64,
        accuracy=worst,
        steps_per_block=10,
        rounds=tuple(Round(order, 0.1, 0.05) for order in ("AB", "BA") * 5),
        phases_s=phases,
    )


# As large as those of a worker on a GPU.
ENVIRONMENT = {
    "versions": {f"package_{number}": f"{number}.0.0" for number in range(12)},
    "device": {"type": "cpu", "name": "the CPU"},
    "variables": {f"VARIABLE_{number}": "a value" for number in range(12)},
    "inductor_config": [
        f"a_setting_of_inductor_{number}: True, by default False" for number in range(40)
    ],
}
DIAGNOSTICS = Diagnostics(
    graphs=1, recompiles=0, settings={f"setting_{number}": "a value" for number in range(40)}
)


def _record(label: str, name: str, size: int, python: str | None) -> Record:
    labels = Labels(label, "fp32", "cnn", weight="fp32")
    trial = Trial(
        Model("timm", name), size, labels, precision=Precision(), device="cpu", python=python
    )
    processes = tuple(process(index) for index in range(3))
    return Record(
        trial.id,
        "finished",
        trial.label,
        "ok",
        trial=trial,
        environment=ENVIRONMENT,
        processes=processes,
        diagnostics=DIAGNOSTICS,
        wall_s=60.0,
    )


if __name__ == "__main__":
    main()
