"""`python -m sweeper.compare BASE HEAD`: did the upgrade make models slower, or break them?

Exit codes: 0 no regression; 1 a compiled step is SLOWER by wall clock or by device time, a trial
BROKE, or with --fail-unresolved is UNRESOLVED; 2 no such sweep, nothing in common, other devices,
records that cannot be read, a store that does not answer, or a machine that lacks disk, memory or
file handles; 3 HEAD lacks trials of BASE, or nothing could be judged. The first of 1, 2 and 3 that
applies.
Try: `python -m sweeper.compare torch-2.12 torch-2.13`
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path

from sweeper.core.errors import ConfigError
from sweeper.core.files import write_text
from sweeper.core.system.exit_codes import BAD_INPUT, NOT_OK, NOTHING_JUDGED, OK
from sweeper.core.system.pipes import outlive_output, run_until_closed
from sweeper.loading.sources import add_tracking_uri, find_sources
from sweeper.report.columns.formats import count
from sweeper.report.text.terminal import Terminal
from sweeper.tracking.store import TrackingError

from .changes import (
    count_changes,
    count_device_changes,
    list_setting_changes,
)
from .pairs import COMPARED, choose_values, list_sides, match_sweeps, match_values, read_sides
from .quantities import DEVICE_MIN_EFFECT, MIN_EFFECT
from .text import FORMATS, Document, print_document, render
from .verdicts import Comparison, judge


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
        "--fail-unresolved, is UNRESOLVED), 2 bad input, records that cannot be read, no answer "
        "from MLflow, or a machine that lacks disk, memory or file handles, 3 HEAD lacks trials of "
        "BASE (except with --allow-gone or --by) or nothing could be judged (except with "
        "--allow-unresolved). The last line of the text sums up everything, for the log of a CI",
    )
    add, switch = parser.add_argument, partial(parser.add_argument, action="store_true")
    add("names", nargs="+", metavar="BASE HEAD", help="sweeps under runs/, or folders of trials")
    add_tracking_uri(parser)
    add(
        "--by",
        metavar="AXIS",
        help=f"compare two values of this axis within one sweep: {', '.join(COMPARED)}",
    )
    add(
        "--min-effect",
        type=_share,
        metavar="SHARE",
        help="smaller changes are neither SLOWER nor FASTER, and SAME means within it (default: "
        f"{MIN_EFFECT}, and {DEVICE_MIN_EFFECT} of device time)",
    )
    switch(
        "--allow-different-devices", help="compare absolute times of different GPUs all the same"
    )
    either = partial(parser.add_mutually_exclusive_group().add_argument, action="store_true")
    either(
        "--fail-unresolved",
        help="exit code 1 also when a row that both sides measured is UNRESOLVED",
    )
    either("--allow-unresolved", help="exit code 0, not 3, when nothing could be judged")
    switch("--allow-gone", help="exit code 0, not 3, when HEAD lacks trials of BASE")
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
    outlive_output("stdout")  # which changes no exit code
    try:
        document = compare(parsed)
    except (ConfigError, TrackingError, OSError) as error:
        print(error, file=sys.stderr)
        return BAD_INPUT
    try:
        if parsed.out:
            write_text(parsed.out, render(document, parsed.format))
    except OSError as error:
        # the message as a whole names a temporary file, which the user has never typed
        print(f"--out {parsed.out} cannot be written: {error.strerror or error}", file=sys.stderr)
        return BAD_INPUT
    if parsed.format == "text" or parsed.out:
        print_document(document, Terminal())
    else:
        print(render(document, parsed.format), end="")
        print(document.line, file=sys.stderr)
    for problem in document.problems:
        print(problem, file=sys.stderr)
    return document.exit_code


def choose_exit_code(
    comparison: Comparison, has_problems: bool, parsed: argparse.Namespace
) -> tuple[int, str]:
    """Return the exit code and why, where an option is about it."""
    unresolved = comparison.unresolved
    if comparison.regressed:
        return NOT_OK, ""
    if parsed.fail_unresolved and unresolved:
        return NOT_OK, f"{count(unresolved, 'measured row')} UNRESOLVED (--fail-unresolved)"
    if has_problems:
        return BAD_INPUT, ""
    reasons = []
    if "GONE" in comparison.verdicts and not (parsed.by or parsed.allow_gone):
        reasons.append("HEAD lacks trials of BASE (--allow-gone accepts that)")
    if comparison.nothing_judged and not parsed.allow_unresolved:
        reasons.append("nothing could be judged (--allow-unresolved accepts that)")
    return (NOTHING_JUDGED if reasons else OK), ", ".join(reasons)


def compare(parsed: argparse.Namespace) -> Document:
    """Read the sweeps and judge what they have in common.

    Raises ConfigError for sweeps, axes and values that are not there, nothing in common, and
    different devices.
    """
    names, axis = parsed.names, parsed.by
    if axis and len(names) not in (1, 3):
        raise ConfigError(
            f"{' '.join(names)}: with --by {axis} type SWEEP, or SWEEP BASE_VALUE HEAD_VALUE"
        )
    if not axis and len(names) != 2:
        raise ConfigError(
            f"{' '.join(names)}: two sweeps are compared, BASE and HEAD; one needs --by AXIS"
        )
    sources = find_sources(names[:1] if axis else names, parsed.tracking_uri)
    read = list(map(read_sides, sources))
    base, head = names[0], names[-1]
    if axis:
        sides = list_sides(read[0], read[0])
        values = choose_values(sides, axis, names[1:])
        pairs = match_values(sides, axis, *values)
        base, head = (f"{names[0]}, {axis}={value}" for value in values)
    elif sources[0].folder.resolve() == sources[1].folder.resolve():
        raise ConfigError(
            f"{base} and {head} are the same sweep; compare two values of an axis in it: "
            f"{base} --by AXIS"
        )
    else:
        pairs = match_sweeps(list_sides(*read), list_sides(*reversed(read)))
    problems = tuple(chain.from_iterable(sides.problems for sides in read))
    if not any(pair.both for pair in pairs):
        raise ConfigError("\n".join([f"{base} and {head} have no trial in common", *problems]))
    devices = count_device_changes(pairs)
    if devices and not parsed.allow_different_devices:
        hint = (
            "times on different devices say nothing of an upgrade; --allow-different-devices "
            "compares them anyway"
        )
        raise ConfigError("\n".join([*(device.line for device in devices), hint]))
    versions = count_changes(pairs, "versions")
    settings = [] if axis else list_setting_changes(*sources)
    changes = [*devices, *versions, *settings, *count_changes(pairs, "facts")]
    facts = [change.line for change in changes]
    comparison = judge(pairs, parsed.min_effect)
    code, why = choose_exit_code(comparison, bool(problems), parsed)
    return Document(base, head, comparison, facts, versions, problems, parsed.all, code, why)


if __name__ == "__main__":
    sys.exit(run_until_closed(main, lacking=BAD_INPUT))  # a 1 would say that a step is SLOWER
