"""`python -m sweeper.explain [NAME...]`: what a flag, a status, a cause or a figure means.

For the first three it says what to do, too; without a name it lists them. Exit codes: 0 explained;
2 no such name. Try: `python -m sweeper.explain host_bound`
"""

import argparse
import functools
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence

from sweeper.analysis.flags import FLAGS, RANKS
from sweeper.analysis.meanings import CAUSES, STATUSES, Meaning
from sweeper.analysis.metrics import METRICS
from sweeper.core.errors import nearest
from sweeper.core.system.exit_codes import BAD_INPUT, OK
from sweeper.core.system.pipes import run_until_closed
from sweeper.report.columns.formats import sentence

WIDTH = 100  # characters of a line
ALL = {**STATUSES, **FLAGS, **CAUSES}
FIGURES = {name: metric for metric in METRICS for name in (metric.name, metric.csv_name)}


def explain(name: str) -> str:
    """Explain a name of `ALL` or `FIGURES` in a few lines."""
    if metric := FIGURES.get(name):
        kind = f"in speedups.csv {metric.csv_name}"
        if name == metric.csv_name:
            kind = "column of speedups.csv"
        mlflow = f"A metric in MLflow, {metric.name}." if metric.mlflow else ""
        lines = [sentence(metric.meaning), mlflow]
    else:
        meaning: Meaning = ALL[name]
        kind, rank = "status" if name in STATUSES else "cause of lost time", ""
        if flag := FLAGS.get(name):
            kind = f"flag, {flag.rank}"
            rank = f"{sentence(flag.rank)[:-1]}: {RANKS[flag.rank]}; here {flag.why}."
        todo = f"What to do: {meaning.todo}" if meaning.todo else ""
        lines = [sentence(meaning.says), meaning.more, rank, todo]
    fill = functools.partial(
        textwrap.fill, width=WIDTH, initial_indent="  ", subsequent_indent="  "
    )
    return "\n".join([f"{name} ({kind})", *map(fill, filter(None, lines))])


def list_names() -> Iterator[str]:
    """Yield a line for each status, flag and cause, under headings."""
    groups: dict[str, Mapping[str, Meaning]] = {"statuses": STATUSES}
    for rank, meaning in RANKS.items():
        flags = {name: flag for name, flag in FLAGS.items() if flag.rank == rank}
        groups[f"flags, {rank}: {meaning}"] = flags
    groups["causes of lost time"] = CAUSES
    for heading, group in groups.items():
        lines = [f"  {name:<22}  {meaning.says}" for name, meaning in group.items()]
        yield "\n".join([heading, *lines])


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
