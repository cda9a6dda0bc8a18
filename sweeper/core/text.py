"""Text for one line of a terminal, a file or a page."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return `text` on one line, without control characters and what UTF-8 cannot encode."""
    if not text.isprintable():
        text = "".join(character if character.isprintable() else " " for character in text)
    return text.strip()
