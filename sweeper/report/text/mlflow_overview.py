"""What the run of a sweep in MLflow shows of its report: key figures as metrics, a description in
Markdown.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from sweeper.loading.cross_trial import add_cross_trial_findings
from sweeper.loading.entries import load
from sweeper.report.answers.findings import Findings
from sweeper.report.answers.groups import AMP, DEVICE, FP32, WEIGHTED, Group
from sweeper.report.answers.model_points import GroupKey
from sweeper.report.columns.column import MARKDOWN
from sweeper.report.columns.formats import count, join
from sweeper.report.tables.summary import SummaryTable, headline
from sweeper.tracking.runs import MAX_TAG_CHARACTERS, Overview

from . import markdown

MAX_NAME_CHARACTERS = 100  # of what tells rows apart; MLflow takes 250 for a whole name


MEANS = {"weighted": WEIGHTED, "weighted_device": DEVICE, "geomean_amp": AMP, "geomean_fp32": FP32}


def load_overview(folder: Path) -> Overview:
    """Make the overview of a sweep's folder."""
    return overview(Findings(add_cross_trial_findings(load([folder]).entries)))


def overview(findings: Findings) -> Overview:
    """Make key figures of the summary, and a description with the statuses of all trials."""
    whole = [group for group in findings.groups if group.is_whole]
    statuses = Counter(entry.record.status for entry in findings.entries)
    num_ok = statuses.pop("ok", 0)
    line = f"{num_ok} of {count(len(findings.entries), 'trial')} ok"
    failed = ", ".join(f"{status} {number}" for status, number in sorted(statuses.items()))
    foot = f"{join((line, failed))}."
    if findings.amp:
        foot += f" AMP: {markdown.escape(findings.amp)}."
    if findings.scripts:
        foot += (
            " Of a script, `loop_speedup` is the speedup of its whole loop and decides; `speedup` "
            "is that of a step."
        )
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
        for figure, mean in MEANS.items():
            if estimate := mean.estimate(group):
                found[f"{figure}{suffix}"] = estimate.ratio
        if group.pass_rate is not None:
            found[f"pass_rate{suffix}"] = group.pass_rate
    return found


def _make_suffixes(groups: Sequence[Group]) -> list[str]:
    """Make `_reduce-overhead` of the mode and whatever else differs between groups, in characters
    that MLflow takes.
    """
    differing = []
    for name in GroupKey._fields:
        if name == "mode" or len({getattr(group.key, name) for group in groups}) > 1:
            differing.append(name)
    texts, plain = [], []
    for group in groups:
        text = "_".join(getattr(group.key, name) or "base" for name in differing)
        texts.append(text)
        plain.append(re.sub(r"[^\w.-]+", "_", text)[:MAX_NAME_CHARACTERS])
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
