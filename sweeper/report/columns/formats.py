"""Formats: numbers, intervals, durations and lists of names as people see them."""

import math
from collections.abc import Iterable

from sweeper.analysis.stats import Estimate


def figure(value: float | None) -> str:
    """Show three significant digits, and large numbers without an exponent."""
    if value is None:
        return ""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 1:
        return f"{value:.2f}"
    return f"{value:.3g}"


def ratio(value: float | None) -> str:
    """Show two decimals, and more below 0.1."""
    if value is None:
        return ""
    if value >= 0.1:
        return f"{value:.2f}"
    return f"{value:.2g}"


def percent(share: float) -> str:
    """Show a share, e.g. `12 %`."""
    return f"{100 * share:.0f} %"


def show_steps(steps: float) -> str:
    """Show steps with three significant digits, e.g. `96,000` of 96,028."""
    whole = math.ceil(steps)
    return f"{round(whole, 3 - len(str(whole))):,}"


def duration(seconds: float) -> str:
    """Show `42 s`, `3 min 05 s` or `2 h 07 min`."""
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    if not hours:
        return f"{minutes} min {rest:02} s"
    return f"{hours:,} h {minutes:02} min"


def interval(low: float, high: float) -> str:
    """Show `[1.55, 1.61]`."""
    return f"[{ratio(low)}, {ratio(high)}]"


def estimated(found: Estimate | None) -> str:
    """Show `1.58 [1.55, 1.61]`, or as much of it as is known."""
    if found is None:
        return ""
    bounds = found.interval()
    if bounds is None:
        return ratio(found.ratio)
    return f"{ratio(found.ratio)} {interval(*bounds)}"


def count(number: int, noun: str) -> str:
    """Show `1 trial` or `3 trials`."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}s"


def sentence(line: str) -> str:
    """Begin the line with a capital and end it with a full stop."""
    if not line:
        return ""
    return f"{line[:1].upper()}{line[1:].removesuffix('.')}."


def shorten_names(names: Iterable[str], between: str = ", ", max_names: int = 3) -> str:
    """Join the first few names and say how many more there are."""
    listed = list(names)
    joined, hidden = between.join(listed[:max_names]), len(listed) - max_names
    return f"{joined} and {hidden} more" if hidden > 0 else joined


def prefix(words: str, text: str) -> str:
    """Put words before a text; empty without a text."""
    if text:
        return f"{words}{text}"
    return ""


def shorten(text: str, max_characters: int) -> str:
    """End a longer text with an ellipsis."""
    if len(text) <= max_characters:
        return text
    return f"{text[: max_characters - 1]}…"


def join_lines(text: str) -> str:
    """Put the lines of a text on one line."""
    return " | ".join(text.splitlines())


def join(parts: Iterable[str], between: str = "; ") -> str:
    """Join the parts that are not empty."""
    return between.join(part for part in parts if part)
