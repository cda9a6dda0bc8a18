"""`python -m sweeper.sync NAME` sends to MLflow what it lacks of a sweep: records, key figures and
the report.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence

from sweeper.core.errors import ConfigError
from sweeper.core.paths import RUNS, SweepPaths, list_folder
from sweeper.core.system.exit_codes import BAD_INPUT, NOT_OK, OK
from sweeper.core.system.pipes import run_until_closed
from sweeper.core.text import printable
from sweeper.core.uris import remove_credentials
from sweeper.loading.sources import SweepFolder, known_folders, read_last_run
from sweeper.report.build import make_report
from sweeper.report.text.mlflow_overview import overview
from sweeper.tracking.store import sqlite_file
from sweeper.tracking.tracker import Tracker

from .tracking import known_stores


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code: 0 all is there, 1 MLflow cannot be reached or a file is no record, 2 no
    such sweep.
    """
    parser = argparse.ArgumentParser(
        "python -m sweeper.sync",
        description="Send to MLflow what it lacks of a sweep.",
        allow_abbrev=False,
    )
    parser.add_argument("name", metavar="NAME", help="the sweep, a folder under runs/")
    parser.add_argument(
        "--tracking-uri",
        metavar="URI",
        help="where to; default: where the sweep sent its runs, if a command of yours on this "
        "machine named that store",
    )
    options = parser.parse_args(arguments)
    try:
        paths = SweepPaths.of(options.name)
        if not paths.folder.is_dir():
            raise ConfigError(
                f"{options.name}: no such sweep in {RUNS}/; {known_folders(options.name)}"
            )
        uri = options.tracking_uri or _find_store(paths)
    except ValueError as error:
        _complain(error)
        return BAD_INPUT
    tracker = Tracker(uri, options.name)
    result = tracker.catch_up()
    if tracker.failure is None and paths.records():
        # from the records, which may be newer than the report
        tracker.log_overview(overview(make_report([SweepFolder(paths.folder)])))
    if files := sorted(list_folder(paths.report, "*")):
        tracker.log_report(files)
    tracker.finish()
    for line in (*result.problems, *tracker.not_sent):
        _complain(line)
    if tracker.failure is not None:
        _complain(tracker.failure)
        if uri and not options.tracking_uri and not sqlite_file(uri):
            _complain("sweep.json keeps no passwords; --tracking-uri can have one")
        return NOT_OK
    if options.tracking_uri:
        try:
            known_stores.remember(options.tracking_uri)
        except OSError as error:
            _complain(f"this store is not remembered: {error}")
    print(f"{options.name}: {result.sent} records sent, {result.unchanged} were there already")
    print(tracker.describe_page())
    return NOT_OK if result.problems or tracker.not_sent else OK


def _complain(problem: object) -> None:
    print(f"sweeper.sync: {problem}", file=sys.stderr)


def _find_store(paths: SweepPaths) -> str | None:
    """Find where the sweep sent its runs, None for the store in `runs/`.

    Raises ConfigError for a store that only `sweep.json` names: the folder may be somebody else's,
    and MLflow would send that server the credentials of this machine.
    """
    found = str(read_last_run(SweepFolder(paths.folder), "settings", "tracking").get("uri") or "")
    own = known_stores.environment_uri()
    if own and found and known_stores.normalize(own) == known_stores.normalize(found):
        return own  # with its password, of which `sweep.json` has none
    if own:
        where = "the store that sweep.json names" if found else "runs/"
        _complain(f"{known_stores.VARIABLE} is not used: the sweep's runs are in {where}")
    if not found or known_stores.is_known(found):
        return found or None
    uri = printable(remove_credentials(found))
    confirm = shlex.join(["python", "-m", "sweeper.sync", paths.folder.name, "--tracking-uri", uri])
    raise ConfigError(
        f"{paths.sweep} says that the runs are at {uri}, a store that no command of yours has "
        "named on this machine. Nothing was sent. If you know this store and want it to get these "
        f"records, logs and your MLflow credentials: {confirm}"
    )


if __name__ == "__main__":
    sys.exit(run_until_closed(main))
