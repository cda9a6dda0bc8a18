"""The command line before Hydra sees it: flags last, one checked sweep name, new keys of
dictionaries allowed.

Hydra 1.3 takes its flags only before or after all overrides, reads `sweep=007` as a number, adds a
new key to a dictionary only after `+`, and knows neither `train.py` nor `-- --lr 0.1`. Users should
not have to know.
"""

import argparse
import datetime as dt
import re
import secrets
import shlex
from collections.abc import Sequence
from itertools import zip_longest
from typing import NoReturn

from hydra._internal.utils import get_args_parser

from sweeper.core.errors import ConfigError, nearest
from sweeper.core.libraries import SCRIPT
from sweeper.core.paths import check_sweep_name
from sweeper.core.system.command_line import split_at_dashes

from .reference import COMMANDS, PURPOSES, read_keys
from .schema import Config, ModelConf, conf_folder

LIST_ALL = "all flags, groups and keys: python -m sweeper --help"
SWEEP = re.compile(r"\+{0,2}sweep=(.*)", re.DOTALL)
# of a file, where it can be nothing else: no grid, no `${...}`, nothing that is escaped for Hydra
OF_SCRIPT = re.compile(r"\+{0,2}model\.(?:(?:args|launch)=.+|path=[^,$\\]+\.py)", re.DOTALL)
# one or several, for a grid
QUOTED = re.compile(r"""('[^']*'|"[^"]*")(,('[^']*'|"[^"]*"))*""", re.DOTALL)
# where any key is allowed
OPEN_DICTIONARY = re.compile(
    r"(compile\.(?:options|dynamo|functorch)|model\.arguments|measure\.phase_timeouts_s"
    r"|hydra\.launcher\.(ray\.(init|remote)|additional_parameters))(\.[^=]+=|=\{)"
)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read Hydra's flags and the overrides, which may stand among each other. Raises ConfigError
    for other flags.
    """

    def refuse(message: str) -> NoReturn:
        _advise_dashes(message, arguments)
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

    Raises ConfigError for a word that is no override, a sweep name that cannot name a folder, and
    arguments of a script where none is named, or something twice.
    """
    # flags and overrides, until these are taken out; `of_script` is empty, or `--` and arguments
    flags, of_script = split_at_dashes(arguments)
    file = next(filter(is_script, flags), None)
    if file:
        flags[flags.index(file)] = f"model.path={_quote(file)}"
    parsed = parse(flags)
    overrides: list[str] = parsed.overrides or []
    if parsed.hydra_help:  # Hydra then composes a configuration without ours
        return flags
    _check_words(overrides)
    # Without a name: local time, and four digits against two sweeps in one second.
    name = f"{dt.datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    others = []
    for override in overrides:
        flags.remove(override)
        if match := SWEEP.fullmatch(override):
            name = match[1].strip("'\"")
        else:
            others.append(allow_new_keys(quote_arguments(override)))
    keys = [override.partition("=")[0].lstrip("+") for override in overrides]
    if keys.count("model.args") > 1:
        raise ConfigError("model.args is given twice: give the arguments of the script once")
    if file or of_script:
        if "model.path" not in keys:
            raise ConfigError(
                "--: name a script before it, e.g. sweeper train.py -- --batch-size 64"
            )
        if keys.count("model.path") > 1 or (of_script and "model.args" in keys):
            raise ConfigError(
                "give the script once and its arguments once, e.g. train.py -- --lr 1"
            )
        if "model" not in keys:
            others.append("model=script")
        if of_script:
            others.append(f"model.args={_quote(shlex.join(of_script[1:]))}")
        # `-m` excludes these; with it, several values are a grid
        if not any(map(vars(parsed).get, ("multirun", "run", "cfg", "shell_completion", "info"))):
            flags.append("-m")
    return [f"sweep='{check_sweep_name(name)}'", *others, *flags]


def is_script(word: str) -> bool:
    """Whether a word of the command line names a training script: `train.py`, `./lr=1.py`."""
    return word.endswith(".py") and not re.match(r"[+~]*\w[^=]*=", word)


def _advise_dashes(message: str, words: Sequence[str]) -> None:
    """Raise ConfigError with the command that gives the script the words that are not ours; do
    nothing where no script is named.
    """
    own: list[str] = []
    given = []
    for word in words:
        key, _, value = word.partition("=")
        if key == "model.path":
            own.insert(0, value.strip("'"))
        elif key == "model.args":
            given.append(value)
        elif key in PURPOSES or key in read_keys():
            own.append(word)
        elif word not in ("-m", "--multirun"):
            given.append(shlex.quote(word))
    if any(map(is_script, own)):
        command = f"{shlex.join(['sweeper', *own])} -- {' '.join(given)}"
        raise ConfigError(f"{message}; arguments of the script stand behind --: {command}")


def quote_arguments(override: str) -> str:
    """Quote a script, its arguments and its launcher, in which Hydra would read `=` and `[` as its
    own: `model.args=--lr=1e-3`.

    Raises ConfigError where several sets of arguments seem to be meant, which would be one.
    """
    key, _, value = override.partition("=")
    if not OF_SCRIPT.fullmatch(override) or QUOTED.fullmatch(value):
        return override
    if key.lstrip("+") == "model.args" and ",--" in value:
        raise ConfigError(
            f"{override}: each set of arguments needs quotes of its own, e.g. "
            "\"model.args='--lr 1','--lr 2'\""
        )
    return f"{key}={_quote(value)}"


def _quote(text: str) -> str:
    """Quote a text for Hydra, which takes a backslash for itself before a quote alone, and for
    OmegaConf, which would fill in `${...}`.
    """
    text = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)
    text = re.sub(r"(\\*)'", r"\1\1\\'", text)
    text = re.sub(r"(\\+)\Z", r"\1\1", text)  # before the quote that closes
    return f"'{text}'"


def _check_words(overrides: Sequence[str]) -> None:
    """Raises ConfigError for a word without `=`: `model resnet18`, `vit_b16` alone, or a command
    that is not first; and for `mode=` and `mode=default,`.
    """
    of_model = vars(ModelConf()).keys() - vars(Config()).keys()
    for word, following in zip_longest(overrides, overrides[1:]):
        if "=" in word or word.startswith("~"):
            continue
        if word in PURPOSES or word in read_keys():
            value = following if following and "=" not in following else "VALUE"
            raise ConfigError(f"{word}: it has no value; write {word}={value}")
        _advise_dashes(f"{word}: not a key of sweeper", overrides)
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
    for word in overrides:
        key, _, value = word.partition("=")
        name = key.lstrip("+")
        if name in PURPOSES and "" in value.split(","):
            raise ConfigError(
                f"{word}: an option is missing; write {name}=OPTION, several with commas between "
                f"them\nall options: python -m sweeper --help {name}"
            )
        if value.endswith(",") and name != "model.args":
            raise ConfigError(f"{word}: a value is missing behind the last comma")
        if name == SCRIPT:
            name = "path"
        if name in of_model:
            raise ConfigError(f"{word}: write model.{name}={value}")


def allow_new_keys(override: str) -> str:
    """Allow new keys where any key is allowed: `compile.options.x=1` becomes
    `++compile.options.x=1`.
    """
    return f"++{override}" if OPEN_DICTIONARY.match(override) else override
