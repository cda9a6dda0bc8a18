"""`write_report`: everything that is known of some sweeps, as files; `print_report`: the same for a terminal.

Place in the flow: the driver calls both at the end of a sweep, `python -m sweeper.report` for any sweeps later.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from sweeper.paths import write_text
from sweeper.report import forks, markdown, page, terminal
from sweeper.report.across import compared
from sweeper.report.causes import causes
from sweeper.report.choice import Limits
from sweeper.report.failures import failures
from sweeper.report.load import Entry, load_from, no_search_for_cycles
from sweeper.report.mixtures import mixtures
from sweeper.report.provenance import describe, weighted_as_amp, without_invocations
from sweeper.report.recommendations import NO_LIMITS, choices, recommendations
from sweeper.report.sources import Source, SweepFolder
from sweeper.report.speedups import speedups
from sweeper.report.summary import groups, incomplete, summary
from sweeper.report.table import Table
from sweeper.report.units import collect

MOST_INSPECTIONS = 10  # named in a note
LEAST_WIDTH = 100  # columns of a console that is no terminal


@dataclass(frozen=True)
class Report:
    """What was written. `problems` are trials that could not be read, `notes` what a reader should know beside."""

    facts: tuple[str, ...]
    amp: str  # what carried the weight amp
    speedups: Table
    summary: Table
    failures: Table
    recommendations: Table
    causes: Table
    notes: tuple[str, ...]
    problems: tuple[str, ...]
    paths: tuple[Path, ...]


def write_report(sweeps: Sequence[Path], out: Path) -> Report:
    """Write the tables of all trials in the folders `sweeps` to the folder `out`; see `write_report_of`."""
    return write_report_of([SweepFolder(folder) for folder in sweeps], out)


@no_search_for_cycles()
def write_report_of(
    sources: Sequence[Source],
    out: Path,
    limits: Limits = NO_LIMITS,
    meanwhile: Callable[[Report], None] | None = None,
    cores: int = 1,
) -> Report:
    """Write the tables of all trials in `sources` to the folder `out`; `limits` are for the recommendations.

    `meanwhile` is called with the report while its page is made, before anything is written. With several `cores` it
    forks (see `forks`).

    Raises ConfigError, before anything is written, when two precision options carry one weight in a row of the summary.
    """
    loaded = load_from(sources, cores)
    entries = compared(loaded.entries)
    units = collect(entries)
    rows = groups(units.units)
    judged = {entry for group in rows for unit in group.judged for entry in unit.entries.values()}
    facts, amp = describe(sources, entries), weighted_as_amp(entries)
    facts += [f"recommended for: {limits}"] if str(limits) else []
    notes = [*units.notes, *incomplete(rows), *mixtures(entries), *without_invocations(sources)]
    if entries and not rows:
        notes.append("no geometric means: they are taken over compiled trials whose precision has a weight (amp, fp32)")
    notes += inspections(entries)
    tables = {
        "speedups": speedups(entries),
        "summary": summary(rows),
        "failures": failures(entries, judged),
        "recommendations": recommendations(choices(entries, limits)),
        "causes": causes(entries),
    }
    names = (*(f"{name}.csv" for name in tables), "report.md", "report.html")
    paths = tuple(out / name for name in names)
    report = Report(tuple(facts), amp, **tables, notes=tuple(notes), problems=loaded.problems, paths=paths)
    content = page.Content(facts, amp, entries, units.units, **tables, notes=notes, problems=loaded.problems)
    made = forks.beside(functools.partial(page.document, content, out, cores), cores)
    try:
        if meanwhile:
            meanwhile(report)
    finally:  # a reader of its output who has seen enough (`| head`) shall find the files
        text = markdown.document(facts, **tables, amp=amp, notes=notes, problems=loaded.problems)
        for path, written in zip(paths, (*(table.csv() for table in tables.values()), text, made()), strict=True):
            write_text(path, written)
    return report


def inspections(entries: Sequence[Entry]) -> list[str]:
    """A line that says where the inspections of trials lie."""
    folders = [entry.folder / found.folder for entry in entries if (found := entry.record.inspection) and found.folder]
    if not folders:
        return []
    named = ", ".join(str(folder / "summary.md") for folder in folders[:MOST_INSPECTIONS])
    more = f" and {len(folders) - MOST_INSPECTIONS} others" if len(folders) > MOST_INSPECTIONS else ""
    return [f"what the compiler did: {named}{more}"]


def print_report(report: Report, console: Console) -> None:
    """The tables for people. A console that is no terminal is made `LEAST_WIDTH` columns wide, at least."""
    if not console.is_terminal:
        console.width = max(console.width, LEAST_WIDTH)
    for fact in report.facts:
        console.print(fact, soft_wrap=True, markup=False, highlight=False)
    terminal.print_recommendations(report.recommendations.rows, console)
    terminal.print_speedups(report.speedups.rows, console)
    terminal.print_causes(report.causes.rows, console)
    terminal.print_failures(report.failures.rows, console)
    terminal.print_summary(report.summary.rows, report.amp, console)
    for note in report.notes:
        console.print(f"note: {note}", soft_wrap=True, markup=False, highlight=False)
