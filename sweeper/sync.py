"""`python -m sweeper.sync NAME` sends to MLflow what it lacks of a sweep: records, key figures and the report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from sweeper.core.errors import ConfigError, nearest, remove_password
from sweeper.core.paths import RUNS, SweepPaths
from sweeper.core.pipes import run_until_closed
from sweeper.loading.sources import SweepFolder, read_settings
from sweeper.report.text.mlflow_overview import load_overview
from sweeper.tracking.tracker import Tracker

OK, NOT_OK, BAD_CONFIGURATION = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code: 0 all is there, 1 MLflow cannot be reached or a file is no record, 2 no such sweep."""
    what = "Send to MLflow what it lacks of a sweep."
    parser = argparse.ArgumentParser("python -m sweeper.sync", description=what, allow_abbrev=False)
    parser.add_argument("name", metavar="NAME", help="the sweep, a folder under runs/")
    parser.add_argument("--tracking-uri", metavar="URI", help="where to; default: where the sweep sent its runs")
    options = parser.parse_args(arguments)
    try:
        paths = _find_sweep(options.name)
    except ValueError as error:
        print(f"sweeper.sync: {error}", file=sys.stderr)
        return BAD_CONFIGURATION
    last_uri = read_settings(SweepFolder(paths.folder), "tracking").get("uri")
    tracker = Tracker(options.tracking_uri or (last_uri and str(last_uri)), options.name)
    result = tracker.catch_up()
    if tracker.failure is None and paths.records():
        try:
            tracker.log_overview(load_overview(paths.folder))  # from the records, which may be newer than the report
        except ConfigError as error:  # two options carry one weight: the driver had no tables to show, either
            print(f"sweeper.sync: no key figures: {error}", file=sys.stderr)
    tracker.log_report(sorted(paths.report.iterdir()) if paths.report.is_dir() else [])
    tracker.finish()
    for problem in result.problems:
        print(f"sweeper.sync: {problem}", file=sys.stderr)
    if tracker.failure is not None:
        print(f"sweeper.sync: {tracker.failure}", file=sys.stderr)
        return NOT_OK
    where = remove_password(tracker.uri)
    print(f"{paths.folder.name}: {result.sent} records sent, {result.unchanged} were there already; {where}")
    return NOT_OK if result.problems else OK


def _find_sweep(name: str) -> SweepPaths:
    paths = SweepPaths.of(name)
    if not paths.folder.is_dir():
        sweeps = sorted(path.name for path in RUNS.glob("*/") if SweepPaths(path).records())
        raise ValueError(f"{name}: no such sweep in {RUNS}/; {nearest(name, sweeps) if sweeps else 'there is none'}")
    return paths


if __name__ == "__main__":
    sys.exit(run_until_closed(main))
