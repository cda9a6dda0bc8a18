"""The tables of a report: a new one is a line here."""

from typing import Any

from .ablation import AblationTable
from .causes import CausesTable
from .failures import FailuresTable
from .ladder import LadderTable
from .recommendations import RecommendationsTable
from .scripts import ScriptsTable
from .spec import TableSpec
from .speedups import SpeedupsTable
from .starts import StartsTable
from .summary import SummaryTable

# In the order of report.md.
TABLES: list[TableSpec[Any]] = [
    SummaryTable(),
    ScriptsTable(),
    LadderTable(),
    StartsTable(),
    AblationTable(),
    RecommendationsTable(),
    SpeedupsTable(),
    CausesTable(),
    FailuresTable(),
]
