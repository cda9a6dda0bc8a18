"""Commands of sweeper in which the n-th operation of one kind fails, as if the disk were full or
the memory gone.

A `Command` is a server that has imported what takes long and read its command line. Each run is a
fork of it that fails as it is told. Only operations below the run's own folder count, and its
temporary folder is there.

`python injector.py` is the server; `install` makes any other Python process fail.
"""

from __future__ import annotations

import builtins
import errno
import importlib
import inspect
import io
import itertools
import json
import os
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, NamedTuple

PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
ERRORS = {
    "open": (errno.ENOSPC, errno.EMFILE, errno.EACCES, errno.EIO),
    "list": (errno.EMFILE, errno.EIO, errno.EACCES),
    "write": (errno.ENOSPC, errno.EIO),
    "fsync": (errno.EIO, errno.ENOSPC),
    "rename": (errno.ENOSPC, errno.EACCES, errno.EIO),
    "mkdir": (errno.ENOSPC, errno.EACCES),
    "fork": (errno.ENOMEM, errno.EAGAIN, errno.EMFILE),
}
EVENTS = {  # https://docs.python.org/3/library/audit_events.html
    "open": "open",
    "os.listdir": "list",
    "os.scandir": "list",
    "os.rename": "rename",
    "os.link": "rename",
    "os.mkdir": "mkdir",
    "subprocess.Popen": "fork",
    "os.fork": "fork",
}


class Fault(NamedTuple):
    """The `number`-th operation of a kind fails with `error`; with `lasting`, so do all later
    ones.
    """

    kind: str
    number: int
    error: int
    lasting: bool = False

    def __str__(self) -> str:
        name = f"{self.kind}-{self.number}-{errno.errorcode[self.error]}"
        return f"{name}-lasting" if self.lasting else name


_WORKERS: list[tuple[Path, Fault | None]] = []  # what fails in the workers of this process


class Ended(NamedTuple):
    """How a command has ended; `reached` says whether its fault has happened."""

    code: int
    output: str
    reached: bool


class Command:
    """A command of sweeper, which runs again and again in folders of its own, each time as a
    process of its own.
    """

    def __init__(self, search_path: str, attacked: str, warm: Path, *arguments: str) -> None:
        """`attacked` is `driver` or `worker`, with the arguments of a sweep, or `sync`, with its
        own.

        `warm` is a folder where the server does for the first time what takes longer then.
        """
        self._server = subprocess.Popen(
            [sys.executable, __file__, attacked, str(warm), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": search_path, "OMP_NUM_THREADS": "1"},
            text=True,
        )

    def run(self, folder: Path, fault: Fault | None = None) -> Ended:
        assert self._server.stdin
        assert self._server.stdout
        (folder / "tmp").mkdir(exist_ok=True)
        (folder / "output").write_text("")
        (folder / "fired").write_text("")
        self._server.stdin.write(json.dumps([str(folder), fault]) + "\n")
        self._server.stdin.flush()
        code = os.waitstatus_to_exitcode(int(self._server.stdout.readline()))
        reached = bool((folder / "fired").read_text())
        return Ended(code, (folder / "output").read_text(), reached)

    def close(self) -> None:
        assert self._server.stdin
        assert self._server.stdout
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()


def install(folder: Path, fault: Fault | None) -> None:
    """Have this process fail from now on."""
    if fault is None:
        return
    counting, top = threading.Lock(), f"{folder.absolute()}/"
    fired, write = os.open(folder / "fired", os.O_APPEND | os.O_WRONLY), os.write
    seen = 0

    def is_ours(path: Any) -> bool:
        try:
            if isinstance(path, int):
                path = os.readlink(f"/proc/self/fd/{path}")  # noqa: PTH115  # of a pipe, `pipe:[NUMBER]`
                return path.startswith(top)
            return os.path.abspath(os.fsdecode(path)).startswith(top)  # noqa: PTH100
        except (TypeError, OSError):
            return False

    def count(kind: str, path: Any) -> None:
        nonlocal seen
        if kind != fault.kind or not (kind == "fork" or is_ours(path)):
            return
        with counting:
            seen += 1
            if seen < fault.number or (seen > fault.number and not fault.lasting):
                return
        if seen == fault.number:
            write(fired, b"yes")
        where = os.fsdecode(path) if isinstance(path, (str, Path)) else None
        raise OSError(fault.error, os.strerror(fault.error), where)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in EVENTS and not isinstance(arguments[0] if arguments else None, int):
            count(EVENTS[event], arguments[0] if arguments else None)

    class File(io.FileIO):
        def write(self, data: Any, /) -> int:
            count("write", self.name)
            return super().write(data)

    real_open = builtins.open

    def failing_open(
        file,
        mode="r",
        buffering=-1,
        encoding=None,
        errors=None,
        newline=None,
        closefd=True,
        opener=None,
    ):
        if not set(mode) & set("wxa") or "+" in mode or buffering != -1 or not is_ours(file):
            return real_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        buffered = io.BufferedWriter(File(file, mode.replace("b", ""), closefd, opener))
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)

    def failing(kind: str, real: Any) -> Any:
        def call(handle: int, *arguments: Any) -> Any:
            count(kind, handle)
            return real(handle, *arguments)

        return call

    builtins.open = io.open = failing_open  # type: ignore[assignment]
    os.fsync = failing("fsync", os.fsync)
    for name in ("write", "pwrite", "sendfile"):
        setattr(os, name, failing("write", getattr(os, name)))
    sys.addaudithook(hook)


def _serve(attacked: str, warm: Path, arguments: list[str]) -> None:
    """Prepare the command, and go on with it in a fork for each line of standard input."""
    from sweeper.loading.sources import SweepFolder
    from sweeper.report.build import begin_files, make_report

    begin_files(make_report([SweepFolder(warm)]), warm / "report")()
    if attacked == "sync":
        _sync(warm, arguments)
    else:
        _sweep(attacked, arguments)


def _sync(warm: Path, arguments: list[str]) -> None:
    from sweeper import sync
    from sweeper.core.system.pipes import run_until_closed
    from sweeper.tracking.store import connect

    connect(f"sqlite:///{warm}/mlflow.db", lambda client: client.search_experiments(max_results=1))
    install(*_fork_for_each_line())
    sys.exit(run_until_closed(lambda: sync.main(arguments)))


def _sweep(attacked: str, arguments: list[str]) -> None:
    from sweeper import __main__ as program
    from sweeper.execution import execute
    from sweeper.sweep import hydra_app

    if attacked == "worker":
        _fork_workers()
    execute.WRITE_AGAIN_S = (0.01, 0.01)
    run_sweep = hydra_app.run_sweep

    # Hydra has read the command line, which takes longer than all the rest
    def fork_and_run(*given: Any) -> int:
        folder, fault = _fork_for_each_line()
        if attacked == "driver":
            install(folder, fault)
        else:
            _WORKERS.append((folder, fault))
        return run_sweep(*given)

    hydra_app.run_sweep = fork_and_run
    sys.argv[1:] = arguments
    sys.orig_argv[1:] = ["-m", "sweeper", *arguments]
    sys.exit(program.main())


def _fork_for_each_line() -> tuple[Path, Fault | None]:
    """Return in a fork for each line of standard input, with what it says. This process ends with
    its input.
    """
    assert threading.active_count() == 1, threading.enumerate()
    while line := sys.stdin.readline():
        if not os.fork():
            folder, fault = json.loads(line)
            os.chdir(folder)
            os.environ.update(TMPDIR=f"{folder}/tmp", XDG_STATE_HOME=f"{folder}/state")
            _redirect(0, os.devnull, os.O_RDONLY)
            for number in (1, 2):
                _redirect(number, "output", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
            os.closerange(3, 256)
            return Path(folder), Fault(*fault) if fault else None
        print(os.wait()[1], flush=True)
    os._exit(0)


def _redirect(number: int, path: str, flags: int) -> None:
    handle = os.open(path, flags)
    os.dup2(handle, number)
    os.close(handle)


def _fork_workers() -> None:
    """Have drivers fork their workers, which have torch already, in place of starting a program."""
    for name in (
        "torch",
        "torch._dynamo",
        "sweeper.worker.session",
        "sweeper.worker.preflight",
        "factories",
    ):
        importlib.import_module(name)
    from sweeper.core.system.process_group import ProcessGroup

    names = list(inspect.signature(subprocess.Popen._execute_child).parameters)[1:]

    def execute_child(self: Any, *values: Any) -> None:
        given = dict(zip(names, values, strict=True))
        self.pid = os.fork()
        if self.pid:
            self._child_created = True
            self._close_pipe_fds(*(given[name] for name in PIPES))
            return
        os.setsid()
        for number, name in enumerate(("p2cread", "c2pwrite", "errwrite")):
            os.dup2(given[name], number)
        kept = sorted(given["pass_fds"])
        for low, high in itertools.pairwise([2, *kept, 256]):
            os.closerange(low + 1, high)
        os.environ.update(given["env"])
        _work(given["args"])

    ProcessGroup._execute_child = execute_child


def _work(command: list[str]) -> None:
    from sweeper.worker.__main__ import main

    sys.argv = command[2:]
    code = 1
    try:
        install(*_WORKERS[0])
        main()
        code = 0
    except SystemExit as ended:
        code = 1 if ended.code else 0
    except BaseException:  # noqa: BLE001  # as an interpreter does
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
