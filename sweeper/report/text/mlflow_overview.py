"""What the run of a sweep in MLflow shows of its report: key figures as metrics, a description in
Markdown.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sweeper.analysis.stats import Estimate
from sweeper.loading.cross_trial import add_cross_trial_findings
from sweeper.loading.entries import load
from sweeper.report.answers.findings import Findings
from sweeper.report.answers.groups import AMP, FP32, Group
from sweeper.report.columns.column import MARKDOWN
from sweeper.report.columns.formats import count, join
from sweeper.report.tables.summary import SummaryTable, headline
from sweeper.tracking.runs import MAX_TAG_CHARACTERS, Overview

from . import markdown

MAX_NAME_CHARACTERS = 100  # of what tells rows apart; MLflow takes 250 for a whole name


def _ratio(estimate: Estimate | None) -> float | None:
    if estimate:
        return estimate.ratio
    return None


FIGURES: Mapping[str, Callable[[Group], float | None]] = {
    "weighted": lambda group: _ratio(group.weighted),
    "weighted_device": lambda group: _ratio(group.weighted_device),
    "geomean_amp": lambda group: _ratio(AMP.estimate(group)),
    "geomean_fp32": lambda group: _ratio(FP32.estimate(group)),
    "pass_rate": lambda group: group.pass_rate,
}
KEY: Mapping[str, Callable[[Group], str | None]] = {
    "workload": lambda group: group.key.workload,
    "mode": lambda group: group.key.mode,
    "backend": lambda group: group.key.backend,
    "variant": lambda group: group.key.variant,
}


def load_overview(folder: Path) -> Overview:
    """Make the overview of a sweep's folder."""
    return overview(Findings(add_cross_trial_findings(load([folder]).entries)))


def overview(findings: Findings) -> Overview:
    """Make key figures of the summary, and a description with the statuses of all trials."""
    whole = [group for group in findings.groups if group.is_whole]
    statuses = [entry.record.status for entry in findings.entries]
    failed = Counter(status for status in sorted(statuses) if status != "ok")
    line = f"{statuses.count('ok')} of {count(len(statuses), 'trial')} ok"
    named = ", ".join(f"{status} {number}" for status, number in failed.items())
    amp = f"AMP: {markdown.escape(findings.amp)}." if findings.amp else ""
    foot = join((f"{join((line, named))}.", amp), " ")
    return Overview(metrics(whole), _describe(findings, whole, foot))


def metrics(groups: Sequence[Group]) -> Mapping[str, float]:
    """Name the key figures of each whole group, e.g. `weighted_default`; of a single one also
    `weighted`.

    A figure that does not exist has no metric.
    """
    named = list(zip(_make_suffixes(groups), groups, strict=True))
    if len(groups) == 1:
        named.append(("", groups[0]))
    found = {}
    for suffix, group in named:
        for figure, read in FIGURES.items():
            value = read(group)
            if value is not None:
                found[f"{figure}{suffix}"] = value
    return found


def _make_suffixes(groups: Sequence[Group]) -> list[str]:
    """Make `_reduce-overhead` of the mode and whatever else differs between groups, in characters
    that MLflow takes.
    """
    differing = []
    for name, read in KEY.items():
        if name == "mode" or len({read(group) for group in groups}) > 1:
            differing.append(read)
    texts = []
    for group in groups:
        texts.append("_".join(read(group) or "base" for read in differing))
    plain = [re.sub(r"[^\w.-]+", "_", text)[:MAX_NAME_CHARACTERS] for text in texts]
    suffixes = []
    for name, text in zip(plain, texts, strict=True):
        digest = ""
        if plain.count(name) > 1:
            digest = f"_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        suffixes.append(f"_{name}{digest}")
    return suffixes


def _describe(findings: Findings, whole: Sequence[Group], foot: str) -> str:
    """Write headlines, `foot` and a table; where that is too long, families go first, then the last
    lines.
    """
    spec = SummaryTable()
    lines = []
    for group in whole:
        lines.append(f"**{markdown.escape(headline(group))}** ({markdown.escape(str(group.key))})")
    text = ""
    for shown in (findings.groups, whole):
        columns = spec.shown(shown, findings, MARKDOWN)
        table = markdown.table(columns, shown) if shown else ""
        text = join((*lines, foot, table), markdown.PARAGRAPH)
        if len(text) <= MAX_TAG_CHARACTERS:
            return text
    return "\n".join([*text[: MAX_TAG_CHARACTERS - 2].splitlines()[:-1], "…"])
