"""`python -m sweeper.explain [WORD...]`: what a word of a report or a comparison means.

It knows flags, statuses, causes of lost time, figures, and the other words of answers. Without a
word it lists all but the figures. Exit codes: 0 explained; 2 no such word.
Try: `python -m sweeper.explain stay eager`
"""

import argparse
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence

from sweeper.analysis.flags import FLAGS, RANKS
from sweeper.analysis.meanings import CAUSES, STATUSES, Meaning, read_words
from sweeper.analysis.metrics import METRICS
from sweeper.core.errors import nearest
from sweeper.core.system.exit_codes import BAD_INPUT, OK
from sweeper.core.system.pipes import run_until_closed
from sweeper.report.columns.formats import join, prefix, sentence


def list_groups() -> dict[str, Mapping[str, Meaning]]:
    """List what every word means, by its names with commas between, in groups by their kind."""
    flags, figures = {}, {}
    for name, flag in FLAGS.items():
        rank = f"{flag.rank.capitalize()}: {RANKS[flag.rank]}; here {flag.why}."
        names = join((name, flag.cause), ", ")
        flags[names] = Meaning(flag.says, join((flag.more, rank), " "), flag.todo)
    for metric in METRICS:
        names = join(dict.fromkeys((metric.csv_name, metric.name)), ", ")
        figures[names] = Meaning(metric.meaning)
    return {
        "status": STATUSES,
        "flag": flags,
        "cause of lost time": CAUSES,
        "word": read_words(),
        "figure": figures,
    }


def explain(text: str) -> list[str]:
    """Explain the words of a text, from its start always the longest one that is known. Raises
    ValueError at the first that is not.
    """
    known = {}
    for kind, meanings in list_groups().items():
        for names, meaning in meanings.items():
            lines = [f"{names} ({kind})"]
            parts = (sentence(meaning.says), meaning.more, prefix("What to do: ", meaning.todo))
            for part in parts:
                lines += textwrap.wrap(part, 100, initial_indent="  ", subsequent_indent="  ")
            for name in names.split(", "):
                known[_normalize(name)] = "\n".join(lines)
    found = []
    rest = _normalize(text)
    while rest:
        begins = (name for name in known if f"{rest}_".startswith(f"{name}_"))
        name = max(begins, key=len, default="")
        if not name:
            raise ValueError(f"{rest}: no word of a report; {nearest(rest, known)}")
        found.append(known[name])
        rest = rest[len(name) + 1 :]
    return found


def _normalize(text: str) -> str:
    """Return the words of a text in lower case, with `_` in place of what is between them."""
    return "_".join(re.findall(r"[^\s,:;()-]+", text.lower()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what was asked for, and return the exit code."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m sweeper.explain",
        description="Explain words of a report or a comparison: flags, statuses, causes of lost "
        "time, figures of speedups.csv, and the words of answers. Without a word, list them.",
        epilog="exit code: 0 explained, 2 no such word",
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="WORD",
        help="e.g. host_bound, accuracy_mismatch, eager_step_ms, stay eager or SLOWER",
    )
    try:
        found = explain(" ".join(parser.parse_args(arguments).words))
    except ValueError as error:
        print(error, file=sys.stderr)
        return BAD_INPUT
    if not found:
        for kind, meanings in list_groups().items():
            lines = [f"  {names:<22}  {meaning.says}" for names, meaning in meanings.items()]
            found.append("\n".join([kind, *lines]))
    print("\n\n".join(found))
    return OK


if __name__ == "__main__":
    sys.exit(run_until_closed(main))
