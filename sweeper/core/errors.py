"""The error for bad input: a few lines that say what came, what is allowed and what to type."""

import json
from collections.abc import Iterable
from difflib import get_close_matches


class ConfigError(ValueError):
    """The configuration asks for something that cannot be run; nothing has been started."""


MAX_LISTED = 12  # names in a message


def nearest(name: str, allowed: Iterable[str]) -> str:
    """List the allowed names that look most like `name`, else the first few."""
    names = sorted(set(allowed))
    lowered = {item.lower(): item for item in names}
    if close := get_close_matches(name.lower(), lowered, n=4, cutoff=0.5):
        return f"nearest: {', '.join(lowered[item] for item in close)}"
    more = ", ..." if len(names) > MAX_LISTED else ""
    return f"allowed: {', '.join(names[:MAX_LISTED])}{more}"


def explain_unreadable(error: Exception) -> str:
    """Explain to people why a file or its JSON cannot be read."""
    if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):
        return f"not JSON, or cut short ({error})"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"cannot be read ({error})"
