"""The command that compares two sweeps: exit codes, tables, formats and what it says of bad
input.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import archives
import pytest
from checkout import ENVIRONMENT, HEAVY, run_python
from comparisons import GIB, MODELS, NOISY, compare, measured, on, on_device, two_sweeps
from records import make_record, make_trial, write_sweep

from sweeper.compare.__main__ import main
from sweeper.compare.verdicts import VERDICTS
from sweeper.core.record import Record
from sweeper.core.serialization import to_json
from sweeper.tracking.tracker import Tracker


def typed(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """As a user types it."""
    return run_python(folder, "-m", "sweeper.compare", *arguments)


def counted(found: subprocess.CompletedProcess[str]) -> str:
    """What the last line says, without the names of the sweeps and the exit code."""
    line = found.stdout.splitlines()[-1]
    said = re.fullmatch(r"compare .+ → .+?: (\d+ rows?: .+); exit code (\d)(: .+)?", line)
    assert said, line
    assert int(said[2]) == found.returncode
    return said[1]


def test_nothing_changed_is_exit_0_and_rows_that_are_the_same_are_counted(tmp_path: Path) -> None:
    two_sweeps(tmp_path, [])
    found = typed(tmp_path, "old", "new")
    assert (found.returncode, found.stderr) == (0, "")
    assert counted(found) == "4 rows: 4 SAME"
    assert "alexnet" not in found.stdout
    assert "alexnet" in compare(tmp_path, "old", "new", "--all").stdout


def test_a_slower_step_and_a_broken_trial_are_exit_1_and_come_first(tmp_path: Path) -> None:
    broken = make_record("alexnet", status="compile_error", message="no kernel\nfor [this]")
    two_sweeps(
        tmp_path, [broken, measured("vgg16", compiled=1.05), measured("densenet", compiled=0.9)]
    )
    found = compare(tmp_path, "old", "new")
    assert found.returncode == 1
    verdicts = [
        line.split()[0] for line in found.stdout.splitlines() if re.match("[A-Z]+ .+ → .+", line)
    ]
    assert verdicts == ["SLOWER", "FASTER"]
    assert (
        "BROKE alexnet amp default: compile_error while compiling in HEAD: no kernel | for [this]\n"
        in found.stdout
    )
    assert counted(found) == (
        "4 rows: 1 SLOWER (vgg16 amp default +5.0 %), 1 BROKE (alexnet amp default), 1 FASTER, "
        "1 SAME"
    )


def test_device_time_stands_beside_wall_clock(tmp_path: Path) -> None:
    """Eager's device time moved by 0.5 % in each row, which is no reason against a change of 4
    %.
    """
    for name, eager_s, compiled_s in (("old", 0.0190, 0.0080), ("new", 0.019095, 0.00832)):
        records = [
            on_device(measured(model, wobble=NOISY), 0.0080, eager_s) for model in MODELS[:3]
        ]
        records.append(on_device(measured("vgg16", wobble=NOISY), compiled_s, eager_s))
        write_sweep(tmp_path / "runs", records, name)
    found = compare(tmp_path, "old", "new")
    assert found.returncode == 1
    (row,) = (
        line for line in found.stdout.splitlines() if line.startswith("SLOWER") and "→" in line
    )
    assert "+4.0 % SLOWER" in row
    said = (
        "SLOWER vgg16 amp default: wall UNRESOLVED (the tests show neither a change nor equality "
        "within 2 %), device SLOWER; a slowdown of up to "
    )
    assert said in found.stdout
    assert "1 SLOWER (vgg16 amp default +4.0 %)" in counted(found)
    assert (
        "control: eager's device step time moved by +0.5 % (median of 4 rows)"
        in found.stdout.splitlines()
    )
    data = json.loads(compare(tmp_path, "old", "new", "--format", "json").stdout)
    assert data["device_shifts"]["eager_device_step_s"] == pytest.approx(0.005)
    (judged,) = (row for row in data["rows"] if row["model"] == "vgg16")
    assert judged["compiled_device_step_s_ratio"] == pytest.approx(1.04)
    assert (judged["verdict"], judged["compiled_step_s_verdict"]) == ("SLOWER", "UNRESOLVED")
    assert "device" in compare(tmp_path, "old", "new", "--format", "md").stdout


@pytest.mark.parametrize(
    "head", [[make_record("alexnet", status="oom")], [measured("vgg16", compiled=1.05)]]
)
def test_each_regression_alone_is_exit_1(tmp_path: Path, head: Sequence[Record]) -> None:
    two_sweeps(tmp_path, head)
    assert compare(tmp_path, "old", "new").returncode == 1
    assert compare(tmp_path, "new", "old").returncode == 0  # the other way round it got better


def test_why_a_trial_is_unavailable_is_said_and_is_no_regression(tmp_path: Path) -> None:
    two_sweeps(tmp_path, [make_record("alexnet", status="unavailable", message="pip install it")])
    found = compare(tmp_path, "old", "new")
    assert found.returncode == 0
    assert (
        "UNRESOLVED alexnet amp default: unavailable while compiling in HEAD: pip install it"
        in found.stdout
    )


def test_trials_that_head_lacks_are_named_and_are_exit_3_unless_allowed(tmp_path: Path) -> None:
    write_sweep(tmp_path / "runs", [measured("vgg16"), measured("alexnet")], "old")
    write_sweep(tmp_path / "runs", [measured("vgg16"), measured("resnet50")], "new")
    found = compare(tmp_path, "old", "new")
    assert found.stdout.splitlines()[-1] == (
        "compare old → new: 3 rows: 1 NEW, 1 GONE (alexnet amp default), 1 SAME; exit code 3: HEAD "
        "lacks trials of BASE (--allow-gone accepts that)"
    )
    assert found.returncode == 3
    allowed = compare(tmp_path, "old", "new", "--allow-gone")
    assert (allowed.returncode, counted(allowed)) == (0, counted(found))


def test_twelve_of_sixteen_trials_gone_is_exit_3(tmp_path: Path) -> None:
    names = [f"model{index:02}" for index in range(16)]
    write_sweep(tmp_path / "runs", [measured(name) for name in names], "old")
    write_sweep(tmp_path / "runs", [measured(name) for name in names[:4]], "new")
    found = compare(tmp_path, "old", "new")
    assert (found.returncode, counted(found)) == (
        3,
        "16 rows: 12 GONE (model04 amp default, model05 amp default, model06 amp default and 9 "
        "more), 4 SAME",
    )
    for name in names[4:]:
        assert re.search(rf"^GONE +{name}", found.stdout, re.MULTILINE)
    assert compare(tmp_path, "old", "new", "--allow-gone").returncode == 0
    assert compare(tmp_path, "old", "new", "--allow-unresolved").returncode == 3
    assert compare(tmp_path, "new", "old").returncode == 0, "NEW is no loss"
    markdown = compare(tmp_path, "old", "new", "--format", "md").stdout
    assert "12 GONE (model04 amp default" in markdown
    assert all(name in markdown for name in names[4:])


def test_a_regression_goes_before_trials_that_are_gone(tmp_path: Path) -> None:
    write_sweep(tmp_path / "runs", [measured(model) for model in MODELS], "old")
    write_sweep(tmp_path / "runs", [measured("vgg16", compiled=1.05), measured("alexnet")], "new")
    assert compare(tmp_path, "old", "new").returncode == 1


def test_values_that_were_not_measured_are_named_and_are_no_loss(tmp_path: Path) -> None:
    """`--by` compares what a sweep has with both values."""
    graphs = [measured(model, mode="reduce-overhead") for model in MODELS[:2]]
    write_sweep(tmp_path / "runs", [*map(measured, MODELS), *graphs])
    found = compare(tmp_path, "night", "--by", "mode")
    gone = "2 GONE (resnet50 amp default, vgg16 amp default)"
    assert (found.returncode, gone in counted(found)) == (0, True)


@pytest.mark.parametrize("other", ["old", "runs/old", "runs/../runs/old", "link"])
def test_one_sweep_on_both_sides_is_an_error_that_names_by(tmp_path: Path, other: str) -> None:
    two_sweeps(tmp_path, [])
    (tmp_path / "link").symlink_to(tmp_path / "runs/old")
    found = compare(tmp_path, "old", other)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == (
        f"old and {other} are the same sweep; compare two values of an axis in it: old --by AXIS\n"
    )


def test_memory_and_compile_time_are_seen_from_one_process_each(tmp_path: Path) -> None:
    """The upgrade that made one model larger, and compiling three times as long."""
    larger = measured("vgg16", wobble=[1.0], memory=1.5 * GIB, compile_s=90.0)
    write_sweep(tmp_path / "runs", [measured(model, wobble=[1.0]) for model in MODELS], "old")
    rest = [measured(model, wobble=[1.0]) for model in MODELS[:3]]
    write_sweep(tmp_path / "runs", [*rest, larger], "new")
    found = compare(tmp_path, "old", "new", "--allow-unresolved")
    assert found.returncode == 0, "neither is a regression"
    compile_time = (
        "compile time: worst vgg16 amp default 30.0 → 90.0 s (+200.0 %) SLOWER, size uncertain "
        "(one cold compile on a side)"
    )
    memory = (
        "memory: worst vgg16 amp default 1,024 → 1,536 MiB (+50.0 %) MORE, size uncertain "
        "(a single process on a side: no variance)"
    )
    assert {compile_time, memory} <= set(found.stdout.splitlines())
    assert counted(found) == (
        "4 rows: 4 UNRESOLVED; compile time SLOWER in 1 row (worst +200.0 %); memory MORE in 1 row "
        "(worst +50.0 %)"
    )
    markdown = compare(tmp_path, "old", "new", "--format", "md").stdout
    assert "1,024 → 1,536 MiB (+50.0 %) MORE" in markdown
    assert "30.0 → 90.0 s (+200.0 %) SLOWER" in markdown
    smaller = compare(tmp_path, "new", "old", "--allow-unresolved")
    assert "1,536 → 1,024 LESS" in smaller.stdout
    assert "90.0 → 30.0 FASTER" in smaller.stdout
    assert counted(smaller) == "4 rows: 4 UNRESOLVED"


def test_the_worst_memory_and_compile_time_are_said_where_nothing_changed(tmp_path: Path) -> None:
    two_sweeps(tmp_path, [measured("vgg16", memory=GIB + 2**20, compile_s=31.0)])
    lines = compare(tmp_path, "old", "new").stdout.splitlines()
    assert "memory: worst vgg16 amp default 1,024 → 1,025 MiB (+0.1 %) SAME" in lines
    (line,) = (line for line in lines if line.startswith("compile time: "))
    assert line.startswith(
        "compile time: worst vgg16 amp default 30.0 → 31.0 s (+3.3 %) UNRESOLVED"
    )


def test_costs_that_no_row_has_on_both_sides_are_said_to_be_missing(tmp_path: Path) -> None:
    two_sweeps(tmp_path, [])
    broken = [make_record(model, status="oom") for model in MODELS]
    write_sweep(tmp_path / "runs", broken, "broken")
    lines = compare(tmp_path, "old", "broken").stdout.splitlines()
    assert "memory: no row has it on both sides" in lines
    assert "compile time: no row has it on both sides" in lines


def test_every_line_that_speaks_of_a_row_has_a_verdict(tmp_path: Path) -> None:
    broken = make_record("alexnet", status="compile_error", message="no kernel")
    head = [broken, measured("vgg16", compiled=1.05), measured("densenet", eager=0.9)]
    two_sweeps(tmp_path, [*head, measured("swin_t")])
    text = compare(tmp_path, "old", "new", "--all").stdout
    speaking = [
        line for line in text.splitlines() if re.search("|".join((*MODELS, "swin_t")), line)
    ]
    assert len(speaking) >= 9
    for line in speaking:
        assert re.search("|".join(VERDICTS), line), line


def test_what_may_be_hidden_is_said_of_unresolved_rows(tmp_path: Path) -> None:
    write_sweep(tmp_path / "runs", [measured(model, wobble=[1.0]) for model in MODELS], "old")
    head = [measured(model, 1.03 if model == "vgg16" else 1.0, wobble=[1.0]) for model in MODELS]
    write_sweep(tmp_path / "runs", head, "new")
    found = compare(tmp_path, "old", "new")
    assert (
        "UNRESOLVED vgg16 amp default, alexnet amp default, densenet amp default and 1 more: a "
        "single process on a side: no variance; a slowdown of up to 8.1 % may be hidden"
    ) in found.stdout.splitlines()
    rows = json.loads(compare(tmp_path, "old", "new", "--format", "json").stdout)["rows"]
    shares = {row["model"]: row["slowdown_ruled_out"] for row in rows}
    assert shares["vgg16"] == pytest.approx(1.03 * 1.05 - 1)
    assert shares["alexnet"] == pytest.approx(0.05)


def test_the_readme_quotes_what_is_printed(tmp_path: Path) -> None:
    upgrade = "h200-transformers-5.17", "h200-transformers-5.24"
    for name in upgrade:
        archives.unpack(name, tmp_path / "runs")
    found = compare(tmp_path, *upgrade)
    readme = (archives.ROOT / "README.md").read_text(encoding="utf-8")
    (quoted,) = re.findall(r"```\n(UNRESOLVED .*?)```", readme, re.DOTALL)
    assert set(quoted.splitlines()) <= set(found.stdout.splitlines())


def test_markdown_escapes_what_comes_from_records(tmp_path: Path) -> None:
    message = "<script>alert(1)</script> | [link](http://x)"
    two_sweeps(tmp_path, [make_record("alexnet", status="oom", message=message)])
    found = compare(tmp_path, "old", "new", "--format", "md")
    assert found.returncode == 1
    assert "<script>" not in found.stdout
    assert "&lt;script&gt;alert(1)&lt;/script&gt; \\| \\[link\\](http\\://x)" in found.stdout
    line = "compare old → new: 4 rows: 1 BROKE (alexnet amp default), 3 SAME; exit code 1"
    assert f"**{line}**" in found.stdout


def test_json_and_csv_have_every_row(tmp_path: Path) -> None:
    two_sweeps(tmp_path, [measured("vgg16", compiled=1.05)])
    data = json.loads(compare(tmp_path, "old", "new", "--format", "json").stdout)
    assert (data["regressed"], data["eager_moved"], len(data["rows"])) == (True, False, 4)
    first = data["rows"][0]
    assert (first["model"], first["verdict"], first["compiled_step_s_unit"]) == (
        "vgg16",
        "SLOWER",
        "processes",
    )
    assert first["compiled_step_s_ratio"] == pytest.approx(1.05)
    lines = compare(tmp_path, "old", "new", "--format", "csv").stdout.splitlines()
    assert len(lines) == 5
    assert lines[0].split(",")[:4] == ["verdict", "reason", "note", "model"]


def test_compile_time_and_memory_have_a_column_where_they_changed_or_all_is_asked_for(
    tmp_path: Path,
) -> None:
    two_sweeps(tmp_path, [measured("vgg16", memory=2 * GIB)])
    text = compare(tmp_path, "old", "new").stdout
    assert "1,024 → 2,048 MORE" in text
    assert "compile s" not in text
    assert "4 rows: 4 SAME; memory MORE in 1 row (worst +100.0 %); exit code 0" in text
    assert "30.0 → 30.0" in compare(tmp_path, "old", "new", "--all").stdout


def test_a_long_variant_takes_several_lines_where_the_table_is_too_wide(tmp_path: Path) -> None:
    archives.unpack("cpu-statuses", tmp_path / "runs")
    shutil.copytree(tmp_path / "runs/cpu-statuses", tmp_path / "runs/again")
    text = compare(tmp_path, "cpu-statuses", "again", "--all").stdout
    assert "model.sequen" in text
    assert "model.sequence_length=32" not in text.partition("\nUNRESOLVED ")[0]


def test_a_file_gets_the_format_and_the_terminal_the_text(tmp_path: Path) -> None:
    two_sweeps(tmp_path, [])
    found = compare(tmp_path, "old", "new", "--format", "md", "--out", "made/comment.md")
    assert counted(found) == "4 rows: 4 SAME"
    assert (
        (tmp_path / "made/comment.md")
        .read_text()
        .startswith("## torch.compile: BASE old, HEAD new\n")
    )


def test_other_devices_are_exit_2_unless_allowed(tmp_path: Path) -> None:
    two_sweeps(tmp_path, [on("NVIDIA A100", measured(model)) for model in MODELS])
    found = typed(tmp_path, "old", "new")
    assert (found.returncode, found.stdout) == (2, "")
    assert "device: NVIDIA H200 → NVIDIA A100 (4 rows)" in found.stderr
    assert "--allow-different-devices" in found.stderr
    allowed = compare(tmp_path, "old", "new", "--allow-different-devices")
    assert allowed.returncode == 0
    assert "device: NVIDIA H200 → NVIDIA A100 (4 rows)" in allowed.stdout


def test_two_interpreters_of_one_sweep(tmp_path: Path) -> None:
    records = [
        measured(compiled=factor, trial=make_trial(model, python=python))
        for python, factor in (("/new/python", 1.1), ("/old/python", 1.0))
        for model in MODELS
    ]
    write_sweep(tmp_path / "runs", records)
    forward = typed(tmp_path, "night", "--by", "worker.python", "/old/python", "/new/python")
    assert forward.returncode == 1
    names = (
        "alexnet amp default +10.0 %, densenet amp default +10.0 %, resnet50 amp default +10.0 %"
    )
    assert counted(forward) == f"4 rows: 4 SLOWER ({names} and 1 more)"
    assert "BASE: night, worker.python=/old/python" in forward.stdout
    alphabetical = compare(tmp_path, "night", "--by", "worker.python")
    assert counted(alphabetical) == "4 rows: 4 FASTER"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["old"], "two sweeps are compared"),
        (["old", "nwe"], "nearest: new"),
        (["old", "other"], "have no trial in common"),
        (["old", "--by", "precision"], "--by precision: allowed are worker.python, mode"),
        (
            ["old", "--by", "backend"],
            "--by backend: give BASE_VALUE and HEAD_VALUE, two of these: inductor",
        ),
        (
            ["modes", "--by", "mode"],
            "--by mode: give BASE_VALUE and HEAD_VALUE, two of these: default, reduce-overhead, ",
        ),
        (
            ["old", "--by", "mode", "default", "eager"],
            "--by mode default eager: give BASE_VALUE and HEAD_VALUE, two of these: default",
        ),
        (
            ["modes", "--by", "mode", "default", "default"],
            "--by mode default default: give BASE_VALUE and HEAD_VALUE, two of these: default, ",
        ),
        (["old", "--by", "mode", "default"], "type SWEEP, or SWEEP BASE_VALUE HEAD_VALUE"),
        (["old", "new", "--min-effect", "2"], "a share above 0 and below 1"),
        (["old", "new", "--format", "pdf"], "invalid choice"),
        ([], "required"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_input_is_exit_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    two_sweeps(tmp_path, [])
    write_sweep(tmp_path / "runs", [measured("swin_t")], "other")
    modes = [measured(mode=mode) for mode in ("default", "reduce-overhead", "max-autotune")]
    write_sweep(tmp_path / "runs", modes, "modes")
    found = compare(tmp_path, *arguments)
    assert (found.returncode, found.stdout) == (2, "")
    assert message in found.stderr
    assert "Traceback" not in found.stderr


def test_a_record_that_cannot_be_read_is_exit_2_and_the_rest_is_compared(tmp_path: Path) -> None:
    two_sweeps(tmp_path, [])
    next((tmp_path / "runs/new").glob("vgg16-*/record.json")).write_text("{")
    found = compare(tmp_path, "old", "new")
    assert found.returncode == 2
    assert "not JSON, or cut short" in found.stderr
    assert counted(found) == "4 rows: 1 UNRESOLVED, 3 SAME"


def folder_of(sweep: Path, model: str) -> Path:
    return next(sweep.glob(f"{model}-*"))


@pytest.mark.parametrize(("lost", "side"), [("old", "BASE"), ("new", "HEAD")])
def test_a_trial_without_a_record_is_neither_gone_nor_new(
    tmp_path: Path, lost: str, side: str
) -> None:
    """`trial.json` says nothing here; the folders' names do."""
    two_sweeps(tmp_path, [])
    sweep = tmp_path / "runs" / lost
    (folder_of(sweep, "vgg16") / "record.json").write_text("{}")
    for model in ("alexnet", "densenet"):
        (folder_of(sweep, model) / "record.json").unlink()
    found = compare(tmp_path, "old", "new")
    assert found.returncode == 2
    lines = found.stdout.splitlines()
    assert f"UNRESOLVED vgg16 amp default: its record in {side} cannot be read" in lines
    assert f"UNRESOLVED alexnet amp default, densenet amp default: has not ended in {side}" in lines
    assert counted(found) == "4 rows: 3 UNRESOLVED, 1 SAME"
    rows = json.loads(compare(tmp_path, "old", "new", "--format", "json").stdout)["rows"]
    name = {"BASE": "base", "HEAD": "head"}[side]
    statuses = {row["model"]: row[f"{name}_status"] for row in rows}
    assert statuses == {
        "vgg16": "unreadable",
        "alexnet": "unfinished",
        "densenet": "unfinished",
        "resnet50": "ok",
    }


def test_a_trial_without_a_record_in_both_sweeps_is_known_by_what_its_workers_were_told(
    tmp_path: Path,
) -> None:
    two_sweeps(tmp_path, [])
    trial = make_trial("vgg16")
    for name in ("old", "new"):
        folder = folder_of(tmp_path / "runs" / name, "vgg16")
        (folder / "record.json").unlink()
        (folder / "trial.json").write_text(json.dumps({"trial": to_json(trial)}))
    (folder / "record.json").write_text("{")
    found = compare(tmp_path, "old", "new")
    reason = (
        "UNRESOLVED vgg16 amp default: has not ended in BASE, its record in HEAD cannot be read"
    )
    assert reason in found.stdout.splitlines()
    assert counted(found) == "4 rows: 1 UNRESOLVED, 3 SAME"


@pytest.mark.parametrize(
    "told", ["[]", "{", '{"trial": 3}', json.dumps({"trial": to_json(make_trial("swin_t"))})]
)
def test_what_the_workers_were_told_counts_only_where_it_is_of_that_trial(
    tmp_path: Path, told: str
) -> None:
    """After an out of memory it has the smaller batch."""
    two_sweeps(tmp_path, [])
    folder = folder_of(tmp_path / "runs/new", "vgg16")
    (folder / "record.json").unlink()
    (folder / "trial.json").write_text(told)
    found = compare(tmp_path, "old", "new")
    assert "UNRESOLVED vgg16 amp default: has not ended in HEAD" in found.stdout.splitlines()
    assert counted(found) == "4 rows: 1 UNRESOLVED, 3 SAME"


def test_a_folder_that_is_no_trial_s_is_only_complained_of(tmp_path: Path) -> None:
    two_sweeps(tmp_path, [])
    (tmp_path / "runs/new/notes").mkdir()
    (tmp_path / "runs/new/notes/record.json").write_text("{")
    found = compare(tmp_path, "old", "new")
    assert (found.returncode, counted(found)) == (2, "4 rows: 4 SAME")
    assert "notes/record.json: not JSON" in found.stderr


def test_another_folder_with_the_record_of_the_trial_stands_for_it(tmp_path: Path) -> None:
    two_sweeps(tmp_path, [])
    folder = folder_of(tmp_path / "runs/new", "vgg16")
    shutil.copytree(folder, folder.with_name(f"a-{folder.name}"))
    (folder / "record.json").write_text("{")
    found = compare(tmp_path, "old", "new")
    assert (found.returncode, counted(found)) == (2, "4 rows: 4 SAME")


def test_a_trial_that_has_not_ended_keeps_its_interpreter_and_its_axes(tmp_path: Path) -> None:
    trials = [make_trial("vgg16", python=python) for python in ("/old/python", "/new/python")]
    records = [measured("resnet50", python=trial.python) for trial in trials]
    write_sweep(tmp_path / "runs", [*records, *(measured(trial=trial) for trial in trials)], "both")
    for name, record, trial in zip(("old", "new"), records, trials, strict=True):
        write_sweep(tmp_path / "runs", [record, measured(trial=trial)], name)
    for name in ("both", "new"):
        folder = next((tmp_path / "runs" / name).glob(f"*-{trials[1].id}"))
        (folder / "record.json").unlink()
        (folder / "trial.json").write_text(json.dumps({"trial": to_json(trials[1])}))
    for arguments in (
        ["old", "new"],
        ["both", "--by", "worker.python", "/old/python", "/new/python"],
    ):
        found = compare(tmp_path, *arguments)
        assert "UNRESOLVED vgg16 amp default: has not ended in HEAD" in found.stdout
        assert counted(found) == "2 rows: 1 UNRESOLVED, 1 SAME"


def test_what_changed_counts_only_rows_with_records(tmp_path: Path) -> None:
    upgraded = []
    for model in MODELS:
        record = measured(model)
        upgraded.append(
            replace(record, environment={**record.environment, "versions": {"torch": "2.14.0"}})
        )
    two_sweeps(tmp_path, upgraded)
    (folder_of(tmp_path / "runs/new", "vgg16") / "record.json").unlink()
    assert "torch: 2.13.0 → 2.14.0 (3 rows)" in compare(tmp_path, "old", "new").stdout.splitlines()


PUBLISHED = (
    "nothing could be judged: measure both with measure=published or, if they have three draws, "
    "with measure.draws=5 (docs/comparing.md)"
)


@pytest.mark.parametrize(
    ("settings", "last"),
    [
        ({"wobble": [1.0]}, PUBLISHED),
        ({"code": None}, PUBLISHED),
        ({"wobble": (0.9, 1.1, 1.0, 1.05, 0.95)}, PUBLISHED),
        ({"wobble": (0.9, 1.1, 1.0), "draws": (0, 1, 2)}, PUBLISHED),
        (
            {"status": "oom", "wobble": ()},
            "nothing could be judged: no trial was measured alike on both sides, and each row "
            "says why",
        ),
        ({}, None),
    ],
    ids=["one process", "one draw", "noise", "three draws", "nothing measured", "judged"],
)
def test_what_to_measure_where_nothing_could_be_judged(
    tmp_path: Path, settings: dict[str, object], last: str | None
) -> None:
    for name in ("old", "new"):
        write_sweep(tmp_path / "runs", [measured(model, **settings) for model in MODELS], name)  # type: ignore[arg-type]
    found = compare(tmp_path, "old", "new")
    assert found.returncode == (3 if last else 0)
    why = "; exit code 3: nothing could be judged (--allow-unresolved accepts that)"
    *_, advice, line = found.stdout.splitlines()
    assert line.endswith(why if last else "; exit code 0")
    assert compare(tmp_path, "old", "new", "--allow-unresolved").returncode == 0
    assert (advice == last) == bool(last)
    assert (last is None) == ("nothing could be judged" not in found.stdout)
    markdown = compare(tmp_path, "old", "new", "--format", "md").stdout
    assert (last is None) == ("nothing could be judged" not in markdown)
    assert (
        json.loads(compare(tmp_path, "old", "new", "--format", "json").stdout)["nothing_judged"]
        == last
    )


def test_where_eager_moved_both_are_to_be_measured_again(tmp_path: Path) -> None:
    write_sweep(tmp_path / "runs", [measured(model) for model in MODELS], "old")
    moved = [measured(model, eager=1.05, compiled=1.05) for model in MODELS]
    write_sweep(tmp_path / "runs", moved, "new")
    found = compare(tmp_path, "old", "new")
    assert found.stdout.splitlines()[-2] == (
        "nothing could be judged: measure both again on one machine at rest, since eager itself "
        "moved (docs/comparing.md)"
    )
    assert found.returncode == 3


@pytest.mark.parametrize(
    ("eager", "moved"),
    [(1.05, "rise where only eager got slower"), (0.95, "fall where only eager got faster")],
)
def test_the_head_says_what_else_moves_speedups_where_the_control_moved(
    tmp_path: Path, eager: float, moved: str
) -> None:
    write_sweep(tmp_path / "runs", [measured(model) for model in MODELS], "old")
    write_sweep(tmp_path / "runs", [measured(model, eager=eager) for model in MODELS], "new")
    control = next(
        line
        for line in compare(tmp_path, "old", "new").stdout.splitlines()
        if line.startswith("control")
    )
    assert "a shift of the whole machine does not change them, but they " in control
    assert moved in control


def test_rows_that_are_unresolved_fail_where_that_is_asked_for(tmp_path: Path) -> None:
    two_sweeps(tmp_path, [measured("vgg16", code="other")])
    assert compare(tmp_path, "old", "new").returncode == 0
    found = compare(tmp_path, "old", "new", "--fail-unresolved")
    assert found.returncode == 1
    line = found.stdout.splitlines()[-1]
    assert line.endswith("; exit code 1: 1 measured row UNRESOLVED (--fail-unresolved)")


@pytest.mark.parametrize(
    ("head", "arguments", "code"),
    [
        ([measured(model, wobble=[1.0]) for model in MODELS], [], 3),
        ([measured(model, wobble=[1.0]) for model in MODELS], ["--allow-unresolved"], 0),
        ([measured(model, wobble=[1.0]) for model in MODELS], ["--fail-unresolved"], 1),
        (
            [
                measured(model, wobble=[1.0], compiled=1.5 if model == "vgg16" else 1.0)
                for model in MODELS
            ],
            [],
            1,
        ),
        ([make_record(model, status="oom") for model in MODELS], ["--allow-unresolved"], 1),
        ([measured("swin_t", wobble=[1.0])], ["--allow-unresolved"], 2),
        ([measured(model) for model in MODELS], ["--allow-unresolved", "--fail-unresolved"], 2),
    ],
    ids=[
        "3",
        "3 becomes 0",
        "any row",
        "1 before 3",
        "1 stays",
        "nothing in common stays 2",
        "one of the two",
    ],
)
def test_exit_code_where_nothing_could_be_judged(
    tmp_path: Path, head: Sequence[Record], arguments: list[str], code: int
) -> None:
    write_sweep(tmp_path / "runs", [measured(model, wobble=[1.0]) for model in MODELS], "old")
    write_sweep(tmp_path / "runs", head, "new")
    assert compare(tmp_path, "old", "new", *arguments).returncode == code


@pytest.mark.parametrize("status", ["unavailable", "interrupted", "unfinished", "same"])
def test_only_rows_that_both_sides_measured_fail(tmp_path: Path, status: str) -> None:
    two_sweeps(
        tmp_path,
        [make_record("vgg16", status=status)] if status in ("unavailable", "interrupted") else [],
    )
    if status == "unfinished":
        (folder_of(tmp_path / "runs/new", "vgg16") / "record.json").unlink()
    expected = 2 if status == "unfinished" else 0
    assert compare(tmp_path, "old", "new", "--fail-unresolved").returncode == expected


def test_a_place_that_cannot_be_written_is_exit_2_in_the_words_of_the_user(tmp_path: Path) -> None:
    two_sweeps(tmp_path, [])
    (tmp_path / "file").write_text("kept")
    (tmp_path / "folder").mkdir()
    for out, why in (
        ("file/made.md", "exists"),
        ("folder", "Is a directory"),
        ("/proc/made.md", ""),
    ):
        found = compare(tmp_path, "old", "new", "--out", out)
        assert (found.returncode, found.stdout) == (2, "")
        assert found.stderr.startswith(f"--out {out} cannot be written: ")
        assert why in found.stderr
        assert len(found.stderr.splitlines()) == 1
        assert ".made.md." not in found.stderr
        assert ".folder." not in found.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder", "runs"]
    assert (tmp_path / "file").read_text() == "kept"


def test_settings_of_the_measurement_that_differ_are_said(tmp_path: Path) -> None:
    two_sweeps(tmp_path, [])
    for name, processes in (("old", 3), ("new", 5)):
        measure = {"processes": processes, "draws": 1}
        text = json.dumps({"sweep": name, "invocations": [{"settings": {"measure": measure}}]})
        (tmp_path / "runs" / name / "sweep.json").write_text(text)
    assert "measure.processes: 3 → 5" in compare(tmp_path, "old", "new").stdout.splitlines()


@pytest.mark.parametrize("arguments", [["old", "new"], ["--help"]], ids=" ".join)
def test_the_comparison_is_light(tmp_path: Path, arguments: list[str]) -> None:
    two_sweeps(tmp_path, [])
    code = f"""
import contextlib, sys
with contextlib.suppress(SystemExit):
    from sweeper.compare.__main__ import main
    main(sys.argv[1:])
print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
"""
    command = [sys.executable, "-c", code, *arguments]
    found = subprocess.run(
        command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert found.stderr.splitlines()[-1] == "[]"


def test_sweeps_are_compared_from_where_they_were_sent_to(
    empty_database: Path,
    in_empty_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    (in_empty_folder / "store").mkdir()
    shutil.copy(empty_database, in_empty_folder / "store" / "mlflow.db")
    uri = f"sqlite:///{in_empty_folder}/store/mlflow.db"
    two_sweeps(in_empty_folder, [measured("vgg16", compiled=1.05)])
    for name in ("old", "new"):
        tracker = Tracker(uri, name)
        tracker.catch_up()
        tracker.finish()
        assert tracker.failure is None
    assert main(["old", "new"]) == 1
    from_folders = capsys.readouterr()
    shutil.rmtree("runs")
    assert main(["old", "new", "--tracking-uri", uri]) == 1
    assert capsys.readouterr() == from_folders
    assert main(["old", "nwe", "--tracking-uri", uri]) == 2
    assert "nwe: no such sweep" in capsys.readouterr().err
