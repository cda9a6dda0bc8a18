"""`summary.md` of an inspection: what the compiler did with a trial, short enough to be read."""

import linecache
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sweeper.core.record import Diagnostics, GraphBreak
from sweeper.core.trial import Trial


@dataclass(frozen=True)
class Inspected:
    """All that an inspection has seen beside the report of tlparse."""

    trial: Trial
    versions: Mapping[str, object]
    diagnostics: Diagnostics
    code_fingerprint: str | None
    timed_fingerprint: str | None  # of the code that was timed; None: not known
    recompilations: Sequence[str] = ()  # the guards that failed before each
    not_compiled: str | None = None
    failure: str | None = None
    no_report: str | None = None  # why tlparse wrote no report


def write_summary(found: Inspected) -> str:
    breaks = list(map(_describe_break, found.diagnostics.graph_breaks))
    recompilations = list(map(_shorten_guard, found.recompilations))
    skips = found.diagnostics.cudagraph_skips
    sections = [
        f"# {found.trial.label}: what the compiler did",
        "\n".join(f"- {line}" for line in _facts(found)),
        _list("Graph breaks", breaks, 30),
        _list("Recompilations", recompilations, 10),
        _list("CUDA graphs that were not recorded", skips, len(skips)),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _facts(found: Inspected) -> Iterator[str]:
    trial, diagnostics = found.trial, found.diagnostics
    mode = f", mode {trial.mode}" if trial.backend == "inductor" else ""
    yield (
        f"torch {found.versions.get('torch')}, backend {trial.backend}{mode}, on {trial.device}; "
        "in a process beside the timed ones"
    )
    if found.failure:
        yield f"the compiled step failed: {' '.join(found.failure.split())}"
    if found.not_compiled:
        yield f"not compiled: {found.not_compiled}"
    breaks = sum(item.count for item in diagnostics.graph_breaks)
    yield (
        f"{_count(diagnostics.graphs or 0, 'graph')}, {_count(breaks, 'graph break')}, "
        f"{_count(diagnostics.recompiles or 0, 'recompilation')}"
    )
    here, timed = found.code_fingerprint, found.timed_fingerprint
    if here is None:
        yield "no code of Inductor's"
    elif timed is None:
        yield f"fingerprint of the code: {here}; there is no timed code to compare it with"
    elif here == timed:
        yield f"it is the code that was timed (fingerprint {here})"
    else:
        other = f"it is other code than was timed: fingerprint {here} here, {timed} there"
        yield f"{other}; kernels are autotuned in each cache anew"
    if found.no_report:
        yield f"there is no report of tlparse: {found.no_report}"
    else:
        yield "[the report of tlparse](tlparse/index.html) has the graphs, the code and the trace"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _describe_break(item: GraphBreak) -> str:
    """A graph break with the line of the user's code."""
    text = f"`{_shorten_place(item.where)}`" if item.where else "no place given"
    line = source_line(item.where)
    if line:
        text += f": `{line}`"
    if item.count > 1:
        text += f" ({item.count} times)"
    return f"{text}: {item.reason}"


def source_line(where: str | None) -> str | None:
    """The text of `file:line`; None where there is no such line."""
    file, _, number = (where or "").rpartition(":")
    if not number.isdigit():
        return None
    return linecache.getline(file, int(number)).strip() or None


def _shorten_guard(reasons: str) -> str:
    """The first line of `reasons` without torch's hint, e.g. `0/0: self.calls == 3`."""
    return " ".join(reasons.split("\n", 1)[0].partition("(HINT")[0].split())[:200]


def _list(title: str, lines: Sequence[str], most: int) -> str:
    """A section with at most so many lines."""
    if not lines:
        return ""
    shown = [f"- {line}" for line in lines[:most]]
    if len(lines) > most:
        shown.append(f"- and {len(lines) - most} others")
    return f"## {title}\n\n" + "\n".join(shown)


def _shorten_place(place: str) -> str:
    """A place without the folders that packages are installed in, or that we are in."""
    place = re.sub(r"^.*/(?:site|dist)-packages/", "", place)
    for root in (Path.cwd(), *sys.path):
        if str(root) and place.startswith(f"{root}{os.sep}"):
            return place.removeprefix(f"{root}{os.sep}")
    return place
