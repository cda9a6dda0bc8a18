"""Tables as the page shows them: cells of text, numbers to sort by, what a row opens to, where its
files are.

The specs in `report/tables/` declare the columns. Texts are plain here; the page never takes them
for HTML.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from sweeper.analysis.meanings import STATUSES
from sweeper.analysis.metrics import METRICS
from sweeper.core.files import read_last_lines
from sweeper.core.record import (
    ARMS,
    Accuracy,
    Attempt,
    Diagnostics,
    GraphBreak,
    Inspection,
    ScriptRun,
    describe_phase,
    say_while,
)
from sweeper.loading.entries import Blocks, Entry
from sweeper.loading.environment import read_attention
from sweeper.report.answers.causes import explain
from sweeper.report.answers.findings import Findings
from sweeper.report.answers.trials import name_sweep
from sweeper.report.columns import cell
from sweeper.report.columns.column import PAGE, differs
from sweeper.report.columns.formats import count, figure, join, percent, prefix, sentence
from sweeper.report.tables.spec import TableSpec
from sweeper.report.tables.trials import metric_column

T = TypeVar("T")

MAX_MESSAGE_CHARACTERS = 2000
MAX_PLACES = 10  # graph breaks and skips that a row opens to
MAX_LOG_BYTES, MAX_LOG_LINES = 6000, 40  # of the end of a log
MAX_LOGS = 500  # whose ends are in the page
SWEEP = "sweep"  # a filter of a page that has several


@dataclass(frozen=True)
class Listing:
    """A table of the page; `data` is what its script gets."""

    id: str
    title: str
    word: str  # in the contents bar
    place: int  # on the page, from the top
    data: Mapping[str, Any]
    note: str


def make_listing(spec: TableSpec[T], findings: Findings, out: Path) -> Listing | None:
    """Make the rows of a table for the page that lies in `out`; None for a table without rows."""
    items = spec.items(findings)
    shown = spec.arrange(items)
    if not shown:
        return None
    columns = spec.shown(shown, findings, PAGE)
    filters = []
    for column in spec.columns:
        if column.is_filter and (column.name != SWEEP or differs(column, shown)):
            filters.append(column)
    figures = list(map(metric_column, METRICS))
    has_several_sweeps = len({entry.sweep for entry in findings.entries}) > 1
    rows = []
    for number, item in enumerate(shown, 1):
        row: dict[str, Any] = {
            "cells": [column.show(item) for column in columns],
            "numbers": [column.number(item) for column in columns],
            "filters": [cell.show(column.value(item)) for column in filters],
        }
        rows.append(row)
        entry, details = spec.entry(item), spec.parts(item)
        row_id = str(number)
        links: list[list[str]] = []
        if entry is not None:
            log, why = "", ""
            if spec.shows_log and number <= MAX_LOGS:
                # in the page itself, whose links lead nowhere once it is sent to somebody
                name = entry.record.log or ""
                log = "\n".join(read_last_lines(entry.folder, name, MAX_LOG_LINES, MAX_LOG_BYTES))
            if spec.shows_causes and entry.is_ok:
                why = "\n".join(explain(entry, findings.causes_of.get(entry, ())))
            details = [("why not faster", why), *_describe_record(entry), ("end of the log", log)]
            details += [(column.name, column.show(entry)) for column in figures]
            row_id = entry.record.trial_id
            if has_several_sweeps:
                row_id += f"@{name_sweep(entry)}"
            links = _link_files(entry, out)
        if details:
            shown_details = [detail for detail in details if detail[1]]
            row |= {"id": row_id, "details": shown_details, "links": links}
    heads = []
    for column in columns:
        heads.append(
            {
                "title": column.title,
                "number": column.is_number,
                "hint": column.meaning,
                # A name that is not the first stands under the first where the page is narrow.
                "aside": column.is_name and column is not columns[0],
            }
        )
    data = {"columns": heads, "filters": [column.name for column in filters], "rows": rows}
    lines = (spec.lead(findings), *spec.notes(findings))
    note = join((*map(sentence, lines), spec.explain(findings)), " ")
    return Listing(spec.name, spec.title, spec.word or spec.title, spec.place, data, note)


def _describe_record(entry: Entry) -> list[tuple[str, str]]:
    record, found = entry.record, entry.record.diagnostics or Diagnostics()
    smaller = ""
    if record.smaller_batch_size:
        smaller = f"{record.trial.batch_size} ran out of memory"
    return [
        ("message", (record.message or "")[:MAX_MESSAGE_CHARACTERS]),
        ("status", _explain_status(record.status)),
        ("ended while", describe_phase(record.phase)),
        ("flags", ", ".join(entry.flags)),
        ("accuracy", _describe_accuracy(entry.worst)),
        ("attention kernels", _describe_attention(entry)),
        ("trial", record.trial_id),
        ("batch size", smaller),
        ("graphs", cell.plain(found.graphs)),
        ("kernels that Inductor wrote", cell.plain(found.kernels)),
        ("graph breaks", "\n".join(map(_describe_break, found.graph_breaks[:MAX_PLACES]))),
        ("blocks", _describe_blocks(entry.blocks)),
        ("shapes of inputs", _describe_shapes(entry.result.seen_of_script)),
        ("CUDA graphs skipped", "\n".join(record.cudagraph_skips[:MAX_PLACES])),
        ("earlier attempts", "\n".join(map(_describe_attempt, record.attempts))),
    ]


def _describe_break(item: GraphBreak) -> str:
    return f"{count(item.count, 'time')}: {item.reason} ({item.where or 'no place'})"


def _explain_status(status: str) -> str:
    """Say what a status means and what to do, as the legend does; nothing of `ok`."""
    if status == "ok" or status not in STATUSES:
        return ""
    meaning = STATUSES[status]
    return f"{status}: {sentence(meaning.says)} {meaning.todo.replace('`', '')}".strip()


def _describe_accuracy(worst: Accuracy | None) -> str:
    """Describe the check of the tensor that came nearest to its bound, first why there is no
    verdict.
    """
    if worst is None:
        return ""
    compared = ""
    if worst.compiled_error is not None and worst.bound is not None:
        scale, unit = (100 / worst.size, " % of its size") if worst.size else (1.0, "")
        compared = (
            f"{worst.worst}: error {scale * worst.compiled_error:.3g}{unit}, allowed "
            f"{scale * worst.bound:.3g}{unit}, against {worst.reference}"
        )
    return join((prefix("no verdict: ", worst.unverified or ""), compared))


def _describe_attention(entry: Entry) -> str:
    """Name the attention kernels of both arms, e.g. `eager flash, compiled none of cuDNN, flash,
    memory-efficient`.
    """
    if "attention_differs" not in entry.flags or entry.record.diagnostics is None:
        return ""
    parts = []
    for arm in ARMS:
        kinds = read_attention(entry.record, arm)
        parts.append(f"{arm} {kinds or 'none of cuDNN, flash, memory-efficient'}")
    return ", ".join(parts)


def _describe_blocks(blocks: Blocks) -> str:
    """Describe the fastest and the slowest block, e.g. `eager 20.1 to 20.4 ms per step`."""
    lines = []
    for arm, (fastest, slowest) in blocks.step_s.items():
        lines.append(f"{arm} {figure(1e3 * fastest)} to {figure(1e3 * slowest)} ms per step")
    return "\n".join(lines)


def _describe_shapes(script: ScriptRun | None) -> str:
    """Count the shapes, e.g. `9, the most frequent size in 27 % of calls`."""
    if script is None or len(script.sizes) < 2:
        return ""
    counts = [item.count for item in script.sizes]
    share = max(counts) / max(sum(counts), 1)
    return f"{script.num_shapes:,}, the most frequent size in {percent(share)} of calls"


def _describe_attempt(attempt: Attempt) -> str:
    """Describe an attempt, e.g. `crashed while compiling: killed by SIGKILL`."""
    phase = say_while(attempt.phase)
    first_line = next(iter((attempt.message or "").splitlines()), "")
    return join((f"{attempt.status}{phase}", first_line), ": ")


def _link_files(entry: Entry, out: Path) -> list[list[str]]:
    """List links to the files of a trial, relative to the page that lies in `out`; none for a trial
    whose files are elsewhere.
    """
    if not entry.folder.is_dir():
        return []
    address = quote(os.path.relpath(entry.folder, out))
    links = [["folder", f"{address}/"], ["record.json", f"{address}/record.json"]]
    seen = entry.record.inspection or Inspection()
    named = (("log", entry.record.log, ""), ("what the compiler did", seen.folder, "/summary.md"))
    for title, name, file in named:
        path = entry.folder / (name or "")
        # Records may be somebody else's, and name what is outside their trial's folder.
        if name and path.exists() and path.resolve().is_relative_to(entry.folder.resolve()):
            links.append([title, f"{address}/{quote(name)}{file}"])
    return links
