"""Pages and figures of records that are made up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from records import write_sweep
from reports import load, write_report

from sweeper.core.record import Record
from sweeper.loading.entries import Entry
from sweeper.report.page.plotly_parts import Figure


def write_page(folder: Path, records: Sequence[Record]) -> str:
    sweep = write_sweep(folder / "runs", records)
    write_report([sweep], sweep / "report")
    return (sweep / "report" / "report.html").read_text()


def loaded(folder: Path, records: Sequence[Record]) -> Sequence[Entry]:
    return load([write_sweep(folder / "runs", records)]).entries


def drawn(figure: Figure) -> list[dict[str, Any]]:
    return list(figure.drawings[0].traces)
