"""summary.csv: geometric means over models, a row for each family and for `all`, by workload, mode,
backend, variant.

The unit is a model at a batch size, in the precisions that carry the weights amp and fp32
(`Labels.weight`). A trial is verified that is ok without the flag `accuracy_unverified`. Others are
in no mean.

| column | meaning |
|---|---|
| `family workload mode backend variant` | what the row is for |
| `models` | units tried; without those that fail before the compiler runs, `unavailable`, \
`interrupted` |
| `passed pass_rate` | units that are verified in each of amp and fp32 that the sweep asked for; \
their share |
| `models_amp geomean_amp geomean_amp_low geomean_amp_high` | over all units verified in amp; \
`fp32` likewise |
| `models_weighted weighted` | 0.75 * geomean over AMP + 0.25 * geomean over fp32 of the units \
verified in both |
| `weighted_low weighted_high` | 95 % interval for "these models": the error of measuring alone |
| `weighted_new_model_low weighted_new_model_high` | 95 % prediction interval for "a new model": \
one more like these |
| `weighted_failures_as_one` | units judged in both precisions, where a failure counts 1.0: it \
would run eager |
| `weighted_clipped` | slowdowns raised to 1.0 first, as the tables of 2022 had it |
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any

from sweeper.analysis.stats import AMP_SHARE, FP32_SHARE
from sweeper.report.answers.findings import Findings
from sweeper.report.answers.groups import AMP, DEVICE, FP32, WEIGHTED, Group, Mean
from sweeper.report.answers.model_points import GroupKey
from sweeper.report.columns.column import (
    MARKDOWN,
    PAGE,
    TERMINAL,
    Column,
    estimate_column,
    estimate_columns,
    interval_columns,
    lift,
)
from sweeper.report.columns.formats import estimated, interval, join, prefix, ratio, shorten_names
from sweeper.report.published import Published, find_published, find_references

from .spec import Headline, TableSpec

WEIGHTING = f"weighted {AMP_SHARE:g} AMP + {FP32_SHARE:g} fp32"
MODELS_TO_PREDICT = 6  # a new one: with four models, the interval reaches from 0.2 to 16
CLIPPED = "preset=pt2"  # its figures were made so


def show_mean(mean: Mean, group: Group, is_brief: bool = False) -> str:
    """Show a mean, e.g. `1.44 [1.40, 1.48] (42, 2 undisturbed)`, or in brief `1.44 [1.40, 1.48]
    (42)`.
    """
    found = estimated(mean.estimate(group))
    if not found:
        return ""
    sure = "" if is_brief else f", {mean.name_sure(group)} undisturbed"
    return f"{found} ({mean.count(group)}{sure})"


def show_new_model(group: Group) -> str:
    """Show the prediction for one more model; of few it is so wide that it says nothing, and stays
    in summary.csv.
    """
    new = group.weighted_new_model
    bounds = new.interval() if new else None
    if bounds is None or WEIGHTED.count(group) < MODELS_TO_PREDICT:
        return ""
    return interval(*bounds)


def _key_column(name: str, **shown: Any) -> Column[Group]:
    return Column(name, attrgetter(f"key.{name}"), title=name, is_axis=True, **shown)


def _mean_columns(mean: Mean) -> list[Column[Group]]:
    """Make the columns of a mean; a terminal has no room for how many models are undisturbed."""
    return [
        Column(f"models_{mean.name.removeprefix('geomean_')}", mean.count, int),
        *estimate_columns(
            mean.name,
            mean.estimate,
            title=mean.title,
            text=lambda group: show_mean(mean, group),
            media=(PAGE, MARKDOWN),
        ),
        estimate_column(
            "",
            mean.estimate,
            title=mean.title,
            text=lambda group: show_mean(mean, group, is_brief=True),
            media=(TERMINAL,),
        ),
    ]


class SummaryTable(TableSpec[Group]):
    name = "summary"
    title = "Summary"
    place = 90
    is_last_in_terminal = True
    columns: Sequence[Column[Group]] = (
        Column("family", lambda group: group.family, title="family", folds=True, is_filter=True),
        _key_column("workload"),
        _key_column("mode", is_filter=True),
        _key_column("backend"),
        _key_column("variant", folds=True),
        Column("models", lambda group: len(group.judged), int),
        Column(
            "passed",
            lambda group: len(group.passed),
            int,
            title="passed",
            text=lambda group: f"{len(group.passed)} of {len(group.judged)}",
        ),
        Column("pass_rate", lambda group: group.pass_rate, float),
        *_mean_columns(AMP),
        *_mean_columns(FP32),
        *_mean_columns(WEIGHTED),
        *interval_columns("weighted_new_model", attrgetter("weighted_new_model")),
        Column("", show_new_model, title="a new model", media=(PAGE,)),
        estimate_column(
            "",
            DEVICE.estimate,
            title=DEVICE.title,
            text=lambda group: show_mean(DEVICE, group),
            media=(PAGE,),
        ),
        Column("weighted_failures_as_one", lambda group: group.weighted_failures_as_one, float),
        Column(
            "weighted_clipped",
            lambda group: group.weighted_clipped,
            float,
            title="slowdowns as 1.0",
            media=(PAGE,),
        ),
        lift(
            Column[Published]("", lambda found: found.label, title="published", media=(PAGE,)),
            find_published,
        ),
    )

    def items(self, findings: Findings) -> Sequence[Group]:
        return findings.groups

    def arrange(self, items: Sequence[Group]) -> Sequence[Group]:
        """Keep rows that say something: some model was judged, and `all` is more than one
        family.
        """
        judged = list(filter(attrgetter("judged"), items))
        families = Counter(group.key for group in judged if not group.is_whole)
        return [group for group in judged if not group.is_whole or families[group.key] != 1]

    def headlines(self, findings: Findings) -> Iterator[Headline]:
        """Show the weighted mean of each row of the family `all`; rows without one share a line per
        reason.
        """
        without: dict[str, list[str]] = defaultdict(list)
        for group in findings.groups:
            if not group.is_whole or not group.judged:
                continue
            if group.weighted is None:
                without[headline(group)].append(str(group.key))
            else:
                yield Headline(headline(group), str(group.key), True)
        for line, keys in without.items():
            yield Headline(line, shorten_names(keys, between="; "), False)

    def notes(self, findings: Findings) -> Sequence[str]:
        """Name the groups in which no model was judged."""
        keys = [str(group.key) for group in findings.groups if group.is_whole and not group.judged]
        return [prefix("no model was judged, see the failures: ", "; ".join(keys))]

    def terminal_notes(self, findings: Findings) -> Iterator[str]:
        """Make a line for each key with how many models are undisturbed; equal lines are one."""
        keys: dict[str, list[GroupKey]] = defaultdict(list)
        for group in findings.groups:
            sure = join((_count_sure(AMP, group), _count_sure(FP32, group)), ", ")
            if group.is_whole and sure:
                keys[sure].append(group.key)
        for sure, found in keys.items():
            names = shorten_names(map(str, found), between="; ")
            yield f"undisturbed models: {sure} ({names})"

    def explain(self, findings: Findings) -> str:
        amp = ""
        if findings.amp:
            amp = f" AMP: {findings.amp}."
        return (
            "Geometric means of speedups; in brackets the 95 % interval for these models, in "
            "parentheses how many models, and how many of them are undisturbed: nothing "
            "disturbed them by more than their interval. A trial with the flag accuracy_unverified "
            "is in no mean and has not passed: its result could not be judged, or was wrong in an "
            f"earlier attempt. A new model: where one more of the same kind would lie.{amp}"
        )

    def for_page(self) -> SummaryTable:
        return SummaryOfPage()


class SummaryOfPage(SummaryTable):
    """The summary with the means of suites at its end."""

    def items(self, findings: Findings) -> Sequence[Group]:
        return [*findings.groups, *findings.suites]

    def explain(self, findings: Findings) -> str:
        published = find_references(findings).sentence
        return join((super().explain(findings), published), " ")


def _count_sure(mean: Mean, group: Group) -> str:
    """Show e.g. `AMP 2 of 42`, `AMP none of 42`, `AMP all 42`; empty without a mean."""
    if mean.estimate(group) is None:
        return ""
    sure, number = mean.name_sure(group), mean.count(group)
    if sure == "all":
        return f"{mean.title} all {number}"
    return f"{mean.title} {sure} of {number}"


def headline(group: Group) -> str:
    """Show the weighted mean and how sure it is; where it is missing, that of each precision.

    E.g. `weighted 0.75 AMP + 0.25 fp32: 1.43 over 3 models, 2 undisturbed; these models [1.40,
    1.46]`.
    """
    weighted = group.weighted
    if weighted is None:
        alone = []
        for mean in (AMP, FP32):
            if known := estimated(mean.estimate(group)):
                alone.append(f"{mean.title} alone: {known} over {mean.describe_models(group)}")
        missing = "no weighted mean:" if alone else f"{WEIGHTING}: none,"
        return "; ".join([*alone, f"{missing} {_explain_no_mean(group)}"])
    parts = [f"{WEIGHTING}: {ratio(weighted.ratio)} over {WEIGHTED.describe_models(group)}"]
    if bounds := weighted.interval():
        parts.append(f"these models {interval(*bounds)}")
    parts += list_other_means(group)
    if CLIPPED in group.key.variant:
        clipped = ratio(group.weighted_clipped)
        parts.append(f"as in 2022, slowdowns raised to 1.0, {clipped}")
    return "; ".join(parts)


def list_other_means(group: Group) -> Iterator[str]:
    """Show the prediction for one more model, and the mean by device time, where they are known."""
    if new := show_new_model(group):
        yield f"a new model {new}"
    if device := estimated(DEVICE.estimate(group)):
        yield f"{DEVICE.title} {device} over {DEVICE.describe_models(group)}"


def _explain_no_mean(group: Group) -> str:
    lacking = [mean.title.lower() for mean in (AMP, FP32) if not mean.count(group)]
    where = prefix("a precision of weight ", " or ".join(lacking))
    wanted = "ok and verified" if group.unverified else "ok"
    return f"no model is {wanted} in {where or 'both precisions'}"
