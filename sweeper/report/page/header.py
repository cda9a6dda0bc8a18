"""The head of the page: its title, the conventions, and the weighted means as cards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sweeper.report import formatting
from sweeper.report.formatting import ratio, text
from sweeper.report.page.published import Published
from sweeper.report.table import Row
from sweeper.report.tables.groups import ALL
from sweeper.report.tables.summary import models, show_device_mean, show_new_model

MAX_CARDS = 12
MAX_CARDS_UNWEIGHTED = 4  # where no mode has the weighted mean
MEANS = {"weighted": "0.75 AMP + 0.25 fp32", "geomean_amp": "AMP alone", "geomean_fp32": "fp32 alone"}


@dataclass(frozen=True)
class Card:
    """A mean in large letters, what it is the mean for, and lines about it."""

    key: str
    value: str
    lines: Sequence[str]


def describe_conventions(amp: str) -> str:
    line = (
        "Geometric means of eager / compiled step time, wall clock. In brackets the 95 % interval for these models, in "
        "parentheses how many; weighted = 0.75 AMP + 0.25 fp32 over the models that are ok in both; a new model: where "
        "one more of the same kind would lie."
    )
    return f"{line} AMP: {amp}." if amp else line


def make_title(facts: Iterable[str]) -> str:
    """Make the title of the page, e.g. `night: speedups of torch.compile`."""
    sweeps = [fact.removeprefix("sweeps: ") for fact in facts if fact.startswith("sweeps: ")]
    return f"{sweeps[0]}: speedups of torch.compile" if sweeps else "Speedups of torch.compile"


def make_cards(summary: Sequence[Row], reference: Published | None) -> tuple[list[Card], str]:
    """Make a card per mode, the largest mean first, and a sentence about the modes that have no card.

    `reference` is what was published for models like all of these.
    """
    rows = [row for row in summary if row["family"] == ALL]
    known = [row for row in rows if any(row[name] is not None for name in MEANS)]
    known.sort(key=lambda row: [-(formatting.number(row, name) or 0.0) for name in ("weighted", "geomean_amp")])
    max_cards = MAX_CARDS if any(row["weighted"] is not None for row in known) else MAX_CARDS_UNWEIGHTED
    rest = f"{len(known) - max_cards} more are in the summary. " if len(known) > max_cards else ""
    if unknown := [formatting.key(row) for row in rows if row not in known]:
        rest += f"No speedup in a precision with a weight: {'; '.join(unknown)}."
    elif not rows:
        rest = "No geometric means: no compiled trial is in a precision with a weight (amp, fp32)."
    return [_make_card(row, reference) for row in known[:max_cards]], rest


def _make_card(row: Row, reference: Published | None) -> Card:
    name = next(name for name in MEANS if row[name] is not None)
    count = models(row["models_weighted" if name == "weighted" else name.replace("geomean", "models")])
    interval = formatting.interval(row, name)
    lines = [
        f"{MEANS[name]}, {count}, {text(row['passed'])} of {text(row['models'])} passed",
        f"these models {interval}" if interval else "no interval for these models",
    ]
    if name == "weighted":
        new, by_device = show_new_model(row), show_device_mean(row)
        lines += [f"a new model {new}"] if new else []
        lines += [f"by device time {by_device}"] if by_device else []
        lines.append(f"slowdowns as 1.0, as in 2022: {ratio(formatting.number(row, 'weighted_clipped'))}")
        if reference and (row["mode"], row["backend"]) == ("default", "inductor"):
            lines.append(f"published: {reference.label}")
    return Card(formatting.key(row), ratio(formatting.number(row, name)), lines)
