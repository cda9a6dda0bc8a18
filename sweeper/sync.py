"""Sends to MLflow what it lacks of a sweep, for when the tracker was down.

Place in the flow: after a sweep, by hand: records, key figures, and the report as it lies in its folder. What MLflow
shows already is left alone.

Try: `python -m sweeper.sync NAME`
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from sweeper.core.errors import ConfigError, nearest, remove_password
from sweeper.core.paths import RUNS, SweepPaths
from sweeper.report.text.mlflow_overview import overview_of
from sweeper.tracking.tracker import Tracker

OK, NOT_OK, BAD_CONFIGURATION = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 all is there, 1 MLflow cannot be reached or a file is no record, 2 no such sweep."""
    parser = argparse.ArgumentParser(
        "python -m sweeper.sync", description="Send to MLflow what it lacks of a sweep.", allow_abbrev=False
    )
    parser.add_argument("name", metavar="NAME", help="the sweep, a folder under runs/")
    parser.add_argument("--tracking-uri", metavar="URI", help="where to; default: where the sweep sent its runs")
    options = parser.parse_args(arguments)
    try:
        paths = _known_sweep(options.name)
    except ValueError as error:
        print(f"sweeper.sync: {error}", file=sys.stderr)
        return BAD_CONFIGURATION
    return _send(Tracker(options.tracking_uri or _uri_of(paths), options.name), paths)


def _known_sweep(name: str) -> SweepPaths:
    paths = SweepPaths.of(name)
    if not paths.folder.is_dir():
        sweeps = sorted(path.name for path in RUNS.glob("*/") if SweepPaths(path).records())
        raise ValueError(f"{name}: no such sweep in {RUNS}/; {nearest(name, sweeps) if sweeps else 'there is none'}")
    return paths


def _uri_of(paths: SweepPaths) -> str | None:
    """The tracking URI of the sweep's last run; None, the default, when its file does not tell."""
    try:
        uri = json.loads(paths.sweep.read_text(encoding="utf-8"))["invocations"][-1]["settings"]["tracking"]["uri"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return None if uri is None else str(uri)


def _send(tracker: Tracker, paths: SweepPaths) -> int:
    result = tracker.catch_up()
    _send_overview(tracker, paths)
    tracker.log_report(sorted(paths.report.iterdir()) if paths.report.is_dir() else [])
    tracker.finish()
    for path in result.unreadable:
        print(f"sweeper.sync: {path} holds no record that this version can read", file=sys.stderr)
    if tracker.failure is not None:
        print(f"sweeper.sync: {tracker.failure}", file=sys.stderr)
        return NOT_OK
    where = remove_password(tracker.uri)
    print(f"{paths.folder.name}: {result.sent} records sent, {result.unchanged} were there already; {where}")
    return NOT_OK if result.unreadable else OK


def _send_overview(tracker: Tracker, paths: SweepPaths) -> None:
    """What the run of the sweep shows, computed anew: records may be newer than the report."""
    if tracker.failure is not None or not paths.records():
        return
    try:
        tracker.log_overview(overview_of(paths.folder))
    except ConfigError as error:  # two options carry one weight: the driver had no tables to show, either
        print(f"sweeper.sync: no key figures: {error}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
