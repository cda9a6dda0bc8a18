"""`python -m sweeper.report NAME|FOLDER... [--out DIR] ...`: what sweeps have shown, `--help` has
all options.

Exit codes: 0 everything was read; 1 some record could not be; 2 no such sweep, or a store that does
not answer. Try: `python -m sweeper.report my-sweep`
"""

from __future__ import annotations

import argparse
import atexit
import gc
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sweeper.core.errors import ConfigError
from sweeper.core.system.exit_codes import BAD_INPUT, NOT_OK, OK
from sweeper.core.system.pipes import run_until_closed


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    from sweeper.loading.sources import add_tracking_uri

    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m sweeper.report",
        description="Write speedups.csv, summary.csv, scripts.csv, ladder.csv, failures.csv, "
        "recommendations.csv, causes.csv, report.md and report.html, and print the verdict.",
        epilog="exit code: 0 everything was read, 1 some record could not be, 2 bad input or no "
        "answer from MLflow",
    )
    parser.add_argument(
        "sweeps",
        nargs="+",
        metavar="NAME|FOLDER",
        help="a sweep under runs/, or a folder of trials",
    )
    add_tracking_uri(parser)
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where to write (default: report/ in the first sweep; of several, report-with-OTHERS/ "
        "there; runs/NAME/ is made for a sweep that did not run here)",
    )
    parser.add_argument(
        "--steps",
        type=int,
        metavar="N",
        help="recommend for a job of N steps, compiling included: what has not paid back by then "
        "is ruled out",
    )
    parser.add_argument(
        "--max-memory-gib",
        type=float,
        metavar="X",
        help="rule out modes whose compiled step needs more device memory at its peak",
    )
    parser.add_argument(
        "--tables",
        action="store_true",
        help="print every table, with settings, versions and the whole verdict",
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Load records, print and write their tables, and return the exit code."""
    parsed = parse(arguments)
    from sweeper.core.paths import RUNS, SweepPaths
    from sweeper.loading import parallel
    from sweeper.loading.sources import find_sources
    from sweeper.report.answers.decision import Limits
    from sweeper.report.text.terminal import Terminal, print_plain
    from sweeper.tracking.store import TrackingError

    from . import build

    console = Terminal()
    try:
        limits = Limits(parsed.steps, parsed.max_memory_gib)
        sources = find_sources(parsed.sweeps, parsed.tracking_uri)
        report = build.make_report(sources, limits, parallel.count_cores())
    except (ConfigError, TrackingError) as error:
        print(error, file=sys.stderr)
        return BAD_INPUT
    except OSError as error:
        print(f"{error.filename or 'reading'}: {error.strerror or error}", file=sys.stderr)
        return BAD_INPUT
    first, *others = [source.folder for source in sources]
    out = parsed.out or SweepPaths(first).report_with(others)
    if parsed.out is None and out.is_symlink():
        print(
            f"{out} is a link, which is not followed; name it with --out to write there",
            file=sys.stderr,
        )
        return BAD_INPUT
    write = build.begin_files(report, out, parallel.count_cores())
    for problem in report.problems:  # before the verdict, which is to be seen at once
        print(problem, file=sys.stderr)
    try:
        if parsed.tables:
            build.print_report(report, console)
        else:
            build.print_verdict(report, console)
    except SystemExit:  # rich's, when nobody reads on (`| head`): the files shall be there
        write()
        raise
    try:
        report = replace(report, paths=write())
    except OSError as error:
        print(
            f"{f'--out {parsed.out}' if parsed.out else out}: {error.strerror or error}",
            file=sys.stderr,
        )
        return BAD_INPUT
    folder = first.resolve()
    ran_here = not others and folder.parent == RUNS.resolve() and folder.is_dir()
    for line in build.suggest_next(report, out, folder.name if ran_here else None):
        print_plain(line, console)
    if report.problems:
        return NOT_OK
    return OK


if __name__ == "__main__":
    gc.disable()  # nothing here has cycles, and looking for them takes 14 % of the CPU time
    atexit.register(gc.freeze)  # or Python would search all trials for reference cycles at its end
    sys.exit(run_until_closed(main))
