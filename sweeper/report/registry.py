"""The tables of a report: a new one is a line here."""

from __future__ import annotations

from sweeper.report.spec import TableSpec
from sweeper.report.tables import (
    causes,
    failures,
    ladder,
    recommendations,
    scripts,
    speedups,
    summary,
)

# In the order of report.md. A terminal and the page have the summary last.
TABLES: list[TableSpec] = [
    summary.SPEC,
    scripts.SPEC,
    ladder.SPEC,
    recommendations.SPEC,
    speedups.SPEC,
    causes.SPEC,
    failures.SPEC,
]
