"""Tables as the page shows them: cells of text, a number to sort by, what a row opens to, where its files are.

Place in the flow: rows of tables, and entries `-> Listing -> page`. Texts are plain here; the page never takes them for
HTML.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sweeper.loading.entries import Entry
from sweeper.report import formatting
from sweeper.report.formatting import figure, text
from sweeper.report.page.figure_base import finite
from sweeper.report.page.published import Published
from sweeper.report.table import Column, Row, Table, plain
from sweeper.report.tables.causes import cause_columns
from sweeper.report.tables.failures import failure_columns
from sweeper.report.tables.recommendations import recommendation_columns, what_certainty_means
from sweeper.report.tables.speedups import (
    break_even,
    compile_time,
    host_bound_share,
    joules,
    memory_ratio,
    peak_ratio,
    percentiles,
    speedup_or_status,
    what_intervals_mean,
)
from sweeper.report.tables.summary import by_device_time, of_a_new_model, summary_columns

FILTERS = ("status", "mode", "precision", "family")
MAX_MESSAGE_CHARACTERS = 2000
MAX_PLACES = 10  # graph breaks and skips that a row opens to

Number = float | None


@dataclass(frozen=True)
class Cells:
    """A column: the text of a row, and the number to sort by; without `number` it is sorted as text."""

    title: str
    text: Callable[[Row], str]
    number: Callable[[Row], Number] | None = None


@dataclass(frozen=True)
class Listing:
    """A table of the page; `data` is what its script gets."""

    id: str
    title: str
    data: Mapping[str, Any]
    note: str = ""


def listing(
    name: str,
    title: str,
    columns: Sequence[Cells],
    rows: Sequence[Row],
    opened: Sequence[Mapping[str, Any]] = (),
    note: str = "",
) -> Listing:
    """`opened` has the details and links of each row, if there are any."""
    filters = [item for item in FILTERS if rows and item in rows[0]]
    found = []
    for index, row in enumerate(rows):
        numbers = [column.number(row) if column.number else None for column in columns]
        cells = {"cells": [column.text(row) for column in columns], "numbers": numbers}
        found.append({**cells, "filters": [text(row[item]) for item in filters], **(opened[index] if opened else {})})
    heads = [{"title": column.title, "number": column.number is not None} for column in columns]
    return Listing(name, title, {"columns": heads, "filters": filters, "rows": found}, note)


def trials(entries: Sequence[Entry], table: Table, out: Path) -> Listing:
    """Every trial, whatever became of it. `out` is the folder of the page, which links start from."""
    pairs = {id(row): entry for row, entry in zip(table.rows, entries, strict=True)}
    rows = formatting.in_order(table.rows)
    columns = [column for column in trial_columns(rows) if column.number is None or _says_something(column, rows)]
    addresses = _addresses(entries, out)
    opened = [_opened(pairs[id(row)], row, addresses) for row in rows]
    return listing("trials", "Trials", columns, rows, opened, _sentence(what_intervals_mean(rows)))


def _sentence(line: str) -> str:
    return f"{line[:1].upper()}{line[1:]}"


def trial_columns(rows: Sequence[Row]) -> tuple[Cells, ...]:
    axes = [name for name in formatting.varying(rows, formatting.AXES) if name != "batch_size"]
    return (
        _text("model"),
        _text("family"),
        *(_text(name) for name in axes),
        _number("batch", "batch_size", lambda row: text(row["batch_size"])),
        _text("precision"),
        _text("mode"),
        _text("status"),
        _number("speedup", "speedup", lambda row: speedup_or_status(row) if row["status"] == "ok" else ""),
        _number("device speedup", "device_speedup", lambda row: formatting.estimate(row, "device_speedup")),
        _number("host-bound", "host_bound_fraction", host_bound_share),
        _number("eager ms", "eager_step_ms"),
        _number("compiled ms", "compiled_step_ms"),
        _number("compile s", "compile_cold_s", compile_time),
        _number("break-even steps", "break_even_steps", break_even),
        Cells("memory ratio", memory_ratio, peak_ratio),
        *([_graph_breaks()] if any(row["graph_breaks"] for row in rows) else []),
        Cells("flags", lambda row: ", ".join(formatting.flags(row))),
    )


def _graph_breaks() -> Cells:
    return _number("graph breaks", "graph_breaks", lambda row: text(row["graph_breaks"]))


def failed(entries: Sequence[Entry], failures: Table, out: Path) -> Listing:
    """Every trial that is not ok."""
    not_ok = [entry for entry in entries if entry.record.status != "ok"]
    pairs = {id(row): entry for row, entry in zip(failures.rows, not_ok, strict=True)}
    rows = formatting.in_order(failures.rows)
    columns = [Cells(column.name, _as_text(column.value)) for column in failure_columns(rows)]
    columns = [column for column in columns if column.title != "log"]
    addresses = _addresses(not_ok, out)
    opened = [_opened(pairs[id(row)], None, addresses) for row in rows]
    return listing("failures", "Failures", columns, rows, opened)


def _as_text(value: Callable[[Row], Any]) -> Callable[[Row], str]:
    return lambda row: text(value(row))


def recommended(table: Table) -> Listing:
    """Which mode for which model."""
    columns = _as_cells(recommendation_columns(table.rows), _OF_RECOMMENDATIONS)
    note = _sentence(what_certainty_means(table.rows))
    return listing("recommendations", "Recommendations", columns, table.rows, note=note)


def causes(table: Table, trials: Sequence[Row]) -> Listing:
    """What time is lost to, dearest first, with the axes in which `trials` differ."""
    columns = _as_cells(cause_columns(table.rows, trials), _OF_CAUSES)
    return listing("causes", "Causes of lost time", columns, table.rows)


_OF_RECOMMENDATIONS = {"batch": "batch_size", "speedup": "speedup", "total s": "total_compiled_s"}
_OF_CAUSES = {"batch": "batch_size", "count": "count", "lost ms a step": "lost_ms_per_step"}


def _as_cells(columns: Iterable[Column[Row]], numbers: Mapping[str, str]) -> list[Cells]:
    """Columns of text; `numbers` names the one of the table that a title is sorted by."""
    return [
        _number(column.name, numbers[column.name], _as_text(column.value))
        if column.name in numbers
        else Cells(column.name, _as_text(column.value))
        for column in columns
    ]


def summarised(rows: Sequence[Row], named: Mapping[str, Published | None], note: str) -> Listing:
    """The summary; `named` are published figures by what stands in the column `family`."""
    columns = [Cells(column.name, _as_text(column.value)) for column in summary_columns(rows)]
    columns = [column for column in columns if column.title not in _RATIOS]
    columns += [_number(title, name, _counted(name, count)) for title, (name, count) in _RATIOS.items()]
    if any(of_a_new_model(row) for row in rows):
        columns.append(Cells("a new model", of_a_new_model))
    if any(row["weighted_device"] is not None for row in rows):
        columns.append(_number("by device time", "weighted_device", by_device_time))
    columns.append(_number("slowdowns as 1.0", "weighted_clipped"))
    if any(named.values()):
        columns.append(Cells("published", lambda row: item.label if (item := named.get(text(row["family"]))) else ""))
    return listing("summary", "Summary", columns, rows, note=note)


_RATIOS = {
    "AMP": ("geomean_amp", "models_amp"),
    "fp32": ("geomean_fp32", "models_fp32"),
    "weighted": ("weighted", "models_weighted"),
}


def _counted(name: str, count: str) -> Callable[[Row], str]:
    return lambda row: f"{formatting.estimate(row, name)} ({row[count]})" if row[name] is not None else ""


def _title(name: str) -> str:
    return name.replace("_", " ")


def _text(name: str) -> Cells:
    return Cells(_title(name), lambda row: text(row[name]))


def _number(title: str, name: str, shown: Callable[[Row], str] | None = None) -> Cells:
    return Cells(title, shown or (lambda row: figure(finite(row, name))), lambda row: finite(row, name))


def _says_something(column: Cells, rows: Iterable[Row]) -> bool:
    return any(column.text(row) for row in rows)


def _addresses(entries: Iterable[Entry], out: Path) -> dict[Path, str]:
    """Where the folders lie that hold those of trials, as an address relative to the page, ready to be followed."""
    parents = {entry.folder.parent for entry in entries}
    relative = {parent: Path(os.path.relpath(parent, out)).as_posix() for parent in parents}
    return {parent: "" if path == "." else f"{quote(path)}/" for parent, path in relative.items()}


def _opened(entry: Entry, row: Row | None, addresses: Mapping[Path, str]) -> dict[str, Any]:
    """What a row opens to: pairs of a name and a text, and links to the files of its trial, where they are here."""
    details = [*_of_record(entry), *(_of_row(row) if row else [])]
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
        ("compile parts", ", ".join(f"{_title(name)} {value} s" for name, value in parts.items() if value)),
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
