"""The command line before Hydra sees it: flags last, one checked sweep name, new keys of
dictionaries allowed.

Hydra 1.3 takes its flags only before or after all overrides, reads `sweep=007` as a number, and
adds a new key to a dictionary only after `+`. Users should not have to know.
"""

import argparse
import datetime as dt
import re
import secrets
from collections.abc import Sequence
from itertools import zip_longest
from typing import NoReturn

from hydra._internal.utils import get_args_parser

from sweeper.core.errors import ConfigError, nearest
from sweeper.core.paths import check_sweep_name

from .reference import COMMANDS, PURPOSES, read_keys
from .schema import conf_folder

LIST_ALL = "all flags, groups and keys: python -m sweeper --help"
SWEEP = re.compile(r"\+{0,2}sweep=(.*)", re.DOTALL)
ARGUMENTS = re.compile(r"(?P<key>\+{0,2}model\.args)=(?P<value>.*)", re.DOTALL)
# one or several, for a grid
QUOTED = re.compile(r"""('[^']*'|"[^"]*")(,('[^']*'|"[^"]*"))*""", re.DOTALL)
# where any key is allowed
OPEN_DICTIONARY = re.compile(
    r"(compile\.options|model\.arguments|measure\.phase_timeouts_s"
    r"|hydra\.launcher\.(ray\.(init|remote)|additional_parameters))(\.[^=]+=|=\{)"
)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read Hydra's flags and the overrides, which may stand among each other. Raises ConfigError
    for other flags.
    """

    def refuse(message: str) -> NoReturn:
        # `--dry-run` and `--model` are a key and a group with dashes before them
        words = [flag.replace("-", "_") for flag in re.findall(r" --([\w./-]+)", message)]
        known = [f"{word}=VALUE" for word in words if word in PURPOSES or word in read_keys()]
        advice = f"; write {' '.join(known)}, without dashes" if known else ""
        raise ConfigError(f"{message}{advice}\n{LIST_ALL}")

    parser = get_args_parser()
    parser.error = refuse  # type: ignore[method-assign]
    return parser.parse_intermixed_args(list(arguments))


def normalise(arguments: Sequence[str]) -> list[str]:
    """Rewrite the arguments for Hydra; a sweep without a name gets one.

    Raises ConfigError for a word that is no override, and a sweep name that cannot name a folder.
    """
    overrides: list[str] = parse(arguments).overrides or []
    _check_words(overrides)
    flags = list(arguments)
    if "--hydra-help" in flags:  # Hydra then composes a configuration without ours
        return flags
    # Without a name: local time, and four digits against two sweeps in one second.
    name = f"{dt.datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    others = []
    for override in overrides:
        flags.remove(override)
        if match := SWEEP.fullmatch(override):
            name = match[1].strip("'\"")
        else:
            others.append(allow_new_keys(quote_arguments(override)))
    return [f"sweep='{check_sweep_name(name)}'", *others, *flags]


def quote_arguments(override: str) -> str:
    """Quote the arguments of a script, in which Hydra would read `=` and `[` as its own:
    `model.args=--lr=1e-3`.
    """
    match = ARGUMENTS.fullmatch(override)
    if not match or not match["value"] or QUOTED.fullmatch(match["value"]):
        return override
    # Hydra takes a backslash for itself before a quote alone.
    value = re.sub(
        r"(\\*)('|$)",
        lambda found: 2 * found[1] + (f"\\{found[2]}" if found[2] else ""),
        match["value"],
    )
    return f"{match['key']}='{value}'"


def _check_words(overrides: Sequence[str]) -> None:
    """Raises ConfigError for a word without `=`: `model resnet18`, `vit_b16` alone, or a command
    that is not first.
    """
    for word, following in zip_longest(overrides, overrides[1:]):
        if "=" in word or word.startswith("~"):
            continue
        if word in PURPOSES or word in read_keys():
            value = following if following and "=" not in following else "VALUE"
            raise ConfigError(f"{word}: it has no value; write {word}={value}")
        if word in COMMANDS:
            raise ConfigError(f"{word}: a command stands first: sweeper {word} ...")
        if options := [
            f"{group}={word}"
            for group in PURPOSES
            if (conf_folder() / group / f"{word}.yaml").is_file()
        ]:
            raise ConfigError(
                f"{word}: write {' or '.join(options)}; several with -m and a comma, without spaces"
            )
        raise ConfigError(
            f"{word}: write KEY=VALUE, or a command; "
            f"{nearest(word, [*COMMANDS, *PURPOSES])}\n{LIST_ALL}"
        )


def allow_new_keys(override: str) -> str:
    """Allow new keys where any key is allowed: `compile.options.x=1` becomes
    `++compile.options.x=1`.
    """
    return f"++{override}" if OPEN_DICTIONARY.match(override) else override
