"""The life of a sweep in the driver, with workers that measure nothing."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Generator
from dataclasses import replace
from io import StringIO
from pathlib import Path

import fake_python
import pytest
from records import make_process, make_record, make_trial, write_sweep
from rich.console import Console

from sweeper.analysis.derive import derive
from sweeper.core.ablation import change
from sweeper.core.errors import ConfigError
from sweeper.core.files import write_text
from sweeper.core.ladder import climb
from sweeper.core.libraries import SCRIPT
from sweeper.core.record import Inspection, Record
from sweeper.core.settings import Measure, Settings, Tracking
from sweeper.core.system import host
from sweeper.core.system.exit_codes import INTERRUPTED, NOT_OK, OK
from sweeper.core.system.host import Host
from sweeper.core.trial import Compile, Model, Trial
from sweeper.execution.execute import Launcher, execute, make_cluster_launcher
from sweeper.execution.scheduler import Event, Finished, PhaseBegan, Started
from sweeper.report import build
from sweeper.sweep import progress as progress_module
from sweeper.sweep.driver import run_sweep
from sweeper.sweep.preflight import Found
from sweeper.sweep.progress import Progress
from sweeper.tracking import known_stores

INSPECTS = """
if options.inspect:
    os.makedirs(options.inspect)
    open(options.inspect + "/summary.md", "w").close()
"""
SETTINGS = Settings(
    "night", device="cpu", measure=Measure(processes=1), tracking=Tracking(enabled=False)
)
INSPECTING = replace(SETTINGS, inspect=True)


class FakeTime:
    """A clock for progress; `now` has its seconds."""

    def __init__(self, now: list[float]) -> None:
        self.monotonic = lambda: now[0]
        self.time, self.localtime, self.strftime = time.time, time.localtime, lambda *_: "12:00"


@pytest.fixture
def trial(in_empty_folder: Path) -> Trial:
    python = str(fake_python.write(in_empty_folder / "python", INSPECTS))
    return make_trial("vit_b_16", "fp32", device="cpu", python=python)


def record() -> Record:
    (path,) = Path("runs/night").glob("*/record.json")
    return Record.loads(path.read_text())


def test_inspection_is_of_trials_that_run(trial: Trial, capsys: pytest.CaptureFixture[str]) -> None:
    """A finished trial is left alone by a resume, and inspected when it is run again."""
    tlparse = Path(trial.python).with_name("tlparse")  # it is looked for, and never run
    tlparse.touch(0o755)
    assert run_sweep([trial], SETTINGS) == OK
    assert run_sweep([trial], INSPECTING) == OK
    assert record().inspection is None
    capsys.readouterr()
    assert run_sweep([trial], replace(INSPECTING, retry="all")) == OK
    assert record().inspection == Inspection("inspect")
    summary = f"runs/night/{trial.label}-{trial.id}/inspect/summary.md"
    assert Path(summary).exists()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("1 process each, and one that shows what the compiler does")
    (line,) = [line for line in lines if f"[1/1] {trial.label}: " in line]
    assert f"; what the compiler did: {summary}" in line
    assert f"note: what the compiler did: {summary}" in lines


def test_sweep_that_ends_before_its_last_trial_is_interrupted(trial: Trial) -> None:
    """As where the first was interrupted in its inspection and is ok."""
    other = replace(trial, batch_size=1)

    def first_alone(trials, _settings, _placement) -> Generator[Event, None, None]:
        yield Started(trials[0])
        yield Finished(make_record(trial=trials[0]), derive(make_record(trial=trials[0])))

    assert run_sweep([trial, other], SETTINGS, Launcher(None, first_alone)) == INTERRUPTED


def test_report_that_cannot_be_written_is_printed_all_the_same(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(build, "write_text", refuse)
    assert run_sweep([trial], SETTINGS) == NOT_OK
    output = capsys.readouterr()
    assert "In fp32 vit_b_16: open: default 2.00x may be " in output.out
    why = "No space left on device; free some space, then write it: python -m sweeper.report night"
    assert f"sweeper: no report: {why}" in output.err


@pytest.mark.parametrize(
    ("status", "says"),
    [
        ("crashed", "1 trial may succeed in another run: the same command with sweep="),
        ("timeout", "1 trial took too long: raise the limit that the message names, with sweep="),
        ("interrupted", "interrupted; go on with: "),
    ],
)
def test_a_sweep_ends_with_one_way_to_run_again_what_failed(
    trial: Trial, capsys: pytest.CaptureFixture[str], status: str, says: str
) -> None:
    def fails(trials, _settings, _placement) -> Generator[Event, None, None]:
        for one in trials:
            yield Started(one)
            write_sweep(Path("runs"), [failed := make_record(trial=one, status=status)], "night")
            yield Finished(failed, derive(failed))

    run_sweep([trial], SETTINGS, Launcher(None, fails))
    *others, last = capsys.readouterr().out.splitlines()
    assert last.startswith(says)
    assert not any("may succeed" in line for line in others)


def test_dry_run_estimates_from_similar_trials_on_the_same_kind_of_device(
    trial: Trial, capsys: pytest.CaptureFixture[str]
) -> None:
    def estimate(*trials: Trial, measure: Measure = SETTINGS.measure, sweep: str = "dry") -> str:
        capsys.readouterr()
        run_sweep(trials, replace(SETTINGS, sweep=sweep, dry_run=True, measure=measure))
        return capsys.readouterr().out.splitlines()[-1]

    assert run_sweep([trial], SETTINGS) == OK
    other_batch, other_model = (
        replace(trial, batch_size=7),
        replace(trial, model=Model("timm", "other")),
    )
    none = (
        "torch and the model libraries have these models and options; no estimate yet; nothing "
        "was started"
    )
    assert estimate(other_batch) == none, "the fake worker names no device"

    path = next(Path("runs/night").glob("*/record.json"))
    on_this_cpu = {"device": {"type": "cpu", "name": host.read().cpu}}
    write_text(path, replace(record(), environment=on_this_cpu, wall_s=60.0).dumps())
    assert "; about 1 min 00 s on one device, judging by similar trials" in estimate(other_batch)
    partly = (
        "; about 1 min 00 s on one device for 1 trial, no estimate yet for 1 unlike any "
        "earlier one; "
    )
    assert partly in estimate(other_batch, other_model)
    assert estimate(other_model) == none
    assert estimate(other_batch, measure=replace(SETTINGS.measure, rounds=99)) == none
    assert "about 3 min" in estimate(other_batch, measure=replace(SETTINGS.measure, processes=3))
    target = replace(SETTINGS.measure, target=0.01, max_processes=9)
    assert "about 5 min 00 s to 9 min 00 s on one" in estimate(other_batch, measure=target)
    until_sure = replace(SETTINGS.measure, processes=None)
    assert "about 2 min 00 s to 8 min 00 s on one" in estimate(other_batch, measure=until_sure)
    features = [other_batch, change(other_batch, "pattern_matcher")]
    assert "about 1 min 00 s to 4 min 00 s on one" in estimate(*features, measure=until_sure)
    write_text(
        path, replace(record(), environment={"device": {"type": "cpu", "name": "another"}}).dumps()
    )
    assert estimate(other_batch) == none


@pytest.mark.parametrize("named_by", ["environment", "command line", "a file of options"])
@pytest.mark.usefixtures("fresh_environment")
def test_a_store_is_remembered_where_the_user_named_it(
    trial: Trial, named_by: str, empty_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(Path("state").absolute()))
    shutil.copy(empty_database, "other.db")
    uri = f"sqlite:///{Path('other.db').absolute()}"  # MLflow keeps stores by their address
    if named_by == "environment":
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    elif named_by == "command line":
        monkeypatch.setattr(sys, "argv", ["sweeper", f"++tracking.uri={uri}"])
    tracking = Tracking(uri=None if named_by == "environment" else uri)
    assert run_sweep([trial], replace(SETTINGS, tracking=tracking)) == OK
    (invocation,) = json.loads(Path("runs/night/sweep.json").read_text())["invocations"]
    assert invocation["settings"]["tracking"]["uri"] == uri
    assert list(Path().glob("mlartifacts/**/record.json"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert known_stores.is_known(uri) is (named_by != "a file of options")


def test_a_folder_with_links_in_it_is_no_place_for_a_sweep(trial: Trial, tmp_path: Path) -> None:
    """It may have come as somebody's archive."""
    (tmp_path / "elsewhere").mkdir()
    Path("runs/night").mkdir(parents=True)
    Path(f"runs/night/{trial.label}-{trial.id}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="is a link"):
        run_sweep([trial], SETTINGS)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_when_the_time_is_over_the_sweep_says_what_did_not_begin(
    trial: Trial, capsys: pytest.CaptureFixture[str]
) -> None:
    limited = replace(SETTINGS, sweep_time_s=1e-9)
    assert run_sweep([trial, replace(trial, batch_size=1)], limited) == NOT_OK
    output = capsys.readouterr().out
    assert "2 trials to run on the CPU, 1 process each; no process begins after 0 s" in output
    assert "sweep_time_s=1e-09 is over, and 2 trials did not begin; go on with: " in output
    assert run_sweep([trial], replace(SETTINGS, sweep_time_s=1e3)) == OK
    with pytest.raises(ConfigError, match="sweep_time_s limits sweeps that run on this machine"):
        run_sweep([trial], limited, Launcher("slurm", execute))


def test_a_race_is_announced(trial: Trial, capsys: pytest.CaptureFixture[str]) -> None:
    settings = replace(SETTINGS, measure=Measure(), dry_run=True)
    modes = [trial, replace(trial, mode="max-autotune")]
    run_sweep(modes, settings)
    assert "2 to 8 processes (one where another mode is faster) each" in capsys.readouterr().out
    run_sweep([trial, replace(trial, batch_size=1)], settings)
    assert "2 to 8 processes each" in capsys.readouterr().out


def test_processes_that_are_counted_are_no_ranks(
    trial: Trial, capsys: pytest.CaptureFixture[str]
) -> None:
    ddp = replace(trial, parallel="ddp", parallel_devices=2)
    run_sweep([ddp], replace(SETTINGS, dry_run=True))
    assert "a process of a trial with ranks starts its launcher" in capsys.readouterr().out


def test_dry_run_asks_the_libraries(trial: Trial, capsys: pytest.CaptureFixture[str]) -> None:
    """The plan is printed before the question, which takes seconds."""
    answers = Path(trial.python or "")
    answers.write_text(
        answers.read_text().replace('"problems": []', '"problems": ["no such model"]')
    )
    with pytest.raises(ConfigError, match="no such model"):
        run_sweep([trial], replace(SETTINGS, dry_run=True))
    assert capsys.readouterr().out.splitlines()[-1].startswith(trial.id)
    assert not Path("runs").exists()


def test_dry_run_counts_and_lists_the_features_that_torch_has(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lacking = {(trial.python, "default", "strict_numerics")}
    monkeypatch.setattr("sweeper.sweep.driver.require_runnable", lambda *_: Found((), lacking))
    grid = [trial, change(trial, "strict_numerics"), change(trial, "combo_kernels")]
    assert run_sweep(grid, replace(SETTINGS, dry_run=True)) == OK
    text = capsys.readouterr().out
    assert "sweep night: 2 trials to run on the CPU" in text
    assert "feature-combo_kernels" in text
    assert "feature-strict_numerics" not in text


def test_dry_run_for_a_cluster_says_that_its_devices_were_not_asked(
    trial: Trial, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_sweep([trial], replace(SETTINGS, dry_run=True), Launcher("slurm", execute)) == OK
    last = capsys.readouterr().out.splitlines()[-1]
    assert "; the devices of the jobs were not asked; no estimate yet; nothing was started" in last


def test_a_cluster_is_asked_for_only_where_a_trial_would_run(trial: Trial) -> None:
    """submitit refuses an array of no jobs."""
    launched: list[object] = []

    def refuse() -> None:
        raise ConfigError("no cluster")

    cluster = make_cluster_launcher("slurm", launched.append, {trial.id: ()}, refuse)
    with pytest.raises(ConfigError, match="no cluster"):
        run_sweep([trial], SETTINGS, cluster)
    assert not Path("runs").exists()
    assert run_sweep([trial], replace(SETTINGS, dry_run=True), cluster) == OK

    assert run_sweep([trial], SETTINGS) == OK
    assert run_sweep([trial], SETTINGS, cluster) == OK
    assert launched == []


def test_a_busy_machine_is_told_before_the_first_trial(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cores = host.read().cores
    monkeypatch.setattr(host, "read", lambda: Host("a processor", cores, cores, load=float(cores)))
    watched = ("ffmpeg (pid 12) 1.0",)
    monkeypatch.setattr(host, "watch", lambda machine, _s: replace(machine, busy_with=watched))
    assert run_sweep([trial], SETTINGS) == OK
    said = f"{cores}.0 of {cores} cores are busy ({watched[0]}); stop the other processes"
    line = f"measurements taken now would be unreliable: {said}, or wait"
    assert capsys.readouterr().out.splitlines()[1] == line
    assert run_sweep([trial], SETTINGS) == OK
    assert line not in capsys.readouterr().out, "there is nothing to measure"


def test_a_log_has_one_line_for_each_trial(
    trial: Trial, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run_sweep([trial, replace(trial, batch_size=1), replace(trial, batch_size=2)], SETTINGS)
        == OK
    )
    lines = [line for line in capsys.readouterr().out.splitlines() if re.search(r"\[\d/3\]", line)]
    left = r"; about \d+ s to go, done at \d\d:\d\d"
    clock, figures = (
        r"\d\d:\d\d:\d\d",
        rf"{trial.label[: -len('32')]}\d+: 2\.00x\? \(0\.78 to 5\.10\)  \(\d+ s\)",
    )
    patterns = [rf"{clock} \[{n}/3\] {figures}{left if n < 3 else ''}" for n in (1, 2, 3)]
    assert len(lines) == 3
    assert all(
        re.fullmatch(pattern, line) for pattern, line in zip(patterns, lines, strict=True)
    ), lines


def test_each_line_of_a_ladder_names_its_rung(
    trial: Trial, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_sweep([climb(trial, rung) for rung in ("eager", "fused", "default")], SETTINGS) == OK
    named = re.findall(r"\[\d/3\] (\S+): ", capsys.readouterr().out)
    assert named == [
        f"vit_b_16-train-fp32-rung-{rung}-b32" for rung in ("eager", "fused", "default")
    ]


def test_lines_of_trials_with_one_label_say_what_differs(trial: Trial) -> None:
    blocks = replace(trial, compile=Compile(scope="blocks"))
    kept = replace(trial, compile=Compile(scope="blocks", start="mega_cache"))
    script = Model(SCRIPT, "train.py")
    scripts = []
    for arguments in ("--lr 1", "--lr 2"):
        labels = replace(trial.labels, model="train.py", overrides=f"model.args={arguments}")
        model = replace(script, arguments={"args": arguments})
        scripts.append(replace(trial, model=model, labels=labels, workload=SCRIPT))
    grid = [blocks, kept, replace(blocks, mode="max-autotune"), *scripts]
    text = StringIO()
    progress = Progress(grid, Measure(), Console(file=text, width=200))
    for one in grid:
        progress.show(Started(one))
        progress.show(PhaseBegan(one, "eager", 0, "a note"))
    assert re.findall(r"\[\d/5\] (.+), eager", text.getvalue()) == [
        "vit_b_16-train-fp32-default-b32",
        "vit_b_16-train-fp32-default-b32 [compile.start=mega_cache]",
        "vit_b_16-train-fp32-max-autotune-b32",
        "train.py-script-default [model.args=--lr 1]",
        "train.py-script-default [model.args=--lr 2]",
    ]


@pytest.mark.parametrize(
    ("mode", "device", "said"),
    [("reduce-overhead", "cpu", 1), ("max-autotune", "cpu", 0), ("reduce-overhead", "cuda", 0)],
)
def test_a_plan_says_once_that_a_cpu_has_no_cuda_graphs(
    trial: Trial,
    mode: str,
    device: str,
    said: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sweeper.sweep.driver.require_runnable", lambda *_: Found((), ()))
    grid = [replace(trial, mode=mode, device=device, batch_size=size) for size in (1, 2)]
    assert run_sweep(grid, replace(SETTINGS, dry_run=True)) == OK
    line = (
        "mode=reduce-overhead adds CUDA graphs to mode=default, and with device=cpu there are "
        "no CUDA graphs"
    )
    assert capsys.readouterr().out.splitlines().count(line) == said


def test_what_is_left_counts_the_processes_of_trials_that_run(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two and a half of four trials took 100 s."""
    now = [0.0]
    monkeypatch.setattr(progress_module, "time", FakeTime(now))
    trials = [replace(trial, batch_size=size) for size in range(4)]
    progress = Progress(trials, Measure(), Console(file=StringIO()))
    for one in trials:
        progress.show(Started(one))
    now[0] = 100.0
    for one in trials[:2]:
        progress.show(Finished(made := make_record(trial=one), derive(made)))
    progress.show(PhaseBegan(trials[2], "waiting", 1))
    assert progress._describe_left("; ") == "; about 1 min 00 s to go, done at 12:00"
    now[0] = 140.0
    progress.show(PhaseBegan(trials[2], "compiling", 1))
    assert progress._describe_left("; ") == "; about 20 s to go, done at 12:00"
    now[0] = 161.0
    assert progress._describe_left("; ") == "", "nothing has ended by which to know better"


def test_a_feature_with_the_code_of_the_default_says_so(trial: Trial) -> None:
    text = StringIO()
    feature = change(trial, "combo_kernels")
    progress = Progress([feature], Measure(), Console(file=text, width=200))
    process = replace(make_process(), rounds=())
    said = "no effect: its code is that of the default, so it was not timed"
    record = replace(make_record(trial=feature), processes=(process,), message=said)
    progress.show(Started(feature))
    progress.show(Finished(record, derive(record)))
    assert f": ok: {said}  (0 s)" in text.getvalue()


def test_a_terminal_shows_phases_and_no_clock(trial: Trial) -> None:
    console = Console(file=StringIO(), force_terminal=True, width=200, color_system=None)
    progress = Progress([trial, replace(trial, batch_size=1)], Measure(processes=1), console)
    with progress.live:
        progress.show(Started(trial))
        progress.show(PhaseBegan(trial, "compiling", 0))
        console.print(progress._view())
        progress.show(PhaseBegan(trial, "waiting", 1))
        console.print(progress._view())
        progress.show(Finished(made := make_record(trial=trial), derive(made)))
        console.print(progress._view())
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"{trial.label}: compiling  0 s" in text
    assert "waiting" not in text, "of an ablation many do"
    assert "1/2 trials, 0 s elapsed" in text
    (line,) = [line for line in text.splitlines() if "[1/2]" in line]
    assert re.search(rf"\[1/2\] {trial.label}: 2\.00x\? \(0\.78 to 5\.10\)  \(0 s\)$", line)
