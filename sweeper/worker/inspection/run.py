"""Inspects what the compiler does with a trial: generated code, graphs, breaks and a summary, as
files.

Nothing is timed here, so torch may write all that it can tell: its structured trace
(`TORCH_TRACE`), and what `TORCH_COMPILE_DEBUG=1` shows of Inductor.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from sweeper.core.files import write_text
from sweeper.core.protocol import Job
from sweeper.core.trial import Trial
from sweeper.worker.compilation import artifacts
from sweeper.worker.compilation.counters import CompileCounters
from sweeper.worker.failures import describe_error
from sweeper.worker.inspection import torch_trace
from sweeper.worker.inspection.summary import Findings, write_summary
from sweeper.worker.session import EAGER_STEPS, Notes, Part, Task, begin, build

TRACE_OPTIONS = {
    "trace.enabled": True,
    "trace.fx_graph": False,  # torch's trace has this and the code
    "trace.output_code": False,
    # nodes and lines behind each kernel; 1 would change the kernels' names
    "trace.provenance_tracking_level": 2,
}
MAX_BYTES = 20 * 10**6  # of all files but the summary
GRAPH_FOLDER = re.compile(r"model__(\d+_[a-z]+)_\d+\.\d+")  # that Inductor writes for a graph


def make_inspection(folder: Path, timed_fingerprint: str | None) -> Task:
    """Return a function that runs the phases of an inspection and writes its files to `folder`."""

    def inspect(job: Job, _part: Part, notes: Notes) -> None:
        raw = torch_trace.take_folder(os.environ)
        begin(job, notes)
        with notes.enter("building"):
            setup = build(replace(job, trial=_trace_inductor(job.trial)), notes)
        with notes.enter("eager"):
            setup.bench.run(setup.eager, setup.bench.round_up(EAGER_STEPS))
        with notes.enter("compiling"):
            counters = notes.counters = CompileCounters(keep_compiled=setup.eager.compiles_kernels)
            notes.lease.leave_while_compiling()
            compiled = setup.compile(counters)
            failure: str | None = None
            try:
                setup.bench.first_steps_s(compiled)
                counters.reset_run_counts()
                setup.bench.run(compiled, 1)
            except Exception as error:
                failure = describe_error(error)
                raise
            finally:
                sight = _collect(job, notes, raw, timed_fingerprint, failure)
                left_out = write_files(folder, _files(sight), MAX_BYTES)
                write_text(folder / "summary.md", write_summary(sight, left_out))
                shutil.rmtree(raw)

    return inspect


def _trace_inductor(trial: Trial) -> Trial:
    """The trial with options that have Inductor write its own forms of a graph; none of them
    changes the code.

    As options of `torch.compile` they reach the backward pass as well, which may be compiled in a
    thread of autograd's: there torch's global configuration has its defaults.
    """
    if trial.backend != "inductor":
        return trial
    return replace(
        trial, compile=replace(trial.compile, options={**trial.compile.options, **TRACE_OPTIONS})
    )


def _collect(
    job: Job, notes: Notes, raw: Path, timed_fingerprint: str | None, failure: str | None
) -> Findings:
    from torch._inductor.debug import create_kernel_information_json

    assert notes.counters is not None
    notes.add(**artifacts.read_fingerprints())
    return Findings(
        trial=job.trial,
        versions=notes.environment["versions"],
        trace=torch_trace.read(raw),
        diagnostics=notes.counters.report({}),
        code_fingerprint=notes.process.code_fingerprint,
        timed_fingerprint=timed_fingerprint,
        not_compiled=None if failure else notes.counters.explain_not_compiled(),
        failure=failure,
        ir=dict(_read_ir(raw)),
        # Of graphs that were compiled in the first backward pass; the trace has none of these.
        other_nodes={
            launch: kernel["post_grad_nodes"]
            for launch, kernel in create_kernel_information_json().items()
        },
    )


def _read_ir(raw: Path) -> Iterator[tuple[str, tuple[str, str]]]:
    """Read Inductor's own form of each graph before and after fusion, by the graph's AOT id."""
    for folder in sorted(raw.glob("**/torchinductor/*")):
        if matched := GRAPH_FOLDER.fullmatch(folder.name):
            files = (folder / "ir_pre_fusion.txt", folder / "ir_post_fusion.txt")
            before, after = (
                file.read_text(encoding="utf-8") if file.exists() else "" for file in files
            )
            yield matched.group(1), (before, after)


def write_files(folder: Path, files: Iterable[tuple[str, str | None]], max_bytes: int) -> list[str]:
    """Write texts under their names as long as they fit; lines that name the others."""
    left_bytes, left_out = max_bytes, []
    for name, text in files:
        size = len((text or "").encode())
        if size > left_bytes:
            left_out.append(
                f"`{name}`, {size / 1e6:.2g} MB of at most {max_bytes / 1e6:.2g} MB for all files"
            )
        elif text:
            write_text(folder / name, text)
            left_bytes -= size
    return left_out


def _files(sight: Findings) -> Iterator[tuple[str, str | None]]:
    """Names and texts, if there are any, those first that matter most, since there is a limit for
    all.
    """
    trace = sight.trace
    yield "graph_breaks.txt", "\n\n".join(trace.breaks)
    yield (
        "recompiles.txt",
        "\n".join(f"{compile_id}: {text}" for compile_id, text in trace.recompiles),
    )
    graphs = [(f"graph-{graph.compile_id.replace('/', '_')}", graph) for graph in trace.graphs]
    parts = [
        (f"{name}/{part.direction}", part)
        for name, graph in graphs
        for part in graph.parts.values()
    ]
    yield from ((f"{name}/output_code.py", part.output_code) for name, part in parts)
    yield from ((f"{name}/dynamo_graph.py", graph.graph) for name, graph in graphs)
    yield from ((f"{name}/aot_graph.py", part.aot_graph) for name, part in parts)
    yield from ((f"{name}/post_grad_graph.py", part.post_grad_graph) for name, part in parts)
    for index, stage in ((1, "post"), (0, "pre")):
        yield from (
            (f"{name}/ir_{stage}_fusion.txt", sight.read_ir(part)[index]) for name, part in parts
        )
