"""The runner against real processes that stand in for a worker."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from processes import assert_gone
from stand_in_worker import GOOD, folder, set_when_there, wait_for

from sweeper.core.files import write_text
from sweeper.core.protocol import Job
from sweeper.core.record import SCHEMA_VERSION, Attempt, Inspection, Record
from sweeper.core.system.gpus import Device, Gpu
from sweeper.core.trial import Trial
from sweeper.execution import trial_runner
from sweeper.execution.device_lease import DeviceLease
from sweeper.execution.memory_budget import NOTHING, MemoryBudget, Need, Reservation
from sweeper.execution.placement import DeviceSlot


def test_processes_of_a_draw_share_a_private_cache_that_is_gone_afterwards(
    run, trial: Trial
) -> None:
    record = run(
        """
        os.makedirs(os.environ["TRITON_CACHE_DIR"], exist_ok=True)
        print(os.environ["TRITON_CACHE_DIR"], flush=True)
        say(Outcome("ok", process=process()))
        """,
        processes=2,
        draws=2,
    )
    assert record.status == "ok"
    assert [(p.index, p.draw, p.cold) for p in record.processes] == [
        (0, 0, True),
        (1, 0, False),
        (2, 1, True),
        (3, 1, False),
    ]
    logs = [(folder(trial) / f"worker-{index}.log").read_text() for index in range(4)]
    assert [log.strip().split("cache-")[1] for log in logs] == [
        "0/triton",
        "0/triton",
        "1/triton",
        "1/triton",
    ]
    assert not list(folder(trial).glob("cache-*"))


def test_worker_is_told_the_trial_and_the_record_names_no_log_when_all_is_well(
    run, trial: Trial
) -> None:
    record = run(GOOD)
    assert Job.loads((folder(trial) / "trial.json").read_text()).trial == trial
    assert json.loads((folder(trial) / "trial.json").read_text())["trial_id"] == trial.id
    assert (record.status, record.log, record.message) == ("ok", None, None)
    assert "single_process" in record.flags


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("rounds=()", "it is ok and has no round that counts"),
        ("steps_per_block=None", "it is ok and has no round that counts"),
        ("rounds=(Round('AB', 1.0, 1.0, 'recompiled'),)", "it is ok and has no round that counts"),
        (
            "rounds=(Round('AB', 1e6, 1e3),), steps_per_block=10**6",
            "took 1.001e+06 s, and it lived",
        ),
        ("first_steps_s=(70.0,)", "its first steps and its rounds together took 70.00"),
        ("compile_s=900.0", "its compiling took 900 s"),
        ("waited_s=1e6", "its waiting took 1e+06 s"),
        ("time_to_first_step_s=3600.0", "the way to its first step took 3600 s"),
        ("phases_s={'measuring': 1e5}", "its phase measuring took 100000 s"),
        ("steps_per_block=10**6", "a step of eager took 2e-09 s, and no step takes less"),
        ("rounds=(Round('AB', 0.002, 0.001),) * 2", "do not begin with each arm in turn"),
        ("rounds=(Round('AB', 1e-3, 1e-3), Round('BA', 1e-3, 1e-3)) * 6", "12 of its rounds count"),
    ],
)
def test_claim_that_cannot_be_true_is_a_crashed_record(run, change: str, why: str) -> None:
    record = run(f"say(Outcome('ok', process=replace(process(), {change})))")
    assert (record.status, record.processes) == ("crashed", ())
    assert str(record.message).startswith("the worker's answer cannot be true: ")
    assert why in str(record.message)


def test_ok_without_a_process_is_a_crashed_record(run) -> None:
    assert run("say(Outcome('ok'))").status == "crashed"


def test_failure_in_a_later_process_keeps_what_the_first_measured(run) -> None:
    record = run(
        """
        if a.index == 1:
            say(Outcome("oom", "measuring", "no memory", process()))
        else:
            say(Outcome("ok", process=process()))
        """,
        processes=3,
    )
    assert (record.status, record.message, len(record.processes)) == ("oom", "no memory", 2)
    assert record.log == "worker-1.log"


SIZE = 'size = json.load(open(a.trial))["trial"]["batch_size"]; '
FITS_NONE = SIZE + 'say(Outcome("oom", "eager", f"no room for {size}"))'
FITS_TWO = (
    SIZE
    + 'say(Outcome("ok", process=process()) if size <= 2 else Outcome("oom", "eager", f"no room '
    'for {size}"))'
)


def test_out_of_memory_halves_the_batch_of_both_arms(run, trial: Trial) -> None:
    record = run(FITS_TWO, processes=2)
    assert trial.batch_size == 4
    assert (record.status, record.batch_size, record.smaller_batch_size) == ("ok", 2, 2)
    assert (record.trial, record.trial_id) == (trial, trial.id)
    assert "smaller_batch" in record.flags
    assert len(record.processes) == 2


def test_without_back_off_the_trial_is_out_of_memory(run) -> None:
    record = run(FITS_TWO, back_off=False)
    assert (record.status, record.message, record.batch_size) == ("oom", "no room for 4", 4)


def test_what_fits_in_no_batch_is_out_of_memory(run) -> None:
    record = run(FITS_NONE)
    assert (record.status, record.message, record.batch_size) == ("oom", "no room for 1", 1)


def test_record_says_how_long_the_trial_took(run) -> None:
    assert run(GOOD).wall_s > 0


def test_out_of_memory_beside_others_is_tried_again_alone(
    run, in_empty_folder: Path, trial: Trial
) -> None:
    """A neighbour has memory of the device until it sees that the trial has run out of memory."""
    slot, inside = DeviceSlot(Device("cuda")), threading.Event()

    def stay() -> None:
        with slot.memory.reserve(None, threading.Event()):
            inside.set()
            while not (in_empty_folder / "failed").exists():
                time.sleep(0.05)

    threading.Thread(target=stay).start()
    assert inside.wait(60)
    record = run(
        """
        if os.path.exists("failed"):
            say(Outcome("ok", process=process()))
        else:
            open("failed", "w").close(); say(Outcome("oom", "eager", "no room"))
        """,
        slot=slot,
    )
    assert (record.status, record.smaller_batch_size) == ("ok", None)


CODE = """
known = ask().known
print(known.checked, known.load_checked, known.steps_per_block, flush=True)
code = "abc" if a.index < 3 else "other"
checked = Accuracy("float64", True, worst="loss") if known.checked != f"{code}-None" else None
say(Outcome("ok", process=replace(process(), code_fingerprint=code, accuracy=checked)))
"""


def test_verdict_and_block_length_are_handed_on_with_the_code(run, trial: Trial) -> None:
    record = run(CODE, processes=4)
    assert [item.accuracy.of_process for item in record.processes] == [None, 0, 0, None]
    assert all(item.accuracy.passed and item.accuracy.worst == "loss" for item in record.processes)
    assert "accuracy_unverified" not in record.flags
    told = [(folder(trial) / f"worker-{index}.log").read_text().split() for index in range(3)]
    assert [words[:2] for words in told] == [
        ["None", "False"],
        ["abc-None", "False"],
        ["abc-None", "True"],
    ]
    assert [words[2] for words in told] == ["None", "2", "2"]


GPU_SLOT = DeviceSlot(Device("cuda", Gpu("0", "GPU-0", "A GPU")))
AHEAD = """
open(f"own-{a.index}", "w").write(str(os.getpid()))
os.rename(f"own-{a.index}", f"started-{a.index}")  # with its text, however soon it is ended
known = ask().known
def wait(name):
    while not os.path.exists(name): time.sleep(0.01)
"""


def test_on_a_gpu_the_next_worker_starts_while_one_compiles_and_waits_to_be_heard(
    run, in_empty_folder: Path
) -> None:
    phases = []
    body = (
        AHEAD
        + """
if a.index == 0:
    say(Phase("compiling")); wait("started-1"); time.sleep(0.2)
assert known.steps_per_block == (None, 2, 2)[a.index]
say(Phase("compiling")); say(Outcome("ok", process=process()))
"""
    )
    record = run(body, slot=GPU_SLOT, processes=3, on_phase=phases.append)
    assert record.status == "ok", record.message
    assert [item.process for item in phases if item.phase == "compiling"] == [0, 0, 1, 2]
    assert in_empty_folder.joinpath("started-2").exists()


@pytest.mark.parametrize("slot", [GPU_SLOT, DeviceSlot(Device("cpu"))], ids=["GPU", "CPU"])
def test_a_worker_that_was_started_ahead_ends_with_a_trial_that_needs_it_no_more(
    run, in_empty_folder: Path, slot: DeviceSlot
) -> None:
    body = (
        AHEAD
        + """
say(Phase("compiling"))
if os.environ["CUDA_VISIBLE_DEVICES"]: wait("started-1")
say(Outcome("oom", "compiling", "no memory"))
"""
    )
    assert run(body, slot=slot, processes=2).status == "oom"
    started = in_empty_folder.joinpath("started-1")
    assert started.exists() is (slot is GPU_SLOT)
    if started.exists():
        assert_gone(int(started.read_text()))


def test_a_trial_reserves_what_its_first_process_needed(run, trial: Trial) -> None:
    needs, shared, settled = [], [], []

    class NotedLease(DeviceLease):
        def settle(self) -> None:
            settled.append(len(memory._granted))
            super().settle()

    class Noted(MemoryBudget):
        def reserve(self, need: Need | None, stop: threading.Event) -> Any:
            needs.append(need)
            return super().reserve(need, stop)

        def share(self, own: Reservation) -> bool:
            shared.append(own.need)
            return super().share(own)

    body = """
ask("shared")
held = 5.0 if a.cold else 2.0
say(Outcome("ok", process=replace(process(), cold=a.cold, held_bytes=held, check_peak_bytes=9.0)))
"""
    memory = Noted()
    slot = DeviceSlot(Device("cpu"), lease=NotedLease(memory=memory), memory=memory)
    run(body, slot=slot, processes=3, inspect=True)
    assert needs == [None, Need(5.0, 9.0), Need(2.0, 9.0), Need(5.0, 9.0)], "the last one inspects"
    assert shared == [need or NOTHING for need in needs]
    assert settled == [0, 0, 0, 0], "when the memory was given back"


def test_each_draw_is_checked(run) -> None:
    record = run(CODE, processes=1, draws=2)
    assert [item.accuracy.of_process for item in record.processes] == [None, None]


INSPECTS = """
if a.inspect:
    print(ask().known.timed, os.environ["TORCHINDUCTOR_CACHE_DIR"], flush=True)
    os.makedirs(a.inspect); open(a.inspect + "/summary.md", "w").write(open("order").read())
    say(Outcome("ok", process=replace(process(), code_fingerprint="abc"))); sys.exit()
open("order", "a").write(f"process {a.index}\\n")
"""
FOUND = 'say(Outcome("ok", process=replace(process(), code_fingerprint="abc")))'


def test_inspection_follows_the_timed_processes_in_a_cache_of_its_own(run, trial: Trial) -> None:
    plain, record = run(FOUND, processes=2), run(INSPECTS + FOUND, processes=2, inspect=True)
    assert record.inspection == Inspection("inspect", None, "abc")
    assert (folder(trial) / "inspect" / "summary.md").read_text() == "process 0\nprocess 1\n"
    assert replace(record, inspection=None, wall_s=None) == replace(plain, wall_s=None)
    told, cache = (folder(trial) / "worker-inspect.log").read_text().split()
    assert (told, Path(cache).parent.name) == ("abc", "cache-inspect")
    assert not list(folder(trial).glob("cache-*"))


def test_inspection_of_an_earlier_run_goes_with_its_record(run, trial: Trial) -> None:
    assert run(INSPECTS + FOUND, inspect=True).inspection
    assert run(FOUND).inspection is None
    assert not (folder(trial) / "inspect").exists()


@pytest.mark.parametrize(
    ("body", "missing"),
    [
        (
            "os.kill(os.getpid(), signal.SIGSEGV)",
            "crashed while compiling: the worker was killed by SIGSEGV",
        ),
        (
            "time.sleep(600)",
            "timeout while compiling: still compiling after measure.phase_timeouts_s.compiling=2",
        ),
        (
            'say(Outcome("oom", "compiling", "no memory")); sys.exit()',
            "oom while compiling: no memory",
        ),
    ],
    ids=["dies", "hangs", "fails"],
)
def test_inspection_that_fails_is_said_and_costs_the_trial_nothing(
    run, body: str, missing: str
) -> None:
    limits = {"compiling": 2.0}  # a phase that the timed process has not
    record = run(
        f'if a.inspect: say(Phase("compiling")); {body}\n{FOUND}',
        inspect=True,
        phase_timeouts_s=limits,
    )
    assert (record.status, record.message, record.log, len(record.processes)) == (
        "ok",
        None,
        None,
        1,
    )
    assert record.inspection == Inspection(missing=missing)


@pytest.mark.parametrize(
    ("status", "inspected"),
    [
        ("compile_error", True),
        ("accuracy_mismatch", True),
        ("not_compiled", True),
        ("eager_error", False),
    ],
)
def test_inspection_is_for_trials_in_which_the_compiler_was_reached(
    run, status: str, inspected: bool
) -> None:
    record = run(f'{INSPECTS}say(Outcome("{status}", "compiling", "no"))', inspect=True)
    assert (record.status, record.message, record.log) == (status, "no", "worker-0.log")
    assert (record.inspection is not None) == inspected


WRONG = """
check = Accuracy("float64", False, worst="gradient of fc.weight", compiled_error=0.5, bound=0.1)
wrong = replace(process(), code_fingerprint="abc", accuracy=check)
say(Outcome("accuracy_mismatch", "checking", "gradient of fc.weight is off by 0.5", wrong))
"""
ATTEMPT = Attempt(
    "accuracy_mismatch",
    "checking",
    "gradient of fc.weight is off by 0.5",
    "gradient of fc.weight",
    ("abc-None",),
)
CRASH = "say(Phase('compiling')); os.kill(os.getpid(), signal.SIGKILL)"


def put_on_disk(record: Record) -> None:
    write_text(folder(record.trial) / "record.json", record.dumps())


def right(code: str) -> str:
    check = 'Accuracy("float64", True)'
    return (
        f'say(Outcome("ok", process=replace(process(), code_fingerprint="{code}", '
        f"accuracy={check})))"
    )


@pytest.mark.parametrize(("code", "unverified"), [("abc", True), ("other", False)])
def test_earlier_wrong_result_stays_as_an_attempt_and_leaves_its_code_unverified(
    run, code: str, unverified: bool
) -> None:
    put_on_disk(run(WRONG))
    record = run(right(code))
    assert (record.status, record.attempts) == ("ok", (ATTEMPT,))
    assert "failed_before" in record.flags
    assert ("accuracy_unverified" in record.flags) is unverified
    put_on_disk(record)
    again = run(right(code))
    assert (again.attempts, again.flags) == (record.attempts, record.flags), (
        "an ok record hands them on"
    )


def test_attempts_stand_in_the_order_in_which_they_were_made(run) -> None:
    put_on_disk(run(WRONG))
    put_on_disk(run(CRASH))
    attempts = run(GOOD).attempts
    assert attempts[0] == ATTEMPT
    assert (attempts[1].status, attempts[1].phase, attempts[1].artifacts) == (
        "crashed",
        "compiling",
        (),
    )
    assert "SIGKILL" in str(attempts[1].message)


@pytest.mark.parametrize("status", ["ok", "interrupted", "unavailable"])
def test_records_without_a_failure_are_no_attempts_but_hand_on_their_own(run, status: str) -> None:
    earlier = run(f'say(Outcome("{status}", "starting", "no", process()))')
    put_on_disk(earlier)
    assert run(right("abc")).attempts == ()
    put_on_disk(replace(earlier, attempts=(ATTEMPT,)))
    assert run(right("abc")).attempts == (ATTEMPT,)


def test_interrupted_record_keeps_the_attempts(run) -> None:
    put_on_disk(run(WRONG))
    stop = threading.Event()
    stop.set()
    record = run(GOOD, stop=stop)
    assert (record.status, record.attempts) == ("interrupted", (ATTEMPT,))


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:100],
        lambda text: text.replace(f": {SCHEMA_VERSION}", ": 99", 1),
        lambda _: "[" * 9999,
    ],
)
def test_earlier_record_that_cannot_be_read_is_no_attempt(
    run, trial: Trial, change: Callable[[str], str]
) -> None:
    write_text(folder(trial) / "record.json", change(run(WRONG).dumps()))
    record = run(right("abc"))
    assert (record.status, record.attempts, record.flags) == ("ok", (), run(right("abc")).flags)


def test_stop_in_an_inspection_ends_it_and_keeps_the_record(run, in_empty_folder: Path) -> None:
    stop = set_when_there(in_empty_folder / "ready")
    record = run(
        f"if a.inspect: open('ready', 'w').close(); time.sleep(600)\n{FOUND}",
        stop=stop,
        inspect=True,
    )
    assert record.status == "ok"
    assert record.inspection == Inspection(
        missing="interrupted while starting: the sweep was interrupted"
    )


def test_stop_between_processes_starts_no_other(run) -> None:
    stop = threading.Event()
    stop.set()
    record = run(GOOD, stop=stop)
    assert (record.status, record.phase, record.processes) == ("interrupted", "starting", ())


@pytest.mark.parametrize(
    ("speedups", "processes", "flagged"),
    [("2.0 2.001", 5, False), ("2.0 3.0", 7, True)],
    ids=["narrow at once", "never narrow"],
)
def test_target_asks_for_processes_until_the_interval_is_narrow(
    run, monkeypatch: pytest.MonkeyPatch, speedups: str, processes: int, flagged: bool
) -> None:
    monkeypatch.setenv("SPEEDUPS", speedups)
    record = run(GOOD, processes=3, target=0.01, max_processes=7)
    assert len(record.processes) == processes
    assert ("unresolved" in record.flags) is flagged
    assert {process.draw for process in record.processes} == {0}
    assert [process.cold for process in record.processes].count(True) == 1


JUDGED = """\
say(Outcome("ok", process=replace(process(), accuracy=Accuracy("float64", {passed}))))
"""


@pytest.mark.parametrize(
    ("speedups", "passed", "processes"),
    [
        ("2.0 2.001", True, 2),
        ("0.8 0.801", True, 2),
        ("1.2 1.8", True, 5),  # each above 1.05, but two lie 40 % apart
        ("1.1 1.101", True, 4),  # two processes are sure beyond 10 % of 1.05, three beyond 5 %
        ("1.0 1.1", True, 6),
        ("1.0 1.1", None, 2),
    ],
    ids=["compile", "eager", "scatters", "near the turn", "at the turn", "not verified"],
)
def test_processes_are_added_until_the_answer_is_sure(
    run, monkeypatch: pytest.MonkeyPatch, speedups: str, passed: bool | None, processes: int
) -> None:
    monkeypatch.setenv("SPEEDUPS", speedups)
    record = run(JUDGED.format(passed=passed), processes=None, max_processes=6)
    assert len(record.processes) == processes
    assert {process.draw for process in record.processes} == {0}
    assert [process.cold for process in record.processes].count(True) == 1


@pytest.mark.parametrize("status", ["timeout", "interrupted"])
def test_worker_that_is_busy_is_given_a_moment_to_write_its_stack(
    run, trial: Trial, monkeypatch: pytest.MonkeyPatch, in_empty_folder: Path, status: str
) -> None:
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        deadline = time.monotonic() + 60
        while "most recent call first" not in (folder(trial) / "worker-0.log").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    monkeypatch.setattr(
        trial_runner, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep)
    )
    stop = (
        set_when_there(in_empty_folder / "ready") if status == "interrupted" else threading.Event()
    )
    body = """
        import faulthandler; faulthandler.register(signal.SIGUSR1); say(Phase('compiling'))
        open('ready', 'w').close(); time.sleep(600)
        """
    record = run(
        body, phase_timeouts_s={"compiling": 60.0 if status == "interrupted" else 0.5}, stop=stop
    )
    assert (record.status, record.phase, pauses) == (status, "compiling", [1.0])


def test_time_of_a_trial_is_no_more_than_passed(run) -> None:
    begin = time.monotonic()
    took_s = run(GOOD).wall_s
    assert 0 < took_s <= time.monotonic() - begin


def share_until(log: Path) -> DeviceSlot:
    """Give a slot of a device on which another trial has memory until there is a file."""
    slot, inside = DeviceSlot(Device("cuda")), threading.Event()

    def stay() -> None:
        with slot.memory.reserve(None, threading.Event()):
            inside.set()
            wait_for(log)

    threading.Thread(target=stay).start()
    assert inside.wait(60)
    return slot


def test_memory_that_ran_short_beside_others_is_tried_again_alone(
    run, in_empty_folder: Path
) -> None:
    """An allocation that failed and was tried again: what was measured is no good. Alone, it is
    what it is.
    """
    slot = share_until(in_empty_folder / "log")
    body = """
        open("log", "a").write("x")
        say(Outcome("ok", process=replace(process(), failed_allocations=1)))
        """
    assert run(body, slot=slot).status == "ok"
    assert (in_empty_folder / "log").read_text() == "xx"


def test_trial_that_has_enough_memory_beside_others_runs_once(run, in_empty_folder: Path) -> None:
    slot = share_until(in_empty_folder / "log")
    assert run('open("log", "a").write("x"); ' + GOOD, slot=slot).status == "ok"
    assert (in_empty_folder / "log").read_text() == "x"


def test_each_process_is_told_the_block_length_of_the_first(run, trial: Trial) -> None:
    body = (
        "print(ask().known.steps_per_block); say(Outcome('ok', process=replace(process(), "
        "steps_per_block=5 + a.index)))"
    )
    run(body, processes=3)
    assert [(folder(trial) / f"worker-{index}.log").read_text() for index in range(3)] == [
        "None\n",
        "5\n",
        "5\n",
    ]


CHECKED = """
check = Accuracy("float64", True, worst="loss") if a.index == 0 else None
"""


@pytest.mark.parametrize(
    ("body", "copied"),
    [
        ('say(Outcome("ok", process=replace(process(), code_fingerprint="a", '
        'accuracy=check)))', True),
        ('say(Outcome("ok", process=replace(process(), code_fingerprint=str(a.index), '
        'accuracy=check)))', False),
        ('check = check or Accuracy("float64", True, worst="own")\n'
         'say(Outcome("ok", process=replace(process(), code_fingerprint="a", '
         'accuracy=check)))', False),
    ],
    ids=["same code", "other code", "checked itself"],
)  # fmt: skip
def test_verdict_is_copied_to_what_was_timed_with_the_same_code_and_has_none(
    run, body: str, copied: bool
) -> None:
    _, second = run(CHECKED + body, processes=2).processes
    assert (second.accuracy is not None and second.accuracy.of_process == 0) is copied


def test_worker_that_dies_after_a_verdict_is_a_crashed_record(run) -> None:
    record = run(f"{CHECKED}if a.index == 1: os._exit(3)\n{right('a')}", processes=2)
    assert (record.status, len(record.processes)) == ("crashed", 1)


def test_eager_trials_are_not_inspected(run, trial: Trial) -> None:
    assert run(INSPECTS + FOUND, inspect=True, of=replace(trial, mode="eager")).inspection is None
    assert run(INSPECTS + FOUND, inspect=True).inspection
