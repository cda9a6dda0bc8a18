"""The table of scripts, and scripts in the other tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from records import make_record, write_sweep
from reports import load, write_report
from script_records import make_trained

from sweeper.core.record import Record, ScriptRun
from sweeper.report.answers.findings import Findings
from sweeper.report.answers.speedups import show_speedup
from sweeper.report.answers.trials import name_common_axes
from sweeper.report.columns.cell import Value
from sweeper.report.page.cost_figures import draw_total_time
from sweeper.report.page.speedup_figures import describe_trial, draw_forest
from sweeper.report.tables.recommendations import RecommendationsTable
from sweeper.report.tables.scripts import ScriptsTable
from sweeper.report.tables.spec import TableSpec
from sweeper.report.tables.speedups import SpeedupsTable


def findings_of(folder: Path, *records: Record) -> Findings:
    return Findings(load([write_sweep(folder, records)]).entries)


def rows_of(spec: TableSpec[Any], findings: Findings) -> Sequence[Mapping[str, Value]]:
    """The values of each row of the file, by column."""
    columns = [column for column in spec.columns if column.name]
    return [
        {column.name: column.value(item) for column in columns} for item in spec.items(findings)
    ]


def test_a_row_says_what_compiling_saves_over_the_whole_training(tmp_path: Path) -> None:
    findings = findings_of(tmp_path, make_trained(10_000, 0.08, 0.0801, 0.0799))
    (row,) = rows_of(ScriptsTable(), findings)
    (script,) = findings.scripts
    assert script.saving is not None
    names = ("total_steps", "saved_s", "saved_s_low", "saved_s_high")
    assert [row[name] for name in names] == [
        10_000,
        script.saving.value_s,
        script.saving.low_s,
        script.saving.high_s,
    ]
    shown = {column.title: column for column in ScriptsTable().columns if column.title}
    assert shown["saved"].show(script) == "saves 2 min 40 s (2 min 38 s to 2 min 42 s)"


def shown_of(spec: TableSpec[Any], title: str, item: object) -> list[str]:
    return [column.show(item) for column in spec.columns if column.title == title]


def test_every_table_names_the_loop_of_a_script_before_its_step(tmp_path: Path) -> None:
    """The loop gains 1.25x, and a step 2.00x."""
    findings = findings_of(tmp_path, make_trained(None, 0.08, device="cuda"))
    (entry,), (answer,) = findings.entries, findings.answers
    assert show_speedup(entry) == "loop 1.25, step 2.00"
    assert set(shown_of(SpeedupsTable(), "speedup", entry)) == {"loop 1.25, step 2.00"}
    assert shown_of(RecommendationsTable(), "speedup", answer) == ["loop 1.25 (0.90 to 1.73)"]
    assert "speedup loop 1.25, step 2.00" in describe_trial(entry)
    titles = [column.title for column in ScriptsTable().columns]
    assert titles.index("loop") < titles.index("step")
    (row,) = rows_of(SpeedupsTable(), findings)
    assert (row["speedup"], row["loop_speedup"]) == (pytest.approx(2.0), pytest.approx(1.25))


def test_figures_draw_the_loop_of_a_script(tmp_path: Path) -> None:
    findings = findings_of(tmp_path, make_trained(None, 0.08, device="cuda"))
    forest = draw_forest(findings.entries)
    ((trace,),) = [drawing.traces for drawing in forest.drawings]
    assert trace["x"] == [pytest.approx(1.25)]
    assert "of a script over its whole loop" in forest.caption
    (drawing,) = draw_total_time(findings.entries).drawings
    eager, compiled, crossing = drawing.traces
    # 0.1 s per step of the loop in eager, 0.08 s compiled, and 40 s to compile
    assert drawing.name == "train.py: loop 2,000 steps"
    assert (crossing["x"], crossing["y"]) == ([pytest.approx(2_000)], [pytest.approx(200.0)])
    assert eager["y"][1] / eager["x"][1] == pytest.approx(0.1)
    assert (compiled["y"][1] - 40.0) / compiled["x"][1] == pytest.approx(0.08)


def test_what_a_script_does_is_shown_in_place_of_defaults_that_it_ignores(tmp_path: Path) -> None:
    record = make_trained(None, 0.08)
    script = replace(
        record.processes[0].script or ScriptRun(),
        optimizers=("AdamW",),
        dropout=True,
        autocast="bfloat16",
    )
    seen = replace(record, processes=(replace(record.processes[0], script=script),))
    findings = findings_of(tmp_path, seen)
    (speedups,), (row,) = rows_of(SpeedupsTable(), findings), rows_of(ScriptsTable(), findings)
    assert (speedups["dropout"], row["dropout"]) == (True, True)
    assert (row["optimizers"], row["autocast"]) == (("AdamW",), "bfloat16")
    titles = {column.title for column in ScriptsTable().columns}
    assert {"optimizer", "dropout", "autocast"} <= titles
    (older,) = rows_of(SpeedupsTable(), findings_of(tmp_path / "older", record))
    assert older["dropout"] is None


def test_one_break_even_is_in_every_table(tmp_path: Path) -> None:
    """The medians of three processes have another ratio than the mean of their ratios."""
    findings = findings_of(tmp_path, make_trained(None, 0.05, 0.052, 0.06))
    found = []
    for spec in (ScriptsTable(), RecommendationsTable(), SpeedupsTable()):
        (row,) = rows_of(spec, findings)
        found.append(row["break_even_steps"])
    assert found == pytest.approx([found[0]] * 3)


def test_a_script_shows_no_batch_size_since_it_decides_it(tmp_path: Path) -> None:
    findings = findings_of(tmp_path, make_trained(None, 0.08))
    for spec in (SpeedupsTable(), RecommendationsTable()):
        (row,) = rows_of(spec, findings)
        assert row["batch_size"] is None
    assert name_common_axes(findings.entries) == "script, inductor"
    assert "batch" not in describe_trial(findings.entries[0])


def test_a_script_beside_a_model_leaves_the_cell_of_the_batch_empty(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path, [make_trained(None, 0.08), make_record(batch_size=8)])
    findings = write_report([sweep], tmp_path / "out").findings
    rows = rows_of(SpeedupsTable(), findings)
    assert sorted((row["workload"], row["batch_size"]) for row in rows) == [
        ("script", None),
        ("train", 8),
    ]
    lines = [
        line
        for line in (tmp_path / "out/report.md").read_text().splitlines()
        if line.startswith("| train.py")
    ]
    assert lines
    assert not [line for line in lines if "| 1 |" in line]
