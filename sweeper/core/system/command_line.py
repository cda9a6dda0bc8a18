"""The command line of this process: what `sweep.json` keeps, and what people type to go on with the
sweep.
"""

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_sweeps: list[str] = []  # that this command runs: one, once it is known


def list_words() -> list[str]:
    """List the words of the command line, with `python` in place of the interpreter's path."""
    return ["python", *sys.orig_argv[1:]]


def _name_python() -> str:
    """Name this Python as people type it: `python` where that is what a shell finds, or where it
    belongs to no environment; else by its path.
    """
    import shutil  # signals are handled only once all imports at the start of the program are done

    python, found = Path(sys.executable), shutil.which("python")
    if sys.prefix == sys.base_prefix or (found and Path(found).parent == python.parent):
        return "python"
    with suppress(OSError, ValueError):  # it lies elsewhere, or the folder has gone
        python = python.relative_to(Path.cwd())
    return str(python)


def name_program(command: str) -> str:
    """Name this Python in a command that begins with `python`."""
    import shlex  # as above

    program, _, rest = command.partition(" ")
    return f"{shlex.quote(_name_python())} {rest}" if program == "python" else command


def remember_sweep(name: str) -> None:
    """Remember which sweep this command runs; a command need not name it."""
    _sweeps[:] = [name]


def split_at_dashes(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split a command line before `--`: what follows are arguments of the user's script."""
    position = words.index("--") if "--" in words else len(words)
    return list(words[:position]), list(words[position:])


def make_resume_command() -> str:
    """Make the command that goes on with this sweep, to be copied."""
    import shlex  # as above

    words, of_script = split_at_dashes(list_words())
    if not any(word.lstrip("+").startswith("sweep=") for word in words):
        words += [f"sweep={name}" for name in _sweeps]
    return name_program(shlex.join(words + of_script))
