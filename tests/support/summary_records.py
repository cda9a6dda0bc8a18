"""Records whose means a test can compute in its head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from records import make_record, write_sweep
from reports import load

from sweeper.core.record import HostState, PerArm, Record
from sweeper.report.answers.findings import Findings
from sweeper.report.answers.groups import Group

PRECISIONS = ("amp", "fp32")


def findings_of(runs: Path, records: Sequence[Record]) -> Findings:
    return Findings(load([write_sweep(runs, records)]).entries)


def whole_of(findings: Findings) -> Group:
    """The group of all families, of which there is one."""
    (group,) = (group for group in findings.groups if group.is_whole)
    return group


def with_device(record: Record, speedup: float) -> Record:
    """The same with step times of the device: it computes for 96 % of eager's step of 20 ms."""
    step = PerArm(0.0192, 0.0192 / speedup)
    processes = tuple(replace(item, device_step_s=step) for item in record.processes)
    return replace(record, processes=processes)


def with_busy_host(record: Record) -> Record:
    """The same on a host of which others used half; only the flag `host_busy` makes it count."""
    busy = HostState(busy_while_measuring=0.5)
    return replace(record, processes=tuple(replace(item, host=busy) for item in record.processes))


def unverified() -> list[Record]:
    """Three models; of b the AMP trial is not verified, of c both are not.

    model  AMP  fp32  device AMP, fp32
    a      4    2     4, 2
    b      (9)  8     (9), 8
    c      (6)  (4)   none

    AMP 4 over a alone, fp32 (2 * 8)^(1/2) = 4 over a and b; weighted over a: 0.75 * 4 + 0.25 * 2 =
    3.5, as by device time.
    """
    flags = ("accuracy_unverified",)
    return [
        with_device(make_record("a", "amp", [4.0]), 4.0),
        with_device(make_record("a", "fp32", [2.0]), 2.0),
        with_device(make_record("b", "amp", [9.0], flags=flags), 9.0),
        with_device(make_record("b", "fp32", [8.0]), 8.0),
        make_record("c", "amp", [6.0], flags=flags),
        make_record("c", "fp32", [4.0], flags=flags),
    ]


def doubtful() -> list[Record]:
    """Three models, as fast by device time as by wall clock; two of them have a doubt: disturbances
    beyond the margin of their single process.

    model  AMP  fp32  doubt
    a      4    2
    b      9    8     host_busy in AMP
    c      6    4     shared_gpu in AMP and fp32

    AMP (4 * 9 * 6)^(1/3) = 6 and fp32 (2 * 8 * 4)^(1/3) = 4, so weighted 0.75 * 6 + 0.25 * 4 = 5.5.
    Without doubt: a in AMP, a and b in fp32, a in both; by device time, which the host cannot
    disturb, a and b.
    """
    speedups = {"a": (4.0, 2.0), "b": (9.0, 8.0), "c": (6.0, 4.0)}
    flags = {
        ("b", "amp"): ("host_busy",),
        ("c", "amp"): ("shared_gpu",),
        ("c", "fp32"): ("shared_gpu",),
    }
    records = []
    for name, pair in speedups.items():
        for precision, speedup in zip(PRECISIONS, pair, strict=True):
            found = flags.get((name, precision), ())
            record = with_busy_host(make_record(name, precision, [speedup], flags=found))
            records.append(with_device(record, speedup))
    return records
