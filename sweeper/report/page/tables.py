"""Tables as the page shows them: cells of text, numbers to sort by, what a row opens to, where its files are.

Texts are plain here; the page never takes them for HTML.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sweeper.loading.entries import Entry
from sweeper.report.contents import Report
from sweeper.report.formatting import figure, finite, sentence, text
from sweeper.report.page.published import Published
from sweeper.report.spec import TableSpec
from sweeper.report.table import PAGE, Row, TextColumn, plain
from sweeper.report.tables.speedups import joules, percentiles

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
    opened = _open_rows(spec, report, rows, out)
    data_rows = []
    for row in shown:
        cells = [text(column.text(row)) for column in columns]
        numbers = [column.number(row) if column.number else None for column in columns]
        picked = [text(row[name]) for name in filters]
        data_rows.append({"cells": cells, "numbers": numbers, "filters": picked, **opened.get(id(row), {})})
    heads = [{"title": column.title, "number": column.number is not None, "hint": column.meaning} for column in columns]
    notes = [*(sentence(note) for note in spec.notes(rows)), spec.explain(report.findings, rows)]
    return Listing(
        spec.name, spec.title, {"columns": heads, "filters": filters, "rows": data_rows}, " ".join(filter(None, notes))
    )


def published_columns(named: Mapping[str, Published | None]) -> list[TextColumn]:
    """The column of published figures; `named` has them by what stands in the column `family`."""
    if not any(named.values()):
        return []
    return [TextColumn("published", lambda row: item.label if (item := named.get(text(row["family"]))) else "")]


def _open_rows(spec: TableSpec, report: Report, rows: Sequence[Row], out: Path) -> dict[int, dict[str, Any]]:
    """What each row opens to, by the row's identity; a table whose rows are no trials has none."""
    if spec.entries is None:
        return {}
    entries = spec.entries(report.findings)
    addresses = _addresses(entries, out)
    return {id(row): _opened(entry, row, addresses) for row, entry in zip(rows, entries, strict=True)}


def _addresses(entries: Iterable[Entry], out: Path) -> dict[Path, str]:
    """Where the folders lie that hold those of trials, as an address relative to the page, ready to be followed."""
    parents = {entry.folder.parent for entry in entries}
    relative = {parent: Path(os.path.relpath(parent, out)).as_posix() for parent in parents}
    return {parent: "" if path == "." else f"{quote(path)}/" for parent, path in relative.items()}


def _opened(entry: Entry, row: Row, addresses: Mapping[Path, str]) -> dict[str, Any]:
    """What a row opens to: pairs of a name and a text, and links to the files of its trial, where they are here."""
    details = [*_of_record(entry), *(_of_row(row) if "speedup" in row else [])]
    return {"details": [[name, value] for name, value in details if value], "links": _links(entry, addresses)}


def _of_record(entry: Entry) -> list[tuple[str, str]]:
    record, found = entry.record, entry.record.diagnostics
    breaks = (
        [f"{item.count} times: {item.reason} ({item.where or 'no place'})" for item in found.graph_breaks]
        if found
        else []
    )
    backed_off = record.smaller_batch_size and f"{record.trial.batch_size} ran out of memory"
    return [
        ("trial", record.trial_id),
        ("ended while", record.phase or ""),
        ("message", (record.message or "")[:MAX_MESSAGE_CHARACTERS]),
        ("flags", ", ".join(entry.flags)),
        ("batch size", backed_off or ""),
        ("graphs", plain(found.graphs) if found else ""),
        ("graph breaks", "\n".join(breaks[:MAX_PLACES])),
        ("CUDA graphs skipped", "\n".join(found.cudagraph_skips[:MAX_PLACES]) if found else ""),
        ("accuracy", _accuracy(entry)),
    ]


def _accuracy(entry: Entry) -> str:
    worst = entry.worst
    if worst is None:
        return ""
    if worst.compiled_error is None or worst.bound is None:
        return worst.unverified or ""
    return f"{worst.worst}: error {worst.compiled_error:.3g}, allowed {worst.bound:.3g}, against {worst.reference}"


def _of_row(row: Row) -> list[tuple[str, str]]:
    parts = {
        name: figure(finite(row, f"compile_{name}_s")) for name in ("dynamo", "aot_autograd", "inductor", "autotuning")
    }
    warm, memory = figure(finite(row, "compile_warm_s")), ("eager_peak_memory_mib", "compiled_peak_memory_mib")
    sizes = [figure(finite(row, name)) for name in memory]
    return [
        ("sweep", text(row["sweep"])),
        ("processes", f"{text(row['processes'])} of {text(row['draws'])} compile caches" if row["processes"] else ""),
        ("interval over", text(row["interval"]) if row["interval"] != "none" else ""),
        ("host-bound", text(row["host_bound_arms"])),
        ("compile parts", ", ".join(f"{name.replace('_', ' ')} {value} s" for name, value in parts.items() if value)),
        ("compile, filled cache", f"{warm} s" if warm else ""),
        ("recompiles", text(row["recompiles"])),
        ("peak memory", f"{sizes[0]} MiB eager, {sizes[1]} MiB compiled" if all(sizes) else ""),
        ("samples/s", figure(finite(row, "samples_per_s"))),
        ("tokens/s", figure(finite(row, "tokens_per_s"))),
        *((f"{arm} p50 / p90 / p99 ms", percentiles(arm)(row)) for arm in ("eager", "compiled")),
        *((f"{arm} J", joules(arm)(row)) for arm in ("eager", "compiled")),
    ]


def _links(entry: Entry, addresses: Mapping[Path, str]) -> list[list[str]]:
    """Addresses relative to the page; none for a trial whose files are elsewhere."""
    if not entry.folder.is_dir():
        return []
    folder = f"{addresses[entry.folder.parent]}{quote(entry.folder.name)}"
    found = [["folder", f"{folder}/"], ["record.json", f"{folder}/record.json"]]
    if entry.record.log and (entry.folder / entry.record.log).is_file():
        found.append(["log", f"{folder}/{quote(entry.record.log)}"])
    inspection = entry.record.inspection
    if inspection and inspection.folder and (entry.folder / inspection.folder).is_dir():
        found.append(["what the compiler did", f"{folder}/{quote(inspection.folder)}/summary.md"])
    return found
