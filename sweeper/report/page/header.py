"""The head of the page: the weighted means as cards, the conventions, where the numbers come from, the flags.

Place in the flow: facts and rows of tables `-> HTML -> page`.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from sweeper.report import formatting
from sweeper.report.formatting import ratio, text
from sweeper.report.page.published import Published
from sweeper.report.table import Row
from sweeper.report.tables.groups import ALL
from sweeper.report.tables.speedups import flagged
from sweeper.report.tables.summary import by_device_time, models, of_a_new_model

MAX_CARDS = 12
MAX_CARDS_UNWEIGHTED = 4  # where no mode has the weighted mean
LONG_FACT = 160  # characters; a longer one is folded away


def conventions(amp: str) -> str:
    line = (
        "Geometric means of eager / compiled step time, wall clock. In brackets the 95 % interval for these models, in "
        "parentheses how many; weighted = 0.75 AMP + 0.25 fp32 over the models that are ok in both; a new model: where "
        "one more of the same kind would lie."
    )
    return f"{line} AMP: {amp}." if amp else line


def title(facts: Iterable[str]) -> str:
    """`night: speedups of torch.compile`."""
    sweeps = [fact.removeprefix("sweeps: ") for fact in facts if fact.startswith("sweeps: ")]
    return f"{sweeps[0]}: speedups of torch.compile" if sweeps else "Speedups of torch.compile"


def head(
    facts: Sequence[str], amp: str, speedups: Sequence[Row], summary: Sequence[Row], beside: Published | None
) -> str:
    """HTML; `beside` is what was published for models like all of these."""
    name, _, rest = title(facts).partition(": ")
    ok = sum(row["status"] == "ok" for row in speedups)
    count = f"{len(speedups):,} trials, {ok:,} ok"
    lines = [f"<h1>{html.escape(name)}</h1>", f'<p class="under">{html.escape(rest or name)} · {count}</p>']
    lines += [_cards(summary, beside), f'<p class="convention">{html.escape(conventions(amp))}</p>']
    flag_lines = flagged(speedups)
    lines += [_facts(facts), _folded("Flags", flag_lines) if flag_lines else ""]
    return "\n".join(line for line in lines if line)


def _cards(summary: Sequence[Row], beside: Published | None) -> str:
    """The weighted mean for each mode, or as much of it as there is, the largest first."""
    rows = [row for row in summary if row["family"] == ALL]
    known = [row for row in rows if any(row[name] is not None for name in ("weighted", "geomean_amp", "geomean_fp32"))]
    known.sort(key=lambda row: [-(formatting.number(row, name) or 0.0) for name in ("weighted", "geomean_amp")])
    most = MAX_CARDS if any(row["weighted"] is not None for row in known) else MAX_CARDS_UNWEIGHTED
    cards = "".join(_card(row, beside) for row in known[:most])
    more = f"{len(known) - most} more are in the summary. " if len(known) > most else ""
    without = [formatting.key(row) for row in rows if row not in known]
    if without:
        more += f"No speedup in a precision with a weight: {'; '.join(without)}."
    elif not rows:
        more = "No geometric means: no compiled trial is in a precision with a weight (amp, fp32)."
    return f'<div class="cards">{cards}</div>' + (f'<p class="convention">{html.escape(more)}</p>' if more else "")


def _card(row: Row, beside: Published | None) -> str:
    weighted = row["weighted"] is not None
    name = "weighted" if weighted else "geomean_amp" if row["geomean_amp"] is not None else "geomean_fp32"
    kind = {"weighted": "0.75 AMP + 0.25 fp32", "geomean_amp": "AMP alone", "geomean_fp32": "fp32 alone"}[name]
    count = models(row[name.replace("geomean", "models") if not weighted else "models_weighted"])
    lines = [f"{kind}, {count}, {text(row['passed'])} of {text(row['models'])} passed"]
    these, new = formatting.interval(row, name), of_a_new_model(row) if weighted else ""
    lines += [f"these models {these}" if these else "no interval for these models"]
    lines += [f"a new model {new}"] if new else []
    by_device = by_device_time(row) if weighted else ""
    lines += [f"by device time {by_device}"] if by_device else []
    lines += [f"slowdowns as 1.0, as in 2022: {ratio(formatting.number(row, 'weighted_clipped'))}"] if weighted else []
    as_published = (row["mode"], row["backend"]) == ("default", "inductor")
    lines += [f"published: {beside.label}"] if weighted and beside and as_published else []
    below = "".join(f"<span>{html.escape(line)}</span>" for line in lines)
    value = html.escape(ratio(formatting.number(row, name)))
    key = html.escape(formatting.key(row))
    return f'<div class="card"><span class="key">{key}</span><b>{value}&times;</b>{below}</div>'


def _facts(facts: Iterable[str]) -> str:
    items = []
    for fact in facts:
        name, _, value = fact.partition(": ")
        shown = html.escape(value)
        if len(value) > LONG_FACT:
            shown = f"<details><summary>{html.escape(value[:80])}…</summary>{shown}</details>"
        items.append(f"<div><dt>{html.escape(name)}</dt><dd>{shown}</dd></div>")
    return f'<dl class="facts">{"".join(items)}</dl>'


def _folded(name: str, lines: Sequence[str]) -> str:
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return f'<details class="flags"><summary>{name} ({len(lines)})</summary><ul>{items}</ul></details>'
