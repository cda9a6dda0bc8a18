"""report.html: one file that needs nothing else, with figures by plotly.js and tables to sort and
filter. A new figure is a line of `_make_figures`.

`page.html` is a jinja2 template, `page.css` and `page.js` stand beside it; plotly.js comes from the
Python package plotly. A content security policy lets these two scripts run, and no other, and
forbids every request. Try it: `python -m sweeper.report my-sweep`
"""

import base64
import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import Any

from sweeper.core.text import printable
from sweeper.loading import parallel
from sweeper.report.answers.findings import Findings
from sweeper.report.published import References, find_references
from sweeper.report.tables.registry import TABLES
from sweeper.report.tables.summary import SummaryTable
from sweeper.report.text.report import Report

from . import cost_figures, ladder_figure, speedup_figures
from .legend import make_legend
from .listings import Listing, make_listing
from .plotly_parts import Figure, list_shades

DIGITS = 6  # of a number in a figure
TITLE_HEIGHT_PX = 110  # pixels of its title and caption, about

Column = list[tuple[int, Figure]]  # figures with their places in the order of all


def begin_page(report: Report, out: Path, cores: int = 1) -> Callable[[], str]:
    """Begin to make the page, and return a function that returns the page.

    `out` is the folder of the page, from which links to trials start. With several `cores`, two
    processes make the figures and the tables while the caller continues.
    """
    # before the processes start, which would import it each
    import jinja2  # noqa: F401

    findings = report.findings
    published = find_references(findings)
    make_tables = parallel.start(partial(_make_tables, findings, out), cores)
    make_figures = parallel.start(partial(_make_figures, findings, published), cores)
    return lambda: _render(report, published, *make_tables(), *make_figures())


def _render(
    report: Report,
    published: References,
    tables: Sequence[Listing],
    table_data: str,
    figures: Sequence[Figure],
    figure_data: str,
) -> str:
    plotly, script = _read_plotly(), _read("page.js")
    findings = report.findings
    page: str = _load_template().render(
        policy=_policy(plotly, script),
        css=_read("page.css"),
        report=report,
        published=published,
        means=list(SummaryTable().headlines(findings)),
        legend=make_legend(findings),
        shades=list_shades(findings.entries),
        tables=tables,
        columns=_arrange(figure for figure in figures if figure.drawings),
        figures=figures,
        notes=list(map(printable, report.notes)),
        problems=list(map(printable, report.problems)),
        figure_data=figure_data,
        table_data=table_data,
        plotly=plotly,
        script=script,
    )
    return page


@cache
def _read_plotly() -> str:
    """Read plotly.js, and see that it can stand in a page: looking through its megabytes takes
    longer than to fill the template.
    """
    from plotly.offline import get_plotlyjs

    plotly: str = get_plotlyjs()
    assert "</script" not in plotly.lower()
    return plotly


@cache
def _load_template() -> Any:
    """Compile the template, which takes longer than to fill it."""
    from jinja2 import Environment

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_read("page.html"))


def _make_tables(findings: Findings, out: Path) -> tuple[list[Listing], str]:
    """Make the tables that have rows, in their order: without their data, and the data as JSON."""
    specs = [spec.for_page() for spec in TABLES]
    tables = []
    data = {}
    for spec in sorted(specs, key=lambda spec: spec.place):
        listing = make_listing(spec, findings, out)
        if listing:
            data[listing.id] = listing.data
            tables.append(replace(listing, data={}))
    return tables, _dump(data)


def _make_figures(findings: Findings, published: References) -> tuple[list[Figure], str]:
    """Make the figures; return them with their first choice only, and the data as JSON."""
    entries = findings.entries
    figures = [
        speedup_figures.draw_forest(entries),
        speedup_figures.draw_families(findings.groups, published),
        ladder_figure.draw_ladders(findings.ladders),
        speedup_figures.draw_backends(entries),
        speedup_figures.draw_batch_sizes(entries),
        cost_figures.draw_total_time(entries),
    ]
    sketches = []
    data = []
    for figure in figures:
        sketches.append(replace(figure, drawings=figure.drawings[:1]))
        choices = []
        for item in figure.drawings:
            layout = {"height": item.height, **item.layout}
            choices.append({"name": item.name, "traces": item.traces, "layout": layout})
        data.append({"id": figure.id, "choices": _round(choices)})
    return sketches, _dump(data)


def _arrange(figures: Iterable[Figure]) -> Sequence[Column]:
    """Arrange figures in two columns, each in the column that ends higher up, and keep their
    order.
    """
    columns: Sequence[Column] = ([], [])
    heights = [0, 0]
    for order, figure in enumerate(figures):
        shorter = heights.index(min(heights))
        columns[shorter].append((order, figure))
        heights[shorter] += figure.drawings[0].height + TITLE_HEIGHT_PX
    return columns


def _dump(data: object) -> str:
    """Write JSON that can neither end the script in which it stands nor open a comment there."""
    from jinja2.utils import htmlsafe_json_dumps

    return htmlsafe_json_dumps(data, separators=(",", ":"), allow_nan=False)


def _round(value: Any) -> Any:
    """Round numbers to the digits that a figure can show; what is not finite becomes None."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _round(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_round, value))
    return value


def _policy(*scripts: str) -> str:
    """Allow these scripts by their digests, and nothing from anywhere else:
    https://www.w3.org/TR/CSP3/.
    """
    allowed = []
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        allowed.append(f"'sha256-{digest}'")
    return (
        f"default-src 'none'; script-src {' '.join(allowed)}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'"
    )


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
