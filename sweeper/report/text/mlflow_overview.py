"""What the run of a sweep in MLflow shows of its report: key figures as metrics, a description in Markdown.

Place in the flow: the driver, and `sync` later, make it from the tables and give it to `tracking`.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from sweeper.loading.cross_trial import add_cross_trial_findings
from sweeper.loading.entries import load
from sweeper.report import formatting
from sweeper.report.findings import Findings
from sweeper.report.table import MARKDOWN, Row
from sweeper.report.tables.groups import ALL
from sweeper.report.tables.summary import SPEC, headline, summary
from sweeper.report.text import markdown
from sweeper.tracking.runs import MAX_TAG_CHARACTERS, Overview

FIGURES = ("weighted", "weighted_device", "geomean_amp", "geomean_fp32", "pass_rate")
MAX_NAME_CHARACTERS = 100  # of what tells rows apart; MLflow takes 250 for a whole name


def overview_of(folder: Path) -> Overview:
    """The overview of a sweep's folder. Raises ConfigError as `write_report` does."""
    return overview(Findings(add_cross_trial_findings(load([folder]).entries)))


def overview(findings: Findings) -> Overview:
    """Key figures of the summary, and a description with the statuses of all trials."""
    rows = summary(findings.groups).rows
    overall = [row for row in rows if row["family"] == ALL]
    statuses = Counter(entry.record.status for entry in findings.entries)
    return Overview(metrics(overall), _note(rows, overall, findings.amp, statuses))


def metrics(overall: Sequence[Row]) -> Mapping[str, float]:
    """`weighted_default` and so on for each row of the family `all`; `weighted` alone where there is just one row.

    What does not exist has no metric.
    """
    named = dict(zip(_suffixes(overall), overall, strict=True))
    if len(overall) == 1:
        named[""] = overall[0]
    found = {f"{figure}{suffix}": formatting.number(row, figure) for suffix, row in named.items() for figure in FIGURES}
    return {name: value for name, value in found.items() if value is not None and math.isfinite(value)}


def _suffixes(overall: Sequence[Row]) -> list[str]:
    """`_reduce-overhead`: the mode, and whatever else differs between rows, in characters that MLflow takes."""
    names = [name for name in formatting.KEY if name == "mode" or name in formatting.varying(overall, formatting.KEY)]
    texts = ["_".join(formatting.text(row[name]) or "base" for name in names) for row in overall]
    plain = [re.sub(r"[^\w.-]+", "_", text)[:MAX_NAME_CHARACTERS] for text in texts]
    return [
        f"_{name}" if plain.count(name) == 1 else f"_{name}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        for name, text in zip(plain, texts, strict=True)
    ]


def _note(rows: Sequence[Row], overall: Sequence[Row], amp: str, statuses: Mapping[str, int]) -> str:
    """Headline, table and counts; where that is too long, families go first, then the last lines."""
    foot = f"{_counts(statuses)}{f' AMP: {markdown.escape(amp)}.' if amp else ''}"
    text = _with_table(rows, overall, foot)
    if len(text) > MAX_TAG_CHARACTERS:
        text = _with_table(overall, overall, foot)
    if len(text) > MAX_TAG_CHARACTERS:
        lines = text[: MAX_TAG_CHARACTERS - 2].splitlines()[:-1]
        text = "\n".join([*lines, "…"])
    return text


def _with_table(rows: Sequence[Row], overall: Sequence[Row], foot: str) -> str:
    """The counts stand before the table, which is what may be cut."""
    headlines = [f"**{markdown.escape(headline(row))}** ({markdown.escape(formatting.key(row))})" for row in overall]
    table = markdown.table(SPEC.columns_for(MARKDOWN, rows, ()), rows) if rows else ""
    return "\n\n".join(part for part in (*headlines, foot, table) if part)


def _counts(statuses: Mapping[str, int]) -> str:
    """`29 of 32 trials are ok; oom 2, timeout 1.`"""
    failed = {status: count for status, count in sorted(statuses.items()) if status != "ok"}
    total = sum(statuses.values())
    line = f"{statuses.get('ok', 0)} of {total} trial{'' if total == 1 else 's'} ok"
    return f"{line}; {', '.join(f'{status} {count}' for status, count in failed.items())}." if failed else f"{line}."
