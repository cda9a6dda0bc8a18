"""`python -m sweeper.report NAME|FOLDER... [--out DIR] ...`: tables of sweeps that have run, `--help` has all options.

Exit codes: 0 everything was read; 1 some record could not be; 2 no such sweep, tables that make no sense, or a store
that does not answer.
Try: `python -m sweeper.report my-sweep`
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from sweeper.loading.sources import Source
    from sweeper.report.tables.decision import Limits

OK, NOT_READ, BAD_INPUT = 0, 1, 2
N = TypeVar("N", int, float)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    from sweeper.loading.sources import add_tracking_uri

    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m sweeper.report",
        description="Write speedups.csv, summary.csv, failures.csv, recommendations.csv, causes.csv, report.md and "
        "report.html, and print the tables.",
        epilog="exit code: 0 everything was read, 1 some record could not be, 2 bad input or no answer from MLflow",
    )
    parser.add_argument("sweeps", nargs="+", metavar="NAME|FOLDER", help="a sweep under runs/, or a folder of trials")
    add_tracking_uri(parser)
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where to write (default: report/ in the first sweep; of several, report-with-OTHERS/ there; "
        "runs/NAME/ is made for a sweep that did not run here)",
    )
    parser.add_argument(
        "--steps",
        metavar="N",
        help="recommend for a job of N steps, compiling included: what has not paid back by then is ruled out",
    )
    parser.add_argument(
        "--max-memory-gib", metavar="X", help="rule out modes whose compiled step needs more device memory at its peak"
    )
    return parser.parse_args(arguments)


def read_limits(steps: str | None, memory_gib: str | None) -> Limits:
    """Raises ConfigError for what is no positive number."""
    from sweeper.report.tables.decision import Limits

    return Limits(
        None if steps is None else _positive("--steps", steps, int, "a whole number of at least 1, e.g. --steps 10000"),
        None
        if memory_gib is None
        else _positive("--max-memory-gib", memory_gib, float, "GiB above 0, e.g. --max-memory-gib 40"),
    )


def _positive(option: str, text: str, number: Callable[[str], N], allowed: str) -> N:
    from sweeper.core.errors import ConfigError

    try:
        value = number(text)
    except ValueError:
        value = number("0")
    if not 0 < value < math.inf:
        raise ConfigError(f"{option} {text}: {allowed}")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Load, write, print; the exit code."""
    parsed = parse(arguments)
    from rich.console import Console

    from sweeper.core.errors import ConfigError
    from sweeper.core.paths import SweepPaths
    from sweeper.loading import parallel
    from sweeper.loading.sources import find_sources
    from sweeper.report.build import files_of, make_report, print_report, what_next
    from sweeper.tracking.store import TrackingError

    console = Console()
    try:
        limits = read_limits(parsed.steps, parsed.max_memory_gib)
        sources = find_sources(parsed.sweeps, parsed.tracking_uri)
        report = make_report(sources, limits, parallel.count_cores())
    except (ConfigError, TrackingError) as error:
        print(error, file=sys.stderr)
        return BAD_INPUT
    except OSError as error:
        print(f"{error.filename or 'reading'}: {error.strerror or error}", file=sys.stderr)
        return BAD_INPUT
    first, *others = (source.folder for source in sources)
    out = parsed.out or SweepPaths(first).report_with(others)
    write = files_of(report, out, parallel.count_cores())
    try:
        print_report(report, console)
    except SystemExit:  # rich's, when nobody reads on (`| head`): the files shall be there
        write()
        raise
    try:
        report = replace(report, paths=write())
    except OSError as error:
        print(f"{f'--out {parsed.out}' if parsed.out else out}: {error.strerror or error}", file=sys.stderr)
        return BAD_INPUT
    for line in what_next(report, out, _sweep_of_here(sources)):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    for problem in report.problems:
        print(problem, file=sys.stderr)
    return NOT_READ if report.problems else OK


def _sweep_of_here(sources: Sequence[Source]) -> str | None:
    """The one sweep that was reported, if its folder is one of those under runs/."""
    from sweeper.core.paths import RUNS

    folders = [source.folder.resolve() for source in sources]
    here = len(folders) == 1 and folders[0].parent == RUNS.resolve() and folders[0].is_dir()
    return folders[0].name if here else None


if __name__ == "__main__":
    sys.exit(main())
