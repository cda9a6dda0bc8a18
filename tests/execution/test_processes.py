"""Process groups against real processes."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from pathlib import Path

import pytest
from processes import assert_gone

from sweeper.core.files import read_last_lines
from sweeper.execution.processes import (
    describe_failed_start,
    expose_package,
    make_cache_variables,
    make_command,
    start_group,
    wait_for_end,
)

SLEEPS = "import time; time.sleep(600)"
LEAVES_A_CHILD = (
    "import subprocess, sys, time\n"
    f"print(subprocess.Popen([sys.executable, '-c', {SLEEPS!r}]).pid, flush=True)\n"
    "while '--ends' not in sys.argv: time.sleep(1)"
)


@pytest.mark.parametrize(("arguments", "code"), [([], None), (["--ends"], 0)], ids=["limit", "end"])
def test_children_end_with_the_limit_and_with_the_program(
    tmp_path: Path, arguments: list[str], code: int | None
) -> None:
    log = tmp_path / "log"
    process = start_group([sys.executable, "-c", LEAVES_A_CHILD, *arguments], {}, log)
    while not read_last_lines(log.parent, log.name, 1):
        assert process.poll() in (None, 0)
    assert wait_for_end(process, limit_s=60 if arguments else 0) == code
    assert_gone(int(read_last_lines(log.parent, log.name, 1)[0]))


def test_environment_is_added_and_the_output_goes_to_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    program = (
        "import os, sys; print(os.environ['MINE'], os.environ.get('HYDRA_FULL_ERROR')); "
        "sys.exit('no\\n')"
    )
    process = start_group([sys.executable, "-c", program], {"MINE": "here"}, tmp_path / "log")
    assert wait_for_end(process, 60) == 1
    assert sorted(read_last_lines(tmp_path, "log", 4)) == ["here None", "no"]
    assert read_last_lines(tmp_path, "log", 1) in (["here None"], ["no"])


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            OSError(errno.EMFILE, "Too many open files"),
            "Too many open files; raise the limit of open files (ulimit -n)",
        ),
        (OSError(errno.EPERM, "Not permitted"), "Not permitted; see to its rights"),
    ],
)
def test_what_to_do_where_no_process_can_be_started(error: OSError, text: str) -> None:
    assert describe_failed_start(error) == f"no process can be started: {text}"


def test_another_interpreter_is_shown_the_package_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_command("/other/python", "sweeper.worker") == [
        "/other/python",
        "-m",
        "sweeper.worker",
    ]
    assert make_command(None, "x") == [sys.executable, "-m", "x"]
    with expose_package(None) as variables:
        assert variables == {}
    for before in ("", "/a:/b"):
        monkeypatch.setenv("PYTHONPATH", before)
        with expose_package("/other/python") as variables:
            folder, *rest = variables["PYTHONPATH"].split(os.pathsep)
            assert rest == ["/a", "/b"][: 2 * bool(before)]
            assert os.listdir(folder) == ["sweeper"]  # noqa: PTH208
            assert (Path(folder) / "sweeper" / "execution" / "processes.py").exists()
        assert not Path(folder).exists()


def test_caches_of_a_process_are_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = make_cache_variables(Path("cache-0"))
    assert sorted(Path(path).parent for path in found.values()) == [tmp_path / "cache-0"] * 2


def test_last_lines_are_those_with_text(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"one\n\n two  \n\xff\n\n")
    assert read_last_lines(tmp_path, "log", 2) == [" two", "\ufffd"]
    assert read_last_lines(tmp_path, "log", 9) == ["one", " two", "\ufffd"]


def test_program_that_exceeds_its_limit_has_ended_afterwards(tmp_path: Path) -> None:
    process = start_group([sys.executable, "-c", SLEEPS], {}, tmp_path / "log")
    assert wait_for_end(process, 0.1) is None
    assert process.returncode is not None


def test_folder_that_cannot_be_removed_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with monkeypatch.context() as then, expose_package("/other/python"):
        then.setattr(os, "rmdir", refuse)
        then.setattr(os, "unlink", refuse)
    assert len(list(tmp_path.iterdir())) <= 1


ESCAPES = {
    "session": "subprocess.Popen(SLEEPS, env={}, start_new_session=True)",
    "daemon": "os.fork() or (os.setsid(), os.fork() or os.execve(sys.executable, SLEEPS, {}))",
    "tree": """
if not os.fork():
    os.setsid()
    subprocess.Popen(SLEEPS, env={}, start_new_session=True)
    os.execve(sys.executable, SLEEPS, {})""",
}


@pytest.mark.parametrize("ending", ["", "os._exit(3)", "os.kill(os.getpid(), signal.SIGKILL)"])
@pytest.mark.parametrize("escape", ESCAPES.values(), ids=list(ESCAPES))
def test_nothing_that_clears_its_environment_outlives_a_program(
    tmp_path: Path, escape: str, ending: str
) -> None:
    """Also not what a program started in sessions of their own, and what those started."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    code = f"""
import os, signal, subprocess, sys, time
os.set_inheritable(os.open({str(pipe)!r}, os.O_WRONLY), True)
SLEEPS = [sys.executable, "-ISc", "import time; time.sleep(600)"]
subprocess.Popen = __import__("functools").partial(subprocess.Popen, close_fds=False)
{escape}
{ending}
"""
    try:
        process = start_group([sys.executable, "-ISc", code], {}, tmp_path / "log")
        wait_for_end(process, 60)
        # all that was started holds the other end of the pipe
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)


def test_a_program_of_ours_is_no_orphan(tmp_path: Path) -> None:
    first, second = (
        start_group([sys.executable, "-c", code], {}, tmp_path / f"log-{number}")
        for number, code in enumerate(("", SLEEPS))
    )
    assert wait_for_end(first, 60) == 0
    assert second.poll() is None
    assert wait_for_end(second, 0) is None
