"""The contents of a report, before they become files, text or a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sweeper.report.findings import Findings
from sweeper.report.table import Table


@dataclass(frozen=True)
class Report:
    """All that is known. `problems` are trials that could not be read, `notes` what a reader should know beside."""

    facts: tuple[str, ...]
    findings: Findings
    tables: Mapping[str, Table]  # those of the registry, by name
    notes: tuple[str, ...]
    problems: tuple[str, ...]
    paths: tuple[Path, ...] = ()  # what was written
