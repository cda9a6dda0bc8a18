"""Does a known slowdown of the compiled arm show? Two models that differ by 3 % of extra work on
the device.

    PYTHONPATH=benchmarks python -m sweeper -m model=custom \\
        model.factory=slowdown:base,slowdown:slowed \\
        batch_size=4096 precision=amp measure.processes=5 measure.rounds=6 sweep=slow-1
            once for each try
    python benchmarks/slowdown.py runs/slow-*     judges the tries

`slowed` multiplies, where it is compiled and nowhere else, a further matrix of as many rows as make
3 % of the step. The result is counted in with a factor of 0, which a compiler may not drop. Both
models have the same parameters.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from sweeper.analysis.derive import derive
from sweeper.analysis.stats import difference, mean_of_logs
from sweeper.core.paths import SweepPaths
from sweeper.core.record import Record

WIDTH, LAYERS, SHARE = 4096, 8, 0.03


class Layers(nn.Module):
    """Linear layers with GELU; `rows` of extra work, in the compiled arm only."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.rows = rows

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        extra = 0.0
        if self.rows and torch.compiler.is_compiling():
            extra = 0.0 * (x[: self.rows].detach() @ self.layers[0].weight.detach()).sum()
        for layer in self.layers:
            x = nn.functional.gelu(layer(x))
        return x + extra


def base(batch_size: int, device: torch.device):
    return _build(batch_size, device, 0)


def slowed(batch_size: int, device: torch.device):
    # A training step multiplies each layer's matrices three times.
    return _build(batch_size, device, round(SHARE * 3 * LAYERS * batch_size))


def _build(batch_size: int, device: torch.device, rows: int):
    return Layers(rows).to(device), (torch.randn(batch_size, WIDTH, device=device),)


def main(folders: list[Path]) -> None:
    print("| try | wall | device |\n|---|---|---|")
    resolved, judged = {"wall": 0, "device": 0}, 0
    for folder in folders:
        found = [
            Record.loads(path.read_text(encoding="utf-8")) for path in SweepPaths(folder).records()
        ]
        records = {record.trial.labels.model: record for record in found}
        if any(record.status != "ok" for record in records.values()) or len(records) < 2:
            print(f"| {folder.name} | not finished | |")
            continue
        judged += 1
        cells = []
        for clock, logs in (("wall", _wall_logs), ("device", _device_logs)):
            change = difference(
                *(mean_of_logs(logs(records[f"slowdown:{name}"])) for name in ("slowed", "base"))
            )
            bounds = change.interval()
            assert bounds is not None
            resolved[clock] += bounds.high < 1 or bounds.low > 1
            cells.append(f"{change.ratio - 1:+.2%} [{bounds.low - 1:+.2%}, {bounds.high - 1:+.2%}]")
        print(f"| {folder.name} | {' | '.join(cells)} |")
    print(
        f"\nleft out zero: wall {resolved['wall']} of {judged}, device {resolved['device']} of "
        f"{judged}"
    )


def _wall_logs(record: Record) -> list[float]:
    each = [derive(replace(record, processes=(process,))) for process in record.processes]
    return [math.log(result.speedup) for result in each]


def _device_logs(record: Record) -> list[float]:
    return [
        math.log(item.device_step_s.eager / item.device_step_s.compiled)
        for item in record.processes
    ]


if __name__ == "__main__":
    main([Path(folder) for folder in sys.argv[1:]])
