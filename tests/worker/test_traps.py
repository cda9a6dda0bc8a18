"""Traps of measuring torch.compile, each with a model or backend built for it: what status and
flags come out.

The GPU's own traps are in test_gpu.py.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from worker_runs import custom, flags, private_cache, run

pytestmark = pytest.mark.compile
assert private_cache  # a fixture that every test here uses

AS_GIVEN = "the backend runs every graph as it was given, and compiles none"  # whatever it adds


@pytest.mark.parametrize(
    ("backend", "status", "phase", "says"),
    [
        ("gives_graph_back", "not_compiled", "compiling", AS_GIVEN),
        ("gives_closure_over_graph", "not_compiled", "compiling", AS_GIVEN),
        ("gives_interpreter_of_graph", "not_compiled", "compiling", AS_GIVEN),
        ("adds_to_graph", "not_compiled", "compiling", AS_GIVEN),
        ("slightly_off", "accuracy_mismatch", "checking", "is off by"),
        ("remembers", "accuracy_mismatch", "checking", "is off by"),
        ("nan_when_compiled", "accuracy_mismatch", "compiling", "NaN"),
        ("runs_out_of_memory", "oom", "compiling", "out of memory"),
    ],
)
@pytest.mark.parametrize("workload", ["train", pytest.param("inference", marks=pytest.mark.slow)])
def test_backend_that_does_not_do_its_work(
    backend: str, status: str, phase: str, says: str, workload: str
) -> None:
    outcome, _ = run(custom("mlp", backend=backend, workload=workload))
    assert (outcome.status, outcome.phase) == (status, phase), outcome.message
    assert says in str(outcome.message)


def test_step_that_fails_after_the_check_is_a_runtime_error() -> None:
    outcome, _ = run(custom("mlp", backend="raises_in_a_step"))
    assert outcome.status == "runtime_error", outcome.message
    assert outcome.phase in ("warming", "measuring")  # how long warm-up takes is up to the machine
    assert "a kernel fails" in str(outcome.message)


def test_backend_whose_results_are_right_passes_the_same_check() -> None:
    trial = custom("mlp", backend="aot_eager")
    outcome, _ = run(trial)
    assert outcome.status == "ok", outcome.message
    assert flags(trial, outcome) == set()


def test_frame_that_dynamo_gives_up_is_a_graph_break() -> None:
    outcome, _ = run(custom("skipped_by_dynamo"))
    assert outcome.status == "ok", outcome.message
    assert outcome.diagnostics is not None
    (found,) = outcome.diagnostics.graph_breaks
    assert found.reason.startswith("a whole frame runs eager: Observed exception")


def test_half_of_the_graphs_run_eager_is_said() -> None:
    outcome, _ = run(custom("breaks_once", backend="compiles_every_second_graph"))
    assert outcome.status == "ok", outcome.message
    assert outcome.diagnostics is not None
    assert outcome.diagnostics.graphs_run_eager == 1


RIGHT = [
    "complex_layer",
    "sparse_gradients",
    "puts_another_buffer_in_place",
    "autoencoder",
    "has_a_table_of_formats",
]


@pytest.mark.parametrize("batch_size", [pytest.param(1, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize("factory", RIGHT)
def test_models_that_are_hard_to_check_are_checked(factory: str, batch_size: int) -> None:
    trial = custom(factory, backend="aot_eager", batch_size=batch_size, optimizer="sgd")
    outcome, _ = run(trial)
    assert outcome.status == "ok", outcome.message
    assert outcome.process is not None
    assert outcome.process.accuracy is not None
    assert outcome.process.accuracy.passed, outcome.process.accuracy
    assert flags(trial, outcome) == set()


@pytest.mark.parametrize("factory", ["complex_layer", "autoencoder"])
def test_models_that_are_hard_to_check_fail_when_they_are_wrong(factory: str) -> None:
    outcome, _ = run(custom(factory, backend="slightly_off"))
    assert outcome.status == "accuracy_mismatch", outcome.message


def test_switch_that_the_model_sets_is_in_force_in_both_arms() -> None:
    trial = custom("allows_tf32")
    outcome, _ = run(trial)
    assert outcome.status == "ok", outcome.message
    assert outcome.diagnostics is not None
    assert outcome.diagnostics.settings["float32_matmul_precision"] == "high"
    assert "float32_matmul_precision=high" in str(outcome.diagnostics.settings["set_by_model"])
    assert flags(trial, outcome) == set()


def test_reading_that_fails_after_the_rounds_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from sweeper.worker.measurement.memory import Meter

    def fails(_meter, _run):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(Meter, "measure", fails)
    outcome, _ = run(custom("mlp"))
    assert outcome.status == "ok", outcome.message
    assert outcome.process is not None
    assert outcome.process.memory_bytes is None
    assert outcome.process.memory_missing == "compiled: OutOfMemoryError: no room"


def test_inductor_that_fails_silently_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def fails(*_arguments, **_options):
        raise RuntimeError("no code today")

    monkeypatch.setattr("torch._inductor.graph.GraphLowering.compile_to_module", fails)
    with torch._dynamo.config.patch(suppress_errors=True):
        outcome, _ = run(custom("mlp", backend="inductor"))
    assert outcome.status == "not_compiled", outcome.message


def test_switch_set_by_one_arm_is_flagged() -> None:
    trial = custom("mlp", backend="switches_tf32_on")
    outcome, _ = run(trial)
    assert outcome.status == "ok", outcome.message
    assert "unequal_settings" in flags(trial, outcome)
    assert outcome.process is not None
    assert "matmul_allow_tf32 after compiled" in outcome.process.changed_settings


def test_batch_of_one() -> None:
    trial = replace(custom("mlp"), batch_size=1)
    outcome, _ = run(trial)
    assert outcome.status == "ok", outcome.message
    wrong, _ = run(replace(trial, backend="remembers"))
    assert wrong.status == "accuracy_mismatch", wrong.message


def test_model_with_a_compile_of_its_own_runs_eager_in_the_eager_arm() -> None:
    outcome, _ = run(custom("compiles_itself"))
    assert outcome.status == "ok", outcome.message
    assert outcome.diagnostics is not None
    assert outcome.diagnostics.graphs == 1


def test_step_that_the_scaler_skips_voids_the_round() -> None:
    import torch

    from sweeper.worker.monitoring.round_monitor import RoundMonitor

    monitor, scale = RoundMonitor(torch.device("cpu")), [65536.0]
    monitor.read_gradient_scales = lambda: tuple(scale)
    monitor.start_round()
    assert monitor.explain_void() is None
    scale[0] /= 2
    assert monitor.explain_void() == "the gradient scaler skipped a step"


@pytest.mark.slow
def test_traps_show_in_the_table(run_module, tmp_path: Path) -> None:
    """Through the command: each row has its status or flag, and what is wrong is in no mean."""
    done = run_module(
        "sweeper", "-m", "model=custom", "model.factory=factories:mlp", "batch_size=4",
        "device=cpu", "sweep=traps",
        "backend=aot_eager",
        "backend.name=aot_eager,gives_graph_back,slightly_off,switches_tf32_on",
        "measure=quick", "measure.rounds=2", "measure.block_s=0.002", "measure.block_steps=2",
        "measure.warmup_s=0.2",
        "tracking=none",
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    with (tmp_path / "runs/traps/report/speedups.csv").open() as file:
        rows = {row["backend"]: row for row in csv.DictReader(file)}
    assert {name: row["status"] for name, row in rows.items()} == {
        "aot_eager": "ok",
        "gives_graph_back": "not_compiled",
        "slightly_off": "accuracy_mismatch",
        "switches_tf32_on": "ok",
    }
    assert "unequal_settings" in rows["switches_tf32_on"]["flags"]
    assert rows["slightly_off"]["speedup"] == ""
    with (tmp_path / "runs/traps/report/summary.csv").open() as file:
        means = {
            row["backend"]: row["geomean_fp32"]
            for row in csv.DictReader(file)
            if row["family"] == "all"
        }
    assert means["aot_eager"]
    assert (means["slightly_off"], means["gives_graph_back"]) == ("", "")


@pytest.mark.slow
def test_hang_in_compile_and_in_a_step_end_at_the_limit(run_module, tmp_path: Path) -> None:
    done = run_module(
        "sweeper", "-m", "model=custom", "model.factory=factories:mlp", "batch_size=4",
        "device=cpu", "sweep=hangs",
        "backend=aot_eager", "backend.name=hangs_in_compile,hangs_in_a_step", "measure=quick",
        "tracking=none",
        *(f"measure.phase_timeouts_s.{phase}=10" for phase in ("compiling", "checking", "warming",
        "measuring")),
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    with (tmp_path / "runs/hangs/report/failures.csv").open() as file:
        rows = {row["backend"]: (row["status"], row["phase"]) for row in csv.DictReader(file)}
    assert rows["hangs_in_compile"] == ("timeout", "compiling")
    assert rows["hangs_in_a_step"][0] == "timeout"
    assert rows["hangs_in_a_step"][1] in ("warming", "checking", "measuring")
