from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from records import make_process, make_record, make_trial, write_sweep
from reports import load

from sweeper.core.record import Record
from sweeper.core.trial import Compile, Text, Trial
from sweeper.loading.cross_trial import add_cross_trial_findings
from sweeper.loading.entries import Entry

EAGER_S = 0.02


def with_eager(record: Record, factor: float) -> Record:
    """The same trial, its eager step slower by `factor`."""
    return replace(record, processes=(make_process(eager_s=EAGER_S * factor),))


def entries(runs: Path, *records: Record) -> tuple[Entry, ...]:
    return add_cross_trial_findings(load([write_sweep(runs, records)]).entries)


def flagged(found: Sequence[Entry]) -> set[str]:
    return {entry.record.trial_id for entry in found if "eager_moved" in entry.flags}


@pytest.mark.parametrize(
    ("device", "factor", "moved"),
    [("cuda", 1.009, False), ("cuda", 1.011, True), ("cpu", 1.09, False), ("cpu", 1.11, True)],
)
def test_eager_may_move_by_one_percent_on_a_gpu_and_ten_on_a_cpu(
    tmp_path: Path, device: str, factor: float, moved: bool
) -> None:
    modes = ("default", "reduce-overhead", "max-autotune")
    still = [make_record(mode=mode, device=device) for mode in modes]
    found = entries(tmp_path, still[0], still[1], with_eager(still[2], factor))
    assert flagged(found) == ({record.trial_id for record in still} if moved else set())


@pytest.mark.parametrize(
    "other",
    [
        make_trial("vgg16"),
        make_trial(precision="bf16"),
        make_trial(batch_size=64),
        make_trial(optimizer="sgd"),
        make_trial(workload="inference"),
        make_trial(device="cpu"),
        make_trial(cudnn_benchmark=True),
        make_trial(optimizer_impl="fused"),
        make_trial(text=Text("padded")),
        make_trial(workload="decode", decode_position=5),
        make_trial(vary={"image_size": [64, 32]}),
    ],
    ids=lambda trial: str(trial.axes()),
)
def test_other_eager_steps_are_not_compared(tmp_path: Path, other: Trial) -> None:
    assert not flagged(entries(tmp_path, make_record(), with_eager(make_record(trial=other), 2.0)))


@pytest.mark.parametrize(
    "other",
    [
        make_trial(backend="aot_eager"),
        make_trial(mode="eager", backend=None),
        make_trial(compile=Compile(dynamic=True)),
    ],
    ids=["backend", "mode", "compile"],
)
def test_how_a_trial_compiles_does_not_matter_to_eager(tmp_path: Path, other: Trial) -> None:
    assert (
        len(flagged(entries(tmp_path, make_record(), with_eager(make_record(trial=other), 1.1))))
        == 2
    )


def test_sweeps_are_not_compared_with_each_other(tmp_path: Path) -> None:
    folders = [
        write_sweep(tmp_path, [with_eager(make_record(), factor)], name)
        for factor, name in ((1.0, "a"), (2.0, "b"))
    ]
    assert not flagged(add_cross_trial_findings(load(folders).entries))


def test_a_trial_without_eager_time_neither_moves_nor_is_moved(tmp_path: Path) -> None:
    failed = make_record(mode="max-autotune", status="compile_error", flags=("throttled",))
    found = entries(
        tmp_path, make_record(), failed, with_eager(make_record(mode="reduce-overhead"), 1.1)
    )
    assert len(flagged(found)) == 2
    assert next(entry for entry in found if entry.record.status != "ok").flags == ("throttled",)


def test_a_flag_of_the_sweep_stands_beside_those_of_the_record_in_order(tmp_path: Path) -> None:
    moved = with_eager(
        make_record(mode="reduce-overhead", flags=("unsteady", "compile_contended")), 1.1
    )
    flags = {
        entry.record.trial.mode: entry.flags for entry in entries(tmp_path, make_record(), moved)
    }
    assert flags["reduce-overhead"] == ("compile_contended", "eager_moved", "unsteady")
