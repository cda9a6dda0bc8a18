"""A look at what the compiler does with a trial: generated code, graphs, breaks and a summary, as files.

`python -m sweeper.worker trial.json --inspect FOLDER`. Nothing is timed here, so torch may write all that it can
tell: its structured trace (`TORCH_TRACE`), and what `TORCH_COMPILE_DEBUG=1` shows of Inductor.
Place in the flow: `runner` starts such a process behind the timed ones of a trial; `session` leads it as any other.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from sweeper.core.paths import write_text
from sweeper.core.protocol import Job
from sweeper.core.trial import Trial
from sweeper.worker.compilation import artifacts
from sweeper.worker.compilation.counters import Watch
from sweeper.worker.failures import message_of
from sweeper.worker.inspection import torch_trace
from sweeper.worker.inspection.summary import Sight, summary
from sweeper.worker.inspection.torch_trace import Compilation
from sweeper.worker.session import EAGER_STEPS, Lead, Notes, Part, begin, build

TELLING = {
    "trace.enabled": True,
    "trace.fx_graph": False,  # torch's trace has this and the code
    "trace.output_code": False,
    "trace.provenance_tracking_level": 2,  # nodes and lines behind each kernel; 1 would change the kernels' names
}
MAX_BYTES = 20 * 10**6  # of all files but the summary
OF_INDUCTOR = re.compile(r"model__(\d+_[a-z]+)_\d+\.\d+")  # a folder that Inductor writes for a graph


def inspecting(folder: Path, timed_fingerprint: str | None) -> Lead:
    """What leads a process that writes what it sees to `folder`."""
    return functools.partial(_inspect, folder, timed_fingerprint)


def _inspect(folder: Path, timed_fingerprint: str | None, job: Job, _part: Part, notes: Notes) -> None:
    raw = torch_trace.folder_of(os.environ)
    begin(job, notes)
    with notes.enter("building"):
        lab = build(replace(job, trial=_telling(job.trial)), notes)
    with notes.enter("eager"):
        lab.bench.run(lab.eager, lab.bench.whole(EAGER_STEPS))
    with notes.enter("compiling"):
        notes.watch = Watch()
        notes.turn.rest_while_compiling()
        candidate = lab.compile(notes.watch)
        failure: str | None = None
        try:
            lab.bench.first_steps_s(candidate)
            notes.watch.settle()
            lab.bench.run(candidate, 1)
        except Exception as error:
            failure = message_of(error)
            raise
        finally:
            _write(folder, _sight(job, notes, notes.watch, raw, timed_fingerprint, failure))
            shutil.rmtree(raw)


def _telling(trial: Trial) -> Trial:
    """The trial with what has Inductor write its own forms of a graph; none of it changes the code.

    As options of `torch.compile` they reach the backward pass as well, which may be compiled in a thread of autograd's:
    there torch's global configuration has its defaults.
    """
    if trial.backend != "inductor":
        return trial
    return replace(trial, compile=replace(trial.compile, options={**trial.compile.options, **TELLING}))


def _sight(
    job: Job, notes: Notes, watch: Watch, raw: Path, timed_fingerprint: str | None, failure: str | None = None
) -> Sight:
    versions = notes.environment["versions"]
    found = torch_trace.read(raw)
    notes.found(**artifacts.found())
    return Sight(
        trial=job.trial,
        versions=versions,
        trace=found,
        diagnostics=watch.report({}),
        code_fingerprint=notes.process.code_fingerprint,
        timed_fingerprint=timed_fingerprint,
        not_compiled=None if failure else watch.why_not_compiled(),
        failure=failure,
        ir=dict(_intermediate(raw)),
        other_nodes=_nodes_of_backward(),
    )


def _intermediate(raw: Path) -> Iterator[tuple[str, tuple[str, str]]]:
    """Inductor's own form of a graph before and after fusion, by the graph's AOT id."""
    for folder in sorted(raw.glob("**/torchinductor/*")):
        if found := OF_INDUCTOR.fullmatch(folder.name):
            files = (folder / "ir_pre_fusion.txt", folder / "ir_post_fusion.txt")
            before, after = (file.read_text(encoding="utf-8") if file.exists() else "" for file in files)
            yield found.group(1), (before, after)


def _nodes_of_backward() -> Mapping[str, list[str]]:
    """Nodes by launch in graphs that were compiled in the first backward pass; the trace has none of these."""
    from torch._inductor.debug import create_kernel_information_json

    return {launch: kernel["post_grad_nodes"] for launch, kernel in create_kernel_information_json().items()}


def _write(folder: Path, sight: Sight) -> None:
    left_out = keep(folder, _files(sight), MAX_BYTES)
    write_text(folder / "summary.md", summary(sight, left_out))


def keep(folder: Path, files: Iterable[tuple[str, str]], most_bytes: int) -> list[str]:
    """Write texts under their names as long as they fit; lines that name the others."""
    left_bytes, left_out = most_bytes, []
    for name, text in files:
        size = len(text.encode())
        if size > left_bytes:
            left_out.append(f"`{name}`, {size / 1e6:.2g} MB of at most {most_bytes / 1e6:.2g} MB for all files")
            continue
        write_text(folder / name, text)
        left_bytes -= size
    return left_out


def _files(sight: Sight) -> Iterator[tuple[str, str]]:
    """Names and texts, those first that matter most, since there is a limit for all."""
    found = sight.trace
    graphs = found.graphs
    if found.breaks:
        yield "graph_breaks.txt", "\n\n".join(found.breaks)
    if found.recompiles:
        yield "recompiles.txt", "\n".join(f"{compile_id}: {text}" for compile_id, text in found.recompiles)
    parts = [(f"{_folder_of(graph)}/{part.direction}", part) for graph in graphs for part in graph.parts.values()]
    yield from _present((f"{name}/output_code.py", part.output_code) for name, part in parts)
    yield from _present((f"{_folder_of(graph)}/dynamo_graph.py", graph.graph) for graph in graphs)
    yield from _present((f"{name}/aot_graph.py", part.aot_graph) for name, part in parts)
    yield from _present((f"{name}/post_grad_graph.py", part.post_grad_graph) for name, part in parts)
    for index, stage in ((1, "post"), (0, "pre")):
        texts = ((name, sight.ir.get(part.aot_id or "", ("", ""))[index]) for name, part in parts)
        yield from _present((f"{name}/ir_{stage}_fusion.txt", text) for name, text in texts)


def _present(files: Iterable[tuple[str, str | None]]) -> Iterator[tuple[str, str]]:
    return ((name, text) for name, text in files if text)


def _folder_of(graph: Compilation) -> str:
    return f"graph-{graph.compile_id.replace('/', '_')}"
