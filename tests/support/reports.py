"""Reports on records, with the command of their sweep."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from records import write_sweep

from sweeper.core.record import Record
from sweeper.loading.entries import Loaded, load_from
from sweeper.loading.sources import SweepFolder
from sweeper.report.answers.decision import NO_LIMITS, Limits
from sweeper.report.build import begin_files, make_report
from sweeper.report.text.report import Report


def load(sweeps: Sequence[Path]) -> Loaded:
    """Read every trial in the folders of the sweeps."""
    return load_from(list(map(SweepFolder, sweeps)))


def write_report(sweeps: Sequence[Path], out: Path, limits: Limits = NO_LIMITS) -> Report:
    """Write the files of a report on all trials in the folders `sweeps` to the folder `out`."""
    report = make_report(list(map(SweepFolder, sweeps)), limits)
    return replace(report, paths=begin_files(report, out)())


def report_on(tmp_path: Path, records: Sequence[Record], command: str = "") -> Report:
    """Write a report on a sweep of one command to `tmp_path/report`."""
    folder = write_sweep(tmp_path, records)
    plan = [{"trial_id": record.trial_id} for record in records]
    (folder / "sweep.json").write_text(
        json.dumps({"invocations": [{"command": command, "plan": plan}]})
    )
    return write_report([folder], tmp_path / "report")
