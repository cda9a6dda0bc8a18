"""Text from anywhere, made fit for a terminal, a file or a page."""

import re

# Escape sequences of a terminal; control characters but tab and line feed; marks that change the
# direction of text; and surrogates, which UTF-8 cannot encode.
_UNSAFE = re.compile(
    r"\x1b\[[0-?]*[ "
    r"-/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
# Characters that Markdown gives a meaning in the middle of a line.
_ESCAPES = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", **{sign: f"\\{sign}" for sign in "\\|`*[]!~"}}
)
# What GitHub makes a link of without any brackets.
# https://github.github.com/gfm/#autolinks-extension-
_LINKS = re.compile(r"(?i)(:)(?=//)|(?<=\bwww)(\.)|(?<=mailto)(:)|(?<=xmpp)(:)|(@)(?=\w)")


def clean_text(text: str) -> str:
    """Return `text` with its lines and tabs, and without what would change a terminal; U+FFFD for
    what is no character.

    For text that is kept, such as the message of an exception; `printable` is for what is shown on
    a line.
    """
    if text.isascii() and text.isprintable():
        return text
    return _UNSAFE.sub(
        lambda found: "" if len(found[0]) > 1 else "\ufffd", re.sub(r"\r\n?", "\n", text)
    )


def printable(text: str) -> str:
    """Return `text` on one line, with a space for each line feed, tab, and invisible or unknown
    character.
    """
    if not text.isprintable():
        text = "".join(character if character.isprintable() else " " for character in text)
    return text.strip()


def escape_markdown(text: str) -> str:
    """Return `text` for the middle of a line of Markdown: it ends no cell, starts no HTML and makes
    no link.
    """
    return _LINKS.sub(r"\\\g<0>", text.translate(_ESCAPES))
