"""sweeper measures what torch.compile gains over eager, trial by trial, and says how sure it is.

Importing the package stays light: torch, mlflow, hydra and pandas load only where they are used. For notebooks:
`from sweeper import load_records, speedups, summary, recommendations, causes, table` (docs/notebook.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sweeper.dataframes import Records, causes, load_records, recommendations, speedups, summary, table

__version__ = "0.1.0"
__all__ = ["Records", "__version__", "causes", "load_records", "recommendations", "speedups", "summary", "table"]


def __getattr__(name: str) -> Any:
    """The functions of `sweeper.dataframes`, loaded when one is asked for."""
    if name in __all__:
        from sweeper import dataframes

        return getattr(dataframes, name)
    raise AttributeError(f"module 'sweeper' has no attribute {name!r}")
