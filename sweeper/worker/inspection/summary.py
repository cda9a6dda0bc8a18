"""`summary.md` of an inspection: what the compiler did with a trial, short enough to be read."""

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
from sweeper.worker.inspection.kernels import Kernel, count_scheduled, find_kernels, find_operations
from sweeper.worker.inspection.torch_trace import Compilation, Part, Trace

MAX_GRAPHS = 20  # described one by one
MAX_KERNELS = 25  # of a graph, the kernels with most operations
MAX_OPERATIONS = 8  # named of a kernel
MAX_PLACES = 2
MAX_NAME = 60  # characters of a kernel's name
MAX_BREAKS = 30
MAX_RECOMPILES = 10
MAX_GUARD = 200  # characters of a guard
LEGEND = """Dynamo: operations of PyTorch that it captured. ATen: operations of the part. Scheduled:
what Inductor made of them, before and after it fused. Kernels: launches of generated code. Library
calls: convolutions, matrix products and whatever else runs code that was there. Empty: not known,
or there is none."""
INSTALLED = re.compile(r"^.*/(?:site|dist)-packages/")


@dataclass(frozen=True)
class Findings:
    """All that an inspection has seen."""

    trial: Trial
    versions: Mapping[str, object]
    trace: Trace
    diagnostics: Diagnostics
    code_fingerprint: str | None
    timed_fingerprint: str | None  # of the code that was timed; None: not known
    not_compiled: str | None = None
    failure: str | None = None
    # before and after fusion, by the part's AOT id
    ir: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    # by launch, where the trace has none
    other_nodes: Mapping[str, list[str]] = field(default_factory=dict)

    def find_kernels(self, part: Part) -> tuple[Kernel, ...]:
        return find_kernels(part, self.other_nodes)

    def read_ir(self, part: Part) -> tuple[str, str]:
        """Inductor's form of a part before and after fusion; empty where there is none."""
        return self.ir.get(part.aot_id or "", ("", ""))


def write_summary(sight: Findings, left_out: Sequence[str]) -> str:
    """Write the text; `left_out`: files that were too long to keep."""
    graphs = sight.trace.graphs
    # Each with the guard that failed last; `recompiles.txt` has all of them.
    recompiles = [f"{name} since {_guard(text)}" for name, text in sight.trace.recompiles]
    sections = [
        f"# {sight.trial.label}: what the compiler did",
        "\n".join(f"- {line}" for line in _facts(sight)),
        *(_graphs_table(sight, graphs) if graphs else []),
        *(section for graph in graphs[:MAX_GRAPHS] for section in _graph_sections(sight, graph)),
        f"{len(graphs) - MAX_GRAPHS} more graphs are in their folders."
        if len(graphs) > MAX_GRAPHS
        else "",
        _list(
            "Graph breaks",
            [_describe_break(item) for item in sight.diagnostics.graph_breaks],
            MAX_BREAKS,
        ),
        _list("Recompilations", recompiles, MAX_RECOMPILES),
        _list("CUDA graphs that were not recorded", sight.diagnostics.cudagraph_skips),
        _list("Left out, too long to keep", left_out),
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


def _graphs_table(sight: Findings, graphs: Sequence[Compilation]) -> list[str]:
    """A row for each graph that the backend got: how many operations became how many kernels."""
    titles = [
        "graph",
        "of",
        "Dynamo",
        "part",
        "ATen",
        "scheduled",
        "after fusion",
        "kernels",
        "library calls",
    ]
    rows = []
    for graph in graphs:
        function = f"`{_shorten_place(graph.function)}`" if graph.function else ""
        captured = [graph.compile_id, function, _text(graph.num_operations)]
        rows += [[*captured, *_describe_part(sight, part)] for part in graph.parts.values()] or [
            [*captured, *[""] * 6]
        ]
    return ["## Graphs", _markdown(titles, rows[: 2 * MAX_GRAPHS]), LEGEND]


def _describe_part(sight: Findings, part: Part) -> list[str]:
    kernels = sight.find_kernels(part)
    operations = len(find_operations(part.aot_graph)) if part.aot_graph else None
    # before and after fusion
    scheduled = [count_scheduled(ir) or None for ir in sight.read_ir(part)]
    launches = [
        sum(item.launches for item in kernels if item.generated is own) for own in (True, False)
    ]
    counts = [operations, *scheduled, *(launches if part.output_code and kernels else (None, None))]
    return [part.direction, *map(_text, counts)]


def _graph_sections(sight: Findings, graph: Compilation) -> Iterator[str]:
    """What each part launches, with the code from which it comes; nothing where no code is
    known.
    """
    for part in graph.parts.values():
        launched = sight.find_kernels(part)
        yield f"## Graph {graph.compile_id}, {part.direction}" if launched else ""
        kernels = [kernel for kernel in launched if kernel.generated]
        most = sorted(kernels, key=lambda kernel: -kernel.num_operations)[:MAX_KERNELS]
        titles = ["launches", "kernel", "operations", "fuses", "from"]
        yield _markdown(titles, map(_describe_kernel, most)) if most else ""
        if len(kernels) > len(most):
            yield (
                f"{len(kernels) - len(most)} kernels with fewer operations are in `output_code.py`."
            )
        calls = [
            f"{kernel.name} ({kernel.launches})" for kernel in launched if not kernel.generated
        ]
        yield f"Library calls: {', '.join(calls)}." if calls else ""


def _describe_kernel(kernel: Kernel) -> list[str]:
    name = kernel.name if len(kernel.name) <= MAX_NAME else f"{kernel.name[:MAX_NAME]}…"
    operations = [name if count == 1 else f"{name} ({count})" for name, count in kernel.fuses]
    fuses, places = (
        _join(operations, MAX_OPERATIONS),
        _join(list(map(_shorten_place, kernel.places)), MAX_PLACES),
    )
    return [str(kernel.launches), f"`{name}`", _text(kernel.num_operations or None), fuses, places]


def _describe_break(item: GraphBreak) -> str:
    """A graph break with the line of the user's code."""
    where = f"`{_shorten_place(item.where)}`" if item.where else "no place given"
    source = f": `{line}`" if (line := source_line(item.where)) else ""
    return f"{where}{source}{f' ({item.count} times)' if item.count > 1 else ''}: {item.reason}"


def source_line(where: str | None) -> str | None:
    """The text of `file:line`; None where there is no such line."""
    file, _, number = (where or "").rpartition(":")
    return linecache.getline(file, int(number)).strip() or None if number.isdigit() else None


def _guard(reasons: str) -> str:
    """The first line of `reasons` without torch's hint, e.g. `0/0: self.calls == 3`."""
    line = " ".join(reasons.split("\n", 1)[0].partition("(HINT")[0].split())
    return line[:MAX_GUARD]


def _join(texts: Sequence[str], most: int) -> str:
    """The first texts, and how many more there are."""
    more = [f"{len(texts) - most} more"] if len(texts) > most else []
    return ", ".join([*texts[:most], *more])


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
    function, at, file = place.rpartition(" at ")
    file = INSTALLED.sub("", file)
    roots = (f"{root}{os.sep}" for root in (Path.cwd(), *sys.path) if str(root))
    root = next((root for root in roots if file.startswith(root)), "")
    return f"{function}{at}{file.removeprefix(root)}"


def _text(value: int | None) -> str:
    return "" if value is None else str(value)
