"""Causes of lost time: what costs time, the dearest first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from records import make_record, write_sweep
from reports import load

from sweeper.core.backends import NO_CUDA_GRAPHS
from sweeper.core.record import Diagnostics, GraphBreak, PerArm, Record
from sweeper.report.answers.causes import Cause, find_causes


def with_diagnostics(record: Record, **changes: object) -> Record:
    return replace(record, diagnostics=replace(Diagnostics(graphs=1), **changes))  # type: ignore[arg-type]


def summarize(cause: Cause) -> tuple[str, str, int | None, float | None]:
    return cause.entry.record.trial.labels.model, cause.name, cause.count, cause.lost_s


def test_causes_are_ordered_by_what_they_cost(tmp_path: Path) -> None:
    """Busy for 6 ms of a compiled step of 10 ms, in 1000 kernels, a device waits for 2.8 ms: 4 -
    1000 * 1.2 us.
    """
    breaks = (GraphBreak("print", "model.py:3", 7), GraphBreak("item", None, 2))
    waiting = with_diagnostics(make_record("waits"), graph_breaks=breaks, recompiles=3)
    busy = (
        replace(p, device_time_s=PerArm(0.0199, 0.006), device_kernels=PerArm(1, 1000))
        for p in waiting.processes
    )
    skipped = with_diagnostics(
        make_record("skips", flags=("throttled",)), cudagraph_skips=("mutated inputs",) * 2
    )
    folder = write_sweep(tmp_path, [skipped, replace(waiting, processes=tuple(busy))])
    found = find_causes(load([folder]).entries)
    assert list(map(summarize, found)) == [
        ("waits", "host_bound", None, pytest.approx(0.0028)),
        ("waits", "graph_break", 7, None),
        ("waits", "recompile", 3, None),
        ("skips", "cudagraph_skip", 2, None),
        ("waits", "graph_break", 2, None),
        ("skips", "throttled", None, None),
    ]
    assert found[0].lost_fraction == pytest.approx(0.28)
    assert found[1].detail == "print at model.py:3"


def test_the_frame_whose_compilation_fails_is_no_graph_break(tmp_path: Path) -> None:
    broken = (GraphBreak("a whole frame runs eager: no reason given"),)
    records = [
        with_diagnostics(make_record(status, status=status), graph_breaks=broken)
        for status in ("compile_error", "not_compiled")
    ]
    (cause,) = find_causes(load([write_sweep(tmp_path, records)]).entries)
    assert cause.entry.record.status == "not_compiled"


def test_a_bypassed_cache_is_a_cause_with_the_most_that_a_process_counted(tmp_path: Path) -> None:
    record = make_record(speedups=(2.0, 2.0))
    reason = "Bypassing autograd cache due to: autocast"
    processes = []
    for process in record.processes:
        processes.append(replace(process, cache_bypasses={reason: 2 + process.index}))
    folder = write_sweep(tmp_path, [replace(record, processes=tuple(processes))])
    found = find_causes(load([folder]).entries)
    (cause,) = (cause for cause in found if cause.name == "cache_bypass")
    assert cause.count == 3
    assert cause.reason == reason
    assert "enter autocast around" in cause.fix


@pytest.mark.parametrize(
    ("device", "reason"),
    [("cpu", f"1 graph, {NO_CUDA_GRAPHS}"), ("cuda", "1 graph, no reason given")],
)
def test_a_cuda_graph_that_was_skipped_on_a_cpu_has_that_as_its_reason(
    tmp_path: Path, device: str, reason: str
) -> None:
    skipped = make_record(device=device, mode="reduce-overhead")
    skipped = with_diagnostics(skipped, cudagraph_skips=("1 graph, no reason given",))
    (cause,) = find_causes(load([write_sweep(tmp_path, [skipped])]).entries)
    assert (cause.name, cause.reason) == ("cudagraph_skip", reason)
