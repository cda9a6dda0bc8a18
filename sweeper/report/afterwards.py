"""The last lines of a sweep and of a report: where the files are and what to type next."""

from __future__ import annotations

from pathlib import Path

from sweeper.report.build import Report

LASTING = (
    "unavailable",
    "accuracy_mismatch",
    "not_compiled",
    "compile_error",
)  # statuses that another try on this machine gives again


def what_next(report: Report, out: Path, sweep: str | None) -> list[str]:
    """At most two lines; `sweep` is the one that was reported, where its command can run it again from here."""
    page = next((path for path in report.paths if path.suffix == ".html"), None)
    lines = [f"tables: {out}" + (f"; for a browser: {page}" if page else "")]
    again = [row for row in report.failures.rows if row["status"] not in LASTING]
    if again and sweep:
        lines.append(f"{len(again)} not ok that may do better: the same command with sweep={sweep} runs them again")
    return lines
