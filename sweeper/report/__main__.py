"""`python -m sweeper.report NAME|FOLDER... [--tracking-uri URI] [--out DIR]`: tables of sweeps that have run.

Exit codes: 0 everything was read; 1 some record could not be; 2 no such sweep, tables that make no sense, or a store
that does not answer.
Try: `python -m sweeper.report my-sweep`
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

OK, NOT_READ, BAD_INPUT = 0, 1, 2


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m sweeper.report",
        description="Write speedups.csv, summary.csv, failures.csv, report.md and report.html, and print the tables.",
        epilog="exit code: 0 everything was read, 1 some record could not be, 2 bad input or no answer from MLflow",
    )
    parser.add_argument("sweeps", nargs="+", metavar="NAME|FOLDER", help="a sweep under runs/, or a folder of trials")
    parser.add_argument(
        "--tracking-uri",
        metavar="URI",
        help="read the records that were sent to this MLflow server or sqlite:/// store, in place of those in runs/; "
        "sweeps are given by NAME",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where to write (default: report/ in the first sweep; of several, report-with-OTHERS/ there; "
        "runs/NAME/ is made for a sweep that did not run here)",
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Load, write, print; the exit code."""
    parsed = parse(arguments)
    from rich.console import Console

    from sweeper.errors import ConfigError
    from sweeper.mlflow_store import TrackingError
    from sweeper.paths import SweepPaths
    from sweeper.report.build import print_report, write_report_of
    from sweeper.report.sources import find_sources

    try:
        sources = find_sources(parsed.sweeps, parsed.tracking_uri)
        first, *others = (source.folder for source in sources)
        out = parsed.out or SweepPaths(first).report_with(others)
        report = write_report_of(sources, out)
    except (ConfigError, TrackingError, OSError) as error:
        print(error, file=sys.stderr)
        return BAD_INPUT
    console = Console()
    print_report(report, console)
    console.print(f"tables: {out}", soft_wrap=True, markup=False, highlight=False)
    for problem in report.problems:
        print(problem, file=sys.stderr)
    return NOT_READ if report.problems else OK


if __name__ == "__main__":
    sys.exit(main())
