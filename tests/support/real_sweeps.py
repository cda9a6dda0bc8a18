"""Sweeps of tiny models, started as a user starts them."""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Callable
from pathlib import Path

from checkout import Run

from sweeper.core.record import Record

Start = Callable[..., "subprocess.Popen[str]"]


FAST = [
    "device=cpu",
    "batch_size=4",
    "backend=aot_eager",
    "measure=quick",
    "measure.rounds=2",
    "measure.warmup_s=0.1",
]
FAST += ["measure.block_s=0.002"]


EAGER_LIMIT = "measure.phase_timeouts_s.eager=8"


def custom(*names: str) -> list[str]:
    return ["model=custom", f"model.factory={','.join(f'factories:{name}' for name in names)}"]


def run_six(run_module: Run, folder: Path, *launcher: str, **variables: str) -> None:
    """Run six trials as jobs: the killed workers are rows of their own, the report is complete, and
    nothing is left.
    """
    arguments = [
        "-m",
        *launcher,
        *custom("mlp", "killed", "dict_and_loss"),
        "precision=fp32,bf16",
        "sweep=six",
        *FAST,
    ]
    ended = run_module("sweeper", *arguments, **variables)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "ConfigStore" not in ended.stderr
    assert {name: record.status for name, record in records(folder, "six").items()} == {
        "mlp/fp32": "ok",
        "mlp/bf16": "ok",
        "killed/fp32": "crashed",
        "killed/bf16": "crashed",
        "dict_and_loss/fp32": "ok",
        "dict_and_loss/bf16": "ok",
    }
    assert len(rows(folder, "six", "speedups")) == 6
    again = run_module("sweeper", *arguments, "retry=none", **variables)
    assert "sweep six: 0 trials to run" in again.stdout, again.stdout + again.stderr
    assert "note: hydra/launcher" not in again.stderr


def records(folder: Path, sweep: str) -> dict[str, Record]:
    found = [
        Record.loads(path.read_text()) for path in (folder / "runs" / sweep).glob("*/record.json")
    ]
    by_name = {}
    for record in found:
        labels = record.trial.labels
        by_name[f"{labels.model.removeprefix('factories:')}/{labels.precision}"] = record
    return by_name


def rows(folder: Path, sweep: str, table: str) -> list[dict[str, str]]:
    with (folder / "runs" / sweep / "report" / f"{table}.csv").open(newline="") as file:
        return list(csv.DictReader(file))
