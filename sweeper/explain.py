"""`python -m sweeper.explain [NAME...]`: what a flag, a status, a cause or a figure means.

For the first three it says what to do, too; without a name it lists them. Exit codes: 0 explained;
2 no such name. Try: `python -m sweeper.explain host_bound`
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterator, Sequence

from sweeper.analysis.meanings import CAUSES, FLAGS, RANKS, STATUSES, Meaning
from sweeper.analysis.metrics import METRICS, Metric
from sweeper.core.errors import nearest
from sweeper.core.system.exit_codes import BAD_INPUT, OK
from sweeper.core.system.pipes import run_until_closed
from sweeper.report.formatting import sentence

WIDTH = 100  # characters of a line
ALL = {**STATUSES, **FLAGS, **CAUSES}
FIGURES = {name: metric for metric in METRICS for name in (metric.name, metric.csv_name)}


def explain(name: str) -> str:
    """Explain a name of `ALL` or `FIGURES` in a few lines."""
    if name in FIGURES:
        return _explain_figure(name, FIGURES[name])
    flag = FLAGS.get(name)
    kind = "status" if name in STATUSES else f"flag, {flag.rank}" if flag else "cause of lost time"
    rank = f"{sentence(flag.rank)[:-1]}: {RANKS[flag.rank]}; here {flag.why}." if flag else ""
    meaning: Meaning = ALL[name]
    todo = f"What to do: {meaning.todo}" if meaning.todo else ""
    return _fill(f"{name} ({kind})", [sentence(meaning.says), meaning.more, rank, todo])


def _explain_figure(name: str, metric: Metric) -> str:
    kind = (
        "column of speedups.csv"
        if name == metric.csv_name
        else f"in speedups.csv {metric.csv_name}"
    )
    mlflow = f"A metric in MLflow, {metric.name}." if metric.mlflow else ""
    return _fill(f"{name} ({kind})", [sentence(metric.meaning), mlflow])


def _fill(heading: str, lines: Sequence[str]) -> str:
    indent = "  "
    filled = (
        textwrap.fill(line, WIDTH, initial_indent=indent, subsequent_indent=indent)
        for line in lines
        if line
    )
    return "\n".join([heading, *filled])


def list_names() -> Iterator[str]:
    """Yield a line for each status, flag and cause, under headings."""
    flags_by_rank = {
        f"flags, {rank}: {meaning}": {
            name: flag for name, flag in FLAGS.items() if flag.rank == rank
        }
        for rank, meaning in RANKS.items()
    }
    for heading, group in {
        "statuses": STATUSES,
        **flags_by_rank,
        "causes of lost time": CAUSES,
    }.items():
        yield f"{heading}\n" + "\n".join(
            f"  {name:<22}  {meaning.says}" for name, meaning in group.items()
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what was asked for, and return the exit code."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m sweeper.explain",
        description="Explain a flag, a status, a cause of lost time or a figure of speedups.csv; "
        "without a name, list the first three.",
        epilog="exit code: 0 explained, 2 no such name",
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="e.g. host_bound, accuracy_mismatch, graph_break or eager_step_ms",
    )
    names = [name.lower().replace("-", "_") for name in parser.parse_args(arguments).names]
    known = {**ALL, **FIGURES}
    if unknown := [name for name in names if name not in known]:
        for name in unknown:
            print(
                f"{name}: no flag, status, cause or figure of speedups.csv; {nearest(name, known)}",
                file=sys.stderr,
            )
        return BAD_INPUT
    print("\n\n".join(map(explain, names) if names else list_names()))
    return OK


if __name__ == "__main__":
    sys.exit(run_until_closed(main))
