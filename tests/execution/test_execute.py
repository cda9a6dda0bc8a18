from __future__ import annotations

import errno
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_python
import pytest
from executions import SETTINGS, read_record, run_here, start, trials
from records import make_process, make_record, make_trial

from sweeper.analysis.derive import derive
from sweeper.analysis.result import Result
from sweeper.core import record as record_module
from sweeper.core.ablation import change
from sweeper.core.errors import ConfigError
from sweeper.core.files import write_text
from sweeper.core.paths import SweepPaths
from sweeper.core.record import Attempt, Record
from sweeper.core.settings import Measure, Scheduler, Settings
from sweeper.core.system import gpus
from sweeper.core.system.gpus import Device, Gpu, GpuReading
from sweeper.core.system.leftovers import make_prefix
from sweeper.core.trial import Model, Trial
from sweeper.execution import device_claim, draft, placement, processes, reaper, trial_runner
from sweeper.execution import execute as execute_module
from sweeper.execution.execute import MIN_FREE_BYTES, NoSpaceError, execute, make_cluster_launcher
from sweeper.execution.memory_budget import Need
from sweeper.execution.placement import DeviceShare, DeviceSlot, Placement
from sweeper.execution.scheduler import Finished, Started, Steps
from sweeper.execution.trial_runner import TrialRun

assert trials  # a fixture that every test here uses


def test_events_come_in_order_after_the_records_are_on_disk(trials: list[Trial]) -> None:
    heard, found = [], []
    for event in start(trials):
        if isinstance(event, Started):
            heard.append(f"start {event.trial.batch_size}")
        elif isinstance(event, Finished):
            (path,) = Path("runs/s").glob(f"*-{event.record.trial_id}/record.json")
            assert Record.loads(path.read_text()) == event.record, "it is on disk first"
            heard.append(f"end {event.record.trial.batch_size}")
            found.append(event.record)
    assert [(record.trial, record.status) for record in found] == [
        (trial, "ok") for trial in trials
    ]
    assert heard == ["start 1", "end 1", "start 2", "end 2", "start 3", "end 3"]


IN_THE_WAY = {
    "a folder": "os.mkdir(path)",
    "a full folder": "os.makedirs(path + '/a/b')",
    "a link": "os.symlink('/dev/full', path)",
    "a broken link": "os.symlink('/nowhere/at/all', path)",
    "a pipe": "os.mkfifo(path)",
    "a socket": "__import__('socket').socket(1).bind(path)",
    "a device": "os.mknod(path, 0o20666, os.makedev(1, 7))",
    "no rights": "open(path, 'w').close(); os.chmod(path, 0)",
    "a giant": "os.truncate(os.open(path, os.O_CREAT | os.O_RDWR), 10**12)",
}


THINGS = {
    "record.json": tuple(IN_THE_WAY),
    **dict.fromkeys(
        ("trial.json", "worker-1.log", "inspect"), ("a full folder", "a pipe", "a link", "a giant")
    ),
}


@pytest.mark.parametrize("name", THINGS)
def test_what_a_worker_leaves_in_place_of_a_file_costs_nothing(
    trials: list[Trial], name: str
) -> None:
    """Neither now nor when the sweep goes on; each trial has something else in the way."""
    things = list(THINGS[name])
    if "a device" in things and os.geteuid() != 0:
        things.remove("a device")  # only root makes devices
    statements = [IN_THE_WAY[thing] for thing in things]
    body = f"""
path = os.path.join(os.path.dirname(options.trial), {name!r})
if options.index == 0:
    if os.path.lexists(path):
        os.unlink(path)
    exec({statements!r}[trial["batch_size"] - 1])
"""
    fake_python.write(Path(str(trials[0].python)), body)
    attacked = [replace(trials[0], batch_size=size) for size in range(1, len(statements) + 1)]
    # the second process writes there, too
    processes = 2 if name in ("trial.json", "worker-1.log") else 1
    settings = replace(SETTINGS, measure=Measure(processes=processes))
    for _run in range(2):
        events = start(attacked, settings)
        found = [event.record for event in events if isinstance(event, Finished)]
        assert [record.status for record in found] == ["ok"] * len(attacked)
        for record in found:
            assert Record.read(SweepPaths.of("s").trial(record.label, record.trial_id).record)


@pytest.mark.parametrize(
    "thing",
    [
        "shutil.rmtree(path)",
        "shutil.rmtree(path); open(path, 'w').close()",
        pytest.param(
            "shutil.rmtree(path); os.symlink('/nowhere/at/all', path)", marks=pytest.mark.slow
        ),
        "shutil.rmtree(path); os.symlink('/tmp', path)",
        pytest.param("os.chmod(path, 0)", marks=pytest.mark.slow),
    ],
)
def test_what_a_worker_does_to_the_folder_of_its_trial_costs_no_other(
    trials: list[Trial], thing: str
) -> None:
    body = f"""
import shutil
path = os.path.dirname(options.trial)
if trial["batch_size"] == 2:
    {thing}
"""
    fake_python.write(Path(str(trials[0].python)), body)
    for _run in range(2):
        found = [event.record for event in start(trials) if isinstance(event, Finished)]
        assert [record.status for record in found] == ["ok"] * 3
        assert len(list(Path("runs/s").glob("*/record.json"))) == 3


def test_each_gpu_has_a_trial_at_a_time(
    trials: list[Trial], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gpus = tuple(Gpu(str(index), f"GPU-{index}", "A GPU") for index in range(2))
    monkeypatch.setattr(placement, "visible_gpus", lambda: gpus)
    monkeypatch.setattr(placement, "cores_near", lambda _gpu: ())
    tmp_path.chmod(0o1777)
    monkeypatch.setattr(device_claim, "LOCK_FOLDERS", (tmp_path,))
    body = (
        "open(f'here-{os.environ[\"CUDA_VISIBLE_DEVICES\"]}', 'w').close()\n"
        "while not (os.path.exists('here-0') and os.path.exists('here-1')): time.sleep(0.05)"
    )
    fake_python.write(Path(str(trials[0].python)), body)
    events = start(trials, replace(SETTINGS, device="cuda"))
    assert [event.record.status for event in events if isinstance(event, Finished)] == ["ok"] * 3


def test_full_disk_is_said_before_a_trial_and_keeps_what_there_is(
    trials: list[Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    free = iter([MIN_FREE_BYTES, MIN_FREE_BYTES - 1])
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: SimpleNamespace(free=next(free)))
    Path("runs/s").mkdir(parents=True)
    records = (event.record for event in start(trials) if isinstance(event, Finished))
    assert next(records).status == "ok"
    with pytest.raises(
        NoSpaceError, match="has 1024 MiB left and what runs may need 1024; free some space"
    ):
        next(records)
    assert len(list(Path("runs/s").glob("*/record.json"))) == 1


def test_each_trial_in_flight_needs_space(
    trials: list[Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        shutil, "disk_usage", lambda _folder: SimpleNamespace(free=2 * MIN_FREE_BYTES)
    )
    share = DeviceShare(Device("cpu"), concurrency=3)
    with pytest.raises(NoSpaceError, match="has 2048 MiB left and what runs may need 3072"):
        list(execute(trials, SETTINGS, Placement("the CPU", (share,))))


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Has the start of one worker fail."""

    def fail(position: int, number: int) -> None:
        starts, start_group = itertools.count(), processes.start_group

        def start(*arguments: Any, **options: Any) -> processes.WholeGroup:
            if next(starts) == position:
                raise OSError(number, os.strerror(number))
            return start_group(*arguments, **options)

        monkeypatch.setattr(processes, "start_group", start)

    return fail


@pytest.mark.parametrize(
    ("number", "says"),
    [(errno.EMFILE, "Too many open files"), (errno.ENOMEM, "Cannot allocate memory")],
)
def test_worker_that_cannot_be_started_is_said_and_tried_again_at_the_next_run(
    trials: list[Trial], failing: Callable[[int, int], None], number: int, says: str
) -> None:
    failing(1, number)
    records = (event.record for event in start(trials) if isinstance(event, Finished))
    assert next(records).status == "ok"
    with pytest.raises(
        NoSpaceError,
        match=f"no process can be started: {says}; .*, then go on with the same command",
    ):
        next(records)
    record = read_record(trials[1])
    assert (record.status, record.phase) == ("crashed", "starting")
    assert says in str(record.message)
    assert [event.record.status for event in start(trials[1:]) if isinstance(event, Finished)] == [
        "ok",
        "ok",
    ]


def test_what_earlier_processes_measured_is_kept_when_the_next_cannot_be_started(
    trials: list[Trial], failing: Callable[[int, int], None]
) -> None:
    failing(1, errno.EAGAIN)
    with pytest.raises(NoSpaceError):
        list(start(trials[:1], replace(SETTINGS, measure=Measure(processes=2))))
    assert (read_record(trials[0]).status, len(read_record(trials[0]).processes)) == ("crashed", 1)


def test_record_that_cannot_be_written_leaves_the_earlier_one(
    trials: list[Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = run_here(trials[0]).record

    def refuse(path: Path, text: str) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(execute_module, "write_text", refuse)
    monkeypatch.setattr(execute_module, "WRITE_AGAIN_S", (0.0, 0.0))
    with pytest.raises(
        NoSpaceError, match=f"record of {trials[0].label} cannot be written: Too many open files"
    ):
        run_here(trials[0])
    assert read_record(trials[0]) == earlier


def test_record_is_written_when_a_full_disk_has_space_again(
    trials: list[Trial], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    attempts = itertools.count(1)

    def refuse_twice(path: Path, text: str) -> None:
        if next(attempts) < 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write_text(path, text)

    monkeypatch.setattr(execute_module, "write_text", refuse_twice)
    monkeypatch.setattr(execute_module, "WRITE_AGAIN_S", (0.0, 0.0))
    assert run_here(trials[0]).record == read_record(trials[0])
    said = capsys.readouterr().err
    assert (
        said.count(
            f"note: the record of {trials[0].label} cannot be written: No space left on device"
        )
        == 2
    )


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> TrialRun:
    """A trial whose record cannot be written."""

    def refuse(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(execute_module, "write_text", refuse)
    slot = DeviceSlot(Device("cpu"))
    return TrialRun(make_trial(), SETTINGS, slot, lambda _began: None, threading.Event())


def test_pauses_between_attempts_to_write_a_record_grow_and_are_said(
    refused: TrialRun,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(refused.stop, "wait", pauses.append)
    with pytest.raises(
        NoSpaceError, match=r"No space left on device.*, then go on with the same command"
    ):
        execute_module._write_record(refused)
    assert pauses == [1.0, 2.0, 4.0, 8.0]
    said = [line.rpartition("; ")[2] for line in capsys.readouterr().err.splitlines()]
    assert said == [f"trying again in {pause:g} s" for pause in pauses]


def test_who_is_told_to_stop_tries_to_write_once(
    refused: TrialRun, capsys: pytest.CaptureFixture[str]
) -> None:
    refused.stop.set()
    with pytest.raises(NoSpaceError):
        execute_module._write_record(refused)
    assert capsys.readouterr().err == ""


def test_earlier_attempts_are_not_lost_when_their_record_cannot_be_read_now(
    trials: list[Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = replace(run_here(trials[0]).record, status="crashed", message="it was")
    path = SweepPaths.of(SETTINGS.sweep).trial(trials[0].label, trials[0].id).record
    write_text(path, failed.dumps())
    with monkeypatch.context() as then:

        def refuse(*_arguments: object, **_options: object) -> int:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        then.setattr(record_module, "read_text", refuse)
        with pytest.raises(
            NoSpaceError, match=f"{trials[0].label} was not measured: Too many open files"
        ):
            run_here(trials[0])
    assert read_record(trials[0]) == failed
    assert [attempt.message for attempt in run_here(trials[0]).record.attempts] == ["it was"]


def test_reaper_that_cannot_be_started_is_said(
    trials: list[Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(reaper.subprocess, "Popen", refuse)
    with pytest.raises(
        NoSpaceError, match="no process can be started: Cannot allocate memory; free some memory"
    ):
        list(start(trials))


def test_leftovers_of_killed_processes_are_removed(
    trials: list[Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    record, here = run_here(trials[0]).record, Path.cwd()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with monkeypatch.context() as then:
        then.setattr(os, "getpid", lambda: gone.pid)
        names = [
            make_prefix(name)
            for name in ("sweeper", ".record.json", ".sweep.json", ".speedups.csv")
        ]
    (here / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(here / "temporary"))
    own = Path("runs/s") / f"{record.label}-{record.trial_id}"
    folders = (here / "temporary", own, Path("runs/s"), Path("runs/s/report"))
    left = [folder / f"{name}abcdefgh" for folder, name in zip(folders, names, strict=True)]
    left[0].mkdir()
    left[3].parent.mkdir()
    for path in left[1:]:
        path.touch()
    run_here(trials[0])
    assert [path for path in left if path.exists()] == []
    assert list((here / "temporary").iterdir()) == []


WRONG = """
check = Accuracy("float64", False, worst="loss", compiled_error=0.5, bound=0.1)
wrong = Process(options.index, options.draw, options.cold, code_fingerprint="abc", accuracy=check)
say(Outcome("accuracy_mismatch", "checking", "loss is off by 0.5", wrong)); sys.exit()
"""
ATTEMPT = Attempt("accuracy_mismatch", "checking", "loss is off by 0.5", "loss", ("abc-None",))


def run_as_job(trial: Trial) -> Finished:
    """Run a trial as a cluster's launcher does: this job runs beside the driver."""
    launcher = make_cluster_launcher(
        "slurm", lambda _overrides: list(start([trial])), {trial.id: ()}
    )
    (found,) = [
        event
        for event in launcher.run([trial], SETTINGS, Placement("slurm"))
        if isinstance(event, Finished)
    ]
    return found


@pytest.mark.parametrize("run", [run_here, run_as_job], ids=["here", "as a job"])
def test_record_on_disk_keeps_the_attempt_that_it_replaces(
    trials: list[Trial], run: Callable[[Trial], Finished]
) -> None:
    python, trial = Path(str(trials[0].python)), trials[0]
    fake_python.write(python, WRONG)
    assert run(trial).record.status == "accuracy_mismatch"
    fake_python.write(python)
    assert run(trial).record.status == "ok"
    record = read_record(trial)
    assert (record.status, record.attempts) == ("ok", (ATTEMPT,))
    assert "failed_before" in record.flags


def test_lost_job_names_the_attempts_before_it_and_leaves_the_record_on_disk(
    trials: list[Trial],
) -> None:
    fake_python.write(Path(str(trials[0].python)), WRONG)
    wrong = run_here(trials[0]).record
    (path,) = Path("runs/s").glob("*/record.json")
    os.utime(path, (0, 0))
    launcher = make_cluster_launcher("slurm", lambda _overrides: None, {trials[0].id: ()})
    *_, lost = launcher.run([trials[0]], SETTINGS, Placement("slurm"))
    assert isinstance(lost, Finished)
    assert (lost.record.status, lost.record.attempts, lost.record.flags) == (
        "crashed",
        (ATTEMPT,),
        ("failed_before",),
    )
    assert read_record(trials[0]) == wrong


@pytest.mark.parametrize(
    "earlier", [True, False], ids=["replaced by none", "written where there is none"]
)
def test_record_of_an_interrupted_trial(
    trials: list[Trial], monkeypatch: pytest.MonkeyPatch, earlier: bool
) -> None:
    if earlier:
        run_here(trials[0])
    before = list(Path("runs/s").glob("*/record.json"))

    def interrupt(run: TrialRun) -> Steps[None]:
        run.finish(status="interrupted")
        yield from ()

    monkeypatch.setattr(execute_module, "run_trial", interrupt)
    assert run_here(trials[0]).record.status == "interrupted"
    assert len(before) == earlier
    assert read_record(trials[0]).status == ("ok" if earlier else "interrupted")


def test_a_default_knows_the_features_that_are_compared_with_it(
    trials: list[Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    compared, runs = {}, {}

    def note(run: TrialRun) -> Steps[None]:
        compared[run.trial.id], runs[run.trial.id] = sorted(run.compared_features), run
        run.finish(status="ok")
        yield from ()

    monkeypatch.setattr(execute_module, "run_trial", note)
    two, one, none = trials
    features = change(two, "cuda_graphs"), change(two, "dynamic"), change(one, "combo_kernels")
    list(start([*trials, *features]))
    assert compared == {feature.id: [] for feature in features} | {
        two.id: ["cuda_graphs", "dynamic"],
        one.id: ["combo_kernels"],
        none.id: [],
    }
    for trial, default in zip((*features, *trials), (two, two, one, None, None, None), strict=True):
        assert runs[trial.id].default_draft is (runs[default.id] if default else None)


def test_records_of_the_sweep_say_how_much_memory_its_trials_need(
    trials: list[Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that cannot be read says nothing."""
    measured, unreadable, other = trials
    process = replace(make_process(), held_bytes=3.0, check_peak_bytes=20.0)
    record = replace(make_record(trial=measured), processes=(process,))
    for trial, text in ((measured, record.dumps()), (unreadable, "{")):
        path = SweepPaths.of("s").trial(trial.label, trial.id).record
        path.parent.mkdir(parents=True)
        path.write_text(text)
    needs = []

    def note(run: TrialRun) -> Steps[None]:
        needs.append([run.slot.known_needs.look_up(one, one.batch_size, True) for one in trials])
        run.finish(status="ok")
        yield from ()

    monkeypatch.setattr(execute_module, "run_trial", note)
    side_by_side = replace(SETTINGS, scheduler=Scheduler(prepare=2))
    list(start([unreadable, other], side_by_side))
    assert needs == [[Need(3, 20), None, None]] * 2


@pytest.mark.parametrize("ends", [5, 2, 0], ids=["all", "interrupted early", "at once"])
def test_trials_of_several_gpus_come_last_and_alone(
    in_empty_folder: Path, monkeypatch: pytest.MonkeyPatch, ends: int
) -> None:
    """Also after an interruption none of them begins."""
    monkeypatch.setattr(device_claim, "LOCK_FOLDERS", (in_empty_folder,))
    monkeypatch.setattr(gpus, "read", lambda _gpu: GpuReading())
    in_empty_folder.chmod(0o1777)
    launched = {"launch": "torchrun --nproc-per-node 2"}
    trials = [
        replace(make_trial(), device="cuda", model=Model("script", "train.py", arguments=arguments))
        for arguments in (launched, {}, {**launched, "args": "--x"}, {"args": "--x"})
    ]
    seen = []

    def finish(run: TrialRun) -> Steps[None]:
        seen.append((run.trial.num_devices, run.slot.device.environment()["CUDA_VISIBLE_DEVICES"]))
        run.finish(status="ok")
        if len(seen) > ends:
            run.stop.set()
            run.finish(status="interrupted")
        yield from ()

    monkeypatch.setattr(execute_module, "run_trial", finish)
    devices = [Device("cuda", Gpu(str(number), f"GPU-{number}", "A GPU")) for number in range(2)]
    shares = tuple(DeviceShare(gpu) for gpu in devices)
    settings = Settings("s", device="cuda")
    list(execute(trials, settings, Placement("2 GPUs", shares)))
    assert {one for one in seen[:2] if one[0] == 1} <= {(1, "0"), (1, "1")}
    assert seen[2:] == [(2, "0,1")] * max(0, min(ends, 3) - 1)


@pytest.mark.parametrize(
    "change",
    [
        {"model": Model("script", "train.py", arguments={"launch": "torchrun --nproc-per-node 2"})},
        {"parallel": "ddp", "parallel_devices": 2},
    ],
    ids=lambda change: next(iter(change)),
)
def test_too_few_gpus_are_said_before_anything_runs(
    change: dict[str, object], in_empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_claim, "LOCK_FOLDERS", (in_empty_folder,))
    monkeypatch.setattr(gpus, "read", lambda _gpu: GpuReading())
    in_empty_folder.chmod(0o1777)
    one = replace(make_trial(), device="cuda")
    shares = (DeviceShare(Device("cuda", Gpu("0", "GPU-0", "A GPU"))),)
    events = execute(
        [one, replace(one, **change)], Settings("s", device="cuda"), Placement("GPU", shares)
    )
    with pytest.raises(ConfigError, match=r"a trial starts 2 processes, .* 1 can be had"):
        next(events)


def test_leftovers_that_cannot_be_removed_are_said(
    trials: list[Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(execute_module, "remove_temporary", refuse)
    with pytest.raises(
        NoSpaceError, match=r"No space left on device.*, then go on with the same command"
    ):
        list(start(trials))


def fail_at(trial: Trial, function: Callable[[Record], Any]) -> Callable[[Record], Any]:
    """The function, which has a bug that shows with one trial."""

    def fail(record: Record) -> Any:
        if record.trial == trial:
            raise ZeroDivisionError("division by zero")
        return function(record)

    return fail


MESSAGE = "sweeper failed: ZeroDivisionError: division by zero"


def test_error_of_sweeper_costs_its_trial_alone_and_keeps_what_was_measured(
    trials: list[Trial], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(draft, "derive", fail_at(trials[1], derive))
    records = [event.record for event in start(trials) if isinstance(event, Finished)]
    assert [record.status for record in records] == ["ok", "crashed", "ok"]
    crashed = read_record(trials[1])
    assert crashed == records[1]
    assert (crashed.phase, crashed.message) == ("starting", MESSAGE)
    assert len(crashed.processes) == 1
    assert "in fail" in capsys.readouterr().err, "the traceback shows where"
    assert run_here(trials[0]).record.status == "ok"


def test_error_before_the_first_process_is_a_crashed_record(
    trials: list[Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        raise RuntimeError(path.name)

    monkeypatch.setattr(trial_runner, "read_attempts", fail)
    assert run_here(trials[0]).record == read_record(trials[0])
    assert read_record(trials[0]).message == "sweeper failed: RuntimeError: record.json"


def test_record_that_cannot_be_turned_into_text_costs_its_trial_alone(
    trials: list[Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Record, "dumps", fail_at(trials[0], Record.dumps))
    records = [event.record for event in start(trials) if isinstance(event, Finished)]
    assert [record.status for record in records] == ["crashed", "ok", "ok"]
    assert len(list(Path("runs/s").glob("*/record.json"))) == 2


def test_error_in_reading_the_record_of_a_job_costs_its_trial_alone(
    trials: list[Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = [event.record for event in start(trials) if isinstance(event, Finished)]
    monkeypatch.setattr(execute_module, "derive", fail_at(trials[0], derive))
    overrides = {trial.id: () for trial in trials}
    launcher = make_cluster_launcher("slurm", lambda _overrides: None, overrides)
    monkeypatch.setattr(execute_module, "time", SimpleNamespace(time=lambda: 0.0))
    events = launcher.run(trials, SETTINGS, Placement("slurm"))
    ended = [event for event in events if isinstance(event, Finished)]
    assert [event.record.status for event in ended] == ["crashed", "ok", "ok"]
    assert (ended[0].record.message, ended[0].result) == (MESSAGE, Result(0, 0))
    assert ended[0].record.processes == measured[0].processes
    assert read_record(trials[0]) == measured[0], "the job's own record stays"
