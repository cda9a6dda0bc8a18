"""Commands of sweeper in forks of a server that has imported what takes long.

A command that ends before it starts anything takes a fraction of a second then, and without a
server the seconds that Python needs for its imports. `python forked_commands.py` is the server.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import subprocess
import sys
import threading
from pathlib import Path


class Forks:
    """`python -m MODULE ARGUMENTS` as often as one likes, each time as a process of its own."""

    def __init__(self, search_path: str, folder: Path) -> None:
        self._folder = folder
        self._server = subprocess.Popen(
            [sys.executable, __file__],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": search_path},
            text=True,
        )

    def run(self, folder: Path, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        assert self._server.stdin
        assert self._server.stdout
        outputs = [self._folder / name for name in ("stdout", "stderr")]
        asked = [str(folder), module, arguments, dict(os.environ), [*map(str, outputs)]]
        self._server.stdin.write(json.dumps(asked) + "\n")
        self._server.stdin.flush()
        code = os.waitstatus_to_exitcode(int(self._server.stdout.readline()))
        command = [sys.executable, "-m", module, *arguments]
        return subprocess.CompletedProcess(command, code, *(path.read_text() for path in outputs))

    def close(self) -> None:
        assert self._server.stdin
        assert self._server.stdout
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()


def _serve() -> None:
    """Go on as the command in a fork for each line of standard input; this process ends with its
    input.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.plugins import Plugins

    import sweeper.__main__
    import sweeper.config.error_messages
    import sweeper.sweep.hydra_app  # noqa: F401

    # its first text takes the parser longest
    OverridesParser.create().parse_overrides(["+a.b='c d',2", "x/y@z=[1,1e3,{k: v}]", "~t"])
    Plugins.instance()  # imports all plugins
    gc.freeze()
    assert threading.active_count() == 1, threading.enumerate()
    search_path = os.environ["PYTHONPATH"]
    del sys.modules["sweeper.__main__"]  # or runpy warns
    while line := sys.stdin.readline():
        if os.fork():
            print(os.wait()[1], flush=True)
            continue
        folder, module, arguments, variables, outputs = json.loads(line)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(variables, PYTHONPATH=search_path)
        _redirect(0, os.devnull, os.O_RDONLY)
        for number, path in enumerate(outputs, 1):
            _redirect(number, path, os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_WRONLY)
        sys.path[0] = folder
        sys.argv[1:] = arguments
        sys.orig_argv[1:] = ["-m", module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return


def _redirect(number: int, path: str, flags: int) -> None:
    handle = os.open(path, flags)
    os.dup2(handle, number)
    os.close(handle)


if __name__ == "__main__":
    _serve()
