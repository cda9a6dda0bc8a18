"""Text for one line of a terminal, a file or a page."""

from __future__ import annotations

import re

# Characters that Markdown gives a meaning in the middle of a line.
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", **{sign: f"\\{sign}" for sign in "\\|`*[]!~"}})
# What GitHub makes a link of without any brackets. https://github.github.com/gfm/#autolinks-extension-
_LINKS = re.compile(r"(?i)(:)(?=//)|(?<=\bwww)(\.)|(?<=mailto)(:)|(?<=xmpp)(:)|(@)(?=\w)")


def printable(text: str) -> str:
    """Return `text` on one line, without control characters and what UTF-8 cannot encode."""
    if not text.isprintable():
        text = "".join(character if character.isprintable() else " " for character in text)
    return text.strip()


def escape_markdown(text: str) -> str:
    """Return `text` for the middle of a line of Markdown: it ends no cell, starts no HTML and makes no link."""
    return _LINKS.sub(r"\\\g<0>", text.translate(_ESCAPES))
