"""The command line before Hydra sees it: flags last, one checked sweep name, new keys of dictionaries allowed.

Hydra 1.3 takes its flags only before or after all overrides, reads `sweep=007` as a number, and adds a new key to a
dictionary only after `+`. Users should not have to know.
"""

from __future__ import annotations

import datetime as dt
import re
import secrets
from collections.abc import Sequence

from sweeper.core.paths import check_sweep_name

SWEEP = re.compile(r"\+{0,2}sweep=(.*)", re.DOTALL)
OPEN_DICTIONARIES = (
    r"compile\.options", r"model\.arguments", r"measure\.phase_timeouts_s", r"hydra\.launcher\.ray\.(?:init|remote)",
)  # fmt: skip
OPEN_DICTIONARY = re.compile(rf"({'|'.join(OPEN_DICTIONARIES)})(\.[^=]+=|=\{{)")


def normalise(arguments: Sequence[str]) -> list[str]:
    """Rewrite the arguments for Hydra; a sweep without a name gets one.

    Raises ConfigError for a sweep name that cannot name a folder.
    """
    flags, overrides = _split(arguments)
    names = [match.group(1) for item in overrides if (match := SWEEP.fullmatch(item))]
    others = [allow_new_keys(item) for item in overrides if not SWEEP.fullmatch(item)]
    name = check_sweep_name(names[-1].strip("'\"")) if names else _new_name()
    return [f"sweep='{name}'", *others, *flags]


def allow_new_keys(override: str) -> str:
    """Allow new keys where any key is allowed: `compile.options.x=1` becomes `++compile.options.x=1`."""
    return f"++{override}" if OPEN_DICTIONARY.match(override) else override


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Hydra's flags with their values, and the overrides."""
    from hydra._internal.utils import get_args_parser

    parsed = get_args_parser().parse_intermixed_args(list(arguments))
    overrides: list[str] = list(parsed.overrides or [])
    flags = list(arguments)
    for override in overrides:
        flags.remove(override)
    return flags, overrides


def _new_name() -> str:
    """Local time, and four digits against two sweeps in one second."""
    return f"{dt.datetime.now().strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
