"""What the run of a sweep in MLflow shows of its report: key figures as metrics, a description in
Markdown.
"""

from __future__ import annotations

import hashlib
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

FIGURES = (
    "weighted",
    "weighted_device",
    "geomean_amp",
    "geomean_fp32",
    "pass_rate",
)
MAX_NAME_CHARACTERS = 100  # of what tells rows apart; MLflow takes 250 for a whole name


def load_overview(folder: Path) -> Overview:
    """Make the overview of a sweep's folder."""
    return overview(Findings(add_cross_trial_findings(load([folder]).entries)))


def overview(findings: Findings) -> Overview:
    """Make key figures of the summary, and a description with the statuses of all trials."""
    rows = summary(findings.groups).rows
    overall = [row for row in rows if row["family"] == ALL]
    counts = _count_statuses([entry.record.status for entry in findings.entries])
    foot = f"{counts} AMP: {markdown.escape(findings.amp)}." if findings.amp else counts
    return Overview(metrics(overall), _describe(rows, overall, foot))


def metrics(overall: Sequence[Row]) -> Mapping[str, float]:
    """Name the key figures of each row of the family `all`, e.g. `weighted_default`; of a single
    row also `weighted`.

    A figure that does not exist has no metric.
    """
    named = dict(zip(_make_suffixes(overall), overall, strict=True))
    if len(overall) == 1:
        named[""] = overall[0]
    found = {
        f"{figure}{suffix}": formatting.finite(row, figure)
        for suffix, row in named.items()
        for figure in FIGURES
    }
    return {name: value for name, value in found.items() if value is not None}


def _make_suffixes(overall: Sequence[Row]) -> list[str]:
    """Make `_reduce-overhead` of the mode and whatever else differs between rows, in characters
    that MLflow takes.
    """
    varying = {"mode", *formatting.find_varying(overall, formatting.KEY)}
    names = [name for name in formatting.KEY if name in varying]
    texts = ["_".join(formatting.text(row[name]) or "base" for name in names) for row in overall]
    plain = [re.sub(r"[^\w.-]+", "_", text)[:MAX_NAME_CHARACTERS] for text in texts]
    return [
        f"_{name}"
        if plain.count(name) == 1
        else f"_{name}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        for name, text in zip(plain, texts, strict=True)
    ]


def _describe(rows: Sequence[Row], overall: Sequence[Row], foot: str) -> str:
    """Write headlines, `foot` and a table; where that is too long, families go first, then the last
    lines.
    """
    headlines = [
        f"**{markdown.escape(headline(row))}** ({markdown.escape(formatting.key(row))})"
        for row in overall
    ]
    for shown in (rows, overall):
        table = markdown.table(SPEC.columns_for(MARKDOWN, shown, ()), shown) if shown else ""
        text = "\n\n".join(part for part in (*headlines, foot, table) if part)
        if len(text) <= MAX_TAG_CHARACTERS:
            return text
    return "\n".join([*text[: MAX_TAG_CHARACTERS - 2].splitlines()[:-1], "…"])


def _count_statuses(statuses: Sequence[str]) -> str:
    """Count trials, e.g. `29 of 32 trials ok; oom 2, timeout 1.`"""
    failed = Counter(status for status in sorted(statuses) if status != "ok")
    line = f"{statuses.count('ok')} of {len(statuses)} trial{'' if len(statuses) == 1 else 's'} ok"
    return (
        f"{line}; {', '.join(f'{status} {count}' for status, count in failed.items())}."
        if failed
        else f"{line}."
    )
