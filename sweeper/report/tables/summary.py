"""summary.csv: geometric means over models, a row for each family and for `all`, by workload, mode,
backend, variant.

The unit is a model at a batch size, in the precisions that carry the weights amp and fp32
(`Labels.weight`). A trial is verified that is ok without the flag `accuracy_unverified`. Others are
in no mean.

| column | meaning |
|---|---|
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

from collections import Counter
from collections.abc import Iterable, Sequence

from sweeper.analysis.stats import AMP_SHARE, FP32_SHARE
from sweeper.report import formatting
from sweeper.report.findings import Findings
from sweeper.report.formatting import (
    KEY,
    estimate,
    interval,
    key,
    number,
    number_column,
    ratio,
    text,
    text_column,
)
from sweeper.report.spec import Headline, TableSpec
from sweeper.report.table import (
    MARKDOWN,
    PAGE,
    TERMINAL,
    Column,
    Row,
    Table,
    TextColumn,
    estimate_columns,
)
from sweeper.report.tables.groups import ALL, Group

WEIGHTING = f"weighted {AMP_SHARE:g} AMP + {FP32_SHARE:g} fp32"
MODELS_TO_PREDICT = 6  # a new one: of four, the interval reaches from a fifth to sixteen
CLIPPED = "preset=pt2"  # its figures were made so


COLUMNS: tuple[Column[Group], ...] = (
    Column("family", lambda group: group.family),
    Column("workload", lambda group: group.key.workload),
    Column("mode", lambda group: group.key.mode),
    Column("backend", lambda group: group.key.backend),
    Column("variant", lambda group: group.key.variant),
    Column("models", lambda group: len(group.judged), int),
    Column("passed", lambda group: len(group.passed), int),
    Column(
        "pass_rate",
        lambda group: len(group.passed) / len(group.judged) if group.judged else None,
        float,
    ),
    Column("models_amp", lambda group: len(group.estimates("amp")), int),
    *estimate_columns("geomean_amp", lambda group: group.geomean("amp")),
    Column("models_fp32", lambda group: len(group.estimates("fp32")), int),
    *estimate_columns("geomean_fp32", lambda group: group.geomean("fp32")),
    Column("models_weighted", lambda group: len(group.both), int),
    *estimate_columns("weighted", lambda group: group.weighted),
    *estimate_columns("weighted_new_model", lambda group: group.weighted_new_model)[1:],
    Column("weighted_failures_as_one", lambda group: group.weighted_failures_as_one, float),
    Column("weighted_clipped", lambda group: group.weighted_clipped, float),
)
# Values that people see of a row, and that summary.csv does not have.
SHOWN: tuple[Column[Group], ...] = (
    Column("unverified", lambda group: len(group.unverified), int),
    Column("models_device", lambda group: len(group.device), int),
    *estimate_columns("weighted_device", lambda group: group.weighted_device),
    Column("models_without_doubt", lambda group: len(group.sure.both), int),
    Column(
        "models_amp_without_doubt", lambda group: len(group.sure_in["amp"].estimates("amp")), int
    ),
    Column(
        "models_fp32_without_doubt", lambda group: len(group.sure_in["fp32"].estimates("fp32")), int
    ),
    Column("models_device_without_doubt", lambda group: len(group.sure_by_device.device), int),
)
# The mean by what people see of it: weighted, or in one precision.
MEANS = {"AMP": "geomean_amp", "fp32": "geomean_fp32", "weighted": "weighted"}
# The values that count the models of a mean, and those of them that have no doubt flag.
COUNTS = {
    "weighted": ("models_weighted", "models_without_doubt"),
    "geomean_amp": ("models_amp", "models_amp_without_doubt"),
    "geomean_fp32": ("models_fp32", "models_fp32_without_doubt"),
    "weighted_device": ("models_device", "models_device_without_doubt"),
}


def summary(rows: Iterable[Group]) -> Table:
    """Make the table of these groups; its rows also have the values of `SHOWN`."""
    kinds = {column.name: column.kind for column in COLUMNS}
    return Table(tuple(kinds), Table.make((*COLUMNS, *SHOWN), rows).rows, kinds)


def text_columns(rows: Sequence[Row], _trials: Sequence[Row]) -> list[TextColumn]:
    return [
        text_column("family", folds=True),
        *(
            text_column(name, folds=name == "variant")
            for name in formatting.find_varying(rows, KEY)
        ),
        TextColumn("passed", lambda row: f"{row['passed']} of {row['models']}"),
        *(column for title, name in MEANS.items() for column in _mean_text_columns(title, name)),
        *(
            [TextColumn("a new model", show_new_model, media=(PAGE,))]
            if any(map(show_new_model, rows))
            else []
        ),
        number_column("slowdowns as 1.0", "weighted_clipped", media=(PAGE,)),
    ]


def _mean_text_columns(title: str, name: str) -> list[TextColumn]:
    """Make the column of a mean; a terminal has no room for the number without doubt."""

    def show(row: Row) -> str:
        return f"{found} ({row[COUNTS[name][0]]})" if (found := estimate(row, name)) else ""

    return [
        number_column(title, name, show, media=(TERMINAL,)),
        number_column(title, name, lambda row: _show_in_cell(row, name), media=(PAGE, MARKDOWN)),
    ]


def _show_in_cell(row: Row, name: str) -> str:
    """Show a mean, e.g. `1.44 [1.40, 1.48] (42, 2 without doubt)`."""
    found = estimate(row, name)
    if not found:
        return ""
    return f"{found} ({row[COUNTS[name][0]]}, {_count_sure(row, name)} without doubt)"


def count_models(row: Row, name: str) -> str:
    """Count the models of a mean, e.g. `42 models, 2 without doubt`, `1 model, none without
    doubt`.
    """
    count = row[COUNTS[name][0]]
    models = "1 model" if count == 1 else f"{count} models"
    return f"{models}, {_count_sure(row, name)} without doubt"


def _count_sure(row: Row, name: str) -> str:
    """Count the models of a mean that are without doubt: `2`, `all` or `none`."""
    count, sure = (row[column] for column in COUNTS[name])
    if not sure:
        return "none"
    return "all" if sure == count else text(sure)


def arrange(rows: Sequence[Row]) -> list[Row]:
    """Keep rows that say something: some model was judged, and `all` is more than one family."""
    judged = [row for row in rows if row["models"]]
    families = Counter(key(row) for row in judged if row["family"] != ALL)
    return [row for row in judged if row["family"] != ALL or families[key(row)] != 1]


def headlines(rows: Sequence[Row]) -> list[Headline]:
    """Show the weighted mean of each row of the family `all`; rows without one share a line per
    reason.
    """
    judged = [row for row in rows if row["family"] == ALL and row["models"]]
    without: dict[str, list[str]] = {}
    for row in judged:
        if row["weighted"] is None:
            without.setdefault(headline(row), []).append(key(row))
    return [
        *(Headline(headline(row), key(row), True) for row in judged if row["weighted"] is not None),
        *(
            Headline(line, formatting.shorten_names(keys, between="; "), False)
            for line, keys in without.items()
        ),
    ]


def _notes(rows: Sequence[Row]) -> list[str]:
    """Name the groups in which no model was judged."""
    keys = [key(row) for row in rows if row["family"] == ALL and not row["models"]]
    return [f"no model was judged, see the failures: {'; '.join(keys)}"] if keys else []


def _list_sure(rows: Sequence[Row]) -> list[str]:
    """Make a line for each key with the number of models without doubt in each precision; equal
    lines are one.
    """
    keys: dict[str, list[str]] = {}
    for row in rows:
        means = (
            (title, name)
            for title, name in MEANS.items()
            if name != "weighted" and row[name] is not None
        )
        sure = ", ".join(
            f"{title} {_count_sure(row, name)} of {row[COUNTS[name][0]]}" for title, name in means
        )
        if row["family"] == ALL and sure:
            keys.setdefault(sure, []).append(key(row))
    return [
        f"models without doubt: {sure} ({formatting.shorten_names(names, between='; ')})"
        for sure, names in keys.items()
    ]


def _explain(findings: Findings, _rows: Sequence[Row]) -> str:
    return (
        "Geometric means of speedups; in brackets the 95 % interval for these models, in "
        "parentheses how many models. "
        "A model without doubt has no flag that says that its speedup may be off. A trial with "
        "the flag "
        "accuracy_unverified is in no mean and has not passed: its result has no verdict, or was "
        "wrong in an earlier "
        "attempt. A new model: "
        "where one more of the same kind would lie."
        + (f" AMP: {findings.amp}." if findings.amp else "")
    )


def headline(row: Row) -> str:
    """Show the weighted mean and how sure it is.

    E.g. `weighted 0.75 AMP + 0.25 fp32: 1.43 over 3 models, 2 without doubt; these models [1.40,
    1.46]`.
    """
    if row["weighted"] is None:
        lacking = [weight for weight in ("amp", "fp32") if not row[f"models_{weight}"]]
        where = f"a precision of weight {' or '.join(lacking)}" if lacking else "both precisions"
        wanted = "ok and verified" if row["unverified"] else "ok"
        line = f"{WEIGHTING}: none, no model is {wanted} in {where}"
    else:
        line = f"{WEIGHTING}: {ratio(number(row, 'weighted'))} over {count_models(row, 'weighted')}"
    named = {
        "these models": interval(row, "weighted"),
        "a new model": show_new_model(row),
        "by device time": show_device_mean(row),
    }
    if CLIPPED in text(row["variant"]):
        named["as in 2022, slowdowns raised to 1.0,"] = ratio(number(row, "weighted_clipped"))
    return "; ".join([line, *(f"{name} {found}" for name, found in named.items() if found)])


def show_new_model(row: Row) -> str:
    """Show the prediction for one more model; of few it is so wide that it says nothing, and stays
    in summary.csv.
    """
    known = (number(row, "models_weighted") or 0) >= MODELS_TO_PREDICT
    return interval(row, "weighted_new_model") if known else ""


def show_device_mean(row: Row) -> str:
    """Show the weighted mean of device speedups, e.g. `1.52 [1.51, 1.52] over 42 models, all
    without doubt`.
    """
    found = estimate(row, "weighted_device")
    return f"{found} over {count_models(row, 'weighted_device')}" if found else ""


SPEC = TableSpec(
    "summary",
    "Summary",
    lambda findings: summary(findings.groups),
    text_columns,
    arrange=arrange,
    headlines=headlines,
    notes=_notes,
    terminal_notes=_list_sure,
    explain=_explain,
)
