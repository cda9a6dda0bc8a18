"""Measures how much faster torch.compile is than eager, and how certain each figure is.

`load_records`, `table` and the tables by name (`speedups`, `summary`, ...) are for notebooks
(docs/notebook.md). Importing the package loads neither torch nor mlflow, hydra or pandas: they load
where they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dataframes import (
        Records,
        causes,
        load_records,
        recommendations,
        speedups,
        summary,
        table,
    )

__version__ = "0.1.0"
__all__ = [
    "Records",
    "__version__",
    "causes",
    "load_records",
    "recommendations",
    "speedups",
    "summary",
    "table",
]


def __getattr__(name: str) -> Any:
    """The functions of `sweeper.dataframes`, loaded when one is asked for."""
    if name in __all__:
        from . import dataframes

        return getattr(dataframes, name)
    raise AttributeError(f"module 'sweeper' has no attribute {name!r}")
