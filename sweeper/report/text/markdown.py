"""report.md: the tables with what is needed to read them."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from sweeper.core.text import escape_markdown, printable
from sweeper.report.answers.findings import Findings
from sweeper.report.columns.column import MARKDOWN, Column, show_row
from sweeper.report.columns.formats import join, sentence
from sweeper.report.tables.registry import TABLES
from sweeper.report.tables.spec import TableSpec

from .report import Report

T = TypeVar("T")
PARAGRAPH = "\n\n"  # between sections


def escape(value: str) -> str:
    """Escape names, which come from users, and messages, which come from anywhere."""
    return escape_markdown(printable(value))


def document(report: Report) -> str:
    """Write the whole report."""
    verdict, findings = report.verdict, report.findings
    facts = [fact.line for fact in report.provenance.facts]
    sections = ["# Speedups of torch.compile", bullets(verdict.lines)]
    if verdict.again:
        sections.append("## Worth another run")
    for item in verdict.again:
        sections.append(bullets([f"{', '.join(item.names)}: {item.why}"]))
        if item.command:
            sections.append(f"      {printable(item.command)}")  # code, to be copied as it is
    sections.append(bullets(facts))
    for spec in TABLES:
        items = spec.items(findings)
        shown, lead = spec.arrange(items), spec.lead(findings)
        if not items and not lead:
            continue
        sections += [f"## {spec.title}", escape(sentence(lead)), *write_headlines(spec, findings)]
        meaning = ""
        if shown:
            columns = spec.shown(shown, findings, MARKDOWN)
            sections.append(table(columns, shown[: spec.max_markdown_rows]))
            meaning = escape(sentence(join(column.meaning for column in columns)))
        hidden = len(shown) - spec.max_markdown_rows
        if hidden > 0:
            sections.append(f"And {hidden:,} more in {spec.name}.csv.")
        sections += map(escape, map(sentence, spec.notes(findings)))
        sections += [meaning, escape(spec.explain(findings))]
    if report.notes:
        sections += ["## Notes", bullets(report.notes)]
    if report.problems:
        sections += ["## Records that could not be read", bullets(report.problems)]
    return f"{join(sections, PARAGRAPH)}\n"


def write_headlines(spec: TableSpec[T], findings: Findings) -> list[str]:
    """Write the headlines of a table in bold, each with the rows that it speaks of."""
    return [f"**{escape(line.text)}** ({escape(line.rows)})" for line in spec.headlines(findings)]


def table(columns: Sequence[Column[T]], items: Iterable[T]) -> str:
    """Write a Markdown table; everything in its cells is escaped."""
    titles = [column.title for column in columns]
    lines = [_write_row(titles), _write_row(["---"] * len(columns))]
    for item in items:
        lines.append(_write_row(map(escape, show_row(columns, item))))
    return "\n".join(lines)


def _write_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def bullets(lines: Iterable[str]) -> str:
    """Write a list of the lines that are not empty."""
    return "\n".join(f"- {escape(line)}" for line in lines if line)
