"""What a command line can say: commands, groups with their options, keys with what each takes, and
a line about each.

The lines are the comments of `schema`, `core.settings` and `core.trial`, and those at the head of
the files in `conf/`.
"""

import functools
import inspect
import re
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from yaml import safe_load

from sweeper.core.serialization import show_value
from sweeper.core.trial import AXES

from .schema import CHOICES, Config, conf_folder

COMMANDS = {  # `sweeper NAME ...` is `python -m sweeper.NAME ...`
    "report": "tables and a page of sweeps that have run",
    "compare": "two sweeps: what got slower, faster or broke",
    "doctor": "what this machine can do, and how noisy its measurements are",
    "sync": "send to MLflow what it lacks of a sweep",
    "explain": "what a word of a report means, and what to do about it",
    "bisect": "the part of the compiler that breaks a trial",
}
PURPOSES = {
    "model": "what is trained",
    "mode": "the mode of torch.compile",
    "backend": "the backend of torch.compile, or a compiler in its place",
    "precision": "number formats",
    "workload": "what a step is",
    "optimizer": "the optimizer of both arms",
    "text": "how texts come to a language model",
    "parallel": "in how many processes a model trains",
    "measure": "how long and how often to measure",
    "tracking": "whether MLflow shows the runs",
    "experiment": "a grid that is ready to run",
    "preset": "several settings under one name",
    "rung": "a rung of the ladder",
    "hydra/launcher": "where trials run",
}
# keys that only name the option of a group
CHOSEN = {f"{group}.name" for group in PURPOSES} - {"model.name"}
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


@dataclass(frozen=True)
class ConfigKey:
    """One key of the configuration."""

    name: str
    takes: str  # e.g. `a whole number or null`
    values: tuple[str, ...] = ()  # all that are allowed; empty: too many to list
    # as it is typed; None: there is none, or each option of its group has its own
    default: str | None = None
    comment: str = ""
    has_keys: bool = False  # whether it stands for the keys below it


def read_keys() -> dict[str, ConfigKey]:
    """Read every key that can be overridden, by its dotted name, e.g. `compile.scope`; those in
    `CHOSEN` are left out. The comments in the sources take 0.2 s.
    """
    return {key.name: key for key in _read_keys(Config, "") if key.name not in CHOSEN}


def _read_keys(schema: Any, prefix: str) -> Iterator[ConfigKey]:
    comments, hints = _read_comments(schema), typing.get_type_hints(schema)
    group, own = prefix.rstrip("."), {}
    if option := list_default_options().get(group):
        file = conf_folder() / group / f"{option}.yaml"
        own = safe_load(file.read_text("utf-8"))
    for entry in fields(schema):
        name, hint = prefix + entry.name, hints[entry.name]
        if is_dataclass(hint):
            inside = list(_read_keys(hint, f"{name}."))
            names = ", ".join(key.name for key in inside)
            yield ConfigKey(name, f"keys of its own: {names}", has_keys=True)
            yield from inside
            continue
        kinds = set(typing.get_args(hint)) if isinstance(hint, types.UnionType) else {hint}
        values = tuple(CHOICES.get(name, ("true", "false") if bool in kinds else ()))
        value = own.get(entry.name, {} if entry.default is MISSING else entry.default)
        is_open = group == "model" or value == "???"
        default = None if is_open else show_value(value)
        comment = comments.get(entry.name, "")
        for axis in AXES.values():
            if axis.key == name and not comment:
                comment = _read_comments(axis.owner).get(axis.field.name, "")
        yield ConfigKey(name, _describe_type(name, kinds), values, default, comment)


def _describe_type(name: str, kinds: set[Any]) -> str:
    (kind,) = kinds - {type(None)}
    if name in CHOICES:
        text = ", ".join(CHOICES[name])
    elif typing.get_origin(kind) is list:
        text = f"a list of whole numbers, e.g. {name}=[64,96]"  # there is no other list
    elif typing.get_origin(kind) is dict:
        text = f"keys with values, e.g. {name}.NAME=VALUE"
        if typing.get_args(kind)[1] is float:
            text = f"numbers by name, e.g. {name}.NAME=600"
    else:
        text = WORDS.get(kind, "a list or a text")  # the one key of any type is text.lengths
    return f"{text} or null" if type(None) in kinds else text


@functools.cache
def _read_comments(schema: type) -> dict[str, str]:
    """Read the comment of each field from the source: at the end of its line, else in the lines
    above it. Fields may stand in a base class.
    """
    comments: dict[str, str] = {}
    for base in filter(is_dataclass, schema.__bases__):
        comments |= _read_comments(base)
    above = []
    for line in inspect.getsource(schema).splitlines():
        code, _, comment = line.strip().partition("# ")
        if not code and comment:
            above.append(comment)
            continue
        if match := re.match(r"(\w+): ", code):
            # `The model.` -> `the model`, as comments behind a field are written
            sentence = " ".join(above).removesuffix(".")
            comments[match[1]] = comment or sentence[:1].lower() + sentence[1:]
        above = []
    return comments


@functools.cache
def list_default_options() -> dict[str, str]:
    """Read the option that each group has when the command line names none."""
    options = {}
    for entry in safe_load((conf_folder() / "config.yaml").read_text("utf-8"))["defaults"]:
        if isinstance(entry, dict):
            ((group, option),) = entry.items()
            options[group.removeprefix("override ")] = option
    return options


def list_options(group: str, folders: Sequence[Path]) -> dict[str, str]:
    """List the options of a group in folders of YAML files, each with the line about it, those in
    subfolders last.
    """
    found = {}
    for folder in folders:
        base = folder / group
        for file in sorted(base.rglob("*.yaml"), key=lambda file: (len(file.parts), file)):
            found[file.relative_to(base).with_suffix("").as_posix()] = _read_line(file)
    return found


def _read_line(file: Path) -> str:
    """Read the words in parentheses after the example command at the head of an option's file, or
    its main values.
    """
    text = file.read_text(encoding="utf-8", errors="replace")
    if match := re.search(r"^# python -m sweeper .* {3}\((.+)\)$", text, re.MULTILINE):
        return match[1]
    words = []
    for key, unit in (("library", ""), ("name", ""), ("batch_size", "batch ")):
        if match := re.search(rf"^{key}: *(\S+)", text, re.MULTILINE):
            words.append(f"{unit}{match[1]}")
    return ", ".join(words)
