"""Shell completion: the words that can stand at the end of a command line.

Hydra has the code for the shells (`sweeper -sc install=bash`); that code asks `sweeper -sc
query=bash`. Hydra's own answer takes a second and knows neither our commands nor flags between
overrides, so we give it.

Try: `COMP_LINE='sweeper mode=' python -m sweeper -sc query=bash`
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from sweeper.core.paths import RUNS

from .reference import COMMANDS, PURPOSES, list_options, read_keys
from .schema import conf_folder

FLAGS = (
    "-m",
    "--multirun",
    "--help",
    "--version",
    "--hydra-help",
    "--cfg",
    "--resolve",
    "--config-dir",
    "--info",
    "-sc",
)


def complete(line: str) -> list[str]:
    """Complete the last word of a command line up to the cursor; its first word is the program."""
    words = line.split()[1:]
    last = words.pop() if words and not line[-1].isspace() else ""
    return sorted(
        {word for word in _list_words(words, last) if word.startswith(last) and word != last}
    )


def _list_words(before: Sequence[str], last: str) -> Iterator[str]:
    if before and before[0] in COMMANDS:
        if before[0] in ("report", "compare", "sync"):
            yield from _list_sweeps()
        return
    folders = [conf_folder()]
    folders += [Path(folder) for flag, folder in pairwise(before) if flag == "--config-dir"]
    previous = before[-1] if before else ""
    if "=" in last:
        yield from _list_values(last, folders)
    elif previous in ("--help", "-h"):
        yield from ["models", *PURPOSES, *read_keys()]
    elif previous in ("--cfg", "-c"):
        yield from ["job", "hydra", "all"]
    elif previous == "-sc":
        for shell in ("bash", "zsh", "fish"):
            yield from (f"install={shell}", f"uninstall={shell}")
    elif previous != "--config-dir":
        if not before:
            yield from COMMANDS
        if last:
            yield from FLAGS
        yield from _list_names(last)


def _list_names(last: str) -> Iterator[str]:
    """List groups and keys; keys below another one come when that one is there."""
    sign = last[: len(last) - len(last.lstrip("+~"))]
    for group in PURPOSES:
        yield f"{sign}{group}="
    keys = read_keys()
    for name in keys:
        parent, _, _ = name.rpartition(".")
        if parent == "" or last.removeprefix(sign).startswith(f"{parent}."):
            has_inside = any(other.startswith(f"{name}.") for other in keys)
            yield f"{sign}{name}{'.' if has_inside else '='}"


def _list_values(last: str, folders: Sequence[Path]) -> Iterator[str]:
    """List what can follow `KEY=`, or the last comma behind it."""
    key, _, typed = last.partition("=")
    name = key.lstrip("+")
    begun, comma, value = typed.rpartition(",")
    options: Iterable[str] = ()
    if name == "sweep":
        options = _list_sweeps()
    elif name in PURPOSES:
        found = list_options(name, folders)
        # suites of models are folders, of which the first word is the folder
        here = value.count("/")
        options = [
            option if option.count("/") <= here else f"{option.split('/')[0]}/" for option in found
        ]
    elif known := read_keys().get(name):
        options = known.values or filter(None, [known.default])
    for option in options:
        yield f"{key}={begun}{comma}{option}"


def _list_sweeps() -> Iterator[str]:
    for path in RUNS.glob("*/sweep.json"):
        yield path.parent.name
