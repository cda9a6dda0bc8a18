"""The contents of a report, before they become files, text or a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sweeper.report.findings import Findings
from sweeper.report.table import Table
from sweeper.report.verdict import Verdict

PRECEDENCE = "same trial twice"  # the fact of several sweeps that says whose trials count


@dataclass(frozen=True)
class Report:
    """Everything that is known of some sweeps. `problems` name trials that could not be read."""

    facts: tuple[str, ...]
    findings: Findings
    tables: Mapping[str, Table]  # of the registry, by name
    notes: tuple[str, ...]  # what a reader should know beside the tables
    problems: tuple[str, ...]
    paths: tuple[Path, ...] = ()  # what was written
    verdict: Verdict = field(default_factory=Verdict)
