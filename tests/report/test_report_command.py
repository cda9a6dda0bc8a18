from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from checkout import HEAVY, run_python
from records import make_record, write_sweep
from reports import report_on

MODULES_AFTERWARDS = """
import contextlib, sys
with contextlib.suppress(SystemExit):
    from sweeper.report.__main__ import main
    main(sys.argv[1:])
print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)
"""


def report(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_python(folder, "-m", "sweeper.report", *arguments)


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    records = [make_record(speedups=[2.0, 2.1]), make_record(precision="fp32", speedups=[1.4, 1.5])]
    return write_sweep(tmp_path / "runs", records)


def test_a_sweep_is_reported_by_name(tmp_path: Path, sweep: Path) -> None:
    result = report(tmp_path, "night")
    assert (result.returncode, result.stderr) == (0, "")
    assert {path.name for path in (sweep / "report").iterdir()} == {
        "speedups.csv",
        "summary.csv",
        "failures.csv",
        "recommendations.csv",
        "causes.csv",
        "ladder.csv",
        "ablation.csv",
        "starts.csv",
        "scripts.csv",
        "report.md",
        "report.html",
    }
    assert "\nIn AMP: compile 1 of 1 (1 sure), median 2.05x, pays back after " in result.stdout
    assert "\nIn fp32: 1 is open.\n" in result.stdout
    assert "weighted" not in result.stdout
    assert "tables: runs/night/report" in result.stdout


def test_folders_are_reported_together_and_written_where_asked(tmp_path: Path, sweep: Path) -> None:
    other = write_sweep(tmp_path / "elsewhere", [make_record("vgg16")], "other")
    result = report(tmp_path, str(sweep), str(other), "--out", "tables/here")
    assert result.returncode == 0
    lines = (tmp_path / "tables/here/speedups.csv").read_text().splitlines()
    assert [line.split(",")[1] for line in lines] == ["model", "resnet50", "resnet50", "vgg16"]
    assert not (sweep / "report").exists()


def test_an_unknown_sweep_is_exit_2(tmp_path: Path, sweep: Path) -> None:
    result = report(tmp_path, "nigth")
    assert result.returncode == 2
    assert result.stdout == ""
    assert (
        result.stderr
        == f"nigth: no sweep runs/nigth and no folder of that name; nearest: {sweep.name}\n"
    )


def test_without_arguments_it_is_exit_2(tmp_path: Path) -> None:
    assert report(tmp_path).returncode == 2


def test_a_broken_record_is_a_line_and_exit_1_and_the_rest_is_reported(
    tmp_path: Path, sweep: Path
) -> None:
    broken = next(sweep.glob("*-fp32-*/record.json"))
    newer = json.loads(broken.read_text()) | {"schema_version": 99}
    broken.write_text(json.dumps(newer))
    result = report(tmp_path, "night")
    assert result.returncode == 1
    assert result.stderr.startswith(f"{broken.relative_to(tmp_path)}: ")
    assert "schema_version 99 is newer than" in result.stderr
    assert result.stderr.count("\n") == 1
    assert "resnet50" in result.stdout
    assert "schema_version 99" in (sweep / "report/report.md").read_text()


def test_a_trial_that_failed_is_no_failure_of_the_report(tmp_path: Path) -> None:
    write_sweep(tmp_path / "runs", [make_record(status="oom", message="out of memory")])
    assert report(tmp_path, "night").returncode == 0


def test_pipe_in_the_place_of_the_manifest_is_not_waited_for(tmp_path: Path, sweep: Path) -> None:
    (sweep / "sweep.json").unlink(missing_ok=True)
    os.mkfifo(sweep / "sweep.json")
    assert report(tmp_path, "night").returncode == 0


def test_a_folder_that_cannot_be_written_is_exit_2(tmp_path: Path, sweep: Path) -> None:
    (tmp_path / "file").write_text("")
    result = report(tmp_path, str(sweep), "--out", "file/report")
    assert (result.returncode, result.stderr) == (2, "--out file/report: Not a directory\n")


@pytest.mark.parametrize("arguments", [["night"], ["nigth"], ["--help"]], ids=" ".join)
def test_the_report_is_light(tmp_path: Path, sweep: Path, arguments: list[str]) -> None:
    assert sweep.exists()
    code = MODULES_AFTERWARDS.format(heavy=HEAVY)
    result = run_python(tmp_path, "-c", code, *arguments)
    assert result.stderr.splitlines()[-1] == "[]"


def test_a_name_that_no_file_can_have_is_exit_2(tmp_path: Path) -> None:
    result = report(tmp_path, "x" * 300)
    assert (result.returncode, result.stderr) == (2, f"{'x' * 300}: File name too long\n")


def test_the_last_lines_say_what_to_type_next(tmp_path: Path) -> None:
    failed = [
        make_record("a", status="crashed"),
        make_record("b", status="oom"),
        make_record("c", status="unavailable"),
    ]
    write_sweep(tmp_path / "runs", [make_record(), *failed])
    write_sweep(tmp_path / "runs", [make_record()], "other")
    lines = report(tmp_path, "night").stdout.splitlines()
    assert lines[-2].startswith("tables: runs/night/report")
    assert (
        lines[-1] == "1 trial may succeed in another run: the same command with sweep=night runs "
        "it again"
    )
    assert report(tmp_path, "other").stdout.splitlines()[-1].startswith("tables: ")
    assert report(tmp_path, "night", "other").stdout.splitlines()[-1].startswith("tables: ")
    write_sweep(tmp_path / "elsewhere", [make_record(), *failed])
    assert report(tmp_path, "elsewhere/night").stdout.splitlines()[-1].startswith("tables: ")


def test_a_report_of_one_model_does_not_miss_means_over_models(tmp_path: Path) -> None:
    one, other = (make_record(name, "bf16") for name in ("resnet50", "vgg16"))
    notes = report_on(tmp_path / "one", [one]).notes
    assert not [note for note in notes if "geometric means" in note]
    (note,) = report_on(tmp_path / "both", [one, other]).notes
    assert note.startswith("no geometric means: ")
