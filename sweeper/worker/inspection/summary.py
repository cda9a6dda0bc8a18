"""`summary.md` of an inspection: what the compiler did with a trial, short enough to be read."""

from __future__ import annotations

import linecache
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sweeper.core.record import Diagnostics, GraphBreak
from sweeper.core.trial import Trial
from sweeper.worker.inspection.trace import CompiledPart

MAX_GRAPHS = 20  # in the table
MAX_PARTS = 20  # whose launches are listed
MAX_NAMES = 25  # of the kernels of a part
MAX_BREAKS = 30
MAX_RECOMPILES = 10
MAX_GUARD = 200  # characters of a guard
LEGEND = """Captured: operations of PyTorch in the graph of Dynamo. Operations: ATen operations of
the part, after the passes of Inductor. Kernels: launches of generated code. Library calls: launches
of code that Inductor did not write, such as convolutions and matrix products. Empty: Inductor wrote
no code."""
INSTALLED = re.compile(r"^.*/(?:site|dist)-packages/")


@dataclass(frozen=True)
class CapturedGraph:
    """A graph that Dynamo captured."""

    compile_id: str  # frame/compilation, as in the logs of torch
    function: str
    place: str  # file:line of the function
    num_operations: int
    recompile_reason: str | None = None  # guards that failed before it


@dataclass(frozen=True)
class Findings:
    """All that an inspection has seen."""

    trial: Trial
    versions: Mapping[str, object]
    diagnostics: Diagnostics
    code_fingerprint: str | None
    timed_fingerprint: str | None  # of the code that was timed; None: not known
    graphs: Sequence[CapturedGraph] = ()
    parts: Sequence[CompiledPart] = ()
    not_compiled: str | None = None
    failure: str | None = None
    no_report: str | None = None  # why tlparse wrote no report


def write_summary(sight: Findings) -> str:
    recompiles = [
        f"{graph.compile_id} since {_shorten_guard(graph.recompile_reason)}"
        for graph in sight.graphs
        if graph.recompile_reason
    ]
    sections = [
        f"# {sight.trial.label}: what the compiler did",
        "\n".join(f"- {line}" for line in _facts(sight)),
        *_graphs_table(sight),
        _list("Launches", list(map(_describe_part, sight.parts)), MAX_PARTS),
        _list(
            "Graph breaks", list(map(_describe_break, sight.diagnostics.graph_breaks)), MAX_BREAKS
        ),
        _list("Recompilations", recompiles, MAX_RECOMPILES),
        _list("CUDA graphs that were not recorded", sight.diagnostics.cudagraph_skips),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _facts(sight: Findings) -> Iterator[str]:
    trial, found = sight.trial, sight.diagnostics
    backend = f"backend {trial.backend}" + (
        f", mode {trial.mode}" if trial.backend == "inductor" else ""
    )
    yield (
        f"torch {sight.versions.get('torch')}, {backend}, on {trial.device}; in a process beside "
        "the timed ones"
    )
    if sight.failure:
        yield f"the compiled step failed: {' '.join(sight.failure.split())}"
    if sight.not_compiled:
        yield f"not compiled: {sight.not_compiled}"
    breaks = sum(item.count for item in found.graph_breaks)
    counts = (
        (found.graphs or 0, "graph"),
        (breaks, "graph break"),
        (found.recompiles or 0, "recompilation"),
    )
    yield ", ".join(f"{count} {noun}{'' if count == 1 else 's'}" for count, noun in counts)
    here, timed = sight.code_fingerprint, sight.timed_fingerprint
    if here is None:
        yield "no code of Inductor's"
    elif timed is None:
        yield f"fingerprint of the code: {here}; there is no timed code to compare it with"
    elif here == timed:
        yield f"it is the code that was timed (fingerprint {here})"
    else:
        other = f"it is other code than was timed: fingerprint {here} here, {timed} there"
        yield f"{other}; kernels are autotuned in each cache anew"
    if sight.no_report:
        yield f"there is no report of tlparse: {sight.no_report}"
    else:
        yield "[the report of tlparse](tlparse/index.html) has graphs, code and all of the trace"


def _graphs_table(sight: Findings) -> Iterator[str]:
    """A row for each part of each graph: how many operations became how many launches."""
    if not sight.graphs:
        return
    titles = ["graph", "of", "captured", "part", "operations", "kernels", "library calls"]
    rows = []
    for graph in sight.graphs[:MAX_GRAPHS]:
        captured = [
            graph.compile_id,
            f"`{graph.function} at {_shorten_place(graph.place)}`",
            str(graph.num_operations),
        ]
        parts = [part for part in sight.parts if part.compile_id == graph.compile_id]
        for part in parts:
            launches = [sum(part.kernels.values()), sum(part.library_calls.values())]
            counts = map(str, [part.num_operations, *launches])
            rows.append([*captured, part.direction, *counts])
        if not parts:
            rows.append([*captured, *[""] * 4])
    yield f"## Graphs\n\n{_markdown(titles, rows)}"
    if len(sight.graphs) > MAX_GRAPHS:
        yield f"{len(sight.graphs) - MAX_GRAPHS} more graphs are in the report of tlparse."
    yield LEGEND


def _describe_part(part: CompiledPart) -> str:
    """What a part launches, the most frequent first."""
    kernels, calls = _count_names(part.kernels), _count_names(part.library_calls)
    return f"{part.compile_id} {part.direction}: kernels {kernels}; library calls {calls}"


def _count_names(launches: Mapping[str, int]) -> str:
    counted = sorted(launches.items(), key=lambda item: -item[1])
    texts = [f"`{name}` ({count})" for name, count in counted[:MAX_NAMES]]
    if len(counted) > MAX_NAMES:
        texts.append(f"{len(counted) - MAX_NAMES} more")
    return ", ".join(texts) or "none"


def _describe_break(item: GraphBreak) -> str:
    """A graph break with the line of the user's code."""
    where = f"`{_shorten_place(item.where)}`" if item.where else "no place given"
    source = f": `{line}`" if (line := source_line(item.where)) else ""
    return f"{where}{source}{f' ({item.count} times)' if item.count > 1 else ''}: {item.reason}"


def source_line(where: str | None) -> str | None:
    """The text of `file:line`; None where there is no such line."""
    file, _, number = (where or "").rpartition(":")
    return linecache.getline(file, int(number)).strip() or None if number.isdigit() else None


def _shorten_guard(reasons: str) -> str:
    """The first line of `reasons` without torch's hint, e.g. `0/0: self.calls == 3`."""
    line = " ".join(reasons.split("\n", 1)[0].partition("(HINT")[0].split())
    return line[:MAX_GUARD]


def _list(title: str, lines: Sequence[str], most: int = sys.maxsize) -> str:
    shown = lines if len(lines) <= most else [*lines[:most], f"and {len(lines) - most} others"]
    return f"## {title}\n\n" + "\n".join(f"- {line}" for line in shown) if lines else ""


def _markdown(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )


def _shorten_place(place: str) -> str:
    """A place without the folders that packages are installed in, or that we are in."""
    place = INSTALLED.sub("", place)
    roots = (f"{root}{os.sep}" for root in (Path.cwd(), *sys.path) if str(root))
    root = next((root for root in roots if place.startswith(root)), "")
    return place.removeprefix(root)
