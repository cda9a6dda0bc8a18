"""What MLflow shows of a report: key figures and a description on the run of the sweep, and on each
trial's run the answer for its model.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence

from sweeper.report.answers.groups import Group
from sweeper.report.answers.model_points import GroupKey
from sweeper.report.columns.cell import show
from sweeper.report.columns.column import MARKDOWN
from sweeper.report.columns.formats import join, prefix
from sweeper.report.tables.summary import SummaryTable
from sweeper.tracking.runs import MAX_TAG_CHARACTERS, Overview

from . import markdown
from .report import Report

MAX_NAME_CHARACTERS = 100  # of what tells rows apart; MLflow takes 250 for a whole name


def overview(report: Report) -> Overview:
    """Make key figures of the summary, a description that begins as the report does, and tags for
    the trials of each answer.
    """
    whole = [group for group in report.findings.groups if group.is_whole]
    tags = {}
    for answer in report.findings.answers:
        said = show(str(answer))[:MAX_TAG_CHARACTERS]
        shown = {"answer": said, "sure": show(answer.is_sure)}
        for entry in answer.entries:
            tags[entry.record.trial_id] = shown
    return Overview(metrics(whole), _describe(report, whole), tags)


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
        for mean, estimate in group.means.items():
            if estimate:
                found[f"{mean.name}{suffix}"] = estimate.ratio
        if group.pass_rate is not None:
            found[f"pass_rate{suffix}"] = group.pass_rate
    return found


def _make_suffixes(groups: Sequence[Group]) -> Iterator[str]:
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
    for name, text in zip(plain, texts, strict=True):
        digest = ""
        if plain.count(name) > 1:
            digest = f"_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        yield f"_{name}{digest}"


def _describe(report: Report, whole: Sequence[Group]) -> str:
    """Write the sentences of the terminal, headlines and a table; where that is too long, families
    go first, then the last lines.
    """
    spec, findings = SummaryTable(), report.findings
    lines = (
        markdown.bullets(report.verdict.lines),
        *markdown.write_headlines(spec, findings),
        markdown.escape(prefix("AMP: ", findings.amp)),
    )
    text = ""
    for shown in (findings.groups, whole):
        columns = spec.shown(shown, findings, MARKDOWN)
        table = markdown.table(columns, shown) if shown else ""
        text = join((*lines, table), markdown.PARAGRAPH)
        if len(text) <= MAX_TAG_CHARACTERS:
            return text
    return "\n".join([*text[: MAX_TAG_CHARACTERS - 2].splitlines()[:-1], "…"])
