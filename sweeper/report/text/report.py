"""The contents of a report, before they become files, text or a page."""

from dataclasses import dataclass
from pathlib import Path

from sweeper.report.answers.findings import Findings
from sweeper.report.answers.provenance import Provenance

from .verdict import Verdict


@dataclass(frozen=True)
class Report:
    """Everything that is known of some sweeps. `problems` name trials that could not be read."""

    findings: Findings
    provenance: Provenance
    notes: tuple[str, ...]  # what a reader should know beside the tables
    problems: tuple[str, ...]
    verdict: Verdict
    paths: tuple[Path, ...] = ()  # of the files that were written
