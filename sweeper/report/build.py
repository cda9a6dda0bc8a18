"""Reports on sweeps: `make_report` makes them, `begin_files` writes their files, `print_verdict`
prints the answers, `print_report` all.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from sweeper.core.files import write_text
from sweeper.loading import parallel
from sweeper.loading.cross_trial import add_cross_trial_findings
from sweeper.loading.entries import Entry, load_from
from sweeper.loading.invocations import read_manifest
from sweeper.loading.sources import Source
from sweeper.report.answers.consistency import find_mixtures
from sweeper.report.answers.decision import NO_LIMITS, Limits
from sweeper.report.answers.findings import Findings
from sweeper.report.answers.groups import list_missing_precisions, list_unverified
from sweeper.report.answers.provenance import describe
from sweeper.report.columns.formats import count, shorten_names
from sweeper.report.tables.registry import TABLES
from sweeper.report.text.report import Report
from sweeper.report.text.terminal import print_plain
from sweeper.report.text.verdict import make_verdict

from .page import page
from .text import markdown, terminal

MAX_INSPECTIONS = 10  # named in a note
MIN_WIDTH = 100  # columns of a console that is no terminal


def make_report(sources: Sequence[Source], limits: Limits = NO_LIMITS, cores: int = 1) -> Report:
    """Make the report on all trials in `sources`, recommending within `limits`. With several
    `cores` it forks.
    """
    loaded = load_from(sources, cores)
    findings = Findings(add_cross_trial_findings(loaded.entries), limits)
    manifests = [read_manifest(source) for source in sources]
    notes = [
        *findings.model_points.notes,
        *list_missing_precisions(findings.groups),
        *list_unverified(findings.groups),
        *find_mixtures(findings.entries),
    ]
    notes += filter(None, (manifest.problem for manifest in manifests))
    models = {entry.trial.labels.model for entry in findings.entries}
    if len(models) > 1 and not findings.groups:
        notes.append(
            "no geometric means: they are taken over compiled trials whose precision has a weight "
            "(amp, fp32)"
        )
    notes += locate_inspections(findings.entries)
    return Report(
        findings,
        describe(manifests, findings.entries, str(limits)),
        tuple(notes),
        loaded.problems,
        make_verdict(findings, manifests),
    )


def begin_files(report: Report, out: Path, cores: int = 1) -> Callable[[], tuple[Path, ...]]:
    """Begin to make the files of a report, and return a function that writes them to `out` and
    returns their paths.
    """
    for group in report.findings.groups:  # before processes fork, each of which needs these
        for mean in filter(None, (*group.means.values(), group.weighted_new_model)):
            mean.interval()
    make_tables = parallel.start(
        lambda: {f"{spec.name}.csv": spec.csv(report.findings) for spec in TABLES}, cores
    )
    make_page = page.begin_page(report, out, cores)

    def write() -> tuple[Path, ...]:
        document = markdown.document(report)
        texts = {**make_tables(), "report.md": document, "report.html": make_page()}
        for name, text in texts.items():
            write_text(out / name, text)
        return tuple(out / name for name in texts)

    return write


def locate_inspections(entries: Sequence[Entry]) -> list[str]:
    """Make a line that says where the inspections of trials lie."""
    summaries = []
    for entry in entries:
        inspection = entry.record.inspection
        if inspection and inspection.folder:
            summaries.append(str(entry.folder / inspection.folder / "summary.md"))
    if not summaries:
        return []
    return [f"what the compiler did: {shorten_names(summaries, max_names=MAX_INSPECTIONS)}"]


def print_report(report: Report, console: Console) -> None:
    """Print facts, tables and notes, and the whole verdict at the end."""
    terminal.widen(console, MIN_WIDTH)
    for fact in report.provenance.facts:
        print_plain(fact.line, console)
    terminal.print_tables(report.findings, console)
    for note in report.notes:
        print_plain(f"note: {note}", console)
    terminal.print_whole_verdict(report.verdict, console)


def print_verdict(report: Report, console: Console) -> None:
    """Print what no answer should hide, the best mode of each model, and at the end the verdict in
    a few lines.
    """
    terminal.widen(console, MIN_WIDTH)
    entries = report.findings.entries
    for line in (*find_mixtures(entries), *locate_inspections(entries)):
        print_plain(f"note: {line}", console)
    terminal.print_verdict(report, console)


def suggest_next(report: Report, out: Path, sweep: str | None) -> list[str]:
    """Say where the files are and what to run again; `sweep` is set where the command of the sweep
    can run here.
    """
    browser = ""
    if report.paths:
        browser = f"; for a browser: {out / 'report.html'}"
    lines = [f"tables: {out}{browser}"]
    again = sum(entry.record.may_end_differently for entry in report.findings.entries)
    if again and sweep:
        them = "it" if again == 1 else "them"
        lines.append(
            f"{count(again, 'trial')} may succeed in another run: the same command "
            f"with sweep={sweep} runs {them} again"
        )
    slow = sum(entry.record.status == "timeout" for entry in report.findings.entries)
    if slow and sweep:
        lines.append(
            f"{count(slow, 'trial')} took too long: raise the limit that the message names, with "
            f"sweep={sweep}"
        )
    return lines
