"""`python -m sweeper.compare BASE HEAD`: did the upgrade make models slower, or break them?

Exit codes: 0 no regression; 1 a compiled step is SLOWER by wall clock or by device time, a trial
BROKE, or with --fail-unresolved is UNRESOLVED; 2 no such sweep, nothing in common, other devices,
records that cannot be read, or a store that does not answer; 3 nothing could be judged. The first
of 1, 2 and 3 that applies. Try: `python -m sweeper.compare torch-2.12 torch-2.13`
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from rich.console import Console

from sweeper.core.errors import ConfigError
from sweeper.core.files import write_text
from sweeper.core.system.exit_codes import BAD_INPUT, NOT_OK, NOTHING_JUDGED, OK
from sweeper.core.system.pipes import run_until_closed
from sweeper.loading.sources import add_tracking_uri, find_sources
from sweeper.report.columns.formats import count
from sweeper.tracking.store import TrackingError

from .changes import (
    list_device_changes,
    list_environment_changes,
    list_setting_changes,
    list_version_changes,
)
from .pairs import (
    AXES,
    choose_values,
    list_sides,
    match_sweeps,
    match_values,
    read_sides,
)
from .quantities import DEVICE_MIN_EFFECT, MIN_EFFECT
from .text import (
    FORMATS,
    Document,
    advise_if_nothing_is_judged,
    print_document,
    render,
)
from .verdicts import judge


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m sweeper.compare",
        usage="%(prog)s BASE HEAD [options]\n       %(prog)s SWEEP --by AXIS [BASE_VALUE "
        "HEAD_VALUE] [options]",
        description="Compare two sweeps, or two values of an axis of one: which compiled steps got "
        "slower, what broke. Small changes need several processes on both sides, and three draws "
        "(measure=published) where the compiled code is not the same; a large one is SLOWER from "
        "one process on, and its size is uncertain.",
        epilog="exit code: 0 no regression, 1 a compiled step is SLOWER or a trial BROKE (or, with "
        "--fail-unresolved, is UNRESOLVED), 2 bad input, records that cannot be read, or no answer "
        "from MLflow, 3 nothing could be judged (0 with --allow-unresolved)",
    )
    add, switch = parser.add_argument, partial(parser.add_argument, action="store_true")
    add("names", nargs="+", metavar="BASE HEAD", help="sweeps under runs/, or folders of trials")
    add_tracking_uri(parser)
    add(
        "--by",
        metavar="AXIS",
        help=f"compare two values of this axis within one sweep: {', '.join(AXES)}",
    )
    defaults = f"default: {MIN_EFFECT}, and {DEVICE_MIN_EFFECT} of device time"
    min_effect = (
        f"smaller changes are neither SLOWER nor FASTER, and SAME means within it ({defaults})"
    )
    add("--min-effect", type=_share, metavar="SHARE", help=min_effect)
    switch(
        "--allow-different-devices", help="compare absolute times of different GPUs all the same"
    )
    either = partial(parser.add_mutually_exclusive_group().add_argument, action="store_true")
    either(
        "--fail-unresolved",
        help="exit code 1 also when a row that both sides measured is UNRESOLVED",
    )
    either("--allow-unresolved", help="exit code 0, not 3, when nothing could be judged")
    switch("--all", help="show rows that are the SAME, and all columns")
    add("--format", choices=FORMATS, default="text", help="default: text; md is for a pull request")
    add("--out", type=Path, metavar="FILE", help="write it there, and the text to the terminal")
    return parser.parse_intermixed_args(arguments)


def _share(value: str) -> float:
    with suppress(ValueError):
        if 0 < float(value) < 1:
            return float(value)
    raise argparse.ArgumentTypeError(f"{value}: a share above 0 and below 1, e.g. 0.02 for 2 %")


def main(arguments: Sequence[str] | None = None) -> int:
    """Read, compare and write; return the exit code."""
    parsed = parse(arguments)
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
    return _choose_exit_code(document, parsed)


def _choose_exit_code(document: Document, parsed: argparse.Namespace) -> int:
    """A code that an option is about is explained."""
    unresolved = document.comparison.unresolved
    if parsed.fail_unresolved and unresolved:
        are = "is" if unresolved == 1 else "are"
        print(
            f"--fail-unresolved: {count(unresolved, 'row')} that both sides measured {are} "
            "UNRESOLVED",
            file=sys.stderr,
        )
        return NOT_OK
    if document.comparison.regressed:
        return NOT_OK
    if document.problems:
        return BAD_INPUT
    if parsed.allow_unresolved or not advise_if_nothing_is_judged(document.comparison):
        return OK
    print(
        f"exit code {NOTHING_JUDGED}, since nothing could be judged; --allow-unresolved makes it 0",
        file=sys.stderr,
    )
    return NOTHING_JUDGED


def _write(file: Path, text: str) -> None:
    """Raises ConfigError on failure: the system's message names a temporary file, which the user
    has never typed.
    """
    try:
        write_text(file, text)
    except OSError as error:
        raise ConfigError(f"--out {file} cannot be written: {error.strerror or error}") from error


def compare(parsed: argparse.Namespace) -> Document:
    """Read the sweeps and judge what they have in common.

    Raises ConfigError for sweeps, axes and values that are not there, nothing in common, and
    different devices.
    """
    names, axis = parsed.names, parsed.by
    if axis is None:
        if len(names) != 2:
            raise ConfigError(
                f"{' '.join(names)}: two sweeps are compared, BASE and HEAD; one needs --by AXIS"
            )
        base, head = names
        sources = find_sources(names, parsed.tracking_uri)
        in_base, in_head = map(read_sides, sources)
        problems = (*in_base.problems, *in_head.problems)
        pairs = match_sweeps(list_sides(in_base, in_head), list_sides(in_head, in_base))
        settings = list_setting_changes(*sources)
        versions = list_version_changes(pairs, *sources)
    else:
        if len(names) not in (1, 3):
            raise ConfigError(
                f"{' '.join(names)}: with --by {axis} type SWEEP, or SWEEP BASE_VALUE HEAD_VALUE"
            )
        read = read_sides(*find_sources(names[:1], parsed.tracking_uri))
        problems = read.problems
        sides = list_sides(read, read)
        values = choose_values(sides, axis, names[1:])
        pairs = match_values(sides, axis, *values)
        base, head = [f"{names[0]}, {axis}={value}" for value in values]
        settings = []
        versions = list_version_changes(pairs)
    if not any(pair.both for pair in pairs):
        raise ConfigError("\n".join([f"{base} and {head} have no trial in common", *problems]))
    devices = list_device_changes(pairs)
    if devices and not parsed.allow_different_devices:
        hint = (
            "times on different devices say nothing of an upgrade; --allow-different-devices "
            "compares them anyway"
        )
        raise ConfigError("\n".join([*devices, hint]))
    facts = [
        *devices,
        *(version.line for version in versions),
        *settings,
        *list_environment_changes(pairs),
    ]
    return Document(
        base, head, judge(pairs, parsed.min_effect), facts, versions, problems, parsed.all
    )


if __name__ == "__main__":
    sys.exit(run_until_closed(main))
