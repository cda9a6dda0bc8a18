from __future__ import annotations

import csv
import io
import math
from dataclasses import replace
from pathlib import Path

import pytest
from records import GIB, make_process, make_record, make_trial, write_sweep
from tables import differences

from sweeper.record import PerArm, Record
from sweeper.report.build import write_report
from sweeper.report.table import Column, Table, Value, cell, plain, quote


def test_speedups_equal_the_table_worked_out_by_hand(tmp_path: Path) -> None:
    # An eager step takes 20 ms; two processes, twice as fast: 10 ms, 32 / 10 ms = 3200 samples/s.
    # Compiling takes 3 s cold, 0.5 s warm: 3 s / 10 ms = 300 steps, 50 warm. Two equal processes: an empty interval.
    memory = PerArm(eager=2 * GIB, compiled=1.5 * GIB)
    device = PerArm(eager=0.018, compiled=0.006)
    processes = [make_process(index=i) for i in (0, 1)]
    measured = [replace(process, memory_bytes=memory, device_time_s=device) for process in processes]
    good = replace(make_record(flags=("host_bound", "throttled")), processes=tuple(measured))
    failed = make_record("vit_b16", "fp32", family="vit", status="oom", message="CUDA out of memory\nTried 2 GiB")
    eager = make_record("vit_b16", "fp32", [0.5], family="vit", mode="eager", backend=None)
    write_report([write_sweep(tmp_path, [good, failed, eager])], tmp_path / "out")
    assert differences((tmp_path / "out/speedups.csv").read_text(), "speedups.csv") == []


def test_failures_equal_the_table_worked_out_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    records = [
        make_record("a", "amp"),
        make_record("a", "fp32", status="compile_error", message="BackendCompilerFailed:\n  x, y\r\n\nend"),
        make_record("b", "amp", status="crashed", message="killed"),
        make_record("b", "fp32", status="unavailable"),
        make_record("c", "bf16", status="timeout", message='said "no"'),
    ]
    write_report([write_sweep(Path("runs"), records)], tmp_path)
    assert differences((tmp_path / "failures.csv").read_text(), "failures.csv") == []


def test_whole_numbers_stay_whole_when_a_column_has_gaps(tmp_path: Path) -> None:
    write_report([write_sweep(tmp_path, [make_record(), make_record("b", status="oom")])], tmp_path)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "speedups.csv").read_text())))
    assert [row["graph_breaks"] for row in rows] == ["", "2"]


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_no_text_cell_is_a_formula(start: str) -> None:
    assert cell(f"{start}HYPERLINK(1)") == f"'{start}HYPERLINK(1)"
    assert cell((f"{start}1", "b")) == f"'{start}1;b"


def test_no_cell_of_a_report_is_a_formula(tmp_path: Path) -> None:
    trial = make_trial("resnet50", family="@SUM(A1)")
    evil: Record = replace(
        make_record(trial=trial, status="crashed", message="=cmd|' /C calc'!A0"), phase="+1", log="-x", flags=("=1+1",)
    )
    evil = replace(evil, trial=replace(trial, labels=replace(trial.labels, model='=HYPERLINK("http://x","y")')))
    write_report([write_sweep(tmp_path, [evil])], tmp_path)
    for name in ("speedups", "summary", "failures"):
        for row in csv.reader(io.StringIO((tmp_path / f"{name}.csv").read_text())):
            assert not any(text.startswith(("=", "+", "-", "@", "\t", "\r")) for text in row)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ""),
        (True, "true"),
        (False, "false"),
        (3, "3"),
        (-3, "-3"),
        (0.1 + 0.2, "0.30000000000000004"),
        (-1.5, "-1.5"),
        (math.nan, ""),
        (math.inf, ""),
        (("a", "b"), "a;b"),
        ((), ""),
        ("\ud800", "?"),
    ],
)
def test_cells(value: Value, expected: str) -> None:
    assert cell(value) == plain(value) == expected


@pytest.mark.parametrize("text", ["plain", "a,b", 'a "quoted" b', "two\nlines", "bare\rreturn", "a\r\nb", " "])
def test_csv_can_be_read_back(text: str) -> None:
    assert list(csv.reader(io.StringIO(f"{quote(text)},end\n", newline=""))) == [[text, "end"]]


def test_a_new_column_is_one_declaration() -> None:
    columns = (Column[int]("n", lambda n: n), Column[int]("half", lambda n: n / 2))
    assert Table.of(columns, [1, 2]).csv() == "n,half\n1,0.5\n2,1.0\n"
