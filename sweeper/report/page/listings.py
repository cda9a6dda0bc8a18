"""Tables as the page shows them: cells of text, numbers to sort by, what a row opens to, where its
files are.

`text_columns` in `report/tables/` declares the columns. Texts are plain here; the page never takes
them for HTML.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sweeper.analysis.meanings import STATUSES
from sweeper.analysis.metrics import METRICS
from sweeper.core.files import MAX_FILE_BYTES, open_inside
from sweeper.core.record import ARMS, Accuracy, Attempt, Diagnostics, ScriptRun
from sweeper.core.text import printable
from sweeper.loading.entries import Blocks, Entry
from sweeper.report.contents import Report
from sweeper.report.formatting import figure, find_varying, finite, sentence, text
from sweeper.report.spec import Fold, TableSpec
from sweeper.report.table import PAGE, Row, TextColumn, Value, plain
from sweeper.report.tables import causes
from sweeper.report.tables.speedups import name_sweep

FILTERS = ("sweep", "status", "mode", "precision", "family")
# titles that stand under the name of a row where the page is narrow
ASIDE = ("sweep", "family", "status", "phase")
MAX_MESSAGE_CHARACTERS = 2000
MAX_PLACES = 10  # graph breaks and skips that a row opens to
MAX_LOG_BYTES, MAX_LOG_LINES = 6000, 40  # of the end of a log
MAX_LOGS = 500  # whose ends are in the page
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")  # colours of terminals


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
    shown, details = spec.arrange(rows), _describe_trials(spec, report, rows, out)
    if spec.fold:
        folds = spec.fold(shown)
        shown = [fold.row for fold in folds]
        details = {
            id(fold.row): _describe_fold(number, fold) for number, fold in enumerate(folds, 1)
        }
    columns = [*spec.columns_for(PAGE, shown, report.tables["speedups"].rows), *more]
    columns = [
        column
        for column in columns
        if column is columns[0] or any(text(column.text(row)) for row in shown)
    ]
    filters = [name for name in FILTERS if shown and name in shown[0] and not spec.fold]
    filters = [name for name in filters if name != "sweep" or find_varying(shown, [name])]
    listed = []
    for row in shown:
        cells = [text(column.text(row)) for column in columns]
        numbers = [column.number(row) if column.number else None for column in columns]
        values = [text(row[name]) for name in filters]
        listed.append(
            {"cells": cells, "numbers": numbers, "filters": values} | details.get(id(row), {})
        )
    heads = [_describe_column(column, is_first=column is columns[0]) for column in columns]
    notes = [
        *map(sentence, (spec.lead(rows), *spec.notes(rows))),
        spec.explain(report.findings, rows),
    ]
    data = {"columns": heads, "filters": filters, "rows": listed}
    return Listing(spec.name, spec.title, data, " ".join(filter(None, notes)))


def _describe_column(column: TextColumn, is_first: bool) -> dict[str, Any]:
    aside = (column.is_name or column.title in ASIDE) and not is_first
    return {
        "title": column.title,
        "number": column.number is not None,
        "hint": column.meaning,
        "aside": aside,
    }


def _describe_fold(number: int, fold: Fold) -> dict[str, Any]:
    return {"id": str(number), "details": [list(part) for part in fold.parts], "links": []}


def _describe_trials(
    spec: TableSpec, report: Report, rows: Sequence[Row], out: Path
) -> dict[int, dict[str, Any]]:
    """What each row opens to, by the row's identity: pairs of a name and a text, and links to the
    trial's files.
    """
    if spec.entries is None:
        return {}
    entries = spec.entries(report.findings)
    folders = {entry.folder.parent for entry in entries}
    addresses = {folder: quote(Path(os.path.relpath(folder, out)).as_posix()) for folder in folders}
    losses: dict[tuple[Value, Value], list[Row]] = defaultdict(list)
    for row in report.tables["causes"].rows:
        losses[row["sweep"], row["trial_id"]].append(row)
    found: dict[int, dict[str, Any]] = {}
    for row, entry in zip(rows, entries, strict=True):
        log = read_end_of_log(entry) if spec.shows_log and len(found) < MAX_LOGS else ""
        why: list[str] = []
        if spec.name == "speedups" and row["status"] == "ok":
            why = causes.explain(row, losses[row["sweep"], row["trial_id"]])
        details = [
            ("why not faster", "\n".join(why)),
            *_describe_record(entry),
            ("end of the log", log),
            *_describe_figures(row),
        ]
        links = _link_files(entry, addresses[entry.folder.parent])
        named = name_sweep(entry.folder.parent) if len(folders) > 1 else ""
        found[id(row)] = {
            "id": "@".join(filter(None, (entry.record.trial_id, named))),
            "details": [[name, value] for name, value in details if value],
            "links": links,
        }
    return found


def read_end_of_log(entry: Entry) -> str:
    """Read the last lines of a trial's log; empty where there is none here.

    The page has them in itself, since its links to files lead nowhere once it is sent to somebody.
    """
    if not entry.record.log:
        return ""
    try:
        with open_inside(entry.folder, entry.record.log, MAX_FILE_BYTES) as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - MAX_LOG_BYTES))
            text = log.read().decode("utf-8", "replace")
    # records are often kept without logs, and may name what is none of their trial's
    except OSError:
        return ""
    lines = [
        printable_line for line in text.splitlines() if (printable_line := _clean(line)).strip()
    ]
    return "\n".join(lines[-MAX_LOG_LINES:])


def _find_inside(entry: Entry, name: str | None) -> Path | None:
    """Find what a record names in its trial's folder; None for anything else, since records may be
    somebody else's.
    """
    path = (entry.folder / name).resolve() if name else None
    return path if path and path.exists() and path.is_relative_to(entry.folder.resolve()) else None


def _clean(line: str) -> str:
    """Drop colours and control characters of a line, and keep how far it is indented."""
    plain_line = _ESCAPES.sub("", line.expandtabs(4)).rstrip()
    return " " * (len(plain_line) - len(plain_line.lstrip(" "))) + printable(plain_line)


def _describe_record(entry: Entry) -> list[tuple[str, str]]:
    record, found = entry.record, entry.record.diagnostics
    breaks = found.graph_breaks[:MAX_PLACES] if found else ()
    times = ("time" if item.count == 1 else "times" for item in breaks)
    places = [
        f"{item.count} {unit}: {item.reason} ({item.where or 'no place'})"
        for item, unit in zip(breaks, times, strict=True)
    ]
    return [
        ("message", (record.message or "")[:MAX_MESSAGE_CHARACTERS]),
        ("status", _explain_status(record.status)),
        ("ended while", record.phase or ""),
        ("flags", ", ".join(entry.flags)),
        ("accuracy", _describe_accuracy(entry.worst) if entry.worst else ""),
        (
            "attention kernels",
            _describe_attention(found) if found and "attention_differs" in entry.flags else "",
        ),
        ("trial", record.trial_id),
        (
            "batch size",
            f"{record.trial.batch_size} ran out of memory" if record.smaller_batch_size else "",
        ),
        ("graphs", plain(found.graphs) if found else ""),
        ("kernels that Inductor wrote", plain(found.kernels) if found else ""),
        ("graph breaks", "\n".join(places)),
        ("blocks", _describe_blocks(entry.blocks)),
        ("shapes of inputs", _describe_shapes(entry.result.seen_of_script)),
        ("CUDA graphs skipped", "\n".join(record.cudagraph_skips[:MAX_PLACES])),
        ("earlier attempts", "\n".join(map(_describe_attempt, record.attempts))),
    ]


def _explain_status(status: str) -> str:
    """Say what a status means and what to do, as the legend does; nothing of `ok`."""
    if status == "ok" or status not in STATUSES:
        return ""
    meaning = STATUSES[status]
    return f"{status}: {sentence(meaning.says)} {meaning.todo.replace('`', '')}".strip()


def _describe_accuracy(worst: Accuracy) -> str:
    """Describe the check of the tensor that came nearest to its bound, first why there is no
    verdict.
    """
    parts = [f"no verdict: {worst.unverified}"] if worst.unverified else []
    if worst.compiled_error is not None and worst.bound is not None:
        error, bound = f"{worst.compiled_error:.3g}", f"{worst.bound:.3g}"
        parts.append(f"{worst.worst}: error {error}, allowed {bound}, against {worst.reference}")
    return "; ".join(parts)


def _describe_attention(found: Diagnostics) -> str:
    """Name the attention kernels of both arms, e.g. `eager flash, compiled none of cuDNN, flash,
    memory-efficient`.
    """
    ran = ((arm, found.settings.get(f"attention_ran_{arm}")) for arm in ARMS)
    return ", ".join(
        f"{arm} {kinds or 'none of cuDNN, flash, memory-efficient'}" for arm, kinds in ran
    )


def _describe_blocks(blocks: Blocks) -> str:
    """Describe the fastest and the slowest block, e.g. `eager 20.1 to 20.4 ms per step`."""
    return "\n".join(
        f"{arm} {figure(1e3 * fastest)} to {figure(1e3 * slowest)} ms per step"
        for arm, (fastest, slowest) in blocks.step_s.items()
    )


def _describe_shapes(script: ScriptRun | None) -> str:
    """Count the shapes, e.g. `9, the most frequent size in 27 % of calls`."""
    if script is None or len(script.sizes) < 2:
        return ""
    counts = [item.count for item in script.sizes]
    share = max(counts) / max(sum(counts), 1)
    return f"{script.num_shapes:,}, the most frequent size in {100 * share:.0f} % of calls"


def _describe_attempt(attempt: Attempt) -> str:
    """Describe an attempt, e.g. `crashed while compiling: killed by SIGKILL`."""
    phase = f" while {attempt.phase}" if attempt.phase else ""
    first_line = next(iter((attempt.message or "").splitlines()), "")
    return f"{attempt.status}{phase}{f': {first_line}' if first_line else ''}"


def _describe_figures(row: Row) -> Iterator[tuple[str, str]]:
    """Every metric that the row has, under the name of its column in speedups.csv."""
    for metric in METRICS:
        name = metric.csv_name
        if row.get(name) is not None:
            yield name, figure(finite(row, name)) if metric.kind is float else text(row[name])


def _link_files(entry: Entry, address: str) -> list[list[str]]:
    """Addresses relative to the page; none for a trial whose files are elsewhere."""
    if not entry.folder.is_dir():
        return []
    record, folder = (
        entry.record,
        f"{'' if address == '.' else f'{address}/'}{quote(entry.folder.name)}",
    )
    found = [["folder", f"{folder}/"], ["record.json", f"{folder}/record.json"]]
    if record.log and _find_inside(entry, record.log):
        found.append(["log", f"{folder}/{quote(record.log)}"])
    if (seen := record.inspection) and seen.folder and _find_inside(entry, seen.folder):
        found.append(["what the compiler did", f"{folder}/{quote(seen.folder)}/summary.md"])
    return found
