from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from records import make_process, make_record, make_trial, write_sweep

from sweeper.analysis.stats import moderate_variances
from sweeper.core.record import PerArm, Record
from sweeper.core.trial import Compile, Text, Trial
from sweeper.loading.cross_trial import add_cross_trial_findings
from sweeper.loading.entries import Entry, load

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


def noisy(name: str, spread: float, *, host: bool = False) -> Record:
    """Five processes about a speedup of 2; a host-bound one has a device that is busy for 1 ms of
    10.
    """
    record = make_record(
        name, speedups=[2.0 * (1 + spread * step) for step in (-1, -0.5, 0, 0.5, 1)]
    )
    if not host:
        return record
    busy = {"device_time_s": PerArm(0.019, 0.001), "device_kernels": PerArm(100, 100)}
    return replace(
        record, processes=tuple(replace(process, **busy) for process in record.processes)
    )  # type: ignore[arg-type]


SPREADS = (0.002, 0.004, 0.008, 0.016, 0.003, 0.006, 0.012, 0.001)


def test_eight_trials_of_a_class_are_moderated_within_it(tmp_path: Path) -> None:
    plain = [noisy(f"plain{i}", spread) for i, spread in enumerate(SPREADS)]
    host = [noisy(f"host{i}", 10 * spread, host=True) for i, spread in enumerate(SPREADS)]
    found = entries(tmp_path, *plain, *host)
    for bound in (False, True):
        members = [entry for entry in found if (entry.result.host_bound_arms is not None) is bound]
        estimates = moderate_variances(
            [entry.result.estimate for entry in members if entry.result.estimate]
        )
        assert [entry.moderated for entry in members] == [
            estimate.interval() for estimate in estimates
        ]


def test_seven_trials_are_too_few(tmp_path: Path) -> None:
    plain = [noisy(f"plain{i}", spread) for i, spread in enumerate(SPREADS[:7])]
    assert {
        entry.moderated for entry in entries(tmp_path, *plain, noisy("host", 0.1, host=True))
    } == {None}


def test_trials_without_an_interval_do_not_count(tmp_path: Path) -> None:
    plain = [noisy(f"plain{i}", spread) for i, spread in enumerate(SPREADS[:7])]
    found = entries(tmp_path, *plain, make_record("single"), make_record("failed", status="oom"))
    assert {entry.moderated for entry in found} == {None}


def test_the_printed_interval_is_never_the_moderated_one(tmp_path: Path) -> None:
    found = entries(tmp_path, *(noisy(f"plain{i}", spread) for i, spread in enumerate(SPREADS)))
    for entry in found:
        assert entry.moderated is not None
        assert entry.result.estimate is not None
        assert entry.result.speedup_low == entry.result.estimate.interval().low  # type: ignore[union-attr]
        assert entry.result.speedup_low != entry.moderated.low
