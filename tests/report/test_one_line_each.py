"""A new table and a new metric are one line in their registry, and are seen everywhere."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import metric_docs
import pytest
from records import make_record, write_sweep
from reports import write_report
from rich.console import Console

from sweeper import load_records, table
from sweeper.analysis.metrics import METRICS, Metric
from sweeper.core.paths import RUNS, SweepPaths
from sweeper.report.answers.findings import Findings
from sweeper.report.build import print_report
from sweeper.report.columns.column import Column
from sweeper.report.tables.registry import TABLES
from sweeper.report.tables.spec import TableSpec
from sweeper.report.text.report import Report
from sweeper.tracking.tracker import Tracker

if TYPE_CHECKING:
    from mlflow import MlflowClient

pytestmark = pytest.mark.usefixtures("fresh_environment")


class LettersTable(TableSpec[str]):
    name = "letters"
    title = "Letters of names"
    columns = (
        Column[str]("model", lambda model: model, title="model"),
        Column[str]("letters", len, int, title="letters"),
    )

    def items(self, findings: Findings) -> Sequence[str]:
        return [entry.record.trial.labels.model for entry in findings.entries]


LETTERS = LettersTable()
BUILDING = Metric(
    "building_s",
    "seconds that a process needs to build its model",
    lambda process: process.phases_s.get("building"),
    mlflow=True,
    heading="building s",
)


def write(**phases_s: float) -> Report:
    record = make_record("resnet50")
    processes = tuple(replace(process, phases_s=phases_s) for process in record.processes)
    folder = write_sweep(RUNS, [replace(record, processes=processes)])
    return write_report([folder], SweepPaths(folder).report)


def printed(report: Report) -> str:
    console = Console(file=io.StringIO(), width=200)
    print_report(report, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def tables_of_page(report: Report) -> dict[str, dict[str, list[dict[str, object]]]]:
    (page,) = [path for path in report.paths if path.suffix == ".html"]
    match = re.search(
        r'<script type="application/json" id="table-data">(.*?)</script>',
        page.read_text(),
        re.DOTALL,
    )
    assert match is not None
    return json.loads(match[1])


def send(report: Report) -> None:
    tracker = Tracker(None, "night")
    tracker.catch_up()
    tracker.log_report(report.paths)
    tracker.finish()
    assert tracker.failure is None


def runs_of(store: MlflowClient) -> list[object]:
    experiment = store.get_experiment_by_name("sweeper")
    assert experiment is not None
    return list(store.search_runs([experiment.experiment_id], "tags.`sweeper.kind` != ''"))


def test_a_table_is_one_line_in_the_registry(store: MlflowClient) -> None:
    TABLES.append(LETTERS)
    try:
        report = write()
        assert Path("runs/night/report/letters.csv").read_text() == "model,letters\nresnet50,8\n"
        assert (
            "## Letters of names\n\n| model | letters |\n| --- | --- |\n| resnet50 | 8 |"
            in Path("runs/night/report/report.md").read_text()
        )
        assert re.search(r"letters of names\n.*model +letters", printed(report), re.DOTALL)
        assert tables_of_page(report)["letters"]["rows"][0]["cells"] == ["resnet50", "8"]
        frame = table(load_records("night"), "letters")
        assert frame.to_dict("list") == {"model": ["resnet50"], "letters": [8]}
        assert str(frame.dtypes["letters"]) == "Int64"
        send(report)
        (parent,) = [run for run in runs_of(store) if run.data.tags["sweeper.kind"] == "sweep"]
        assert "report/letters.csv" in [
            item.path for item in store.list_artifacts(parent.info.run_id, "report")
        ]
    finally:
        TABLES.remove(LETTERS)


def test_a_metric_is_one_line_in_the_registry(store: MlflowClient) -> None:
    METRICS.append(BUILDING)
    try:
        report = write(building=2.5)
        with Path("runs/night/report/speedups.csv").open() as file:
            (row,) = csv.DictReader(file)
        assert row["building_s"] == "2.5"
        text = Path("runs/night/report/report.md").read_text()
        assert "| building s |" in text
        assert "| 2.50 |" in text
        assert "building s is seconds that a process needs to build its model" in text
        assert "building s" in printed(report)
        shown = tables_of_page(report)["speedups"]
        column = [head["title"] for head in shown["columns"]].index("building s")
        assert (shown["rows"][0]["cells"][column], shown["rows"][0]["numbers"][column]) == (
            "2.50",
            2.5,
        )
        assert table(load_records("night"), "speedups")["building_s"].tolist() == [2.5]
        assert "| `building_s` | `building_s` | seconds that a process needs" in metric_docs.text()
        send(report)
        (child,) = [run for run in runs_of(store) if run.data.tags["sweeper.kind"] == "trial"]
        assert child.data.metrics["building_s"] == 2.5
    finally:
        METRICS.remove(BUILDING)
