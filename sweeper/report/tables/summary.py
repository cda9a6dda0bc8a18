"""summary.csv: geometric means over models, a row for each family and for `all`, by workload, mode,
backend, variant.

The unit is a model at a batch size, in the precisions that carry the weights amp and fp32
(`Labels.weight`). A trial is verified that is ok without the flag `accuracy_unverified`. Others are
in no mean, except in `weighted_with_unverified`.

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
| `models_device weighted_device weighted_device_low weighted_device_high` | like `weighted`, of \
device speedups |
| `unverified` | units with a trial that is ok but not verified |
| `weighted_with_unverified` | `weighted` over the units that are ok in both; empty where all of \
these are verified |
| `models_without_doubt` | of `models_weighted`: those whose trials have none of the flags in \
`flags.DOUBTS` |
| `models_with_unverified` | how many units `weighted_with_unverified` is over |
| `models_amp_without_doubt models_fp32_without_doubt` | likewise, of `models_amp` and \
`models_fp32` |
| `models_device_without_doubt` | of `models_device`, without the flags that concern wall-clock \
time alone |
| `models_busy weighted_busy weighted_busy_low weighted_busy_high` | like `weighted_device`, of \
speedups by busy time |
| `models_busy_without_doubt` | likewise, of `models_busy` |
| `geomean_amp_without_doubt geomean_amp_without_doubt_low geomean_amp_without_doubt_high` | over \
these models alone |
| `geomean_fp32_without_doubt ..._low ..._high` `weighted_without_doubt ..._low ..._high` | \
likewise |
| `weighted_device_without_doubt ..._low ..._high` `weighted_busy_without_doubt ..._low ..._high` \
| likewise |
| `models_over_strongest_eager weighted_over_strongest_eager` | like `weighted`, over the fastest \
eager of ladder.csv |
| `weighted_over_strongest_eager_low weighted_over_strongest_eager_high` | its interval for "these \
models" |
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
    Column("models_device", lambda group: len(group.device), int),
    *estimate_columns("weighted_device", lambda group: group.weighted_device),
    Column("unverified", lambda group: len(group.unverified), int),
    estimate_columns("weighted_with_unverified", lambda group: group.weighted_with_unverified)[0],
    Column("models_without_doubt", lambda group: len(group.sure.both), int),
    Column("models_with_unverified", lambda group: len(group.both_with_unverified) or None, int),
    Column(
        "models_amp_without_doubt", lambda group: len(group.sure_in["amp"].estimates("amp")), int
    ),
    Column(
        "models_fp32_without_doubt", lambda group: len(group.sure_in["fp32"].estimates("fp32")), int
    ),
    Column("models_device_without_doubt", lambda group: len(group.sure_by_device.device), int),
    Column("models_busy", lambda group: len(group.busy), int),
    *estimate_columns("weighted_busy", lambda group: group.weighted_busy),
    Column("models_busy_without_doubt", lambda group: len(group.sure_by_device.busy), int),
    *estimate_columns(
        "geomean_amp_without_doubt", lambda group: group.sure_in["amp"].geomean("amp")
    ),
    *estimate_columns(
        "geomean_fp32_without_doubt", lambda group: group.sure_in["fp32"].geomean("fp32")
    ),
    *estimate_columns("weighted_without_doubt", lambda group: group.sure.weighted),
    *estimate_columns(
        "weighted_device_without_doubt", lambda group: group.sure_by_device.weighted_device
    ),
    *estimate_columns(
        "weighted_busy_without_doubt", lambda group: group.sure_by_device.weighted_busy
    ),
    Column("models_over_strongest_eager", lambda group: len(group.over_strongest) or None, int),
    *estimate_columns("weighted_over_strongest_eager", lambda group: group.weighted_over_strongest),
)
# The mean by what people see of it: weighted, or in one precision.
MEANS = {"AMP": "geomean_amp", "fp32": "geomean_fp32", "weighted": "weighted"}
# The columns that count the models of a mean, and those of them that have no doubt flag.
COUNTS = {
    "weighted": ("models_weighted", "models_without_doubt"),
    "geomean_amp": ("models_amp", "models_amp_without_doubt"),
    "geomean_fp32": ("models_fp32", "models_fp32_without_doubt"),
    "weighted_device": ("models_device", "models_device_without_doubt"),
    "weighted_busy": ("models_busy", "models_busy_without_doubt"),
}
# only one of them is shown of a row
DEVICE_MEANS = {"device": "by device time", "busy": "by busy time"}


def summary(rows: Iterable[Group]) -> Table:
    return Table.make(COLUMNS, rows)


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
        *(
            _device_text_column(clock)
            for clock in DEVICE_MEANS
            if any(choose_clock(row) == clock for row in rows)
        ),
        number_column(
            "over strongest eager",
            "weighted_over_strongest_eager",
            show_over_strongest,
            media=(PAGE, MARKDOWN),
            needs="weighted_over_strongest_eager",
        ),
        number_column("slowdowns as 1.0", "weighted_clipped", media=(PAGE,)),
    ]


def _device_text_column(clock: str) -> TextColumn:
    """Make the column of rows whose mean is by this clock."""
    return TextColumn(
        DEVICE_MEANS[clock],
        lambda row: _show_in_cell(row, f"weighted_{clock}") if choose_clock(row) == clock else "",
        lambda row: (
            formatting.finite(row, f"weighted_{clock}") if choose_clock(row) == clock else None
        ),
        media=(PAGE,),
        needs=f"weighted_{clock}",
    )


def _mean_text_columns(title: str, name: str) -> list[TextColumn]:
    """Make the column of a mean; a terminal has no room for what it is without doubt."""

    def show(row: Row) -> str:
        return f"{found} ({row[COUNTS[name][0]]})" if (found := estimate(row, name)) else ""

    return [
        number_column(title, name, show, media=(TERMINAL,)),
        number_column(title, name, lambda row: _show_in_cell(row, name), media=(PAGE, MARKDOWN)),
    ]


def _show_in_cell(row: Row, name: str) -> str:
    """Show a mean, e.g. `1.44 [1.40, 1.48] (42); 1.31 (2 without doubt)` or `2.10 (4, all without
    doubt)`.
    """
    if not (found := estimate(row, name)):
        return ""
    count, sure = (row[column] for column in COUNTS[name])
    if sure == count or not sure:
        return f"{found} ({count}, {'all' if sure else 'none'} without doubt)"
    return (
        f"{found} ({count}); {ratio(number(row, f'{name}_without_doubt'))} ({sure} without doubt)"
    )


def count_models(row: Row, name: str) -> str:
    """Count the models of a mean, e.g. `42 models, 1.31 over the 2 without doubt`, `1 model, none
    without doubt`.
    """
    count, sure = (row[column] for column in COUNTS[name])
    sure_mean = f"{ratio(number(row, f'{name}_without_doubt'))} over the {sure}"
    found = sure_mean if sure and sure != count else "all" if sure else "none"
    return f"{count} model{'' if count == 1 else 's'}, {found} without doubt"


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
    """Name the groups in which no model was judged, and show means over the strongest eager."""
    keys = [key(row) for row in rows if row["family"] == ALL and not row["models"]]
    return [
        *([f"no model was judged, see the failures: {'; '.join(keys)}"] if keys else []),
        *(
            f"{key(row)}: weighted over the strongest eager {show_over_strongest(row)}; "
            f"over each trial's own eager arm {ratio(number(row, 'weighted'))} "
            f"({_count(row, 'models_weighted')})"
            for row in rows
            if row["family"] == ALL and row["weighted_over_strongest_eager"] is not None
        ),
    ]


def _list_sure(rows: Sequence[Row]) -> list[str]:
    """Make a line for each key with the means in one precision over the models without doubt; equal
    lines are one.
    """
    keys: dict[str, list[str]] = {}
    for row in rows:
        means = (
            (title, name)
            for title, name in MEANS.items()
            if name != "weighted" and row[name] is not None
        )
        sure = ", ".join(f"{title} {_share_without_doubt(row, name)}" for title, name in means)
        if row["family"] == ALL and sure:
            keys.setdefault(sure, []).append(key(row))
    return [
        f"models without doubt: {sure} ({formatting.shorten_names(names, between='; ')})"
        for sure, names in keys.items()
    ]


def _share_without_doubt(row: Row, name: str) -> str:
    """Show e.g. `1.31 over 2 of 42`, `none of 42`, `all 42`."""
    count, sure = (row[column] for column in COUNTS[name])
    if sure == count or not sure:
        return f"all {count}" if sure else f"none of {count}"
    return f"{ratio(number(row, f'{name}_without_doubt'))} over {sure} of {count}"


def _explain(findings: Findings, _rows: Sequence[Row]) -> str:
    return (
        "Geometric means of speedups; in brackets the 95 % interval for these models, in "
        "parentheses how many models. "
        "Without doubt: the mean over the models without a flag that says that a speedup may be "
        "off; these are fewer "
        "and other models, so it does not correct the mean over all. A trial with the flag "
        "accuracy_unverified is in no mean and has not passed: its result has no verdict, or was "
        "wrong in an earlier "
        "attempt. A new model: "
        "where one more of the same kind would lie."
        + (f" AMP: {findings.amp}." if findings.amp else "")
    )


def headline(row: Row) -> str:
    """Show the weighted mean and how sure it is.

    E.g. `weighted 0.75 AMP + 0.25 fp32: 1.43 over 3 models, 1.31 over the 2 without doubt; these
    models [1.40, 1.46]; with 1 unverified 1.41`.
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
        DEVICE_MEANS[choose_clock(row)]: show_device_mean(row),
    }
    if CLIPPED in text(row["variant"]):
        named["as in 2022, slowdowns raised to 1.0,"] = ratio(number(row, "weighted_clipped"))
    lines = [
        line,
        *(f"{name} {found}" for name, found in named.items() if found),
        show_with_unverified(row),
    ]
    return "; ".join(filter(None, lines))


def show_with_unverified(row: Row) -> str:
    """Show the weighted mean with the models that are ok but not verified, e.g. `with 1 unverified
    1.41`.
    """
    count = (number(row, "models_with_unverified") or 0) - (number(row, "models_weighted") or 0)
    found = ratio(number(row, "weighted_with_unverified"))
    return f"with {count:.0f} unverified {found}" if found else ""


def show_over_strongest(row: Row) -> str:
    """Show the weighted mean over the strongest eager and of how many models, e.g. `1.22 [1.20,
    1.24] (6 models)`.
    """
    found = estimate(row, "weighted_over_strongest_eager")
    return f"{found} ({_count(row, 'models_over_strongest_eager')})" if found else ""


def _count(row: Row, name: str) -> str:
    return f"{row[name]} model{'' if row[name] == 1 else 's'}"


def show_new_model(row: Row) -> str:
    """Show the prediction for one more model; of few it is so wide that it says nothing, and stays
    in summary.csv.
    """
    known = (number(row, "models_weighted") or 0) >= MODELS_TO_PREDICT
    return interval(row, "weighted_new_model") if known else ""


def choose_clock(row: Row) -> str:
    """Choose the clock of the device mean of a row: `device`, or `busy` where more of its models
    have that.
    """
    device, busy = (number(row, f"models_{clock}") or 0 for clock in DEVICE_MEANS)
    return "device" if device and device >= busy else "busy"


def show_device_mean(row: Row) -> str:
    """Show the weighted mean of device speedups, e.g. `1.52 [1.51, 1.52] over 42 models, all
    without doubt`.
    """
    mean = f"weighted_{choose_clock(row)}"
    return f"{found} over {count_models(row, mean)}" if (found := estimate(row, mean)) else ""


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
