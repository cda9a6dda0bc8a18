"""`summary.md` of an inspection: what the compiler did with a trial, short enough to be read.

Place in the flow: `inspection` has run the compiler and gives what it saw; here it becomes text.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sweeper.core.record import Diagnostics, GraphBreak
from sweeper.core.trial import Trial
from sweeper.worker.inspection.kernels import Kernel, kernels_of, num_scheduled, operations_in
from sweeper.worker.inspection.torch_trace import Compilation, Part, Trace

MAX_GRAPHS = 20  # described one by one
MAX_KERNELS = 25  # of a graph, the kernels with most operations
MAX_OPERATIONS = 8  # named of a kernel
MAX_PLACES = 2
MAX_NAME = 60  # characters of a kernel's name
MAX_BREAKS = 30
MAX_RECOMPILES = 10
MAX_GUARD = 200  # characters of a guard
LEGEND = """Dynamo: operations of PyTorch that it captured. ATen: operations of the part. Scheduled: what Inductor
made of them, before and after it fused. Kernels: launches of generated code. Library calls: convolutions, matrix
products and whatever else runs code that was there. Empty: not known, or there is none."""
INSTALLED = re.compile(r"^.*/(?:site|dist)-packages/")


@dataclass(frozen=True)
class Sight:
    """All that an inspection has seen."""

    trial: Trial
    versions: Mapping[str, object]
    trace: Trace
    diagnostics: Diagnostics
    code_fingerprint: str | None
    timed_fingerprint: str | None  # of the code that was timed; None: not known
    not_compiled: str | None = None
    failure: str | None = None
    ir: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # before and after fusion, by the part's AOT id
    other_nodes: Mapping[str, list[str]] = field(default_factory=dict)  # by launch, where the trace has none

    def kernels(self, part: Part) -> tuple[Kernel, ...]:
        return kernels_of(part, self.other_nodes)


def summary(sight: Sight, left_out: Sequence[str]) -> str:
    """The text; `left_out`: files that were too long to keep."""
    graphs = sight.trace.graphs
    sections = [
        f"# {sight.trial.label}: what the compiler did",
        "\n".join(f"- {line}" for line in _facts(sight)),
        *(_table(sight, graphs) if graphs else []),
        *(section for graph in graphs[:MAX_GRAPHS] for section in _graph(sight, graph)),
        f"{len(graphs) - MAX_GRAPHS} more graphs are in their folders." if len(graphs) > MAX_GRAPHS else "",
        *_breaks(sight.diagnostics.graph_breaks),
        *_recompiles(sight.trace.recompiles),
        *_list("CUDA graphs that were not recorded", sight.diagnostics.cudagraph_skips),
        *_list("Left out, too long to keep", left_out),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _facts(sight: Sight) -> Iterator[str]:
    trial, found = sight.trial, sight.diagnostics
    backend = f"backend {trial.backend}" + (f", mode {trial.mode}" if trial.backend == "inductor" else "")
    yield f"torch {sight.versions.get('torch')}, {backend}, on {trial.device}; in a process beside the timed ones"
    if sight.failure:
        yield f"the compiled step failed: {' '.join(sight.failure.split())}"
    if sight.not_compiled:
        yield f"not compiled: {sight.not_compiled}"
    breaks = sum(item.count for item in found.graph_breaks)
    counts = ((found.graphs or 0, "graph"), (breaks, "graph break"), (found.recompiles or 0, "recompilation"))
    yield ", ".join(f"{count} {noun}{'' if count == 1 else 's'}" for count, noun in counts)
    if sight.code_fingerprint is None:
        yield "no code of Inductor's"
    elif sight.timed_fingerprint is None:
        yield f"fingerprint of the code: {sight.code_fingerprint}; there is no timed code to compare it with"
    elif sight.code_fingerprint == sight.timed_fingerprint:
        yield f"it is the code that was timed (fingerprint {sight.code_fingerprint})"
    else:
        yield (
            f"it is other code than was timed: fingerprint {sight.code_fingerprint} here, {sight.timed_fingerprint} "
            "there; kernels are raced in each cache anew"
        )


def _table(sight: Sight, graphs: Sequence[Compilation]) -> list[str]:
    """A row for each graph that the backend got: how many operations became how many kernels."""
    rows = [_row(sight, graph, part) for graph in graphs for part in graph.parts.values() or [None]]
    return [
        "## Graphs",
        _markdown(
            ["graph", "of", "Dynamo", "part", "ATen", "scheduled", "after fusion", "kernels", "library calls"],
            rows[: 2 * MAX_GRAPHS],
        ),
        LEGEND,
    ]


def _row(sight: Sight, graph: Compilation, part: Part | None) -> list[str]:
    if part is None:
        return [*_captured(graph), *[""] * 6]
    launched = sight.kernels(part)
    before, after = sight.ir.get(part.aot_id or "", ("", ""))
    known = bool(part.output_code and launched)
    return [
        *_captured(graph),
        part.direction,
        _text(len(operations_in(part.aot_graph)) if part.aot_graph else None),
        _text(num_scheduled(before) or None),
        _text(num_scheduled(after) or None),
        _text(sum(kernel.launches for kernel in launched if kernel.generated) if known else None),
        _text(sum(kernel.launches for kernel in launched if not kernel.generated) if known else None),
    ]


def _captured(graph: Compilation) -> list[str]:
    function = f"`{_short(graph.function)}`" if graph.function else ""
    return [graph.compile_id, function, _text(graph.num_operations)]


def _graph(sight: Sight, graph: Compilation) -> Iterator[str]:
    """What each part launches, with the code from which it comes; nothing where no code is known."""
    for part in graph.parts.values():
        if launched := sight.kernels(part):
            yield f"## Graph {graph.compile_id}, {part.direction}"
            yield from _kernels([kernel for kernel in launched if kernel.generated])
            calls = [f"{kernel.name} ({kernel.launches})" for kernel in launched if not kernel.generated]
            yield f"Library calls: {', '.join(calls)}." if calls else ""


def _kernels(kernels: Sequence[Kernel]) -> Iterator[str]:
    if not kernels:
        return
    most = sorted(kernels, key=lambda kernel: -kernel.num_operations)[:MAX_KERNELS]
    yield _markdown(["launches", "kernel", "operations", "fuses", "from"], map(_kernel_row, most))
    if len(kernels) > len(most):
        yield f"{len(kernels) - len(most)} kernels with fewer operations are in `output_code.py`."


def _kernel_row(kernel: Kernel) -> list[str]:
    name = kernel.name if len(kernel.name) <= MAX_NAME else f"{kernel.name[:MAX_NAME]}…"
    return [
        str(kernel.launches),
        f"`{name}`",
        _text(kernel.num_operations or None),
        _some([name if count == 1 else f"{name} ({count})" for name, count in kernel.fuses], MAX_OPERATIONS),
        _some([_short(place) for place in kernel.places], MAX_PLACES),
    ]


def _some(texts: Sequence[str], most: int) -> str:
    """The first of them, and how many there are beside."""
    more = [f"{len(texts) - most} more"] if len(texts) > most else []
    return ", ".join([*texts[:most], *more])


def _breaks(breaks: Sequence[GraphBreak]) -> list[str]:
    """Each with the line of the user's code."""
    lines = []
    for item in breaks[:MAX_BREAKS]:
        where = f"`{_short(item.where)}`" if item.where else "no place given"
        times = f" ({item.count} times)" if item.count > 1 else ""
        source = source_line(item.where)
        lines.append(f"{where}{f': `{source}`' if source else ''}{times}: {item.reason}")
    if len(breaks) > MAX_BREAKS:
        lines.append(f"and {len(breaks) - MAX_BREAKS} others")
    return _list("Graph breaks", lines)


def source_line(where: str | None) -> str | None:
    """The text of `file:line`; None where there is no such line."""
    file, _, number = (where or "").rpartition(":")
    return linecache.getline(file, int(number)).strip() or None if number.isdigit() else None


def _recompiles(recompiles: Sequence[tuple[str, str]]) -> list[str]:
    """Each with the guard that failed last; `recompiles.txt` has all of them."""
    lines = [f"{compile_id} since {_guard(reasons)}" for compile_id, reasons in recompiles[:MAX_RECOMPILES]]
    if len(recompiles) > MAX_RECOMPILES:
        lines.append(f"and {len(recompiles) - MAX_RECOMPILES} others")
    return _list("Recompilations", lines)


def _guard(reasons: str) -> str:
    """The first line of `reasons` without torch's hint, e.g. `0/0: self.calls == 3`."""
    line = " ".join(reasons.split("\n", 1)[0].partition("(HINT")[0].split())
    return line[:MAX_GUARD]


def _list(title: str, lines: Sequence[str]) -> list[str]:
    return [f"## {title}", "\n".join(f"- {line}" for line in lines)] if lines else []


def _markdown(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _short(place: str) -> str:
    """A place without the folders that packages are installed in, or that we are in."""
    function, at, file = place.rpartition(" at ")
    file = INSTALLED.sub("", file)
    roots = (f"{root}{os.sep}" for root in (Path.cwd(), *sys.path) if str(root))
    return f"{function}{at}{file.removeprefix(next((root for root in roots if file.startswith(root)), ''))}"


def _text(value: int | None) -> str:
    return "" if value is None else str(value)
