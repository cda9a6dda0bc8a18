"""docs/metrics.md, made of the registry of metrics: `make golden` writes it."""

from __future__ import annotations

from checkout import ROOT

from sweeper.analysis.metrics import METRICS, Metric
from sweeper.core.files import write_text

FILE = ROOT / "docs" / "metrics.md"
HEAD = """# Metrics

The figures of a trial, in the order of their columns in `speedups.csv`.
`sweeper/analysis/metrics.py` declares them. `make golden` writes this page of it.

| column | MLflow metric | meaning |
|---|---|---|
"""


def text() -> str:
    return HEAD + "".join(map(_line, METRICS))


def _line(metric: Metric) -> str:
    return (
        f"| `{metric.csv_name}` | {f'`{metric.name}`' if metric.mlflow else ''} | "
        f"{metric.meaning} |\n"
    )


if __name__ == "__main__":
    write_text(FILE, text())
