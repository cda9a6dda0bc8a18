"""report.md: the tables with what is needed to read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sweeper.core.text import printable
from sweeper.report import formatting
from sweeper.report.formatting import text
from sweeper.report.table import Column, Row, Table
from sweeper.report.tables.causes import cause_columns
from sweeper.report.tables.failures import failure_columns
from sweeper.report.tables.recommendations import recommendation_columns, what_certainty_means
from sweeper.report.tables.speedups import speedup_columns, what_columns_mean, what_intervals_mean
from sweeper.report.tables.summary import ALL, headlines, judged_groups, not_judged, summary_columns

MAX_ROWS = 1000  # of a table; the files have all
MAX_CAUSES = 50

# Names come from users and messages from anywhere: neither may end a cell, start HTML or make a link.
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", **{sign: f"\\{sign}" for sign in "\\|`*[]"}})


def escape(value: str) -> str:
    return printable(value).translate(_ESCAPES)


def document(
    facts: Iterable[str],
    speedups: Table,
    summary: Table,
    failures: Table,
    recommendations: Table,
    causes: Table,
    amp: str,
    notes: Sequence[str],
    problems: Sequence[str],
) -> str:
    """The whole report; `amp` says what carried the weight amp."""
    sections = [
        "# Speedups of torch.compile",
        bullets(facts),
        *_summary(summary.rows, amp),
        *_recommendations(recommendations.rows),
        *_speedups(speedups.rows),
        *_causes(causes.rows),
        *_failures(failures.rows),
    ]
    sections += ["## Notes", bullets(notes)] if notes else []
    sections += ["## Records that could not be read", bullets(problems)] if problems else []
    return "\n\n".join(section for section in sections if section) + "\n"


def _summary(rows: Sequence[Row], amp: str) -> list[str]:
    if not rows:
        return ["## Summary", "No trial carries a weight (amp or fp32), so there is nothing to take means over."]
    overall = [row for row in rows if row["family"] == ALL]
    lines = [f"**{escape(headline)}** ({escape(key)})" for key, headline, _ in headlines(overall)]
    shown = judged_groups(rows, ALL)
    return [
        "## Summary",
        "\n\n".join(lines),
        table(summary_columns(shown), shown) if shown else "",
        escape(not_judged(overall)),
        "Geometric means of speedups; in brackets the 95 % interval for these models, in parentheses how many models. "
        "A new model: where one more of the same kind would lie." + (f" AMP: {escape(amp)}." if amp else ""),
    ]


def _speedups(rows: Sequence[Row]) -> list[str]:
    if not any(row["status"] == "ok" for row in rows):
        return ["## Speedups", "No trial is ok." if rows else "There are no records."]
    rows = formatting.in_order(rows)
    common, columns = formatting.in_common(rows), speedup_columns(rows)
    return [
        "## Speedups",
        f"All trials: {escape(common)}." if common else "",
        table(columns, rows[:MAX_ROWS]),
        _more(rows, MAX_ROWS, "speedups.csv"),
        what_intervals_mean(rows),
        what_columns_mean(columns),
    ]


def _recommendations(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    return [
        "## Recommendations",
        table(recommendation_columns(rows), rows[:MAX_ROWS]),
        _more(rows, MAX_ROWS, "recommendations.csv"),
        what_certainty_means(rows),
    ]


def _causes(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    return [
        "## Causes of lost time",
        table(cause_columns(rows), rows[:MAX_CAUSES]),
        _more(rows, MAX_CAUSES, "causes.csv"),
    ]


def _failures(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    left_out = sum(row["in_pass_rate"] is not True for row in rows)
    return [
        "## Failures",
        table(failure_columns(rows), formatting.in_order(rows)[:MAX_ROWS]),
        _more(rows, MAX_ROWS, "failures.csv"),
        f"{len(rows)} trial{' is' if len(rows) == 1 else 's are'} not ok; {left_out or 'none'} left out of pass rates.",
    ]


def _more(rows: Sequence[Row], shown: int, file: str) -> str:
    return f"And {len(rows) - shown:,} more in {file}." if len(rows) > shown else ""


def table(columns: Sequence[Column[Row]], rows: Iterable[Row]) -> str:
    """A Markdown table; everything in its cells is escaped."""
    lines = [[column.name for column in columns], ["---"] * len(columns)]
    lines += [[escape(text(column.value(row))) for column in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {escape(line)}" for line in lines)
