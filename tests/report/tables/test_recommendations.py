"""The table of recommendations: which trial its figures are of, how sure it is, its note, and the
limits that a user gives.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from records import GIB, make_process, make_record, make_trial, write_sweep
from reports import load

from sweeper.core.record import PerArm, Record
from sweeper.loading.cross_trial import add_cross_trial_findings
from sweeper.report.__main__ import main
from sweeper.report.answers.decision import NO_LIMITS, Limits
from sweeper.report.answers.findings import Findings
from sweeper.report.columns.cell import Value
from sweeper.report.columns.column import PAGE, show_row
from sweeper.report.tables.recommendations import RecommendationsTable

TABLE = RecommendationsTable()


def findings_of(runs: Path, *records: Record, limits: Limits = NO_LIMITS) -> Findings:
    entries = add_cross_trial_findings(load([write_sweep(runs, records)]).entries)
    return Findings(entries, limits=limits)


def row_of(runs: Path, *records: Record) -> Mapping[str, Value]:
    """The values of the only row."""
    (answer,) = TABLE.items(findings_of(runs, *records))
    return {column.name: column.value(answer) for column in TABLE.columns if column.name}


def with_eager(mode: str, eager_s: float, speedup: float) -> Record:
    return replace(make_record(mode=mode), processes=(make_process(speedup, eager_s=eager_s),))


def test_a_row_has_the_options_and_the_figures_of_the_mode_that_is_recommended(
    tmp_path: Path,
) -> None:
    slow = make_record(speedups=[1.5, 1.51, 1.49])
    fast = make_record(speedups=[2.0, 2.0], mode="reduce-overhead")
    processes = (
        replace(process, memory_bytes=PerArm(2.0 * GIB, 1.6 * GIB)) for process in fast.processes
    )
    row = row_of(tmp_path, slow, replace(fast, processes=tuple(processes)))
    assert (row["recommended"], row["mode"], row["backend"], row["trial_id"]) == (
        "reduce-overhead",
        "reduce-overhead",
        "inductor",
        fast.trial_id,
    )
    names = ("speedup", "speedup_low", "speedup_high", "memory_ratio")
    assert [row[name] for name in names] == pytest.approx([2.0, 2.0, 2.0, 1.25])
    names = ("compile_cold_s", "compile_warm_s", "break_even_steps", "break_even_warm_steps")
    assert [row[name] for name in names] == pytest.approx([3.0, 0.5, 300.0, 50.0])


def test_a_row_without_a_mode_has_the_figures_of_the_one_that_came_nearest(tmp_path: Path) -> None:
    nearest = make_record(speedups=[0.9, 0.91], mode="max-autotune")
    row = row_of(tmp_path, make_record(speedups=[0.8, 0.81]), nearest)
    names = ("recommended", "mode", "backend", "break_even_steps")
    assert [row[name] for name in names] == ["stay eager", None, None, None]
    assert (row["trial_id"], row["compile_cold_s"]) == (nearest.trial_id, 3.0)
    assert row["speedup"] == pytest.approx(math.sqrt(0.9 * 0.91))


def test_a_backend_without_modes_stands_in_its_column_with_the_mode_default(
    tmp_path: Path,
) -> None:
    row = row_of(tmp_path, make_record(trial=make_trial(backend="cudagraphs"), speedups=[1.5]))
    assert (row["recommended"], row["mode"], row["backend"]) == (
        "cudagraphs",
        "default",
        "cudagraphs",
    )


def test_break_even_is_that_of_the_trial(tmp_path: Path) -> None:
    """Whatever eager took in the other: the compiled step takes 12 ms, and compiling 3 s."""
    first, second = with_eager("default", 0.030, 2.5), with_eager("reduce-overhead", 0.020, 2.0)
    row = row_of(tmp_path, first, second)
    assert row["break_even_steps"] == pytest.approx(3.0 / (0.030 - 0.012))


def cells(runs: Path, records: Sequence[Record], limits: Limits = NO_LIMITS) -> dict[str, str]:
    """What the page shows in the only row, by title."""
    findings = findings_of(runs, *records, limits=limits)
    (answer,) = TABLE.items(findings)
    columns = TABLE.shown(findings.answers, findings, PAGE)
    return dict(zip([column.title for column in columns], show_row(columns, answer), strict=True))


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ((), ()),
        (("host_bound", "unsteady", "compile_contended"), ()),
        (("shared_gpu",), ("disturbed: neighbours on the GPU",)),
        (
            ("accuracy_unverified", "shared_gpu", "unequal_settings"),
            ("unverified", "disturbed: neighbours on the GPU, changed settings"),
        ),
    ],
    ids=["no flag", "no doubt", "a doubt", "several"],
)
def test_what_keeps_an_answer_from_being_sure_is_named(
    tmp_path: Path, flags: tuple[str, ...], why: tuple[str, ...]
) -> None:
    records = [make_record(speedups=[2.0, 2.02, 1.98], flags=flags)]
    row = row_of(tmp_path, *records)
    assert (row["sure"], row["why_unsure"]) == (not why, why)
    shown = cells(tmp_path / "shown", records)
    assert shown["answer"] == ("default, unsure" if why else "default")
    assert shown["why"] == row["reason"]
    assert str(row["reason"]).endswith(f"; not sure: {', '.join(why)}" if why else "(6 s)")


def test_the_ends_of_one_process_are_those_of_its_margin(tmp_path: Path) -> None:
    one, several = [make_record(speedups=[1.5])], [make_record(speedups=[1.5, 1.52, 1.48])]
    row = row_of(tmp_path / "one", *one)
    assert (row["ends"], row["why_unsure"]) == ("margin", ("one process",))
    ends = [row["speedup_low"], row["speedup_high"]]
    assert ends == pytest.approx([1.5 / 1.02, 1.5 * 1.02])
    assert row_of(tmp_path / "several", *several)["ends"] == "processes"
    assert cells(tmp_path / "one shown", one)["speedup"] == "1.50 (1.47 to 1.53)"
    assert cells(tmp_path / "several shown", several)["speedup"].startswith("1.50 [")


def test_the_note_says_where_an_answer_turns(tmp_path: Path) -> None:
    (note,) = TABLE.notes(findings_of(tmp_path, make_record()))
    assert note.startswith("the answer is compile from 1.05x on, in ")
    assert TABLE.notes(Findings([])) == []


@pytest.mark.parametrize(
    ("speedups", "verdict", "seconds"),
    [((2.0, 2.0), "default", "13.0"), ((1.0, 1.0), "stay eager", "20.0"), ((0.9, 1.6), "open", "")],
)
def test_the_total_is_that_of_what_is_recommended(
    tmp_path: Path, speedups: tuple[float, ...], verdict: str, seconds: str
) -> None:
    """A thousand steps of 20 ms in eager."""
    shown = cells(tmp_path, [make_record(speedups=speedups)], Limits(steps=1000))
    assert (shown["answer"], shown.get("total s", "")) == (verdict, seconds)


@pytest.mark.parametrize("option", ["--steps", "--max-memory-gib"])
@pytest.mark.parametrize("value", ["0", "-1", "many", "nan", "inf", ""])
def test_a_limit_that_is_no_positive_number_is_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    sweep = write_sweep(tmp_path, [make_record()])
    try:
        code: object = main([str(sweep), f"{option}={value}"])
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    line = printed.err.splitlines()[-1]
    assert option.strip("-").replace("-", "_") in line.replace("-", "_")
    assert not (sweep / "report").exists()


def test_limits_reach_the_table_and_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = write_sweep(tmp_path, [make_record(speedups=[2.0, 2.0])])
    assert main([str(sweep), "--steps", "1000", "--max-memory-gib", "1.5", "--tables"]) == 0
    (row,) = csv.DictReader(io.StringIO((sweep / "report/recommendations.csv").read_text()))
    assert (row["recommended"], row["steps"], float(row["total_compiled_s"])) == (
        "default",
        "1000",
        pytest.approx(13),
    )
    assert "recommendations\n" in capsys.readouterr().out
    assert "## Recommendations\n" in (sweep / "report/report.md").read_text()


def test_the_terminal_shows_the_first_and_names_the_file_with_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [make_record(f"m{number:02}", speedups=[2.0, 2.0]) for number in range(22)]
    assert main([str(write_sweep(tmp_path, records)), "--tables"]) == 0
    chosen, rest = capsys.readouterr().out.split("recommendations\n")[1].split("train, inductor", 1)
    assert [line.split()[0] for line in chosen.splitlines() if line.startswith("m")] == [
        "model",
        *(f"m{number:02}" for number in range(20)),
    ]
    assert "and 2 more in recommendations.csv" in chosen
    lost = rest.split("causes of lost time\n")[1].split("geometric means")[0]
    assert lost.splitlines()[0] == "m00 amp default: graph_break, 2 times: print"
    assert lost.count("graph_break") == 10
    assert "and 12 more in causes.csv" in lost
