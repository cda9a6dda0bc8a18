"""Operations that fail in turn: the n-th open, write, fsync, rename or fork of a driver, a worker
and `sync`.

SQLite tests itself so (https://sqlite.org/testing.html, section 3). The disk is full, or file
handles or memory run short, for a moment or from then on.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import fake_python
import pytest
from checkout import SEARCH_PATH
from injector import ERRORS, Command, Fault
from real_sweeps import FAST, custom
from records import make_record, write_sweep

from sweeper.core.files import write_text
from sweeper.core.record import Record
from sweeper.core.system.exit_codes import BAD_INPUT, INTERRUPTED, NOT_OK, OK

SWEEP = "night"
WITHIN_S = 10.0  # for processes to end
ATTACKED = ("driver", "worker", "sync")
SAMPLE = {
    "driver": [
        Fault("open", 1, errno.EMFILE, lasting=True),
        Fault("list", 3, errno.EACCES),  # glob takes such a folder for an empty one
    ],
    "sync": [Fault("write", 3, errno.ENOSPC, lasting=True)],
}


def on_one_machine(process: str, *values: object, slow: bool = False) -> object:
    """A parameter of a test; those of one process share its server, which takes seconds to
    start.
    """
    marks = [
        pytest.mark.xdist_group(f"injector of {process}"),
        *([pytest.mark.slow] if slow else []),
    ]
    return pytest.param(process, *values, marks=marks)


@dataclass(frozen=True)
class Attack:
    """A command, and the folder that each run begins with, whose records have to stay."""

    command: Command
    template: Path
    num_records: int  # at the end

    def fail(self, fault: Fault) -> bool:
        """Run the command with a fault and again without one; whether the fault was reached."""
        folder = self.template.with_name(str(fault))
        shutil.copytree(self.template, folder)
        before = ok_records(folder)
        ended = self.command.run(folder, fault)
        assert ended.code in (OK, NOT_OK, BAD_INPUT, INTERRUPTED), ended
        for word in ("Traceback", "Exception ignored", "Exception in thread"):
            assert word not in ended.output, ended
        after = ok_records(folder)
        assert before <= after, "a record was lost"
        assert len(after) >= ended.output.count(": 2.00x? ("), "what was shown is not kept"
        wait_for_processes(folder)
        again = self.command.run(folder)
        assert again.code == OK, (ended, again)
        end = ok_records(folder)
        assert after <= end, "a record was lost or measured again"
        assert len(list((folder / "runs" / SWEEP).glob("*/record.json"))) == self.num_records
        assert temporary_files(folder) == []
        wait_for_processes(folder)
        shutil.rmtree(folder)
        return ended.reached


def ok_records(folder: Path) -> set[bytes]:
    """The records that say ok, also those that were moved aside; reading all of them is a check of
    its own.
    """
    found = (folder / "runs" / SWEEP).glob("*/record.json*")
    return {path.read_bytes() for path in found if Record.read(path).status == "ok"}


def temporary_files(folder: Path) -> list[Path]:
    hidden = [path for path in folder.rglob(".*") if path.name != ".lock"]
    return [*hidden, *(folder / "tmp").iterdir(), *(folder / "runs").rglob("cache-*")]


def wait_for_processes(folder: Path) -> None:
    """Until no process has this working directory; the reaper ends a moment after its driver."""
    deadline = time.monotonic() + WITHIN_S
    while found := list(find_processes(folder)):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def find_processes(folder: Path) -> Iterator[tuple[str, bytes]]:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "cwd") == str(folder):  # noqa: PTH115  # the kernel may add ` (deleted)`
                yield process.name, (process / "cmdline").read_bytes()
        except OSError:  # it has just ended, is a zombie, or somebody else's
            continue


def attack_sweep(process: str, folder: Path, grid: list[str], num_trials: int) -> Attack:
    """A sweep that has measured one trial already, if there are several."""
    template, sizes = folder / "template", ",".join(str(size + 4) for size in range(num_trials))
    for new in (template, folder / "warm"):
        new.mkdir()
    arguments = [
        "-m",
        *grid,
        "device=cpu",
        f"sweep={SWEEP}",
        "tracking=none",
        f"batch_size={sizes}",
    ]
    attack = Attack(
        Command(SEARCH_PATH, process, folder / "warm", *arguments), template, num_trials
    )
    if num_trials == 1:
        return attack
    ended = attack.command.run(template)
    assert ended.code == OK, ended
    _first, *others = sorted((template / "runs" / SWEEP).glob("*/record.json"))
    for path in others:
        shutil.rmtree(path.parent)
    shutil.rmtree(template / "runs" / SWEEP / "report")
    return attack


@pytest.fixture(scope="module")
def attack(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Callable[[str], Attack]]:
    """The attack on a process by its name."""
    made: dict[str, Attack] = {}

    def make(process: str) -> Attack:
        folder = tmp_path_factory.mktemp(process)
        if process == "driver":
            python = fake_python.write(folder / "python")
            return attack_sweep(
                process, folder, ["model=resnet18", f"worker.python={python}", "measure=quick"], 3
            )
        if process == "worker":
            return attack_sweep(process, folder, [*custom("mlp"), *FAST, "inspect=true"], 1)
        template = folder / "template"
        write_sweep(template / "runs", [make_record("vgg16")], SWEEP)
        write_text(template / "runs" / SWEEP / "report/report.md", "a report")
        for copy in (template / "runs", folder / "warm"):
            copy.mkdir(exist_ok=True)
            shutil.copy(request.getfixturevalue("empty_database"), copy / "mlflow.db")
        return Attack(Command(SEARCH_PATH, process, folder / "warm", SWEEP), template, 1)

    def get(process: str) -> Attack:
        if process not in made:
            made[process] = make(process)
        return made[process]

    yield get
    for one in made.values():
        one.command.close()


@pytest.mark.parametrize(
    ("process", "fault"),
    [on_one_machine(name, fault) for name, faults in SAMPLE.items() for fault in faults],
    ids=str,
)
def test_survives_a_failure(attack: Callable[[str], Attack], process: str, fault: Fault) -> None:
    assert attack(process).fail(fault), "there are fewer such operations"


@pytest.mark.parametrize(
    ("process", "kind", "lasting"),
    [
        on_one_machine(name, kind, lasting, slow=True)
        for name, kind, lasting in itertools.product(ATTACKED, ERRORS, [False, True])
    ],
)
def test_survives_every_failure(
    attack: Callable[[str], Attack], process: str, kind: str, lasting: bool
) -> None:
    for number in itertools.count(1):
        error = ERRORS[kind][(number + lasting) % len(ERRORS[kind])]
        if not attack(process).fail(Fault(kind, number, error, lasting)):
            break
