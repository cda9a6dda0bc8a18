"""Reports on sweeps: `write_report` writes them to files, `print_verdict` prints the answers,
`print_report` all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from sweeper.core.files import write_text
from sweeper.core.text import printable
from sweeper.loading import parallel
from sweeper.loading.cross_trial import add_cross_trial_findings
from sweeper.loading.entries import Entry, load_from, pause_garbage_collection
from sweeper.loading.sources import Source, SweepFolder
from sweeper.report.contents import PRECEDENCE, Report
from sweeper.report.findings import Findings
from sweeper.report.page import page
from sweeper.report.registry import TABLES
from sweeper.report.tables.decision import NO_LIMITS, Limits
from sweeper.report.tables.groups import list_missing_precisions, list_unverified
from sweeper.report.text import markdown, terminal
from sweeper.report.text.consistency import find_mixtures
from sweeper.report.text.provenance import describe, list_unreadable_manifests
from sweeper.report.verdict import make_verdict

MAX_INSPECTIONS = 10  # named in a note
MIN_WIDTH = 100  # columns of a console that is no terminal


def write_report(sweeps: Sequence[Path], out: Path) -> Report:
    """Write the tables of all trials in the folders `sweeps` to the folder `out`."""
    return write_report_of([SweepFolder(folder) for folder in sweeps], out)


def write_report_of(sources: Sequence[Source], out: Path, limits: Limits = NO_LIMITS) -> Report:
    """Write the tables of all trials in `sources` to the folder `out`; `limits` are for the
    recommendations.
    """
    report = make_report(sources, limits)
    return replace(report, paths=begin_files(report, out)())


@pause_garbage_collection()
def make_report(sources: Sequence[Source], limits: Limits = NO_LIMITS, cores: int = 1) -> Report:
    """Make the tables of all trials in `sources`, recommending within `limits`. With several
    `cores` it forks.
    """
    loaded = load_from(sources, cores)
    findings = Findings(add_cross_trial_findings(loaded.entries), limits)
    entries = findings.entries
    apart = {
        spec.name: parallel.start(functools.partial(spec.make, findings), cores)
        for spec in TABLES
        if spec.runs_apart
    }
    facts = describe(sources, entries)
    facts += [f"recommended for: {limits}"] if str(limits) else []
    facts += [f"{PRECEDENCE}: {line}"] if (line := explain_precedence(sources)) else []
    notes = [
        *findings.units.notes,
        *list_missing_precisions(findings.groups),
        *list_unverified(findings.groups),
        *find_mixtures(entries),
        *list_unreadable_manifests(sources),
    ]
    if entries and not findings.groups:
        notes.append(
            "no geometric means: they are taken over compiled trials whose precision has a weight "
            "(amp, fp32)"
        )
    notes += locate_inspections(entries)
    made = {spec.name: spec.make(findings) for spec in TABLES if not spec.runs_apart}
    tables = {
        spec.name: made[spec.name] if spec.name in made else apart[spec.name]() for spec in TABLES
    }
    verdict = make_verdict(tables, sources, limits)
    return Report(tuple(facts), findings, tables, tuple(notes), loaded.problems, verdict=verdict)


def explain_precedence(sources: Sequence[Source]) -> str:
    """Say of several sweeps whose trial counts where two have the same; empty for one sweep."""
    names = list(dict.fromkeys(printable(source.folder.resolve().name) for source in sources))
    if len(names) < 2:
        return ""
    return (
        f"where several of {', '.join(names)} tried one model, precision, batch and mode, means "
        "and recommendations "
        "take the trial of the sweep named last; recommendations take an earlier one where the "
        "last is not ok"
    )


def begin_files(report: Report, out: Path, cores: int = 1) -> Callable[[], tuple[Path, ...]]:
    """Begin to make the files of a report, and return a function that writes them to `out` and
    returns their paths.
    """
    made = page.begin_page(report, out, cores)

    @pause_garbage_collection()
    def write() -> tuple[Path, ...]:
        texts = {f"{name}.csv": table.csv() for name, table in report.tables.items()}
        texts["report.md"] = markdown.document(report)
        texts["report.html"] = made()
        for name, text in texts.items():
            write_text(out / name, text)
        return tuple(out / name for name in texts)

    return write


def locate_inspections(entries: Sequence[Entry]) -> list[str]:
    """Make a line that says where the inspections of trials lie."""
    folders = [
        entry.folder / found.folder
        for entry in entries
        if (found := entry.record.inspection) and found.folder
    ]
    if not folders:
        return []
    named = ", ".join(str(folder / "summary.md") for folder in folders[:MAX_INSPECTIONS])
    more = f" and {len(folders) - MAX_INSPECTIONS} others" if len(folders) > MAX_INSPECTIONS else ""
    return [f"what the compiler did: {named}{more}"]


@pause_garbage_collection()
def print_report(report: Report, console: Console) -> None:
    """Print facts, tables and notes. A console that is no terminal is made at least `MIN_WIDTH`
    columns wide.
    """
    if not console.is_terminal:
        console.width = max(console.width, MIN_WIDTH)
    for fact in report.facts:
        console.print(fact, soft_wrap=True, markup=False, highlight=False)
    terminal.print_tables(report.tables, console)
    for note in report.notes:
        console.print(f"note: {note}", soft_wrap=True, markup=False, highlight=False)


@pause_garbage_collection()
def print_verdict(report: Report, console: Console) -> None:
    """Print what no answer should hide, the best mode of each model, and at the end the verdict in
    a few lines.

    A console that is no terminal is made at least `MIN_WIDTH` columns wide.
    """
    if not console.is_terminal:
        console.width = max(console.width, MIN_WIDTH)
    entries = report.findings.entries
    for line in (*find_mixtures(entries), *locate_inspections(entries)):
        console.print(f"note: {line}", soft_wrap=True, markup=False, highlight=False)
    terminal.print_verdict(report, console)


def suggest_next(report: Report, out: Path, sweep: str | None) -> list[str]:
    """Say where the files are and what to run again; `sweep` is set where the command of the sweep
    can run here.
    """
    page = next((path for path in report.paths if path.suffix == ".html"), None)
    lines = [f"tables: {out}" + (f"; for a browser: {page}" if page else "")]
    again = [entry for entry in report.findings.entries if entry.record.may_end_differently]
    if again and sweep:
        count, them = ("1 trial", "it") if len(again) == 1 else (f"{len(again)} trials", "them")
        lines.append(
            f"{count} that failed may succeed in another run: the same command with sweep={sweep} "
            f"runs {them} again"
        )
    return lines
