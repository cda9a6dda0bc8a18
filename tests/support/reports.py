"""Reports on records, with the command of their sweep."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from records import write_sweep

from sweeper.core.record import Record
from sweeper.report.build import write_report
from sweeper.report.text.report import Report


def report_on(tmp_path: Path, records: Sequence[Record], command: str = "") -> Report:
    """Write a report on a sweep of one command to `tmp_path/report`."""
    folder = write_sweep(tmp_path, records)
    plan = [{"trial_id": record.trial_id} for record in records]
    (folder / "sweep.json").write_text(
        json.dumps({"invocations": [{"command": command, "plan": plan}]})
    )
    return write_report([folder], tmp_path / "report")
