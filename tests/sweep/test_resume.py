"""Going on with a sweep under other settings: what is refused before any work, and what is not."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest
from records import make_record, make_trial, write_sweep

from sweeper.analysis.derive import derive
from sweeper.core import record as record_module
from sweeper.core.errors import ConfigError
from sweeper.core.libraries import SCRIPT
from sweeper.core.paths import SweepPaths
from sweeper.core.record import Record, ScriptRun
from sweeper.core.serialization import to_json
from sweeper.core.settings import SAMPLING, TIMING, Measure, Settings, Tracking
from sweeper.core.system.exit_codes import NOT_OK, OK
from sweeper.core.system.host import Host
from sweeper.core.trial import Labels, Model, Trial
from sweeper.execution import placement
from sweeper.execution.execute import Launcher
from sweeper.execution.placement import Placement
from sweeper.execution.scheduler import Event, Finished, Started
from sweeper.sweep.driver import run_sweep
from sweeper.sweep.preflight import Found
from sweeper.sweep.resume import describe_others

LIMITS = {
    "warmup_s": 1.0,
    "timeout_s": 60.0,
    "phase_timeouts_s": {"compiling": 9.0},
    "back_off": False,
}
OTHERS = {
    "processes": 5, "draws": 2, "target": 0.02, "max_processes": 9, "seed": 1, "rounds": 4,
    "rounds_s": 2.0,
    "block_s": 1.0, "block_steps": 7, "clock": "step", "energy": True,
}  # fmt: skip
OLD = Measure(processes=3)


@pytest.fixture
def trials(in_empty_folder: Path) -> list[Trial]:
    return [make_trial("vit_b_16", device="cpu", batch_size=size) for size in (1, 2)]


def store(trial: Trial, status: str = "ok", measure: Measure = OLD) -> Record:
    record = replace(make_record(trial=trial, status=status), measure=to_json(measure))
    write_sweep(Path("runs"), [record])
    return record


def resume(
    trials: list[Trial], measure: Measure, monkeypatch: pytest.MonkeyPatch, **changes: object
) -> list[str]:
    """The ids of the trials that ran, in a sweep whose workers are not started."""
    monkeypatch.setattr("sweeper.sweep.driver.require_runnable", lambda *_: Found((), ()))
    ran = []

    def run(planned, _settings, _placement) -> Generator[Event, None, None]:
        for trial in planned:
            ran.append(trial.id)
            record = store(trial, measure=measure)
            yield Started(trial)
            yield Finished(record, derive(record))

    settings = Settings("night", device="cpu", measure=measure, tracking=Tracking(enabled=False))
    assert run_sweep(trials, replace(settings, **changes), Launcher(None, run)) in (OK, NOT_OK)
    return ran


def test_each_setting_is_one_that_changes_figures_or_a_limit() -> None:
    """Whoever adds a setting decides."""
    assert {*SAMPLING, *TIMING} == OTHERS.keys()
    assert {item.name for item in dataclasses.fields(Measure)} == OTHERS.keys() | LIMITS.keys()


def test_a_number_of_processes_that_the_answer_decides_is_no_difference(
    trials: list[Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    store(trials[0])
    assert resume(trials, Measure(), monkeypatch) == [trials[1].id]
    assert resume(trials, Measure(max_processes=4), monkeypatch) == []


@pytest.mark.parametrize("name", [name for name in OTHERS if name != "max_processes"])
def test_a_setting_that_changes_figures_is_refused(
    trials: list[Trial], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(trials[0])
    was, now = getattr(OLD, name), OTHERS[name]
    with pytest.raises(ConfigError) as refused:
        resume(trials, replace(OLD, **{name: now}), monkeypatch)
    first, *changed, last = str(refused.value).splitlines()
    assert first.startswith("sweep=night: 1 of these trials has a record with other settings")
    assert f"  measure.{name}: {json.dumps(was)} -> {json.dumps(now)}".replace('"', "") in changed
    assert "retry=changed" in last
    assert "retry=all" in last
    assert "another sweep=NAME" in last
    assert not SweepPaths.of("night").sweep.exists()


def test_what_differs_is_named_once_over_all_records(
    trials: list[Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    store(trials[0])
    store(trials[1], measure=replace(OLD, rounds=5, seed=3))
    for dry_run in (False, True):
        with pytest.raises(ConfigError) as refused:
            resume(trials, replace(OLD, rounds=4), monkeypatch, dry_run=dry_run)
        lines = str(refused.value).splitlines()
        assert lines[0].startswith("sweep=night: 2 of these trials have records")
        assert lines[1:-1] == [
            "  measure.seed: 1337 or 3 -> 1337",
            "  measure.rounds: 10 or 5 -> 4",
        ]


def test_limits_and_what_is_not_used_are_no_difference(
    trials: list[Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    store(trials[0])
    assert resume(trials, replace(OLD, **LIMITS, max_processes=9), monkeypatch) == [trials[1].id]


@pytest.mark.parametrize(
    ("status", "retry", "refused"),
    [
        ("ok", "failed", True),
        ("ok", "none", True),
        ("ok", "all", False),
        ("oom", "failed", False),
        ("oom", "none", True),
    ],
)
def test_only_records_that_stay_count(
    trials: list[Trial], status: str, retry: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(trials[0], status)
    other = replace(OLD, rounds=4)
    if refused:
        with pytest.raises(ConfigError, match=r"measure.rounds: 10 -> 4"):
            resume(trials, other, monkeypatch, retry=retry)
    else:
        assert resume(trials, other, monkeypatch, retry=retry) == [trial.id for trial in trials]
        assert resume(trials, other, monkeypatch) == []


def test_retry_changed_goes_on_where_it_was_interrupted(
    trials: list[Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial that has been measured with the new settings is not measured again, and a failed one
    is.
    """
    for trial in trials:
        store(trial)
    other = replace(OLD, rounds=4)
    assert resume(trials[:1], other, monkeypatch, retry="changed") == [trials[0].id]
    assert resume(trials, other, monkeypatch, retry="changed") == [trials[1].id]
    assert resume(trials, other, monkeypatch, retry="changed") == []
    store(trials[0], "oom", other)
    assert resume(trials, other, monkeypatch, retry="changed") == [trials[0].id]


def test_where_every_trial_is_new_nothing_is_refused(
    trials: list[Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    store(trials[0])
    assert resume(trials[1:], replace(OLD, rounds=4), monkeypatch) == [trials[1].id]


def test_other_versions_and_limits_are_said(
    trials: list[Trial], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    resume(trials[:1], OLD, monkeypatch)
    manifest = SweepPaths.of("night").sweep
    data = json.loads(manifest.read_text())
    data["invocations"][0]["versions"]["torch"] = "1.2.3"
    manifest.write_text(json.dumps(data))
    assert "changed since" not in capsys.readouterr().out
    assert resume(trials, replace(OLD, timeout_s=60.0), monkeypatch) == [trials[1].id]
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "changed since" in line]
    assert "torch 1.2.3 -> " in line
    assert line.endswith("measure.timeout_s 1800.0 -> 60.0; its records are kept")


H200, CPU = {"type": "cuda", "name": "NVIDIA H200"}, {"type": "cpu", "name": "a processor"}


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize(
    ("stored", "said"),
    [
        ([H200], "NVIDIA H200"),
        ([CPU | {"name": "an older one"}, H200], "NVIDIA H200, an older one"),
        ([CPU], None),
        ([], None),
    ],
    ids=["another type", "two others", "the same", "unknown"],
)
def test_other_devices_of_stored_trials_are_said(
    trials: list[Trial],
    stored: list[dict[str, str]],
    said: str | None,
    dry_run: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(placement, "read", lambda: Host("a processor", 1, 1))
    for number, device in enumerate(stored):
        trial = replace(trials[0], device=device["type"], batch_size=8 + number)
        write_sweep(
            Path("runs"), [replace(make_record(trial=trial), environment={"device": device})]
        )
    resume(trials, OLD, monkeypatch, dry_run=dry_run)
    notes = [
        line
        for line in capsys.readouterr().out.splitlines()
        if "trials of this sweep ran on" in line
    ]
    told = (
        f"note: trials of this sweep ran on {said}, and these run on a processor; no mean "
        "mixes them"
    )
    assert notes == ([told] if said else [])


def test_a_trial_that_is_measured_again_leaves_nothing_of_another_device(
    trials: list[Trial], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_sweep(Path("runs"), [replace(make_record(trial=trials[0]), environment={"device": CPU})])
    resume(trials, OLD, monkeypatch, retry="all", dry_run=True)
    assert " ran on " not in capsys.readouterr().out
    resume(trials, OLD, monkeypatch, retry="none", dry_run=True)
    assert " ran on a processor, " in capsys.readouterr().out


def test_a_cluster_is_told_from_records_of_another_type_alone(trials: list[Trial]) -> None:
    trial = replace(trials[0], device="cuda")
    write_sweep(Path("runs"), [replace(make_record(trial=trial), environment={"device": H200})])
    cluster, paths = Placement("SLURM"), SweepPaths.of("night")
    (note,) = describe_others(paths, trials, cluster)
    assert "ran on NVIDIA H200, and these run on SLURM" in note
    assert list(describe_others(paths, [replace(trial, batch_size=7)], cluster)) == []


@pytest.mark.parametrize("changes", [{}, {"retry": "all"}, {"retry": "none"}, {"dry_run": True}])
@pytest.mark.parametrize(
    ("version", "reason"),
    [(7, "schema_version 7 is newer than 6"), (5, "schema_version 5 is older than 6")],
)
def test_a_record_of_another_version_ends_the_command_before_anything(
    trials: list[Trial],
    changes: dict[str, object],
    version: int,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = SweepPaths.of("night").trial("", store(trials[0]).trial_id).record
    text = json.dumps(json.loads(path.read_text()) | {"schema_version": version, "new": {}})
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        resume(trials, OLD, monkeypatch, **changes)
    assert str(path) in str(refused.value)
    assert reason in str(refused.value)
    assert str(refused.value).endswith("nothing was started; give another sweep=NAME")
    assert path.read_text() == text
    assert not SweepPaths.of("night").sweep.exists()


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"schema_version": 6, "status": "ok"}',
        "[" * 100_000,
        '{"schema_version": NaN}',
        "null",
    ],
    ids=["cut", "no trial", "nested", "nan", "null"],
)
def test_a_record_that_cannot_be_read_moves_aside_before_its_trial_runs_again(
    trials: list[Trial],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = SweepPaths.of("night").trial("", store(trials[0]).trial_id).record
    store(trials[1])
    path.write_text(text)
    assert resume(trials, OLD, monkeypatch, dry_run=True) == []
    assert "a run moves it aside" in capsys.readouterr().err
    assert path.read_text() == text
    assert resume(trials, OLD, monkeypatch) == [trials[0].id]
    (aside,) = path.parent.glob("record.json.unreadable-*")
    assert aside.read_text() == text
    (note,) = [line for line in capsys.readouterr().err.splitlines() if aside.name in line]
    assert note.startswith(f"note: {path}: ")
    assert resume(trials, OLD, monkeypatch) == []


def test_a_link_in_place_of_a_record_moves_aside_and_is_not_followed(
    trials: list[Trial], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = SweepPaths.of("night").trial("", store(trials[0]).trial_id).record
    path.rename(tmp_path / "elsewhere.json")
    path.symlink_to(tmp_path / "elsewhere.json")
    assert resume(trials[:1], OLD, monkeypatch) == [trials[0].id]
    assert next(path.parent.glob("record.json.unreadable-*")).is_symlink()
    assert not path.is_symlink()


@pytest.mark.parametrize(
    "changes",
    [
        {"wall_s": "1"},
        {"environment": {"device": []}},
        {"environment": {}, "processes": [{"phases_s": {"eager": ""}}]},
    ],
    ids=str,
)
def test_a_bad_record_of_another_sweep_ends_no_dry_run(
    trials: list[Trial], changes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_sweep(
        Path("runs"), [make_record(device="cpu"), make_record("vgg16", device="cpu")], "other"
    )
    first, second = folder.glob("*/record.json")
    first.write_text("[" * 100_000)
    data = json.loads(second.read_text()) | {"wall_s": 1.0}
    second.write_text(json.dumps(data | changes))
    assert resume(trials, OLD, monkeypatch, dry_run=True) == []


def test_a_record_that_cannot_be_read_for_want_of_file_handles_stays(
    trials: list[Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    store(trials[0])
    (path,) = Path("runs/night").glob("*/record.json")
    with monkeypatch.context() as then:

        def refuse(*_arguments: object) -> str:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

        then.setattr(record_module, "read_text", refuse)
        with pytest.raises(
            ConfigError,
            match=r"Too many open files \(.*\); raise the limit .*\. Nothing was started",
        ):
            resume(trials, OLD, monkeypatch)
    assert [found.name for found in path.parent.glob("record.json*")] == ["record.json"]
    assert resume(trials, OLD, monkeypatch) == [trials[1].id]


def test_a_report_that_cannot_be_written_is_said_and_is_not_ok(
    trials: list[Trial], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sweeper.sweep.driver.require_runnable", lambda *_: Found((), ()))
    record = store(trials[0])
    (Path("runs/night") / "report").write_text("no folder")

    def run(_planned, _settings, _placement) -> Generator[Event, None, None]:
        yield from (Started(trials[0]), Finished(record, derive(record)))

    settings = Settings(
        "night", device="cpu", measure=OLD, tracking=Tracking(enabled=False), retry="all"
    )
    assert run_sweep(trials[:1], settings, Launcher(None, run)) == NOT_OK
    out, err = capsys.readouterr()
    assert "In AMP vit_b_16:" in out
    assert "sweeper: no report: File exists (runs/night/report); " in err
    assert "then write it: python -m sweeper.report night" in err


def test_another_length_of_training_takes_the_place_of_the_old_one(
    in_empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("train.py").write_text("print(1)\n")
    trial = Trial(
        Model(SCRIPT, "train.py"), 1, Labels("train.py", "own"), workload=SCRIPT, device="cpu"
    )
    labels = [replace(trial.labels, total_steps=steps) for steps in (None, 1000, 5000)]
    none, short, long = (replace(trial, labels=item) for item in labels)
    before = store(short)
    (file,) = Path("runs/night").glob("*/record.json")
    for asked, dry_run, kept in (
        (short, False, 1000),
        (none, False, 1000),
        (long, True, 1000),
        (long, False, 5000),
    ):
        text = file.read_text()
        assert resume([asked], OLD, monkeypatch, dry_run=dry_run) == []
        assert Record.read(file).trial.labels.total_steps == kept
        assert (file.read_text() == text) is (asked is not long or dry_run)
    assert replace(Record.read(file), trial=short) == before  # nothing else has changed


def test_a_script_that_has_changed_is_not_gone_on_with(
    in_empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Path("train.py")
    file.write_text("print(1)\n")
    labels = Labels("train.py", "own")
    trial = Trial(
        Model(SCRIPT, "train.py"), 1, labels, workload=SCRIPT, device="cpu", optimizer="none"
    )
    record = replace(make_record(trial=trial), measure=to_json(OLD))
    script = ScriptRun(hashlib.sha256(file.read_bytes()).hexdigest())
    write_sweep(
        Path("runs"), [replace(record, processes=(replace(record.processes[0], script=script),))]
    )
    assert resume([trial], OLD, monkeypatch) == []
    paths, other = SweepPaths(Path("runs/night")), replace(trial, mode="max-autotune")
    place = Placement("a place")
    assert list(describe_others(paths, [other], place)) == []
    file.write_text("print(2)\n")
    (note,) = describe_others(paths, [other], place)
    assert note.endswith("other trials of this sweep ran another version of train.py")
    # of which the sweep will have this version alone
    assert list(describe_others(paths, [trial], place)) == []
    with pytest.raises(
        ConfigError,
        match=r"train\.py has changed since it was measured; nothing was started; add retry=all",
    ):
        resume([trial], OLD, monkeypatch)
    assert resume([trial], OLD, monkeypatch, retry="all") == [trial.id]
    file.unlink()
    # the preflight check says that it is not there, where it would run
    assert resume([trial], OLD, monkeypatch) == []
