"""Exceptions of Hydra, OmegaConf and YAML as a few lines that say what came, what is allowed and
what to type.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from difflib import get_close_matches

from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from sweeper.core.errors import ConfigError, nearest

from .reference import list_options, read_keys
from .schema import conf_folder

LIST_OPTIONS = "all options and keys: python -m sweeper --help"
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
NOT_A_NAME = r"Config group override must be a string or a list\. Got "
WRITE_A_NAME = "a group takes the name of an option, e.g. measure=quick, not "
# How a message of Hydra begins, and what to say instead; the first that fits counts.
ADVICE = {
    r"Could not override '([^'/]+)/([^']+)'": rf"\1/\2: write \1=\2/NAME\n{LIST_OPTIONS}",
    r"Ambiguous value for argument '(experiment=.+)'": r"\1: one experiment per command",
    r"Ambiguous value for argument '(.+)'": r"\1: several values make a grid; add -m",
    r"no viable alternative at input '(.*)'": r"\1: it cannot be read; close each bracket and each "
    "quotation mark",
    f"{NOT_A_NAME}NoneType": f"{WRITE_A_NAME}null",
    f"{NOT_A_NAME}(int|float)": f"{WRITE_A_NAME}a number",
    f"{NOT_A_NAME}bool": f"{WRITE_A_NAME}true or false",
    rf"{NOT_A_NAME}(\w+)": rf"{WRITE_A_NAME}\1",
    r"Multiple values for (\S+)\.": r"\1: the group has an option already; write \1=OPTION without "
    "+",
    r"((?:LexerNoViableAlt|mismatched input)[\s\S]*)": "\\1\nquote a value with unusual characters "
    "twice, e.g. \"model.name='a+b'\"",
    r"Could not delete from config\. '(.+)' does not exist": r"~\1: only what was added with + can "
    r"be taken away; write \1=null for none",
}


def explain(error: Exception) -> str:
    """Return the few lines that a user needs of an exception raised while the configuration is
    read.
    """
    if isinstance(error, ConfigError):
        return str(error)
    if isinstance(error, MissingConfigException):
        return _explain_option(error)
    if isinstance(error, YAMLError):
        problem = getattr(error, "problem", None) or str(error)
        if "\\t" in problem:
            problem += "\nYAML is indented with spaces, not tabs"
        if mark := getattr(error, "problem_mark", None):
            return f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}: {problem}"
        return problem
    cause = error.__cause__ if isinstance(error, HydraException) else error
    if isinstance(cause, OmegaConfBaseException):
        return _explain_value(str(cause))
    text = _first_lines(str(error))
    for beginning, advice in ADVICE.items():
        if match := re.match(beginning, text):
            return match.expand(advice)
    if match := re.match(r"Could not override '([^']+)'", text):
        return f"{match[1]}: no such key; {nearest(match[1], read_keys())}\n{LIST_OPTIONS}"
    if match := re.match(r"(In '[^']+'): .*\n(Key '.+' not in .*\n.*full_key: [\s\S]*)", text):
        return _explain_value(match[2], f" ({match[1]})")
    return text or type(error).__name__


def _explain_option(error: MissingConfigException) -> str:
    """An option that a group does not have, with those that it has."""
    match = re.search(
        r"(?:Could not find|Could not load) '([\w.-]+(?:/launcher|/sweeper)?)/([^']*)'", str(error)
    )
    if not match or not error.options:
        return _first_lines(str(error))
    group, name = match.groups()
    if name == "submitit_slurm":  # which ours builds on
        return (
            "hydra/launcher=slurm needs hydra-submitit-launcher: pip install "
            "hydra-submitit-launcher"
        )
    # Hydra leaves out those in folders
    options = {*error.options, *list_options(group, [conf_folder()])}
    return f"{group}={name}: no such {group}; {_nearest_option(name, options)}\n{LIST_OPTIONS}"


def _nearest_option(name: str, options: Iterable[str]) -> str:
    """Options whose last part is like that of `name`, whichever folder each is in."""
    by_last: dict[str, list[str]] = defaultdict(list)
    for option in sorted(options):
        by_last[option.rpartition("/")[2].lower()].append(option)
    found = []
    for last in get_close_matches(name.rpartition("/")[2].lower(), by_last, n=4, cutoff=0.5):
        found += by_last[last]
    return f"nearest: {', '.join(found[:4])}" if found else nearest(name, options)


def _explain_value(text: str, where: str = "") -> str:
    """OmegaConf's complaint about one value, led by the key that it is about. `where` names the
    file of an option that has it.
    """
    key, known = "", read_keys()
    if found := re.search(r"\n\s*full_key:(.*)", text):
        key = found[1].strip()
    complaint = text.partition("\n")[0]
    if re.match(r"Key '.+' (is not in struct|not in ')", complaint):
        if key.startswith("hydra.launcher."):
            return (
                f"{key}: the launcher has no such key; those of SLURM: python -m sweeper --cfg "
                "hydra hydra/launcher=slurm, those of Ray: docs/ray.md"
            )
        group = key.rpartition(".")[0]
        beside = [other for other in known if other.rpartition(".")[0] == group]
        return f"{key}: no such key{where}; {nearest(key, beside or known)}\n{LIST_OPTIONS}"
    name = re.sub(r"\[\d+\]$", "", key)
    about = known.get(name) or known.get(name.rpartition(".")[0])
    if about and (match := WRONG_TYPE.match(text.partition("\n    full_key")[0])):
        verb = "it has" if about.has_keys else "give"
        given = key if match["value"] is None else f"{key}={match['value']}"
        return f"{given}: {verb} {about.takes}"
    if match := re.match(r"Interpolation key '(.+)' not found", complaint):
        return f"{key}: there is no key {match[1]} to take the value from"
    return f"{key}: {complaint}" if key else complaint


def _first_lines(text: str) -> str:
    lines = [
        line
        for line in text.splitlines()
        if line.strip() and not line.startswith("See https://hydra.cc/")
    ]
    return "\n".join(lines[:MAX_LINES])
