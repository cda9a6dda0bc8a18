"""Exceptions of Hydra, OmegaConf and YAML as a few lines that say what came, what is allowed and
what to type.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from sweeper.core.errors import nearest

LIST_OPTIONS = "all options and keys: python -m sweeper --help"
LIST_LAUNCHER_KEYS = (
    "those of SLURM: python -m sweeper --cfg hydra hydra/launcher=slurm, those of Ray: docs/ray.md"
)
MAX_LINES = 6
# What OmegaConf says of a value that a key does not take; the group is the value, where it says
# that.
WRONG_TYPE = re.compile(
    r"Value '(?P<value>.*)' (?:of type '\w+' could not be converted to|is not a valid|\(\w+\) is "
    r"not).*"
    r"|Invalid (?:value|type) assigned: .*|Cannot merge .*|Cannot assign .*|field '.*' is not "
    r"Optional",
    re.DOTALL,
)
# How to install an option of `hydra/launcher` that ours build on.
PLUGINS = {
    "submitit_slurm": "hydra/launcher=slurm needs hydra-submitit-launcher: pip install "
    "hydra-submitit-launcher"
}


def explain(
    error: Exception,
    keys: Iterable[str] = (),
    nested: Iterable[str] = (),
    types: Mapping[str, str] | None = None,
) -> str:
    """Return the few lines that a user needs of an exception raised while the configuration is
    read.

    For suggestions: `keys` are the dotted keys that exist, `nested` the options in folders of a
    group, with the group, e.g. `model/timm/dla102`. `types` says what each key takes, e.g. `a whole
    number or null`.
    """
    from hydra.errors import HydraException, MissingConfigException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    if isinstance(error, MissingConfigException):
        return _explain_option(error, nested)
    if isinstance(error, YAMLError):
        return _explain_yaml(error)
    cause = error.__cause__ if isinstance(error, HydraException) else error
    if isinstance(cause, OmegaConfBaseException):
        return _explain_value(cause, "", list(keys), types or {})
    text = str(error)
    if match := re.match(r"Could not override '([^'/]+)/([^']+)'", text):
        return f"{match[1]}/{match[2]}: write {match[1]}={match[2]}/NAME\n{LIST_OPTIONS}"
    if match := re.match(r"Could not override '([^']+)'", text):
        return f"{match[1]}: no such key; {nearest(match[1], keys)}\n{LIST_OPTIONS}"
    if match := re.match(r"(In '[^']+'): .*\n(Key '.+' not in .*\n.*full_key: [\s\S]*)", text):
        return _explain_value(ValueError(match[2]), match[1], list(keys), types or {})
    if match := re.match(r"Ambiguous value for argument '(.+)'", text):
        one = match[1].startswith("experiment=")
        return (
            f"{match[1]}: "
            f"{'one experiment per command' if one else 'several values make a grid; add -m'}"
        )
    if text.startswith("LexerNoViableAlt"):
        return (
            f"{_first_lines(text)}\nquote a value with unusual characters twice, e.g. "
            "\"model.name='a+b'\""
        )
    if match := re.match(r"no viable alternative at input '(.*)'", text):
        return f"{match[1]}: it cannot be read; close each bracket and each quotation mark"
    if match := re.match(r"Config group override must be a string or a list\. Got (\w+)", text):
        came = {"NoneType": "null", "int": "a number", "float": "a number", "bool": "true or false"}
        return (
            "a group takes the name of an option, e.g. measure=quick, not "
            f"{came.get(match[1], match[1])}"
        )
    if match := re.match(r"Multiple values for (\S+)\.", text):
        return f"{match[1]}: the group has an option already; write {match[1]}=OPTION without +"
    if match := re.match(r"Could not delete from config\. '(.+)' does not exist", text):
        return (
            f"~{match[1]}: only what was added with + can be taken away; write {match[1]}=null "
            "for none"
        )
    return _first_lines(text) or type(error).__name__


def _explain_option(error: Exception, nested: Iterable[str]) -> str:
    """An option that a group does not have, with those that it has."""
    match = re.search(
        r"(?:Could not find|Could not load) '([\w.-]+(?:/launcher|/sweeper)?)/([^']*)'", str(error)
    )
    options = getattr(error, "options", None)
    if not match or not options:
        return _first_lines(str(error))
    group, name = match.groups()
    if name in PLUGINS:
        return PLUGINS[name]
    inside = [path.removeprefix(f"{group}/") for path in nested if path.startswith(f"{group}/")]
    return (
        f"{group}={name}: no such {group}; "
        f"{_nearest_option(name, [*options, *inside])}\n{LIST_OPTIONS}"
    )


def _nearest_option(name: str, options: list[str]) -> str:
    """Options whose last part is like that of `name`, whichever folder each is in."""
    names = [option.rpartition("/")[2].lower() for option in options]
    close = get_close_matches(
        name.rpartition("/")[2].lower(), dict.fromkeys(names), n=4, cutoff=0.5
    )
    found = [
        option for one in close for option, last in zip(options, names, strict=True) if last == one
    ]
    return f"nearest: {', '.join(found[:4])}" if found else nearest(name, options)


def _explain_value(
    cause: Exception, context: str, keys: list[str], types: Mapping[str, str]
) -> str:
    """OmegaConf's complaint about one value, led by the key that it is about."""
    complaint, *details = str(cause).splitlines()
    key = next(
        (line.split(":", 1)[1].strip() for line in details if line.strip().startswith("full_key:")),
        "",
    )
    if re.match(r"Key '.+' (is not in struct|not in ')", complaint):
        if key.startswith("hydra.launcher."):
            return f"{key}: the launcher has no such key; {LIST_LAUNCHER_KEYS}"
        known = [item for item in keys if item.rpartition(".")[0] == key.rpartition(".")[0]] or keys
        where = f" ({context})" if context.startswith("In '") else ""
        return f"{key}: no such key{where}; {nearest(key, known)}\n{LIST_OPTIONS}"
    name = re.sub(r"\[\d+\]$", "", key)
    takes = types.get(name) or types.get(name.rpartition(".")[0])
    verb = "it has" if takes and takes.startswith("keys of its own") else "give"
    if takes and (match := WRONG_TYPE.match(str(cause).partition("\n    full_key")[0])):
        return f"{key}{'' if match['value'] is None else '=' + match['value']}: {verb} {takes}"
    if match := re.match(r"Interpolation key '(.+)' not found", complaint):
        return f"{key}: there is no key {match[1]} to take the value from"
    return f"{key}: {complaint}" if key else complaint


def _explain_yaml(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    where = f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    hint = "\nYAML is indented with spaces, not tabs" if "\\t" in problem else ""
    return f"{where}{problem}{hint}"


def _first_lines(text: str) -> str:
    lines = [
        line
        for line in text.splitlines()
        if line.strip() and not line.startswith("See https://hydra.cc/")
    ]
    return "\n".join(lines[:MAX_LINES])
