"""The figure of speedups on faster and slower hosts, predicted from host time and device step time
of both arms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from sweeper.analysis.derive import predict_speedup
from sweeper.core.record import ARMS
from sweeper.report.page import figure_base as base
from sweeper.report.page.speedup_figures import MAX_LINES, MAX_SERIES, select_measured
from sweeper.report.table import Row

TICKS = {0.25: "¼", 0.5: "½", 1.0: "1", 2.0: "2", 4.0: "4"}
LEAST, MOST = min(TICKS), max(TICKS)
POINTS = 32  # of a line, beside its bends
CAPTION = (
    "What the speedup would be with the same device and another host, predicted: a step takes what "
    "the slower of host "
    "and device takes. Left of 1 the host is faster, right of 1 slower. A line bends where an arm "
    "becomes host-bound."
)


class _Line(NamedTuple):
    name: str
    shade: str
    # how many times the seconds of this host another host takes for a step
    slowdowns: Sequence[float]
    speedups: Sequence[float]


def draw_headroom(rows: Sequence[Row]) -> base.Figure:
    """Draw a line for each trial whose two arms have host time and device step time, steep lines
    first.
    """
    title, measured = "Speedup on another host", select_measured(rows)
    axes = base.find_naming_axes(measured)
    lines = [line for row in measured if (line := _predict(base.name_row(row, axes), row))]
    if not lines:
        missing = "no trial with a speedup has host time and device step time of both arms"
        return base.Figure("headroom", title, missing=missing)
    lines.sort(key=lambda line: max(line.speedups) / min(line.speedups), reverse=True)
    caption = CAPTION
    if len(lines) > MAX_LINES:
        caption += f" {MAX_LINES} of {len(lines)} lines: those that depend most on the host."
    shown = lines[:MAX_LINES]
    parts = (shown[start : start + MAX_SERIES] for start in range(0, len(shown), MAX_SERIES))
    return base.Figure("headroom", title, caption, [_draw(part) for part in parts])


def _predict(name: str, row: Row) -> _Line | None:
    names = [f"{arm}_{figure}" for arm in ARMS for figure in ("host_share", "device_step_ms")]
    known = [figure for name in names if (figure := base.positive(row, name)) is not None]
    if len(known) < len(names):
        return None
    eager_share, eager_device, compiled_share, compiled_device = known
    eager_host, compiled_host = eager_share * eager_device, compiled_share * compiled_device
    bends = {at for at in (1 / eager_share, 1 / compiled_share) if LEAST < at < MOST}
    slowdowns = sorted(
        bends | {LEAST * (MOST / LEAST) ** (at / POINTS) for at in range(POINTS + 1)}
    )
    speedups = [
        predict_speedup(eager_host, eager_device, compiled_host, compiled_device, at)
        for at in slowdowns
    ]
    return _Line(name, base.row_colour(row), slowdowns, speedups)


def _draw(lines: Sequence[_Line]) -> base.Choice:
    traces = []
    for index, line in enumerate(lines):
        stroke = {"color": line.shade, "width": 2, "dash": base.pick(base.DASHES, index)}
        style = {"mode": "lines", "line": stroke, "hoverinfo": "name+x+y"}
        traces.append(base.points(line.name, line.slowdowns, line.speedups, {}, **style))
    xaxis = {
        "title": {"text": "seconds of the host per step, this host: 1"},
        "type": "log",
        "range": [math.log10(LEAST), math.log10(MOST)],
        "tickvals": list(TICKS),
        "ticktext": list(TICKS.values()),
    }
    yaxis = base.ratio_axis(
        "predicted speedup", [speedup for line in lines for speedup in line.speedups]
    )
    layout = base.lay_out(420, xaxis, yaxis, line="y")
    layout["shapes"].append(base.reference_line("x"))
    return base.Choice(
        ", ".join(line.name for line in lines[:2]) + (", …" if len(lines) > 2 else ""),
        traces,
        layout,
    )
