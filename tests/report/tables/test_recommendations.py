"""The table of recommendations: which trial its figures are of, its notes, and the limits that a
user gives.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from records import GIB, make_process, make_record, make_trial, write_sweep

from sweeper.analysis.flags import DOUBTS
from sweeper.core.record import PerArm, Record
from sweeper.loading.cross_trial import add_cross_trial_findings
from sweeper.loading.entries import load
from sweeper.report.__main__ import main, read_limits
from sweeper.report.answers.decision import NO_LIMITS
from sweeper.report.answers.findings import Findings
from sweeper.report.columns.cell import Value
from sweeper.report.tables.recommendations import RecommendationsTable

TABLE = RecommendationsTable()


def findings_of(runs: Path, *records: Record) -> Findings:
    return Findings(add_cross_trial_findings(load([write_sweep(runs, records)]).entries))


def row_of(runs: Path, *records: Record) -> Mapping[str, Value]:
    """The values of the only row."""
    (choice,) = TABLE.items(findings_of(runs, *records))
    return {column.name: column.value(choice) for column in TABLE.columns if column.name}


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


def test_a_row_without_a_mode_has_neither_options_nor_figures(tmp_path: Path) -> None:
    row = row_of(tmp_path, make_record(speedups=[0.9, 0.91], mode="max-autotune"))
    names = ("mode", "backend", "speedup", "speedup_low", "compile_cold_s", "break_even_steps")
    assert [row[name] for name in names] == [None] * len(names)


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
    """20.0 and 20.1 ms agree; the compiled step takes 10 ms, and compiling 3 s."""
    row = row_of(
        tmp_path, with_eager("default", 0.0200, 2.0), with_eager("reduce-overhead", 0.0201, 1.0)
    )
    assert row["break_even_steps"] == pytest.approx(3.0 / (0.020 - 0.01))
    assert "do not agree" not in str(row["reason"])
    first, second = with_eager("default", 0.030, 2.5), with_eager("reduce-overhead", 0.020, 2.0)
    row = row_of(tmp_path / "disagree", first, second)
    assert row["break_even_steps"] == pytest.approx(3.0 / (0.030 - 0.012))
    assert "do not agree" in str(row["reason"])


@pytest.mark.parametrize("doubt", [name for name in DOUBTS if name != "eager_moved"])
def test_every_doubt_is_named_in_the_reason_and_beneath_the_table(
    tmp_path: Path, doubt: str
) -> None:
    choices = findings_of(tmp_path, make_record(flags=(doubt,)), make_record("vgg16")).choices
    assert [doubt in choice.reason for choice in choices] == [True, False]
    (note,) = (note for note in TABLE.notes(choices) if doubt in note)
    assert note.endswith(": resnet50 (amp)")


def test_the_notes_say_from_where_on_single_processes_count_as_different(tmp_path: Path) -> None:
    (note,) = TABLE.notes(findings_of(tmp_path, make_record(speedups=[1.35])).choices)
    assert note.endswith(
        "cannot be tested: 5 % count as a difference, 36 % where a step waits for the host"
    )


def test_the_notes_name_the_models_whose_eager_steps_do_not_agree(tmp_path: Path) -> None:
    first, second = with_eager("default", 0.030, 2.5), with_eager("reduce-overhead", 0.020, 2.0)
    notes = TABLE.notes(findings_of(tmp_path, first, second, make_record("vgg16")).choices)
    (note,) = (note for note in notes if "do not agree" in note)
    assert note.endswith("compared with its own eager step: resnet50 (amp)")


@pytest.mark.parametrize("option", ["--steps", "--max-memory-gib"])
@pytest.mark.parametrize("value", ["0", "-1", "many", "nan", "inf", ""])
def test_a_limit_that_is_no_positive_number_is_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    sweep = write_sweep(tmp_path, [make_record()])
    assert main([str(sweep), f"{option}={value}"]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert printed.err.startswith(f"{option} {value}: ")
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
    assert read_limits(None, None) == NO_LIMITS


def test_the_terminal_shows_the_first_and_names_the_file_with_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [make_record(f"m{number:02}", speedups=[2.0, 2.0]) for number in range(22)]
    assert main([str(write_sweep(tmp_path, records)), "--tables"]) == 0
    chosen, rest = capsys.readouterr().out.split("recommendations\n")[1].split("train, inductor", 1)
    assert [line.split()[0] for line in chosen.splitlines() if line.startswith("m")] == [
        "model",
        *(f"m{number:02}" for number in range(20)),
        "modes",
    ]
    assert "and 2 more in recommendations.csv" in chosen
    lost = rest.split("causes of lost time\n")[1].split("geometric means")[0]
    assert lost.splitlines()[0] == "m00 amp default: graph_break, 2 times: print"
    assert lost.count("graph_break") == 10
    assert "and 12 more in causes.csv" in lost
