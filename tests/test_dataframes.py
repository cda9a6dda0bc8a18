from __future__ import annotations

import csv
import io
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from records import make_record, write_sweep
from reports import write_report

import sweeper
from sweeper import causes, load_records, recommendations, speedups, summary
from sweeper.core.errors import ConfigError
from sweeper.core.record import Diagnostics, GraphBreak, Record
from sweeper.report.columns.cell import guard

ROOT = Path(__file__).parents[1]


def some() -> list[Record]:
    broken = Diagnostics(graphs=1, graph_breaks=(GraphBreak("print", "a.py:1", 2),))
    return [
        replace(make_record(speedups=[2.0, 2.1]), diagnostics=broken),
        make_record(precision="fp32", speedups=[1.4, 1.5], flags=("throttled", "unsteady")),
        make_record("vgg16", status="oom", message="out of memory"),
    ]


def shown(item: object) -> str:
    """A cell of a frame as the files have it."""
    if isinstance(item, tuple) or pd.api.types.is_bool(item):
        return guard(item if isinstance(item, tuple) else bool(item))
    return guard(item if isinstance(item, str) else str(item)) if pd.notna(item) else ""


def test_frames_have_the_cells_of_the_files(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path, some())
    write_report([sweep], tmp_path / "out")
    records = load_records(sweep)
    frames = {
        "speedups": speedups,
        "summary": summary,
        "recommendations": recommendations,
        "causes": causes,
    }
    for name, make in frames.items():
        frame = make(records)
        found = list(csv.DictReader(io.StringIO((tmp_path / f"out/{name}.csv").read_text())))
        assert list(frame.columns) == list(found[0]), name
        for column in frame.columns:
            ours = [shown(item) for item in frame[column]]
            if frame[column].dtype == "float64":
                assert [float(item) if item else None for item in ours] == [
                    float(row[column]) if row[column] else None for row in found
                ], column
            else:
                assert ours == [row[column] for row in found], column


def test_columns_have_types_that_do_not_depend_on_the_rows(tmp_path: Path) -> None:
    all_rows = speedups(load_records(write_sweep(tmp_path, some(), "all")))
    failed = speedups(load_records(write_sweep(tmp_path, [make_record(status="oom")], "failed")))
    assert all_rows.dtypes.equals(failed.dtypes)
    assert {"Int64", "float64", "object"} < set(map(str, all_rows.dtypes))
    assert failed["speedup"].isna().all()
    assert all_rows["flags"].tolist()[1] == ("throttled", "unsteady")


def test_recommendations_take_limits(tmp_path: Path) -> None:
    records = load_records(write_sweep(tmp_path, [make_record(speedups=[2.0, 2.0])]))
    assert recommendations(records, steps=1)["recommended"].tolist() == ["stay eager"]
    assert recommendations(records)["recommended"].tolist() == ["default"]


def test_what_cannot_be_read_is_a_problem_and_the_rest_is_there(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path, some())
    next(sweep.glob("vgg16-*/record.json")).write_text("{")
    records = load_records(str(sweep))
    assert (len(records), len(records.problems)) == (2, 1)
    assert [record.status for record in records] == ["ok", "ok"]
    assert len(records.where(lambda record: record.trial.labels.precision == "fp32")) == 1


def test_a_sweep_that_is_not_there_is_an_error_that_says_so(in_empty_folder: Path) -> None:
    with pytest.raises(ConfigError, match="night: no sweep runs/night"):
        load_records("night")
    with pytest.raises(ConfigError, match="no sweep was named"):
        load_records()


def test_importing_the_package_is_light() -> None:
    code = (
        "import sys, sweeper; from sweeper import load_records\n"
        "print([name for name in ('torch', 'mlflow', 'pandas', 'hydra') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_what_the_package_does_not_have_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'speedup_table'"):
        sweeper.speedup_table  # noqa: B018


def test_the_code_of_the_notebook_page_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/notebook.md").read_text(), re.DOTALL)
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)  # the page is ours
    printed = capsys.readouterr().out
    assert printed.startswith("16 trials, 0 could not be read\n")
    assert "stay eager" in printed
    assert "needs 1" in printed
    assert len(blocks) == 5
