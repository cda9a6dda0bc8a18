"""`write_report`: everything that is known of some sweeps, as files; `print_report`: the same for a terminal.

Place in the flow: the driver calls both at the end of a sweep, `python -m sweeper.report` for any sweeps later.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from sweeper.core.paths import write_text
from sweeper.loading import parallel
from sweeper.loading.cross_trial import compared
from sweeper.loading.entries import Entry, load_from, no_search_for_cycles
from sweeper.loading.sources import Source, SweepFolder
from sweeper.report.page import page
from sweeper.report.table import Table
from sweeper.report.tables.causes import causes
from sweeper.report.tables.decision import Limits
from sweeper.report.tables.failures import failures
from sweeper.report.tables.recommendations import NO_LIMITS, choices, recommendations
from sweeper.report.tables.speedups import speedups
from sweeper.report.tables.summary import groups, incomplete, summary
from sweeper.report.tables.units import Unit, collect
from sweeper.report.text import markdown, terminal
from sweeper.report.text.consistency import mixtures
from sweeper.report.text.provenance import describe, weighted_as_amp, without_invocations

MAX_INSPECTIONS = 10  # named in a note
TABLES = ("speedups", "summary", "failures", "recommendations", "causes")
MIN_WIDTH = 100  # columns of a console that is no terminal


@dataclass(frozen=True)
class Report:
    """All that is known. `problems` are trials that could not be read, `notes` what a reader should know beside."""

    facts: tuple[str, ...]
    amp: str  # what carried the weight amp
    speedups: Table
    summary: Table
    failures: Table
    recommendations: Table
    causes: Table
    notes: tuple[str, ...]
    problems: tuple[str, ...]
    entries: tuple[Entry, ...]  # in the order of the rows of `speedups`
    units: tuple[Unit, ...]
    paths: tuple[Path, ...] = ()  # what was written


def write_report(sweeps: Sequence[Path], out: Path) -> Report:
    """Write the tables of all trials in the folders `sweeps` to the folder `out`; raises as `make_report` does."""
    return write_report_of([SweepFolder(folder) for folder in sweeps], out)


def write_report_of(sources: Sequence[Source], out: Path, limits: Limits = NO_LIMITS) -> Report:
    """The same of all trials in `sources`."""
    report = make_report(sources, limits)
    return replace(report, paths=files_of(report, out)())


@no_search_for_cycles()
def make_report(sources: Sequence[Source], limits: Limits = NO_LIMITS, cores: int = 1) -> Report:
    """The tables of all trials in `sources`; `limits` are for the recommendations. With several `cores` it forks.

    Raises ConfigError when two precision options carry one weight in a row of the summary.
    """
    loaded = load_from(sources, cores)
    entries = compared(loaded.entries)
    recommended = parallel.beside(functools.partial(_recommended, entries, limits), cores)
    units = collect(entries)
    rows = groups(units.units)
    judged = {entry for group in rows for unit in group.judged for entry in unit.entries.values()}
    facts, amp = describe(sources, entries), weighted_as_amp(entries)
    facts += [f"recommended for: {limits}"] if str(limits) else []
    notes = [*units.notes, *incomplete(rows), *mixtures(entries), *without_invocations(sources)]
    if entries and not rows:
        notes.append("no geometric means: they are taken over compiled trials whose precision has a weight (amp, fp32)")
    notes += inspections(entries)
    return Report(
        tuple(facts),
        amp,
        speedups=speedups(entries),
        summary=summary(rows),
        failures=failures(entries, judged),
        recommendations=recommended(),
        causes=causes(entries),
        notes=tuple(notes),
        problems=loaded.problems,
        entries=entries,
        units=units.units,
    )


def _recommended(entries: Sequence[Entry], limits: Limits) -> Table:
    return recommendations(choices(entries, limits))


def files_of(report: Report, out: Path, cores: int = 1) -> Callable[[], tuple[Path, ...]]:
    """Begin to make the files of a report; what is returned writes them to the folder `out` and gives their paths."""
    tables = {name: getattr(report, name) for name in TABLES}
    notes, problems = report.notes, report.problems
    content = page.Content(
        report.facts, report.amp, report.entries, report.units, **tables, notes=notes, problems=problems
    )
    made = page.begin_page(content, out, cores)

    @no_search_for_cycles()
    def write() -> tuple[Path, ...]:
        texts = {f"{name}.csv": table.csv() for name, table in tables.items()}
        texts["report.md"] = markdown.document(report.facts, **tables, amp=report.amp, notes=notes, problems=problems)
        texts["report.html"] = made()
        for name, text in texts.items():
            write_text(out / name, text)
        return tuple(out / name for name in texts)

    return write


def inspections(entries: Sequence[Entry]) -> list[str]:
    """A line that says where the inspections of trials lie."""
    folders = [entry.folder / found.folder for entry in entries if (found := entry.record.inspection) and found.folder]
    if not folders:
        return []
    named = ", ".join(str(folder / "summary.md") for folder in folders[:MAX_INSPECTIONS])
    more = f" and {len(folders) - MAX_INSPECTIONS} others" if len(folders) > MAX_INSPECTIONS else ""
    return [f"what the compiler did: {named}{more}"]


@no_search_for_cycles()
def print_report(report: Report, console: Console) -> None:
    """The tables for people. A console that is no terminal is made `MIN_WIDTH` columns wide, at least."""
    if not console.is_terminal:
        console.width = max(console.width, MIN_WIDTH)
    for fact in report.facts:
        console.print(fact, soft_wrap=True, markup=False, highlight=False)
    terminal.print_recommendations(report.recommendations.rows, console)
    terminal.print_speedups(report.speedups.rows, console)
    terminal.print_causes(report.causes.rows, console)
    terminal.print_failures(report.failures.rows, console)
    terminal.print_summary(report.summary.rows, report.amp, console)
    for note in report.notes:
        console.print(f"note: {note}", soft_wrap=True, markup=False, highlight=False)


def what_next(report: Report, out: Path, sweep: str | None) -> list[str]:
    """At most two lines; `sweep` is the one that was reported, where its command can run it again from here."""
    page = next((path for path in report.paths if path.suffix == ".html"), None)
    lines = [f"tables: {out}" + (f"; for a browser: {page}" if page else "")]
    again = [row for row in report.failures.rows if row["status"] not in LASTING]
    if again and sweep:
        lines.append(f"{len(again)} not ok that may do better: the same command with sweep={sweep} runs them again")
    return lines


LASTING = (
    "unavailable",
    "accuracy_mismatch",
    "not_compiled",
    "compile_error",
)  # statuses that another try on this machine gives again
