"""The command line of this process: what `sweep.json` keeps, and what people type to go on with the
sweep.
"""

import sys
from collections.abc import Sequence

_sweeps: list[str] = []  # that this command runs: one, once it is known


def list_words() -> list[str]:
    """List the words of the command line, with `python` in place of the interpreter's path."""
    return ["python", *sys.orig_argv[1:]]


def remember_sweep(name: str) -> None:
    """Remember which sweep this command runs; a command need not name it."""
    _sweeps[:] = [name]


def split_at_dashes(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split a command line before `--`: what follows are arguments of the user's script."""
    position = words.index("--") if "--" in words else len(words)
    return list(words[:position]), list(words[position:])


def make_resume_command() -> str:
    """Make the command that goes on with this sweep, to be copied."""
    import shlex  # signals are handled only once all imports at the start of the program are done

    words, of_script = split_at_dashes(list_words())
    if not any(word.lstrip("+").startswith("sweep=") for word in words):
        words += [f"sweep={name}" for name in _sweeps]
    return shlex.join(words + of_script)
