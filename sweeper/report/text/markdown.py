"""report.md: the tables with what is needed to read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sweeper.core.text import escape_markdown, printable
from sweeper.report.contents import Report
from sweeper.report.formatting import sentence, text
from sweeper.report.registry import TABLES
from sweeper.report.spec import TableSpec
from sweeper.report.table import MARKDOWN, Row, TextColumn
from sweeper.report.verdict import Verdict

MAX_ROWS = 1000  # of a table; the files have all


def escape(value: str) -> str:
    """Escape names, which come from users, and messages, which come from anywhere."""
    return escape_markdown(printable(value))


def document(report: Report) -> str:
    """Write the whole report."""
    sections = [
        "# Speedups of torch.compile",
        *_write_verdict(report.verdict),
        bullets(report.facts),
    ]
    for spec in TABLES:
        sections += _write_section(spec, report)
    sections += ["## Notes", bullets(report.notes)] if report.notes else []
    sections += (
        ["## Records that could not be read", bullets(report.problems)] if report.problems else []
    )
    return "\n\n".join(section for section in sections if section) + "\n"


def _write_verdict(verdict: Verdict) -> list[str]:
    """Write the sentences, and what is worth another run with its command."""
    failed = [f"{verdict.failed[:1].upper()}{verdict.failed[1:]}."] if verdict.failed else []
    again = []
    for item in verdict.again:
        names = ", ".join(item.names)
        again.append(f"- {escape(f'{names}: {item.why}')}")
        # code, to be copied as it is
        again += [f"      {printable(item.command)}"] if item.command else []
    sentences = [escape(line) for line in (*verdict.sentences, *failed)]
    return [
        "\n".join(f"- {line}" for line in sentences),
        *(["## Worth another run", *again] if again else []),
    ]


def _write_section(spec: TableSpec, report: Report) -> list[str]:
    rows = report.tables[spec.name].rows
    shown, lead = spec.arrange(rows), spec.lead(rows)
    if not rows and not lead:
        return []
    columns = spec.columns_for(MARKDOWN, shown, report.tables["speedups"].rows)
    limit = spec.max_markdown_rows or MAX_ROWS
    hidden = len(shown) - limit
    meanings = "; ".join(column.meaning for column in columns if column.meaning)
    return [
        f"## {spec.title}",
        escape(sentence(lead)),
        "\n\n".join(
            f"**{escape(line.text)}** ({escape(line.rows)})" for line in spec.headlines(rows)
        ),
        table(columns, shown[:limit]) if shown else "",
        f"And {hidden:,} more in {spec.name}.csv." if hidden > 0 else "",
        *(escape(sentence(note)) for note in spec.notes(rows)),
        escape(sentence(meanings)) if shown else "",
        escape(spec.explain(report.findings, rows)),
    ]


def table(columns: Sequence[TextColumn], rows: Iterable[Row]) -> str:
    """Write a Markdown table; everything in its cells is escaped."""
    lines = [[column.title for column in columns], ["---"] * len(columns)]
    lines += [[escape(text(column.text(row))) for column in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {escape(line)}" for line in lines)
