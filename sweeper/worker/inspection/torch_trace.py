"""What torch's structured trace says of a process: graphs, generated code, breaks, recompilations.

`TORCH_TRACE=FOLDER` has torch write it, one event per line and its text, indented by a tab, behind
it; it is what `tlparse` reads (https://github.com/meta-pytorch/tlparse). Torch is not imported
here: the variable has to be set before that.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from sweeper.core.system.leftovers import TEMPORARY, make_prefix

# for the trace itself, and for what Inductor writes beside
VARIABLES = ("TORCH_TRACE", "TORCH_COMPILE_DEBUG_DIR")
GRAPHS = {
    "aot_inference_graph": "inference",
    "aot_forward_graph": "forward",
    "aot_backward_graph": "backward",
}
OF_DYNAMO = {"dynamo_output_graph", "dynamo_graph_break_reason", "recompile_reasons"}
PROVENANCE = {
    "inductor_provenance_tracking_node_mappings",
    "inductor_provenance_tracking_kernel_stack_traces",
}
WITH_TEXT = {*GRAPHS, *OF_DYNAMO, *PROVENANCE, "inductor_post_grad_graph", "inductor_output_code"}
# V1121 15:22:13.306000 19710 torch/_dynamo/utils.py:2350] {"artifact": {"name": ...}, "frame_id":
# 0, ...}
EVENT = re.compile(r"V\d{4} \S+ \d+ \S+\] (\{.*)")
# The first line of generated code; the name is that of the folder for Inductor's own files as well.
AOT_ID = re.compile(r"# AOT ID: \['(\d+_([a-z]+))'")


@dataclass(frozen=True)
class Event:
    """`compile_id` is `frame/compilation`, as in torch's logs; `text` what came with it, if it is
    of use here.
    """

    kind: str
    compile_id: str | None
    fields: Mapping[str, Any]
    text: str = ""


@dataclass
class Part:
    """A graph as AOTAutograd gives it to the backend: `direction` is forward, backward or
    inference.
    """

    direction: str
    aot_graph: str | None = None
    post_grad_graph: str | None = None  # after Inductor's own passes on the graph
    output_code: str | None = None
    aot_id: str | None = None  # e.g. 0_forward
    # of the graph that a launch computes
    nodes: Mapping[str, list[str]] = field(default_factory=dict)
    # of the user's code behind a launch
    stacks: Mapping[str, list[str]] = field(default_factory=dict)


@dataclass
class Compilation:
    """One compilation of one frame: what Dynamo captured, and what became of it."""

    compile_id: str
    graph: str | None = None
    function: str | None = None  # e.g. `forward at /a/model.py:12`
    num_operations: int | None = None  # in Dynamo's graph
    failure: str | None = None
    parts: dict[str, Part] = field(default_factory=dict)
    post_grad_graph: str | None = None  # that came last and waits for its code
    latest: Part | None = None  # whose code came last

    def part(self, direction: str) -> Part:
        return self.parts.setdefault(direction, Part(direction))


@dataclass
class Trace:
    """All that was compiled, in order, and what torch says of breaks and recompilations."""

    compilations: dict[str, Compilation] = field(default_factory=dict)
    breaks: list[str] = field(default_factory=list)
    # compile id, guards that failed
    recompiles: list[tuple[str, str]] = field(default_factory=list)

    @property
    def graphs(self) -> list[Compilation]:
        """The compilations that gave a graph."""
        return [item for item in self.compilations.values() if item.graph is not None]


def request_trace(environment: MutableMapping[str, str]) -> None:
    """Have torch, once it is imported, write its trace to a new folder, and compile into caches of
    our own.
    """
    if "TORCHINDUCTOR_CACHE_DIR" not in environment:
        cache = tempfile.mkdtemp(prefix=make_prefix(TEMPORARY))
        environment.update(
            TORCHINDUCTOR_CACHE_DIR=f"{cache}/inductor", TRITON_CACHE_DIR=f"{cache}/triton"
        )
    parent = Path(environment["TORCHINDUCTOR_CACHE_DIR"]).parent
    parent.mkdir(parents=True, exist_ok=True)
    environment.update(dict.fromkeys(VARIABLES, tempfile.mkdtemp(dir=parent, prefix="trace-")))


def take_folder(environment: MutableMapping[str, str]) -> Path:
    """Where torch writes; to be called once it is imported: what we start from now on shall not
    write there.
    """
    folder, *_ = [environment.pop(name) for name in VARIABLES]
    return Path(folder)


def read(folder: Path) -> Trace:
    """Read the trace in the files that torch has left in `folder`."""
    trace = Trace()
    for file in sorted(folder.glob("*.log")):
        with file.open(encoding="utf-8", errors="replace") as lines:
            for event in read_events(lines):
                _add_event(event, trace)
    return trace


def read_events(lines: Iterable[str]) -> Iterator[Event]:
    """Read the events of a file; only those in `WITH_TEXT` keep their text, the others are many and
    long.
    """
    event: Event | None = None
    text: list[str] = []
    for line in chain(lines, [""]):  # the end of the file ends its last event
        if not line.startswith("\t"):
            if event is not None:
                yield replace(event, text="".join(text))
            event, text = _parse_event(line), []
        elif event is not None and event.kind in WITH_TEXT:
            text.append(line[1:])


def _parse_event(line: str) -> Event | None:
    if (matched := EVENT.match(line)) is None:
        return None
    data = json.loads(matched.group(1))
    kind, fields = next(iter(data.items()))
    if kind == "artifact":
        kind = fields["name"]
    frame, compilation = data.get("frame_id"), data.get("frame_compile_id")
    return Event(
        kind,
        None if frame is None else f"{frame}/{compilation}",
        fields if isinstance(fields, dict) else {},
    )


def _add_event(event: Event, trace: Trace) -> None:
    """Add an event to the compilation that it belongs to; those of one come in order, those of
    several are mixed.
    """
    if event.kind == "dynamo_graph_break_reason":
        trace.breaks.append(event.text)
    elif event.compile_id is not None and event.kind == "recompile_reasons":
        text = event.text.strip()  # one reason comes as it is, several as a list in JSON
        trace.recompiles.append(
            (event.compile_id, "\n".join(json.loads(text)) if text.startswith("[") else text)
        )
    elif event.compile_id is not None:
        _add_to(
            trace.compilations.setdefault(event.compile_id, Compilation(event.compile_id)), event
        )


def _add_to(compilation: Compilation, event: Event) -> None:
    latest = compilation.latest
    match event.kind:
        case "dynamo_output_graph":
            compilation.graph = event.text
        case "inductor_post_grad_graph":
            compilation.post_grad_graph = event.text
        case "inductor_output_code":
            part = compilation.latest = _find_part(compilation, event.text)
            part.output_code = event.text
            part.post_grad_graph, compilation.post_grad_graph = compilation.post_grad_graph, None
        case "inductor_provenance_tracking_node_mappings" if latest:
            latest.nodes = json.loads(event.text).get("cppCodeToPost", {})
        case "inductor_provenance_tracking_kernel_stack_traces" if latest:
            latest.stacks = json.loads(event.text)
        case "compilation_metrics":
            metrics = event.fields
            compilation.num_operations = metrics.get("graph_op_count")
            if name := metrics.get("co_name"):
                compilation.function = (
                    f"{name} at {metrics.get('co_filename')}:{metrics.get('co_firstlineno')}"
                )
            if metrics.get("fail_type"):
                compilation.failure = f"{metrics['fail_type']}: {metrics.get('fail_reason')}"
        case kind if kind in GRAPHS:
            compilation.part(GRAPHS[kind]).aot_graph = event.text


def _find_part(compilation: Compilation, code: str) -> Part:
    """The part whose code this is: it says so, or it is the next without code, since forward comes
    first.
    """
    if matched := AOT_ID.search(code):
        part = compilation.part(matched.group(2))
        part.aot_id = matched.group(1)
        return part
    waiting = [part for part in compilation.parts.values() if part.output_code is None]
    return waiting[0] if waiting else compilation.part("inference")
