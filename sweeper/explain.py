"""`python -m sweeper.explain [NAME...]`: what a flag, a status or a cause means, and what to do about it.

Without a name it lists all of them. Exit codes: 0 explained; 2 no such name.
Try: `python -m sweeper.explain host_bound`
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterator, Sequence

from sweeper.analysis.meanings import CAUSES, FLAGS, RANKS, STATUSES, Meaning
from sweeper.core.errors import nearest
from sweeper.core.system.exit_codes import BAD_INPUT, OK
from sweeper.core.system.pipes import run_until_closed
from sweeper.report.formatting import sentence

WIDTH = 100  # characters of a line
ALL = {**STATUSES, **FLAGS, **CAUSES}


def explain(name: str) -> str:
    """Explain a name of `ALL` in a few lines."""
    flag = FLAGS.get(name)
    kind = "status" if name in STATUSES else f"flag, {flag.rank}" if flag else "cause of lost time"
    rank = f"{sentence(flag.rank)[:-1]}: {RANKS[flag.rank]}; here {flag.why}." if flag else ""
    meaning: Meaning = ALL[name]
    todo = f"What to do: {meaning.todo}" if meaning.todo else ""
    lines = [part for part in (sentence(meaning.says), meaning.more, rank, todo) if part]
    indent = "  "
    return "\n".join(
        [
            f"{name} ({kind})",
            *(textwrap.fill(line, WIDTH, initial_indent=indent, subsequent_indent=indent) for line in lines),
        ]
    )


def list_names() -> Iterator[str]:
    """Yield a line for each status, flag and cause, under headings."""
    flags_by_rank = {
        f"flags, {rank}: {meaning}": {name: flag for name, flag in FLAGS.items() if flag.rank == rank}
        for rank, meaning in RANKS.items()
    }
    for heading, group in {"statuses": STATUSES, **flags_by_rank, "causes of lost time": CAUSES}.items():
        yield f"{heading}\n" + "\n".join(f"  {name:<22}  {meaning.says}" for name, meaning in group.items())


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what was asked for, and return the exit code."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m sweeper.explain",
        description="Explain a flag, a status or a cause of lost time; without a name, list all of them.",
        epilog="exit code: 0 explained, 2 no such name",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="e.g. host_bound, accuracy_mismatch or graph_break")
    names = [name.lower().replace("-", "_") for name in parser.parse_args(arguments).names]
    if unknown := [name for name in names if name not in ALL]:
        for name in unknown:
            print(f"{name}: no flag, status or cause; {nearest(name, ALL)}", file=sys.stderr)
        return BAD_INPUT
    print("\n\n".join(map(explain, names) if names else list_names()))
    return OK


if __name__ == "__main__":
    sys.exit(run_until_closed(main))
