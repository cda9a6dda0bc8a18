"""Cells: a value of a table as files have it, and as one line of text."""

import math
import re

from sweeper.core.text import printable

Value = None | bool | int | float | str | tuple[str, ...]

# A formula, also after characters that a spreadsheet drops.
# https://owasp.org/www-community/attacks/CSV_Injection
FORMULA = re.compile(
    r"[\t\r]|[\s\x00-\x1f\x7f-\x9f\u200b-\u200f\ufeff]*[=+\-@\uff1d\uff0b\uff0d\uff20]"
)


def plain(value: Value) -> str:
    """Show floats in full precision, lists joined by `;`, and nothing for missing and non-finite
    values.
    """
    if value is None:
        return ""
    if isinstance(value, float):
        return str(value) if math.isfinite(value) else ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        value = ";".join(value)
    text = str(value)
    if text.isascii():
        return text
    # JSON can carry lone surrogates, UTF-8 cannot.
    return text.encode("utf-8", "replace").decode()


def guard(value: Value) -> str:
    """Show a value as `plain` does, with an apostrophe before text that a spreadsheet would take
    for a formula.
    """
    text = plain(value)
    if text and isinstance(value, (str, tuple)) and FORMULA.match(text):
        return f"'{text}"
    return text


def show(value: Value) -> str:
    """Show a value on one line, for people."""
    return printable(plain(value))
