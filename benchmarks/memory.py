"""Memory of a driver with MLflow: ten thousand finished trials, and trials that finish as fast as
they are started.

    python benchmarks/memory.py [TRIALS...]

Sends the records of 10,000 finished trials to a sqlite store (`python -m sweeper.sync`), goes on
with that sweep, first with nothing left to run and then with 100 more trials, and writes its report
from the folder and from the store. Then sweeps of TRIALS trials each (default: 300 600 1200).
Workers answer at once. MiB are those of the process that had most of them at once, the driver, or a
process of its own that it has waited for. Takes about half an hour on one core.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
from pathlib import Path

from planning import (
    DIAGNOSTICS,
    ENVIRONMENT,
    FINISHED_MODELS,
    FINISHED_SIZES,
    grid,
    measure,
    process,
    sweep,
    write_options,
    write_records,
)

from sweeper.core.protocol import Outcome, Phase, encode

WORKER = """#!/bin/bash
# Answers what every worker of these sweeps would: the check finds no problem,
# a trial's only process is fine.
if [[ " $* " == *" --check "* ]]; then
    echo '{{"problems": [], "notes": []}}' > "${{@: -1}}"; exit; fi
while [[ $1 != --answer-fd ]]; do shift; done
cat {answer} >&"$2"
"""


def main(counts: list[int]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_options(folder / "conf" / "model")
        worker = str(_write_worker(folder))
        write_records(folder, worker)
        finished = FINISHED_MODELS * FINISHED_SIZES
        start = [*sweep(folder), f"worker.python={worker}", "measure=quick"]
        from_store = ["--tracking-uri", f"sqlite:///{folder}/runs/mlflow.db", "--out", "out"]
        print(f"{'':44} {'trials':>7} {'s':>6} {'MiB':>5}")
        for what, module, *arguments in (
            ("sent to sqlite", "sweeper.sync", "finished"),
            ("sent again: all is there", "sweeper.sync", "finished"),
            ("report from the folder", "sweeper.report", "finished"),
            ("report from the store", "sweeper.report", "finished", *from_store),
            (
                "nothing left to run, MLflow and report",
                "sweeper",
                *start,
                *grid(),
                "sweep=finished",
            ),
            (
                "100 more run, MLflow and report",
                "sweeper",
                *start,
                *grid(FINISHED_SIZES + 1),
                "sweep=finished",
            ),
        ):
            _row(what, finished, *measure(folder, module, *arguments))
        for count in counts:
            overrides = [*grid(count // FINISHED_MODELS), f"sweep=live-{count}"]
            _row(
                "all run, MLflow and report", count, *measure(folder, "sweeper", *start, *overrides)
            )


def _row(what: str, trials: int, seconds: float, mebibytes: float) -> None:
    print(f"{what:44} {trials:7} {seconds:6.1f} {mebibytes:5.0f}", flush=True)


def _write_worker(folder: Path) -> Path:
    outcome = Outcome("ok", process=process(), diagnostics=DIAGNOSTICS, environment=ENVIRONMENT)
    answer, worker = folder / "answer", folder / "worker"
    answer.write_text(encode(Phase("building")) + encode(outcome))
    worker.write_text(WORKER.format(answer=shlex.quote(str(answer))))
    worker.chmod(0o755)
    return worker


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]] or [300, 600, 1200])
