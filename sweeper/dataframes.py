"""Tables of sweeps as pandas frames, for notebooks: the columns of the CSV files, with proper types.

Place in the flow: beside `python -m sweeper.report`, which writes the same rows to files. `docs/notebook.md` has an
example. `import sweeper` brings these functions and loads pandas only when a frame is made.
Try: `python -c "import sweeper; print(sweeper.speedups(sweeper.load_records('my-sweep')))"`
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.core.record import Record
from sweeper.loading.entries import Entry
from sweeper.report.table import Table, Value
from sweeper.report.tables.decision import Limits

if TYPE_CHECKING:
    import pandas as pd

# Types of columns by name; every other column holds floats, and text in one is an error and not a silent object.
_TEXT = (
    *("trial_id", "model", "family", "suite", "library", "workload", "mode", "backend", "precision", "variant"),
    *("status", "interval", "message", "host_bound_arms", "accuracy_reference", "accuracy_worst", "sweep"),
    *("phase", "log", "recommended", "certainty", "reason", "cause", "detail"),
)
_WHOLE = (
    *("batch_size", "processes", "draws", "graph_breaks", "recompiles", "artifacts", "steps", "count"),
    *("models", "passed", "models_amp", "models_fp32", "models_weighted", "models_device"),
)
_TYPES: Mapping[str, str] = {
    **dict.fromkeys(_TEXT, "string"),
    **dict.fromkeys(_WHOLE, "Int64"),
    **dict.fromkeys(("flags", "tied", "ruled_out"), "object"),  # tuples of text
    "in_pass_rate": "boolean",
}


@dataclass(frozen=True)
class Records:
    """What `load_records` found; iterating gives records without their samples.

    `problems` has a line for each record that could not be read.
    """

    entries: tuple[Entry, ...]
    problems: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Record]:
        return (entry.record for entry in self.entries)

    def where(self, keep: Callable[[Record], bool]) -> Records:
        """Those alone that `keep` says yes to."""
        return Records(tuple(entry for entry in self.entries if keep(entry.record)), self.problems)


def load_records(*sweeps: str | Path, tracking_uri: str | None = None) -> Records:
    """The records of sweeps by name or folder, or by name in an MLflow store.

    Raises ConfigError for a sweep that is not there, TrackingError when the store does not answer.
    """
    from sweeper.core.errors import ConfigError
    from sweeper.loading.cross_trial import add_cross_trial_findings
    from sweeper.loading.entries import load_from
    from sweeper.loading.sources import find_sources

    if not sweeps:
        raise ConfigError('no sweep was named; e.g. load_records("my-sweep") or load_records("some/folder/my-sweep")')
    loaded = load_from(find_sources([str(sweep) for sweep in sweeps], tracking_uri))
    return Records(add_cross_trial_findings(loaded.entries), loaded.problems)


def speedups(records: Records) -> pd.DataFrame:
    """speedups.csv: a row a trial."""
    from sweeper.report.tables.speedups import speedups as table

    return _frame(table(records.entries))


def summary(records: Records) -> pd.DataFrame:
    """summary.csv: geometric means by family. Raises ConfigError when two precisions carry one weight in a row."""
    from sweeper.report.tables.summary import groups
    from sweeper.report.tables.summary import summary as table
    from sweeper.report.tables.units import collect

    return _frame(table(groups(collect(records.entries).units)))


def recommendations(records: Records, *, steps: int | None = None, max_memory_gib: float | None = None) -> pd.DataFrame:
    """recommendations.csv, for a job of `steps` steps with so much device memory, where that is given."""
    from sweeper.report.tables.recommendations import choices
    from sweeper.report.tables.recommendations import recommendations as table

    return _frame(table(choices(records.entries, Limits(steps, max_memory_gib))))


def causes(records: Records) -> pd.DataFrame:
    """causes.csv: where time goes that compiling could have saved, dearest first."""
    from sweeper.report.tables.causes import causes as table

    return _frame(table(records.entries))


def _frame(table: Table) -> pd.DataFrame:
    import pandas as pd

    columns = {name: [row[name] for row in table.rows] for name in table.columns}
    return pd.DataFrame({name: _series(name, values) for name, values in columns.items()})


def _series(name: str, values: list[Value]) -> pd.Series:
    import pandas as pd

    return pd.Series(values, dtype=_TYPES.get(name, "float64"))
