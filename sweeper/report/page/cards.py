"""The cards of the page: a mean in large letters per mode."""

from collections.abc import Sequence
from typing import NamedTuple

from sweeper.analysis.stats import ratio_of
from sweeper.report.answers.findings import Findings
from sweeper.report.answers.groups import AMP, FP32, WEIGHTED, Group, Mean
from sweeper.report.columns.formats import interval, ratio
from sweeper.report.published import References, find_published
from sweeper.report.tables.summary import list_other_means

MAX_CARDS = 12
MAX_SPAN = 2.0  # upper / lower end of an interval: beyond it a mean says little
MAX_CARDS_UNWEIGHTED = 4  # where no mode has the weighted mean


class Card(NamedTuple):
    """A mean in large letters, what it is the mean for, and lines about it."""

    key: str
    value: str
    lines: Sequence[str]
    doubt: str  # why the mean says little; empty: it does not


def make_cards(findings: Findings, published: References) -> tuple[list[Card], str]:
    """Make a card per mode, the largest mean first, and a sentence about the modes that have no
    card.
    """
    groups = sorted((group for group in findings.groups if group.is_whole), key=_rank, reverse=True)
    cards = []
    unknown = []
    for group in groups:
        mean = next((mean for mean in (WEIGHTED, AMP, FP32) if mean.estimate(group)), None)
        if mean:
            cards.append(_make_card(group, mean, published))
        else:
            unknown.append(str(group.key))
    max_cards = MAX_CARDS_UNWEIGHTED
    if groups and groups[0].weighted:
        max_cards = MAX_CARDS
    rest = ""
    if len(cards) > max_cards:
        rest = f"{len(cards) - max_cards} more are in the summary. "
    if unknown:
        rest += f"No verified speedup in a precision with a weight: {'; '.join(unknown)}."
    elif not groups:
        rest = "No geometric means: no compiled trial is in a precision with a weight (amp, fp32)."
    return cards[:max_cards], rest


def _rank(group: Group) -> tuple[float, float]:
    return ratio_of(group.weighted) or 0.0, ratio_of(AMP.estimate(group)) or 0.0


def _make_card(group: Group, mean: Mean, published: References) -> Card:
    estimate = mean.estimate(group)
    assert estimate is not None
    bounds = estimate.interval()
    lines = [f"geometric mean, {mean.meaning}", mean.describe_models(group)]
    if group.judged:
        lines.append(f"{len(group.passed)} of {len(group.judged)} with verified results")
    if bounds:
        lines.append(f"these models {interval(*bounds)}")
    else:
        lines.append("no interval for these models")
    if mean is WEIGHTED:
        lines += list_other_means(group)
        lines.append(f"slowdowns as 1.0: {ratio(group.weighted_clipped)}")
        reference = find_published(group)
        if reference and (group.key.mode, group.key.backend) == ("default", "inductor"):
            otherwise = ", measured otherwise" if published.differences else ""
            lines.append(f"published: {reference.label}{otherwise}")
    doubt = ""
    if bounds and bounds.high / bounds.low >= MAX_SPAN:
        doubt = "the interval is too wide to say more"
    elif not mean.count_sure(group):
        doubt = "something disturbed every model by more than its interval"
    return Card(str(group.key), ratio(estimate.ratio), lines, doubt)
