"""What bad input is answered with: a few lines that say what came, what is allowed and what to type.

`ConfigError` is ours; `explain` turns Hydra's, OmegaConf's and YAML's exceptions into the same kind of text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches


class ConfigError(ValueError):
    """The configuration asks for something that cannot be run; nothing has been started."""


def nearest(name: str, allowed: Iterable[str], count: int = 4) -> str:
    """The allowed names that look most like `name`, else the first few, as text."""
    names = sorted(set(allowed))
    lowered = {item.lower(): item for item in names}
    close = [lowered[item] for item in get_close_matches(name.lower(), list(lowered), n=count, cutoff=0.5)]
    if close:
        return f"nearest: {', '.join(close)}"
    return f"allowed: {', '.join(names[:12])}{', ...' if len(names) > 12 else ''}"


def without_password(uri: str) -> str:
    """A URI, or a text with URIs, as it may be shown."""
    return re.sub(r'//[^/@\s"]*@', "//", uri)
