"""Tables of sweeps as pandas frames, for notebooks: the columns of the CSV files, with proper
types.

`docs/notebook.md` has an example. `import sweeper` brings these functions, and pandas is loaded
when a frame is made. Try: `python -c "import sweeper;
print(sweeper.speedups(sweeper.load_records('my-sweep')))"`
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.core.errors import ConfigError, nearest
from sweeper.core.record import Record
from sweeper.loading.entries import Entry, load_from

if TYPE_CHECKING:
    import pandas as pd

_TYPES: Mapping[type, str] = {
    str: "string",
    int: "Int64",
    float: "float64",
    bool: "boolean",
    tuple: "object",
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
        """Select the records for which `keep` returns True."""
        return Records(tuple(entry for entry in self.entries if keep(entry.record)), self.problems)


def load_records(*sweeps: str | Path, tracking_uri: str | None = None) -> Records:
    """Load the records of sweeps by name or folder, or by name from an MLflow store.

    Raises ConfigError for a sweep that is not there, TrackingError when the store does not answer.
    """
    from sweeper.loading.cross_trial import add_cross_trial_findings
    from sweeper.loading.sources import find_sources

    if not sweeps:
        raise ConfigError(
            'no sweep was named; e.g. load_records("my-sweep") or '
            'load_records("some/folder/my-sweep")'
        )
    loaded = load_from(find_sources([str(sweep) for sweep in sweeps], tracking_uri))
    return Records(add_cross_trial_findings(loaded.entries), loaded.problems)


def table(
    records: Records, name: str, *, steps: int | None = None, max_memory_gib: float | None = None
) -> pd.DataFrame:
    """Make the table `<name>.csv` of a report. Raises ConfigError for an unknown name.

    Recommendations are for a job of `steps` steps and with `max_memory_gib` of device memory, where
    these are given.
    """
    import pandas as pd

    from sweeper.report.answers.decision import Limits
    from sweeper.report.answers.findings import Findings
    from sweeper.report.tables.registry import TABLES

    specs = {spec.name: spec for spec in TABLES}
    if name not in specs:
        raise ConfigError(f"{name}: no such table; {nearest(name, specs)}")
    spec = specs[name]
    items = spec.items(Findings(records.entries, Limits(steps, max_memory_gib)))
    series = {}
    for column in spec.columns:
        if column.name:
            values = [column.value(item) for item in items]
            series[column.name] = pd.Series(values, dtype=_TYPES[column.kind])
    return pd.DataFrame(series)


def speedups(records: Records) -> pd.DataFrame:
    """Make the table of speedups.csv, a row per trial."""
    return table(records, "speedups")


def summary(records: Records) -> pd.DataFrame:
    """Make the table of summary.csv, geometric means by family."""
    return table(records, "summary")


def recommendations(
    records: Records, *, steps: int | None = None, max_memory_gib: float | None = None
) -> pd.DataFrame:
    """Make the table of recommendations.csv, for a job with the limits that are given."""
    return table(records, "recommendations", steps=steps, max_memory_gib=max_memory_gib)


def causes(records: Records) -> pd.DataFrame:
    """Make the table of causes.csv: what costs time that compiling could have saved, dearest
    first.
    """
    return table(records, "causes")
