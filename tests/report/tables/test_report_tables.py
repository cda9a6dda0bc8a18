"""The files of speedups and of failures, and how their cells are written."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from records import GIB, make_process, make_record, make_trial, write_sweep
from reports import load, write_report
from tables import differences

from sweeper.analysis.derive import find_worst_accuracy
from sweeper.core.record import Accuracy, Attempt, Latencies, Latency, PerArm, Process, Record
from sweeper.loading.entries import Entry
from sweeper.report.answers.findings import Findings
from sweeper.report.columns.cell import Value, guard, plain
from sweeper.report.columns.column import MARKDOWN, PAGE, TERMINAL, Column, write_csv
from sweeper.report.tables.failures import FailuresTable
from sweeper.report.tables.registry import TABLES
from sweeper.report.tables.spec import TableSpec
from sweeper.report.tables.speedups import SpeedupsTable


def checked(error: float | None, *, passed: bool = True, worst: str = "loss") -> Accuracy:
    known = {"elements": 11689512, "randomness": "seeds"} if passed else {}
    return Accuracy("float64", passed, worst=worst, compiled_error=error, bound=0.02, **known)  # type: ignore[arg-type]


def measured() -> Record:
    """Two processes, twice as fast: an eager step takes 20 ms, a compiled one 10 ms, 32 / 10 ms =
    3200 samples/s.

    Compiling takes 3 s cold, 0.5 s warm: 3 s / 10 ms = 300 steps, 50 warm. Two equal processes: an
    empty interval. The device waits for 1 % of the step in both arms: of 20 ms it needs 19.8, busy
    for 18, and of 10 ms 9.9, busy for 7.5. So its speedup is 2. Of
    the two checks the second comes nearer to its bound. 4096 tokens in 10 ms are 409,600 a second.
    Percentiles and joules are the middle of the two processes'. It crashed and was wrong before.
    The host needs half of the eager step's 19.8 ms on the device, and 0.7 of the compiled step's
    9.9 ms; on a host that takes twice as long, the arms take 19.8 and 13.86 ms.
    """
    busy, kernels = PerArm(0.018, 0.0075), PerArm(1500, 2000)
    parts = {"dynamo": 0.25, "aot_autograd": 0.5, "inductor": 1.5, "autotuning": 0.75}
    processes = [
        replace(
            make_process(index=index),
            memory_bytes=PerArm(eager=2 * GIB, compiled=1.5 * GIB),
            device_time_s=busy,
            device_kernels=kernels,
            device_step_s=PerArm(0.0198, 0.0099),
            host_step_s=PerArm(0.0099, 0.00693),
            compile_parts_s=parts if index == 0 else {},
            time_to_first_step_s=(40.0, 12.5)[index],
            code_fingerprint="c0de",
            accuracy=(checked(0.005), checked(0.0125, worst="gradient of fc.weight"))[index],
            tokens_per_step=4096,
            latencies=(
                Latencies(Latency(0.020, 0.022, 0.030, 100), Latency(0.010, 0.012, 0.020, 100)),
                Latencies(Latency(0.022, 0.024, 0.050, 100), Latency(0.011, 0.013, 0.040, 100)),
            )[index],
            energy_j=(PerArm(8.0, 5.0), PerArm(10.0, 6.0))[index],
        )
        for index in (0, 1)
    ]
    attempts = (Attempt("crashed"), Attempt("accuracy_mismatch"))
    return replace(make_record(flags=("throttled",)), processes=tuple(processes), attempts=attempts)


def host_bound() -> Record:
    """Speedups 2 and 8, so 4, without an interval; compiled steps of 10 and 2.5 ms, so 5 ms, 6400
    samples/s.

    The device is busy for 1.2 ms of them and waits for 88 % and 52 %, median 70; its own gaps were
    not measured. Compiling has paid after 3 s / (20 ms - 20
    ms / 4) = 200 steps; there are no bounds on that. Both programs differ.
    """
    record = make_record("bert", family="nlp", speedups=[2.0, 8.0], flags=("host_bound",))
    processes = [
        replace(
            process,
            device_time_s=PerArm(0.018, 0.0012),
            device_kernels=PerArm(1500, 0),
            memory_missing="other processes use the GPU",
            code_fingerprint="c0de",
            autotuning_fingerprint=f"{process.index}",
        )
        for process in record.processes
    ]
    return replace(record, processes=tuple(processes))


def test_speedups_equal_the_table_worked_out_by_hand(tmp_path: Path) -> None:
    failed = make_record(
        "vit_b16", "fp32", family="vit", status="oom", message="CUDA out of memory\nTried 2 GiB"
    )
    eager = make_record("vit_b16", "fp32", [0.5], family="vit", mode="eager", backend=None)
    wrong = make_record("vgg16", "fp32", status="accuracy_mismatch", message="loss is too far off")
    wrong = replace(wrong, processes=(Process(0, 0, True, accuracy=checked(0.5, passed=False)),))
    write_report(
        [write_sweep(tmp_path, [measured(), host_bound(), failed, eager, wrong])], tmp_path / "out"
    )
    assert differences((tmp_path / "out/speedups.csv").read_text(), "speedups.csv") == []


@pytest.mark.parametrize("spec", TABLES, ids=lambda spec: spec.name)
def test_no_two_columns_of_a_file_have_one_name(spec: TableSpec[Any]) -> None:
    names = [column.name for column in spec.columns if column.name]
    assert len(names) == len(set(names))


def test_people_see_the_share_of_the_host_where_it_is_known(tmp_path: Path) -> None:
    one_arm = replace(
        make_process(), device_step_s=PerArm(0.02, 0.01), host_step_s=PerArm(None, 0.004)
    )
    records = [measured(), replace(make_record("b"), processes=(one_arm,)), make_record("c")]
    entries = load([write_sweep(tmp_path, records)]).entries
    unknown = [entry for entry in entries if entry.record.trial.labels.model == "c"]

    def shown(medium: str, items: Sequence[Entry]) -> dict[str, str]:
        columns = SpeedupsTable().shown(items, Findings(items), medium)
        found = [column for column in columns if column.title == "host share"]
        return {
            entry.record.trial.labels.model: column.show(entry)
            for column in found
            for entry in items
        }

    assert shown(PAGE, entries) == {"resnet50": "0.50 / 0.70", "b": "? / 0.40", "c": ""}
    assert shown(MARKDOWN, entries) == shown(PAGE, entries)
    assert shown(PAGE, unknown) == {}
    assert shown(TERMINAL, entries) == {}


@pytest.mark.parametrize(
    ("accuracies", "worst"),
    [
        ([None, None], None),
        ([checked(0.01), None, checked(0.015), checked(0.002)], 2),
        ([checked(0.5, passed=False), checked(None, passed=False)], 1),
        ([replace(checked(None), bound=None, passed=None), checked(0.0)], 1),
        ([checked(0.01), replace(checked(0.001), bound=0.0)], 1),
        ([replace(checked(0.0), bound=0.0), checked(0.001)], 1),
    ],
    ids=[
        "none",
        "nearest to the bound",
        "not finite",
        "not compared",
        "bound 0",
        "bound 0 and no error",
    ],
)
def test_the_worst_check_of_a_trial_is_shown(
    accuracies: list[Accuracy | None], worst: int | None
) -> None:
    processes = [
        replace(make_process(index=index), accuracy=accuracy)
        for index, accuracy in enumerate(accuracies)
    ]
    found = find_worst_accuracy(replace(make_record(), processes=tuple(processes)))
    assert found is (None if worst is None else accuracies[worst])


def test_failures_equal_the_table_worked_out_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    records = [
        make_record("a", "amp"),
        make_record(
            "a", "fp32", status="compile_error", message="BackendCompilerFailed:\n  x, y\r\n\nend"
        ),
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


@pytest.mark.parametrize(
    "start",
    [
        "=",
        "+",
        "-",
        "@",
        "\t",
        "\r",
        "\n=",
        "\0@",
        " \r\n-",
        "\x0b+",
        "\ufeff=",
        "\xa0=",
        "\uff1d",
        "\u200b=",
    ],
)
def test_no_text_cell_is_a_formula(start: str) -> None:
    assert guard(f"{start}HYPERLINK(1)") == f"'{start}HYPERLINK(1)"
    assert guard((f"{start}1", "b")) == f"'{start}1;b"


def test_no_cell_of_a_report_is_a_formula(tmp_path: Path) -> None:
    trial = make_trial("resnet50", family="@SUM(A1)")
    evil: Record = replace(
        make_record(trial=trial, status="crashed", message="=cmd|' /C calc'!A0"),
        phase="+1",
        log="-x",
        flags=("=1+1",),
    )
    evil = replace(
        evil, trial=replace(trial, labels=replace(trial.labels, model='=HYPERLINK("http://x","y")'))
    )
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
    assert guard(value) == plain(value) == expected


@pytest.mark.parametrize(
    "text", ["plain", "a,b", 'a "quoted" b', "two\nlines", "bare\rreturn", "a\r\nb", " "]
)
def test_csv_can_be_read_back(text: str) -> None:
    columns = (Column[str]("text", lambda text: text), Column[str]("end", lambda _: "end"))
    written = write_csv(columns, [text])
    assert list(csv.reader(io.StringIO(written, newline=""))) == [["text", "end"], [text, "end"]]


def test_a_new_column_is_one_declaration() -> None:
    columns = (Column[int]("n", lambda n: n, int), Column[int]("half", lambda n: n / 2, float))
    assert write_csv(columns, [1, 2]) == "n,half\n1,0.5\n2,1.0\n"


def test_a_fault_of_the_compiler_has_the_command_that_finds_its_reason(tmp_path: Path) -> None:
    records = [
        make_record("wrong", status="accuracy_mismatch"),
        make_record("large", status="oom"),
        make_record("own", workload="script", status="runtime_error"),
        make_record("other", backend="mine", status="compile_error"),
    ]
    folder = write_sweep(tmp_path, records)
    table = FailuresTable()
    (column,) = (item for item in table.columns if item.title == "to find the reason")
    shown = {
        item.entry.trial.labels.model: column.show(item)
        for item in table.items(Findings(load([folder]).entries))
    }
    command = f"python -m sweeper.bisect {folder.name} {records[0].trial_id}"
    assert shown == {"wrong": command, "large": "", "own": "", "other": ""}
