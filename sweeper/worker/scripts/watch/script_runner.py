"""Runs a program as `python train.py ARGS` or `python -m package.train ARGS` would, in this
process.
"""

from __future__ import annotations

import builtins
import multiprocessing.process
import os
import runpy
import shlex
import sys
import types
from dataclasses import dataclass
from pathlib import Path

from sweeper.core.trial import Model, find_script, name_module

from .patches import Patches


class EndOfScript(BaseException):
    """Ends a script at the end of a step. No `except Exception` of the script catches it, and its
    clean-up runs.
    """


@dataclass(frozen=True)
class Program:
    """What the user would type after `python`, and where."""

    path: str  # of a file, as given; or `-m package.module`
    arguments: tuple[str, ...]
    folder: Path  # where it runs
    file: Path | None  # None for a module, of which only Python knows the file

    @staticmethod
    def of(model: Model) -> Program:
        """Read the program of a model of the library `script`. Raises ValueError for quotes that do
        not close.
        """
        arguments = tuple(shlex.split(str(model.arguments.get("args", ""))))
        folder = Path(str(model.arguments.get("cwd", "."))).absolute()
        return Program(model.name, arguments, folder, find_script(model))

    @property
    def module(self) -> str | None:
        """The name of the module to run, if it is one."""
        return name_module(self.path)

    def run(self, patches: Patches) -> None:
        """Run it to its end as `__main__`. Raises whatever it raises, SystemExit as well."""
        os.chdir(self.folder)
        # of spawned loader workers
        patches.replace(multiprocessing.process, "ORIGINAL_DIR", str(self.folder))
        if self.module is not None:
            sys.argv = [self.module, *self.arguments]  # runpy puts the file's path there
            sys.path[0] = str(self.folder)
            runpy.run_module(self.module, run_name="__main__", alter_sys=True)
            return
        path = Path(self.path).expanduser()
        sys.argv = [str(path), *self.arguments]
        sys.path[0] = str(path.resolve().parent)
        module = types.ModuleType("__main__")  # what `runpy.run_path` does, but for `sys.argv`
        module.__file__ = str(path.absolute())
        vars(module)["__builtins__"] = builtins
        sys.modules["__main__"] = module
        # with its own `__future__` alone
        code = compile(path.read_bytes(), module.__file__, "exec", dont_inherit=True)
        exec(code, vars(module))  # noqa: S102  # a user's own code
