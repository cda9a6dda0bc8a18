"""Columns of what tells trials apart, for every table whose rows have a trial."""

from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from typing import Any, TypeVar

from sweeper.analysis.metrics import METRICS, Metric
from sweeper.loading.entries import Entry
from sweeper.report.answers.trials import AXES
from sweeper.report.columns.column import PAGE, Column, lift, select

T = TypeVar("T")


def _axis(name: str, title: str = "", **shown: Any) -> Column[Entry]:
    return Column(name, AXES[name], title=title or name, is_name=True, **shown)


TRIAL_COLUMNS: tuple[Column[Entry], ...] = (
    Column("trial_id", lambda entry: entry.record.trial_id),
    _axis("model", folds=True),
    Column(
        "family",
        lambda entry: entry.trial.labels.family,
        title="family",
        media=(PAGE,),
        is_axis=True,
        is_name=True,
        is_filter=True,
    ),
    Column("suite", lambda entry: entry.trial.labels.suite),
    Column("library", lambda entry: entry.trial.model.library),
    _axis("workload", is_axis=True),
    _axis("backend", is_axis=True),
    _axis("batch_size", "batch", kind=int, is_axis=True),
    _axis("variant", is_axis=True, folds=True),
    _axis("sweep", is_axis=True, is_filter=True),
    _axis("precision", is_filter=True),
    _axis("mode", is_filter=True),
    Column(
        "status",
        lambda entry: entry.record.status,
        title="status",
        media=(PAGE,),
        is_name=True,
        is_filter=True,
    ),
    Column("flags", lambda entry: entry.flags, tuple),
)


# What tells trials of any kind apart.
NAMES = ("model", "workload", "backend", "batch_size", "variant", "sweep", "precision", "mode")


def metric_column(metric: Metric) -> Column[Entry]:
    """Make the column of a metric, which people see under its heading."""
    meaning = f"{metric.heading} is {metric.meaning}" if metric.heading else ""
    return Column(
        metric.csv_name,
        lambda entry: metric.column_value(entry.result),
        metric.kind,
        title=metric.heading,
        meaning=meaning,
    )


def trial_columns(
    *names: str, get_entry: Callable[[T], Entry | None] = attrgetter("entry")
) -> list[Column[T]]:
    """Make columns of trials and of their figures for a table over items that have an entry; they
    are empty for items without one.
    """
    columns = select([*TRIAL_COLUMNS, *map(metric_column, METRICS)], names)
    return [lift(column, get_entry) for column in columns]


def file_columns(
    *names: str, get_entry: Callable[[T], Entry | None] = attrgetter("entry")
) -> list[Column[T]]:
    """Make such columns that files alone have."""
    return [replace(column, title="") for column in trial_columns(*names, get_entry=get_entry)]
