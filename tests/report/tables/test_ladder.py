"""ladder.csv, and what follows from it in the other files, worked out by hand from records made by
hand.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from ladder_records import HALF, make_rung
from records import make_record, make_trial, write_sweep
from reports import write_report

from sweeper.core.ladder import RUNGS
from sweeper.core.record import Record


def write(folder: Path, records: Sequence[Record]) -> str:
    """Write a report; return its text in Markdown, without escapes."""
    write_report([write_sweep(folder, records)], folder / "out")
    return (folder / "out/report.md").read_text().replace("\\", "")


def read_rows(folder: Path, table: str = "ladder") -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO((folder / f"out/{table}.csv").read_text())))


def number(row: dict[str, str], name: str) -> float:
    return float(row[name])


def test_each_rung_stands_against_eager_as_built_and_against_the_one_before(tmp_path: Path) -> None:
    write(tmp_path, [make_rung(rung) for rung in RUNGS])
    rows = read_rows(tmp_path)
    assert [row["rung"] for row in rows] == [
        "eager",
        "eager + channels_last",
        "eager + fused optimizer",
        "eager + cudnn.benchmark",
        "eager + CUDA graph by hand",
        "compile default",
        "compile reduce-overhead",
        "compile max-autotune",
    ]
    first, second, third = rows[:3]
    assert (first["speedup"], first["speedup_low"], first["before"]) == ("1.0", "", "")
    assert number(second, "step_ms") == pytest.approx(16)
    assert number(second, "speedup") == pytest.approx(1.25)
    assert number(second, "speedup_low") == pytest.approx(1.25 * math.exp(-HALF))
    assert number(second, "speedup_high") == pytest.approx(1.25 * math.exp(HALF))
    assert third["before"] == "eager + channels_last"
    assert number(third, "speedup") == pytest.approx(2.0)
    assert number(third, "speedup_over_before") == pytest.approx(1.6)
    assert number(third, "speedup_over_before_high") == pytest.approx(1.6 * math.exp(HALF))
    assert number(rows[3], "speedup_over_before") == pytest.approx(0.8)


def test_the_strongest_eager_stands_beside_the_plain_speedup_in_every_compiled_row(
    tmp_path: Path,
) -> None:
    plain = make_record(trial=make_trial(), speedups=[2.5])  # 20 ms / 8 ms, without any one-liner
    text = write(tmp_path, [plain, *(make_rung(rung) for rung in RUNGS)])
    assert {row["strongest_eager"] for row in read_rows(tmp_path)} == {"eager + fused optimizer"}
    found = {
        (row["mode"], row["variant"]): row
        for row in read_rows(tmp_path, "speedups")
        if row["strongest_eager"]
    }
    assert sorted(found) == [
        ("default", ""),
        ("default", "free one-liners"),
        ("max-autotune", "free one-liners"),
        ("reduce-overhead", "free one-liners"),
    ]
    best = found["reduce-overhead", "free one-liners"]
    assert number(best, "speedup") == pytest.approx(4.0)
    assert number(best, "speedup_over_strongest_eager") == pytest.approx(2.0)
    assert number(best, "speedup_over_strongest_eager_low") == pytest.approx(2 * math.exp(-HALF))
    alone = found["default", ""]
    assert number(alone, "speedup_over_strongest_eager") == pytest.approx(1.25)
    assert alone["speedup_over_strongest_eager_low"] == ""  # a single process
    assert (
        "the strongest eager is eager + fused optimizer, 2.00 [1.88, 2.13] times as fast as eager "
        "as built; beyond it torch.compile gives 2.00 [1.88, 2.13] (compile reduce-overhead, 4.00 "
        "[3.76, 4.25] over eager as built)"
    ) in text


@pytest.mark.parametrize("count", [1, 2])
def test_the_report_says_where_rungs_ran_on_several_gpus(tmp_path: Path, count: int) -> None:
    places = [{"device": {"uuid": f"GPU-{number % count}"}} for number in range(len(RUNGS))]
    records = [
        replace(make_rung(rung), environment=place)
        for rung, place in zip(RUNGS, places, strict=True)
    ]
    said = "The rungs of resnet50 ran on several GPUs." in write(tmp_path, records)
    assert said == (count == 2)


def test_the_conclusion_names_the_doubts_of_the_rungs_that_it_compares(tmp_path: Path) -> None:
    flags = {
        "fused": ("single_process", "unsteady", "unequal_settings"),
        "default": ("throttled",),
        "reduce-overhead": ("shared_gpu",),
    }
    text = write(tmp_path, [replace(make_rung(rung), flags=flags.get(rung, ())) for rung in RUNGS])
    doubts = (
        "doubts: eager + fused optimizer (unequal_settings), compile reduce-overhead (shared_gpu)"
    )
    assert doubts in text
    assert "compile default (throttled)" not in text


def test_none_is_the_strongest_unless_all_that_apply_were_tried(tmp_path: Path) -> None:
    text = write(tmp_path, [make_rung(rung) for rung in RUNGS if rung != "graphed"])
    assert {row["strongest_eager"] for row in read_rows(tmp_path)} == {""}
    assert {row["speedup_over_strongest_eager"] for row in read_rows(tmp_path, "speedups")} == {""}
    assert "not every way to run eager was tried" in text


def test_without_another_way_to_run_eager_there_is_no_ladder(tmp_path: Path) -> None:
    text = write(tmp_path, [make_record(speedups=[2.0]), make_rung("eager")])
    assert read_rows(tmp_path) == []
    assert "torch.compile's" not in text
