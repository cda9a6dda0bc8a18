"""Tables as the page shows them: cells of text, numbers to sort by, what a row opens to, where its files are.

`text_columns` in `report/tables/` declares the columns. Texts are plain here; the page never takes them for HTML.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sweeper.analysis.metrics import METRICS
from sweeper.core.record import Attempt
from sweeper.loading.entries import Entry
from sweeper.report.contents import Report
from sweeper.report.formatting import figure, finite, sentence, text
from sweeper.report.spec import TableSpec
from sweeper.report.table import PAGE, Row, TextColumn, plain

FILTERS = ("status", "mode", "precision", "family")
MAX_MESSAGE_CHARACTERS = 2000
MAX_PLACES = 10  # graph breaks and skips that a row opens to


@dataclass(frozen=True)
class Listing:
    """A table of the page; `data` is what its script gets."""

    id: str
    title: str
    data: Mapping[str, Any]
    note: str = ""


def make_listing(
    spec: TableSpec, report: Report, rows: Sequence[Row], out: Path, more: Sequence[TextColumn] = ()
) -> Listing:
    """The rows of a table for the page that lies in `out`, with `more` columns at the end."""
    shown = spec.arrange(rows)
    columns = [*spec.columns_for(PAGE, shown, report.tables["speedups"].rows), *more]
    columns = [column for column in columns if not column.number or any(text(column.text(row)) for row in shown)]
    filters = [name for name in FILTERS if shown and name in shown[0]]
    details = _describe_trials(spec, report, rows, out)
    listed = []
    for row in shown:
        cells = [text(column.text(row)) for column in columns]
        numbers = [column.number(row) if column.number else None for column in columns]
        values = [text(row[name]) for name in filters]
        listed.append({"cells": cells, "numbers": numbers, "filters": values} | details.get(id(row), {}))
    heads = [{"title": column.title, "number": column.number is not None, "hint": column.meaning} for column in columns]
    notes = [*map(sentence, (spec.lead(rows), *spec.notes(rows))), spec.explain(report.findings, rows)]
    data = {"columns": heads, "filters": filters, "rows": listed}
    return Listing(spec.name, spec.title, data, " ".join(filter(None, notes)))


def _describe_trials(spec: TableSpec, report: Report, rows: Sequence[Row], out: Path) -> dict[int, dict[str, Any]]:
    """What each row opens to, by the row's identity: pairs of a name and a text, and links to the trial's files."""
    if spec.entries is None:
        return {}
    entries = spec.entries(report.findings)
    folders = {entry.folder.parent for entry in entries}
    addresses = {folder: quote(Path(os.path.relpath(folder, out)).as_posix()) for folder in folders}
    found = {}
    for row, entry in zip(rows, entries, strict=True):
        details = [*_describe_record(entry), *_describe_figures(row)]
        links = _link_files(entry, addresses[entry.folder.parent])
        found[id(row)] = {"details": [[name, value] for name, value in details if value], "links": links}
    return found


def _describe_record(entry: Entry) -> list[tuple[str, str]]:
    record, found, worst = entry.record, entry.record.diagnostics, entry.worst
    accuracy = worst.unverified or "" if worst else ""
    if worst and worst.compiled_error is not None and worst.bound is not None:
        error, bound = f"{worst.compiled_error:.3g}", f"{worst.bound:.3g}"
        accuracy = f"{worst.worst}: error {error}, allowed {bound}, against {worst.reference}"
    breaks = found.graph_breaks[:MAX_PLACES] if found else ()
    places = [f"{item.count} times: {item.reason} ({item.where or 'no place'})" for item in breaks]
    return [
        ("trial", record.trial_id),
        ("ended while", record.phase or ""),
        ("message", (record.message or "")[:MAX_MESSAGE_CHARACTERS]),
        ("flags", ", ".join(entry.flags)),
        ("batch size", f"{record.trial.batch_size} ran out of memory" if record.smaller_batch_size else ""),
        ("graphs", plain(found.graphs) if found else ""),
        ("kernels that Inductor wrote", plain(found.kernels) if found else ""),
        ("graph breaks", "\n".join(places)),
        ("CUDA graphs skipped", "\n".join(found.cudagraph_skips[:MAX_PLACES]) if found else ""),
        ("accuracy", accuracy),
        ("earlier attempts", "\n".join(map(_describe_attempt, record.attempts))),
    ]


def _describe_attempt(attempt: Attempt) -> str:
    """Describe an attempt, e.g. `crashed while compiling: killed by SIGKILL`."""
    phase = f" while {attempt.phase}" if attempt.phase else ""
    first_line = next(iter((attempt.message or "").splitlines()), "")
    return f"{attempt.status}{phase}{f': {first_line}' if first_line else ''}"


def _describe_figures(row: Row) -> Iterator[tuple[str, str]]:
    """Every metric that the row has, under the name of its column in speedups.csv."""
    for metric in METRICS:
        name = metric.csv_name
        if name in row:
            yield name, figure(finite(row, name)) if metric.kind is float else text(row[name])


def _link_files(entry: Entry, address: str) -> list[list[str]]:
    """Addresses relative to the page; none for a trial whose files are elsewhere."""
    if not entry.folder.is_dir():
        return []
    record, folder = entry.record, f"{'' if address == '.' else f'{address}/'}{quote(entry.folder.name)}"
    found = [["folder", f"{folder}/"], ["record.json", f"{folder}/record.json"]]
    if record.log and (entry.folder / record.log).is_file():
        found.append(["log", f"{folder}/{quote(record.log)}"])
    if (seen := record.inspection) and seen.folder and (entry.folder / seen.folder).is_dir():
        found.append(["what the compiler did", f"{folder}/{quote(seen.folder)}/summary.md"])
    return found
