"""Wall seconds until `python -m sweeper` answers, without a worker and with the check process.

    python benchmarks/startup.py

Each command runs once to warm the file cache, then five times; the table has minimum, median and
maximum.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from statistics import median

REPEATS = 5
GRID = ["precision=fp32,amp", "dry_run=true"]
COMMANDS = {
    "--help": ["sweeper", "--help"],
    "unknown model": ["sweeper", "model=resnet51"],
    "dry run of 8 trials": [
        "sweeper",
        "-m",
        "model=resnet18,vit_tiny",
        "mode=default,eager",
        *GRID,
    ],
    "unknown torchvision name": [
        "sweeper",
        "model=torchvision",
        "model.name=resnet51",
        "device=cpu",
    ],
    "unknown timm name": ["sweeper", "model=timm", "model.name=resnet51x", "device=cpu"],
    "unknown transformers name": [
        "sweeper",
        "model=transformers",
        "model.name=BertForMaskedML",
        "device=cpu",
    ],
    "unknown Inductor option": ["sweeper", "compile.options.nothing=1", "device=cpu"],
}


def seconds(command: list[str]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", *command], cwd=folder, capture_output=True, check=False
        )
        return time.perf_counter() - start


def main() -> None:
    print(f"{'command':28} {'min s':>6} {'median':>6} {'max':>6}")
    for name, command in COMMANDS.items():
        seconds(command)
        times = [seconds(command) for _ in range(REPEATS)]
        print(f"{name:28} {min(times):6.2f} {median(times):6.2f} {max(times):6.2f}")


if __name__ == "__main__":
    main()
