"""`python -m sweeper.compare BASE HEAD`: did the upgrade make models slower, or break them?

Exit codes: 0 no regression; 1 a compiled step is SLOWER, a trial BROKE, or with --fail-unresolved is UNRESOLVED; 2 no
such sweep, nothing in common, other devices, records that cannot be read, or a store that does not answer.
Try: `python -m sweeper.compare torch-2.12 torch-2.13`
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sweeper.compare.text import Document

OK, REGRESSION, BAD_INPUT = 0, 1, 2


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    from sweeper.compare.pairs import AXES
    from sweeper.compare.text import FORMATS
    from sweeper.compare.verdicts import MIN_EFFECT
    from sweeper.loading.sources import add_tracking_uri

    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m sweeper.compare",
        usage="%(prog)s BASE HEAD [options]\n       %(prog)s SWEEP --by AXIS [BASE_VALUE HEAD_VALUE] [options]",
        description="Compare two sweeps, or two values of an axis of one: which compiled steps got slower, what broke. "
        "A verdict needs several processes on both sides, and three draws (measure=published) where the compiled "
        "code is not the same.",
        epilog="exit code: 0 no regression, 1 a compiled step is SLOWER or a trial BROKE (or, with --fail-unresolved, "
        "is UNRESOLVED), 2 bad input, records that cannot be read, or no answer from MLflow",
    )
    parser.add_argument("names", nargs="+", metavar="BASE HEAD", help="sweeps under runs/, or folders of trials")
    add_tracking_uri(parser)
    parser.add_argument(
        "--by",
        metavar="AXIS",
        help=f"compare two values of this axis within one sweep: {', '.join(AXES)}",
    )
    parser.add_argument(
        "--min-effect",
        type=_share,
        default=MIN_EFFECT,
        metavar="SHARE",
        help=f"smaller changes are neither SLOWER nor FASTER, and SAME means within it (default: {MIN_EFFECT})",
    )
    parser.add_argument(
        "--allow-different-devices", action="store_true", help="compare absolute times of different GPUs all the same"
    )
    parser.add_argument(
        "--fail-unresolved",
        action="store_true",
        help="exit code 1 also when a row that both sides measured is UNRESOLVED",
    )
    parser.add_argument("--all", action="store_true", help="show rows that are the SAME, and all columns")
    parser.add_argument("--format", choices=FORMATS, default="text", help="default: text; md is for a pull request")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write it there, and the text to the terminal")
    return parser.parse_intermixed_args(arguments)


def _share(value: str) -> float:
    try:
        share = float(value)
    except ValueError:
        share = -1.0
    if not 0 < share < 1:
        raise argparse.ArgumentTypeError(f"{value}: a share above 0 and below 1, e.g. 0.02 for 2 %")
    return share


def main(arguments: Sequence[str] | None = None) -> int:
    """Read, compare, write; the exit code."""
    parsed = parse(arguments)
    from rich.console import Console

    from sweeper.compare.text import print_document, render
    from sweeper.core.errors import ConfigError
    from sweeper.tracking.store import TrackingError

    try:
        document = compare(parsed)
        if parsed.out:
            _write(parsed.out, render(document, parsed.format))
    except (ConfigError, TrackingError, OSError) as error:
        print(error, file=sys.stderr)
        return BAD_INPUT
    if parsed.format == "text" or parsed.out:
        print_document(document, Console())
    else:
        print(render(document, parsed.format), end="")
    for problem in document.problems:
        print(problem, file=sys.stderr)
    return _exit_code(document, parsed.fail_unresolved)


def _write(file: Path, text: str) -> None:
    """Raises ConfigError where that cannot be: what the system says names a temporary file, which nobody has typed."""
    from sweeper.core.errors import ConfigError
    from sweeper.core.paths import write_text

    try:
        write_text(file, text)
    except OSError as error:
        raise ConfigError(f"--out {file} cannot be written: {error.strerror or error}") from error


def _exit_code(document: Document, fail_unresolved: bool) -> int:
    comparison = document.comparison
    if fail_unresolved and comparison.unresolved:
        rows = "1 row" if comparison.unresolved == 1 else f"{comparison.unresolved} rows"
        are = "is" if comparison.unresolved == 1 else "are"
        print(f"--fail-unresolved: {rows} that both sides measured {are} UNRESOLVED", file=sys.stderr)
        return REGRESSION
    if comparison.regressed:
        return REGRESSION
    return BAD_INPUT if document.problems else OK


def compare(parsed: argparse.Namespace) -> Document:
    """Read the sweeps and judge what they have in common.

    Raises ConfigError for sweeps, axes and values that are not there, nothing in common, and different devices.
    """
    from sweeper.compare.changes import measured_otherwise, other_devices, what_changed
    from sweeper.compare.pairs import match, match_values, two_values
    from sweeper.compare.sides import read_sides, with_lost
    from sweeper.compare.text import Document
    from sweeper.compare.verdicts import judge
    from sweeper.core.errors import ConfigError
    from sweeper.loading.sources import find_sources

    names, values = _names(parsed)
    sources = find_sources(names, parsed.tracking_uri)
    read = [read_sides(source) for source in sources]
    problems = tuple(problem for one in read for problem in one.problems)
    if parsed.by:
        sides = with_lost(read[0], read[0])
        base_value, head_value = two_values(sides, parsed.by, values)
        pairs = match_values(sides, parsed.by, base_value, head_value)
        base, head = (f"{names[0]}, {parsed.by}={value}" for value in (base_value, head_value))
        facts = what_changed(pairs)
    else:
        pairs = match(with_lost(read[0], read[1]), with_lost(read[1], read[0]))
        (base, head), facts = names, [*measured_otherwise(*sources), *what_changed(pairs)]
    if not any(pair.both for pair in pairs):
        raise ConfigError("\n".join([f"{base} and {head} have no trial in common", *problems]))
    devices = other_devices(pairs)
    if devices and not parsed.allow_different_devices:
        hint = "times on different devices say nothing of an upgrade; --allow-different-devices compares them anyway"
        raise ConfigError("\n".join([*devices, hint]))
    return Document(base, head, judge(pairs, parsed.min_effect), [*devices, *facts], problems, parsed.all)


def _names(parsed: argparse.Namespace) -> tuple[Sequence[str], Sequence[str]]:
    """The sweeps, and the values of `--by`. Raises ConfigError for too many or too few."""
    from sweeper.core.errors import ConfigError

    given = parsed.names
    if parsed.by is None:
        if len(given) != 2:
            raise ConfigError(f"{' '.join(given)}: two sweeps are compared, BASE and HEAD; one needs --by AXIS")
        return given, ()
    if len(given) not in (1, 3):
        raise ConfigError(f"{' '.join(given)}: with --by {parsed.by} type SWEEP, or SWEEP BASE_VALUE HEAD_VALUE")
    return given[:1], given[1:]


if __name__ == "__main__":
    sys.exit(main())
