"""report.html: one file that needs nothing else, with figures by plotly.js and tables to sort and filter.

Place in the flow: `build` gives it what the other files of a report are made of. `page.css` and `page.js` are beside
this module; plotly.js comes out of the Python package plotly. A content security policy lets these two scripts run, and
no other, and forbids every request. Look at one: `python -m sweeper.report my-sweep`
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from sweeper.core.text import printable
from sweeper.loading import parallel
from sweeper.loading.entries import Entry, pause_garbage_collection
from sweeper.report.formatting import text
from sweeper.report.page import cost_figures, family_figure, published, speedup_figures, step_figure
from sweeper.report.page import tables as listing
from sweeper.report.page.figure_base import Figure, once_a_row
from sweeper.report.page.header import conventions, head, title
from sweeper.report.page.published import Published
from sweeper.report.page.tables import Listing
from sweeper.report.table import Table
from sweeper.report.tables.summary import ALL, Group, summary
from sweeper.report.tables.units import Unit

_PLACES = re.compile(r"<!--([a-z-]+)-->")  # in page.html
DIGITS = 6  # of a number in a figure
ABOVE_A_FIGURE = 110  # pixels of its title and caption, about


@dataclass(frozen=True)
class Content:
    """What a page is made of. The rows of `speedups` are those of `entries`, in the same order."""

    facts: Sequence[str]
    amp: str
    entries: Sequence[Entry]
    units: Sequence[Unit]
    speedups: Table
    summary: Table
    failures: Table
    notes: Sequence[str] = ()
    problems: Sequence[str] = ()
    recommendations: Table | None = None
    causes: Table | None = None


@pause_garbage_collection()
def document(content: Content, out: Path, cores: int = 1) -> Callable[[], str]:
    """Begin to make the page; what is returned gives it, whole. `out` is the folder that it will lie in, which links to
    trials start from. With several `cores` figures and tables are made beside what the caller does.
    """
    suites, beside = by_suite(content.units), of_families(content)
    tables = parallel.start(functools.partial(_tables, content, suites, beside, out), cores)
    drawn = parallel.start(functools.partial(_figures, content, beside), cores)
    return functools.partial(_document, content, suites, beside, tables, drawn)


def _document(
    content: Content,
    suites: Sequence[Group],
    beside: Mapping[str, Published],
    tables: Callable[[], tuple[dict[str, str], str]],
    drawn: Callable[[], tuple[str, str]],
) -> str:
    table_html, table_data = tables()
    figure_html, figure_data = drawn()
    shown = [item for item in (*beside.values(), *(published.of_suite(group.family) for group in suites)) if item]
    plotly, script = _plotly(), _resource("page.js")
    parts = {
        "title": html.escape(title(content.facts)),
        "css": _resource("page.css"),
        "policy": _policy(plotly, script),
        "head": head(content.facts, content.amp, content.speedups.rows, content.summary.rows, beside.get(ALL)),
        "recommendations": table_html.pop("recommendations", ""),
        "figures": figure_html,
        "tables": "\n".join(table_html.values()),
        "sources": _sources(shown),
        "notes": _list("Notes", content.notes) + _list("Records that could not be read", content.problems),
        "figure-data": figure_data,
        "table-data": table_data,
        "plotly": plotly,
        "script": script,
    }
    return "".join(parts.get(part, part) for part in _PLACES.split(_resource("page.html")))


def _figures(content: Content, beside: Mapping[str, Published]) -> tuple[str, str]:
    """The places of the figures, and what is drawn there."""
    drawn = all_figures(content, beside)
    return _in_columns(drawn), embedded([_figure_data(figure) for figure in drawn])


def _tables(
    content: Content, suites: Sequence[Group], beside: Mapping[str, Published], out: Path
) -> tuple[dict[str, str], str]:
    """The place of each table, and what stands there."""
    listings = all_listings(content, suites, beside, out)
    return {item.id: _table_section(item) for item in listings}, embedded({item.id: item.data for item in listings})


def embedded(data: object) -> str:
    """JSON that cannot end the script that it stands in, nor open a comment there."""
    found = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return found.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def by_suite(units: Iterable[Unit]) -> list[Group]:
    """Groups like those of the summary, with the suite for the family, where there are several suites."""
    found: dict[tuple[Any, str], list[Unit]] = {}
    for unit in units:
        found.setdefault((unit.key, _suite(unit)), []).append(unit)
    names = {name for _, name in found if name}
    if len(names) < 2:
        return []
    weights: dict[Any, set[str]] = {}
    for unit in units:
        weights.setdefault(unit.key, set()).update(unit.entries)
    return [Group(name, key, frozenset(weights[key]), group) for (key, name), group in found.items() if name]


def _suite(unit: Unit) -> str:
    return next(iter(unit.entries.values())).record.trial.labels.suite or ""


def of_families(content: Content) -> dict[str, Published]:
    """What was published for training, by family; `all` only where every model belongs to the suites."""
    if {row["workload"] for row in content.summary.rows} != {"train"}:
        return {}
    suites = {_suite(unit) for unit in content.units}
    names = dict.fromkeys(text(row["family"]) for row in content.summary.rows)
    return {family: item for family in names if (item := published.of_family(family, suites))}


def all_figures(content: Content, beside: Mapping[str, Published]) -> list[Figure]:
    rows, hover = content.speedups.rows, once_a_row(speedup_figures.trial_hover)
    return [
        speedup_figures.forest(rows, hover),
        family_figure.families(content.summary.rows, beside),
        speedup_figures.backends(rows),
        speedup_figures.batch_sizes(rows),
        cost_figures.compile_time(rows, hover),
        cost_figures.total_time(rows),
        cost_figures.memory(rows, hover),
        step_figure.step_times(content.entries, rows),
    ]


def all_listings(
    content: Content, suites: Sequence[Group], beside: Mapping[str, Published], out: Path
) -> list[Listing]:
    """The tables that have rows, in the order in which they stand."""
    rows = [*content.summary.rows, *({**row, "family": f"suite {row['family']}"} for row in summary(suites).rows)]
    named = {**beside, **{f"suite {group.family}": published.of_suite(group.family) for group in suites}}
    found = [
        listing.recommended(content.recommendations) if content.recommendations else None,
        listing.trials(content.entries, content.speedups, out),
        listing.causes(content.causes, content.speedups.rows) if content.causes else None,
        listing.failed(content.entries, content.failures, out),
        listing.summarised(rows, named, conventions(content.amp)),
    ]
    return [item for item in found if item and item.data["rows"]]


def _list(title: str, lines: Sequence[str]) -> str:
    items = "".join(f"<li>{html.escape(printable(line))}</li>" for line in lines)
    return f"<section><h2>{title}</h2><ul>{items}</ul></section>" if lines else ""


def _sources(shown: Iterable[Published]) -> str:
    items = "; ".join(
        f'<a href="{html.escape(url)}" rel="noreferrer">{html.escape(what)}</a>'
        for what, url in published.sources(shown)
    )
    return f'<p class="convention">Published: {items}.</p>' if items else ""


def _in_columns(drawn: Sequence[Figure]) -> str:
    """Two columns for a wide screen, each figure in the one that ends higher up; then what was left out, and why."""
    columns: tuple[list[str], list[str]] = ([], [])
    heights = [0, 0]
    for order, figure in enumerate(figure for figure in drawn if figure.choices):
        shorter = heights.index(min(heights))
        columns[shorter].append(_figure_section(figure, order))
        heights[shorter] += figure.choices[0].layout["height"] + ABOVE_A_FIGURE
    left, right = ("\n".join(column) for column in columns)
    missing = "\n".join(_figure_section(figure) for figure in drawn if not figure.choices)
    return f'<div class="columns"><div>{left}</div><div>{right}</div></div>\n{missing}'


def _figure_section(figure: Figure, order: int = 0) -> str:
    name, title = html.escape(figure.id), html.escape(figure.title)
    if not figure.choices:
        return f'<p class="missing" data-figure="{name}">{title}: left out, {html.escape(figure.missing)}.</p>'
    return (
        f'<section class="figure" style="order:{order}" data-figure="{name}" aria-label="{title}"><h3>{title}</h3>'
        f'<p class="caption">{html.escape(figure.caption)}</p><div class="choose"></div>'
        '<div class="plot"></div></section>'
    )


def _table_section(item: Listing) -> str:
    name = html.escape(item.id)
    note = f'<p class="caption">{html.escape(item.note)}</p>' if item.note else ""
    return f'<section class="table" id="{name}" data-table="{name}"><h2>{html.escape(item.title)}</h2>{note}</section>'


def _figure_data(figure: Figure) -> dict[str, Any]:
    choices = [{"name": item.name, "traces": item.traces, "layout": item.layout} for item in figure.choices]
    return {"id": figure.id, "choices": _short(choices)}


def _short(value: Any) -> Any:
    """The same with numbers of a few digits, which is what a figure can show."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    return [_short(item) for item in value] if isinstance(value, (list, tuple)) else value


def _policy(*scripts: str) -> str:
    """Only these scripts, by their digests, and nothing from anywhere: https://www.w3.org/TR/CSP3/."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'"


def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    script: str = get_plotlyjs()
    assert "</script" not in script.lower()
    return script


def _resource(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
