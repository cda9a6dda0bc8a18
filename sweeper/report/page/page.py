"""report.html: one file that needs nothing else, with figures by plotly.js and tables to sort and
filter.

`page.html` is a jinja2 template, `page.css` and `page.js` stand beside it; plotly.js comes from the
Python package plotly. A content security policy lets these two scripts run, and no other, and
forbids every request. Try it: `python -m sweeper.report my-sweep`
"""

from __future__ import annotations

import base64
import functools
import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from sweeper.core.text import printable
from sweeper.loading import parallel
from sweeper.loading.entries import pause_garbage_collection
from sweeper.report import formatting
from sweeper.report.contents import PRECEDENCE, Report
from sweeper.report.formatting import ratio, text
from sweeper.report.page import (
    cost_figures,
    ladder_figure,
    speedup_figures,
)
from sweeper.report.page.figure_base import Figure, list_shades
from sweeper.report.page.legend import make_legend
from sweeper.report.page.listings import Listing, make_listing
from sweeper.report.page.published import (
    ANNOUNCEMENT,
    TUTORIAL,
    Published,
    find_differences,
    find_for_family,
    find_for_suite,
    find_sources,
)
from sweeper.report.registry import TABLES
from sweeper.report.table import Row, TextColumn
from sweeper.report.tables.candidates import MAX_SPAN
from sweeper.report.tables.groups import ALL, Group
from sweeper.report.tables.summary import (
    COUNTS,
    count_models,
    show_device_mean,
    show_new_model,
    summary,
)
from sweeper.report.tables.units import Unit

DIGITS = 6  # of a number in a figure
MAX_CARDS = 12
CARD_LINES = 4  # of a card that show at once
MAX_CARDS_UNWEIGHTED = 4  # where no mode has the weighted mean
MEANS = {
    "weighted": "0.75 AMP + 0.25 fp32",
    "geomean_amp": "AMP alone",
    "geomean_fp32": "fp32 alone",
}
CONVENTIONS = (
    "Geometric means of eager / compiled step time, wall clock. In brackets the 95 % interval for "
    "these models, in "
    "parentheses how many; a model without doubt has no flag that says that its speedup may be "
    "off; "
    "weighted = 0.75 "
    "AMP + 0.25 fp32 over "
    "the models that are ok in both, with a verdict on their results; a new model: where one more "
    "of the same kind "
    "would lie."
)
# the contents bar, in the order of the page; a table that is not here stands before the notes
SECTIONS = {
    "again": "Worth another run",
    "failures": "Failures",
    "recommendations": "Recommendations",
    "figures": "Figures",
    "causes": "Causes",
    "legend": "Flags",
    "ladder": "Ladder",
    "speedups": "Speedups",
    "summary": "Summary",
    "settings": "Settings",
    "notes": "Notes",
}
TITLE_HEIGHT_PX = 110  # pixels of its title and caption, about
# figures or tables, and what page.js draws of them as JSON
_Part = Callable[[], tuple[Sequence[Any], str]]


class Card(NamedTuple):
    """A mean in large letters, what it is the mean for, and lines about it."""

    key: str
    value: str
    lines: Sequence[str]
    doubt: str  # why the mean says little; empty: it does not


class References(NamedTuple):
    """What was published, by family and `suite NAME`, and in what the trials of the report differ
    from it.
    """

    figures: Mapping[str, Published]
    differences: str  # in settings; empty: none
    machine: str  # in GPU and version of torch

    @property
    def sentence(self) -> str:
        """What a reader should know of the figures that are shown."""
        same = "with the settings of this sweep"
        settings = f"with other settings ({self.differences})" if self.differences else same
        machine = f", on another machine ({self.machine})" if self.machine else ""
        known = {
            ANNOUNCEMENT: f"The figures of 2022 were measured {settings}{machine}.",
            TUTORIAL: "The source of the figures of 2023 names no settings.",
        }
        return " ".join(known[url] for _, url in find_sources(self.figures.values()))


@pause_garbage_collection()
def begin_page(report: Report, out: Path, cores: int = 1) -> Callable[[], str]:
    """Begin to make the page, and return a function that returns the page.

    `out` is the folder of the page, from which links to trials start. With several `cores`, two
    processes make the figures and the tables while the caller continues.
    """
    import jinja2  # noqa: F401  # before the processes start, which would import it each

    suites = group_by_suite(report.findings.units.units)
    published = find_references(report, suites)
    make_tables = parallel.start(
        functools.partial(_make_tables, report, suites, published, out), cores
    )
    make_figures = parallel.start(functools.partial(_make_figures, report, published), cores)
    return lambda: _render(report, published, (make_tables, make_figures))


def _render(report: Report, published: References, parts: Sequence[_Part]) -> str:
    from jinja2 import Environment

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(_read("page.html"))
    rows, plotly, script = report.tables["speedups"].rows, _read_plotly(), _read("page.js")
    cards, rest = make_cards(report.tables["summary"].rows, published)
    (tables, table_data), (figures, figure_data) = (make() for make in parts)
    page = template.render(
        policy=_policy(plotly, script),
        title=make_title(report.facts),
        css=_read("page.css"),
        count=f"{len(rows):,} trials, {sum(row['status'] == 'ok' for row in rows):,} ok",
        verdict=report.verdict,
        cards=cards,
        card_lines=CARD_LINES,
        rest=rest,
        conventions=f"{CONVENTIONS} AMP: {report.findings.amp}."
        if report.findings.amp
        else CONVENTIONS,
        facts=[fact.partition(": ") for fact in report.facts],
        machine=_name_machine(report.facts),
        precedence=next(
            (fact.partition(": ")[2] for fact in report.facts if fact.startswith(PRECEDENCE)), ""
        ),
        failed=sum(row["status"] != "ok" for row in rows),
        legend=make_legend(rows, report.tables["causes"].rows),
        shades=list_shades(rows),
        tables={item.id: item for item in tables},
        contents=_list_contents(tables, report),
        columns=_arrange(figure for figure in figures if figure.choices),
        missing=[figure for figure in figures if not figure.choices],
        sources=find_sources(published.figures.values()),
        differences=published.sentence,
        notes=[printable(line) for line in report.notes],
        problems=[printable(line) for line in report.problems],
    )
    # What is megabytes long takes the places of comments: jinja2 would hold several copies of it.
    large = {
        "figure-data": figure_data,
        "table-data": table_data,
        "plotly": plotly,
        "page-script": script,
    }
    return "".join(large.get(piece, piece) for piece in re.split(r"<!--([a-z-]+)-->", page))


def _list_contents(tables: Iterable[Listing], report: Report) -> list[tuple[str, str]]:
    """Make the entries of the contents bar: the id of a section, and a word for it."""
    shown = {item.id for item in tables}
    named = {**SECTIONS, **{item.id: item.title for item in tables if item.id not in SECTIONS}}
    always = {"figures", "legend", "settings", *(["notes"] if report.notes else [])}
    always |= {"again"} if report.verdict.again else set()
    return [(name, title) for name, title in named.items() if name in shown | always]


def _name_machine(facts: Iterable[str]) -> str:
    """Name what the figures hold for, e.g. `NVIDIA H200 · torch 2.11.0+cu130`; as much of it as is
    known.
    """
    known = {name: value for name, _, value in (fact.partition(": ") for fact in facts)}
    torch = re.search(r"\btorch [^,;]+", known.get("versions", ""))
    return " · ".join(filter(None, (known.get("device"), torch and torch[0])))


def make_title(facts: Iterable[str]) -> str:
    """Make the title of the page, e.g. `night: speedups of torch.compile`."""
    sweeps = [fact.removeprefix("sweeps: ") for fact in facts if fact.startswith("sweeps: ")]
    return f"{sweeps[0]}: speedups of torch.compile" if sweeps else "Speedups of torch.compile"


def make_cards(summary: Sequence[Row], published: References) -> tuple[list[Card], str]:
    """Make a card per mode, the largest mean first, and a sentence about the modes that have no
    card.
    """
    rows = [row for row in summary if row["family"] == ALL]
    known = [row for row in rows if any(row[name] is not None for name in MEANS)]
    known.sort(
        key=lambda row: [
            -(formatting.number(row, name) or 0.0) for name in ("weighted", "geomean_amp")
        ]
    )
    max_cards = (
        MAX_CARDS if any(row["weighted"] is not None for row in known) else MAX_CARDS_UNWEIGHTED
    )
    rest = f"{len(known) - max_cards} more are in the summary. " if len(known) > max_cards else ""
    if unknown := [formatting.key(row) for row in rows if row not in known]:
        rest += f"No verified speedup in a precision with a weight: {'; '.join(unknown)}."
    elif not rows:
        rest = "No geometric means: no compiled trial is in a precision with a weight (amp, fp32)."
    return [_make_card(row, published) for row in known[:max_cards]], rest


def _make_card(row: Row, published: References) -> Card:
    name = next(name for name in MEANS if row[name] is not None)
    interval = formatting.interval(row, name)
    lines = [f"geometric mean, {MEANS[name]}", count_models(row, name)]
    lines += (
        [f"{text(row['passed'])} of {text(row['models'])} with verified results"]
        if row["models"]
        else []
    )
    lines.append(f"these models {interval}" if interval else "no interval for these models")
    if name == "weighted":
        new, by_device = show_new_model(row), show_device_mean(row)
        lines += [f"a new model {new}"] if new else []
        lines += [f"by device time {by_device}"] if by_device else []
        lines.append(f"slowdowns as 1.0: {ratio(formatting.number(row, 'weighted_clipped'))}")
        reference = published.figures.get(ALL)
        if reference and (row["mode"], row["backend"]) == ("default", "inductor"):
            lines.append(
                "published: "
                f"{reference.label}{', measured otherwise' if published.differences else ''}"
            )
    return Card(
        formatting.key(row), ratio(formatting.number(row, name)), lines, _explain_doubt(row, name)
    )


def _explain_doubt(row: Row, name: str) -> str:
    """Say why a mean says little: no model is without doubt, or the interval is too wide."""
    low, high = (formatting.number(row, f"{name}_{end}") for end in ("low", "high"))
    if low and high and high / low >= MAX_SPAN:
        return "the interval is too wide to say more"
    return (
        ""
        if row[COUNTS[name][1]]
        else "every model has a flag that says that its speedup may be off"
    )


def _make_tables(
    report: Report, suites: Sequence[Group], published: References, out: Path
) -> tuple[list[Listing], str]:
    """Make the tables that have rows, the summary last: without their data, and the data as
    JSON.
    """
    first, *others = TABLES
    listings = [make_listing(spec, report, report.tables[spec.name].rows, out) for spec in others]
    by_suite: list[Row] = [
        {**row, "family": f"suite {row['family']}"} for row in summary(suites).rows
    ]
    rows = [*report.tables[first.name].rows, *by_suite]
    column = TextColumn(
        "published",
        lambda row: item.label if (item := published.figures.get(text(row["family"]))) else "",
    )
    summed = make_listing(first, report, rows, out, [column] if published.figures else [])
    listings.append(replace(summed, note=f"{summed.note} {published.sentence}".strip()))
    data = {item.id: item.data for item in listings if item.data["rows"]}
    return [replace(item, data={}) for item in listings if item.id in data], _dump(data)


def _make_figures(report: Report, published: References) -> tuple[list[Figure], str]:
    """Make the figures; return them with the layout of their first choice only, and the data as
    JSON.
    """
    rows = report.tables["speedups"].rows
    figures = [
        speedup_figures.draw_forest(rows),
        speedup_figures.draw_families(
            report.tables["summary"].rows, published.figures, published.sentence
        ),
        ladder_figure.draw_ladders(report.tables["ladder"].rows),
        speedup_figures.draw_backends(rows),
        speedup_figures.draw_batch_sizes(rows),
        cost_figures.draw_compile_time(rows),
        cost_figures.draw_total_time(rows),
        cost_figures.draw_memory(rows),
    ]
    firsts = [[replace(choice, traces=()) for choice in figure.choices[:1]] for figure in figures]
    sketches = [
        replace(figure, choices=choices) for figure, choices in zip(figures, firsts, strict=True)
    ]
    return sketches, _dump([_figure_data(figure) for figure in figures])


def _arrange(figures: Iterable[Figure]) -> tuple[list[tuple[int, Figure]], ...]:
    """Arrange figures in two columns, each in the column that ends higher up, and keep their
    order.
    """
    columns: tuple[list[tuple[int, Figure]], ...] = ([], [])
    heights = [0, 0]
    for order, figure in enumerate(figures):
        shorter = heights.index(min(heights))
        columns[shorter].append((order, figure))
        heights[shorter] += figure.choices[0].layout["height"] + TITLE_HEIGHT_PX
    return columns


def _dump(data: object) -> str:
    """Write JSON that can neither end the script in which it stands nor open a comment there."""
    from jinja2.utils import htmlsafe_json_dumps

    return htmlsafe_json_dumps(data, separators=(",", ":"), allow_nan=False)


def group_by_suite(units: Iterable[Unit]) -> list[Group]:
    """Group units as the summary does, with the suite in place of the family, where there are
    several suites.
    """
    by_suite: dict[tuple[Any, str], list[Unit]] = {}
    weights: dict[Any, set[str]] = {}
    for unit in units:
        by_suite.setdefault((unit.key, _suite(unit)), []).append(unit)
        weights.setdefault(unit.key, set()).update(unit.entries)
    if len({suite for _, suite in by_suite if suite}) < 2:
        return []
    return [
        Group(suite, key, frozenset(weights[key]), found)
        for (key, suite), found in by_suite.items()
        if suite
    ]


def _suite(unit: Unit) -> str:
    return next(iter(unit.entries.values())).record.trial.labels.suite or ""


def find_references(report: Report, groups_by_suite: Iterable[Group]) -> References:
    """Find what was published for training, by family and suite; for `all` only where every model
    is of the suites.
    """
    if {row["workload"] for row in report.tables["summary"].rows} != {"train"}:
        return References({}, "", "")
    suites = {_suite(unit) for unit in report.findings.units.units}
    families = dict.fromkeys(text(row["family"]) for row in report.tables["summary"].rows)
    found = {family: find_for_family(family, suites) for family in families}
    found |= {f"suite {group.family}": find_for_suite(group.family) for group in groups_by_suite}
    return References(
        {name: item for name, item in found.items() if item},
        *find_differences(report.findings.entries),
    )


def _figure_data(figure: Figure) -> dict[str, Any]:
    choices = [
        {"name": item.name, "traces": item.traces, "layout": item.layout} for item in figure.choices
    ]
    return {"id": figure.id, "choices": _round(choices)}


def _round(value: Any) -> Any:
    """Round numbers to the digits that a figure can show; what is not finite becomes None."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _round(item) for key, item in value.items()}
    return [_round(item) for item in value] if isinstance(value, (list, tuple)) else value


def _policy(*scripts: str) -> str:
    """Allow these scripts by their digests, and nothing from anywhere else:
    https://www.w3.org/TR/CSP3/.
    """
    digests = (
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts
    )
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: "
        "blob:; base-uri 'none'"
    )


def _read_plotly() -> str:
    from plotly.offline import get_plotlyjs

    script: str = get_plotlyjs()
    assert "</script" not in script.lower()
    return script


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
