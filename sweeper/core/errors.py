"""The error for bad input: a few lines that say what came, what is allowed and what to type."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterable
from difflib import get_close_matches

# What a machine may run out of, and what to do.
LACKS = {
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "close other programs, which have all file handles of the machine",
    errno.ENOMEM: "free some memory",
    errno.EAGAIN: "end other processes, or raise their limit (ulimit -u)",
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f)",
    errno.EIO: "see whether the disk, or the terminal, is still there",
}


class ConfigError(ValueError):
    """The configuration asks for something that cannot be run; nothing has been started."""


def explain_lack(error: Exception) -> str | None:
    """Say what the machine has run out of, and what to do; None for any other error."""
    if isinstance(error, OSError) and error.errno in LACKS:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}; {LACKS[error.errno]}"
    if isinstance(error, MemoryError):
        return f"out of memory; {LACKS[errno.ENOMEM]}"
    if isinstance(error, RuntimeError) and str(error) == "can't start new thread":  # which Python raises without errno
        return f"{error}; {LACKS[errno.EAGAIN]}"
    return None


def nearest(name: str, allowed: Iterable[str], count: int = 4) -> str:
    """List the allowed names that look most like `name`, else the first few."""
    names = sorted(set(allowed))
    lowered = {item.lower(): item for item in names}
    if close := get_close_matches(name.lower(), lowered, n=count, cutoff=0.5):
        return f"nearest: {', '.join(lowered[item] for item in close)}"
    return f"allowed: {', '.join(names[:12])}{', ...' if len(names) > 12 else ''}"


def explain_unreadable(error: Exception) -> str:
    """Explain to people why a file or its JSON cannot be read."""
    if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):
        return f"not JSON, or cut short ({error})"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"cannot be read ({error})"
