"""Text that may stand in a line of a terminal, a file or a page."""

from __future__ import annotations


def printable(text: str) -> str:
    """On one line, without control characters and what UTF-8 cannot carry."""
    if not text.isprintable():
        text = "".join(character if character.isprintable() else " " for character in text)
    return text.strip()
