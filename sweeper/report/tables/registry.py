"""The tables of a report: a new one is a line here."""

from typing import Any

from sweeper.report.tables.causes import CausesTable
from sweeper.report.tables.failures import FailuresTable
from sweeper.report.tables.ladder import LadderTable
from sweeper.report.tables.recommendations import RecommendationsTable
from sweeper.report.tables.scripts import ScriptsTable
from sweeper.report.tables.spec import TableSpec
from sweeper.report.tables.speedups import SpeedupsTable
from sweeper.report.tables.summary import SummaryTable

# In the order of report.md.
TABLES: list[TableSpec[Any]] = [
    SummaryTable(),
    ScriptsTable(),
    LadderTable(),
    RecommendationsTable(),
    SpeedupsTable(),
    CausesTable(),
    FailuresTable(),
]
