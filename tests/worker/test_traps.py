"""Traps of measuring torch.compile, each with a model or backend built for it: what status and flags come out.

The GPU's own traps are in test_gpu.py.
"""

from __future__ import annotations

import csv
import math
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
from worker_runs import custom, flags, private_cache, run

from sweeper.core.trial import Compile, Precision

pytestmark = pytest.mark.compile
assert private_cache  # a fixture that every test here uses


@pytest.mark.parametrize(
    ("backend", "status", "phase", "says"),
    [
        ("gives_graph_back", "not_compiled", "compiling", "runs every graph as it was given"),
        ("gives_closure_over_graph", "not_compiled", "compiling", "runs every graph as it was given"),
        ("gives_interpreter_of_graph", "not_compiled", "compiling", "runs every graph as it was given"),
        ("slightly_off", "accuracy_mismatch", "checking", "is off by"),
        ("remembers", "accuracy_mismatch", "checking", "is off by"),
        ("nan_when_compiled", "accuracy_mismatch", "compiling", "NaN"),
        ("runs_out_of_memory", "oom", "compiling", "out of memory"),
    ],
)
@pytest.mark.parametrize("workload", ["train", "inference"])
def test_backend_that_does_not_do_its_work(backend: str, status: str, phase: str, says: str, workload: str) -> None:
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


RIGHT = ["complex_layer", "sparse_gradients", "puts_another_buffer_in_place", "autoencoder", "has_a_table_of_formats"]


@pytest.mark.parametrize("batch_size", [1, 4])
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


def test_reference_in_fp32_where_fp64_is_another_model() -> None:
    outcome, _ = run(custom("other_path_in_fp64", backend="aot_eager"))
    assert outcome.status == "ok", outcome.message
    assert outcome.process is not None
    assert outcome.process.accuracy is not None
    assert (outcome.process.accuracy.reference, outcome.process.accuracy.passed) == ("float32", True)
    outcome, _ = run(custom("other_path_in_fp64", backend="nothing_but_zeros"))
    assert outcome.status == "accuracy_mismatch", outcome.message


def test_closer_look_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where fp64 does not run, the second look is against fp32 as well, with the steps that the first had not."""
    from sweeper.worker import session
    from sweeper.worker.accuracy import check

    looks = []

    class Strict(check.AccuracyCheck):
        """Allows nothing at the first look."""

        def _compare_eager(self, pristine, dtype):
            looks.append((str(dtype), self._looks_closer))
            taken, allowed = super()._compare_eager(pristine, dtype)
            none = dict.fromkeys(allowed.bounds, 0.0)
            return taken, allowed if self._looks_closer else replace(allowed, bounds=none)

    monkeypatch.setattr(session, "AccuracyCheck", Strict)
    outcome, _ = run(custom("refuses_fp64", backend="inductor", precision=Precision(autocast="bfloat16")))
    assert outcome.status == "ok", outcome.message
    formats = ("torch.float64", "torch.float32")
    assert looks == [(name, closer) for closer in (False, True) for name in formats]


def test_verdict_for_which_memory_is_short_is_given_at_the_second_try(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from sweeper.worker.accuracy import rule

    tries, judge = [], rule.judge

    def short_of_memory(*arguments):
        tries.append(arguments)
        if len(tries) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return judge(*arguments)

    monkeypatch.setattr(rule, "judge", short_of_memory)
    outcome, _ = run(custom("wide_mlp", backend="inductor"))
    assert outcome.status == "ok", outcome.message
    assert outcome.process is not None
    assert outcome.process.accuracy is not None
    assert (outcome.process.accuracy.passed, len(tries)) == (True, 2)


def test_step_that_fails_leaves_nothing_of_what_was_seen_of_it() -> None:
    import torch

    from sweeper.worker.measurement.capture import OutputCapture, capture_step

    module, trial = torch.nn.Linear(2, 2), custom("wide_mlp")
    capture = OutputCapture(lambda output, _batch: output.sum())

    def fails() -> None:
        capture(module(torch.ones(1, 2)), None)
        assert capture.output
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        capture_step(fails, capture, module, trial)
    assert capture.output == []


def test_check_that_cannot_be_made_leaves_the_trial_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_arguments, **_options):
        raise KeyError("not with this model")

    monkeypatch.setattr("sweeper.worker.accuracy.check.run_reference", fails)
    trial = custom("mlp")
    outcome, _ = run(trial)
    assert outcome.status == "ok", outcome.message
    assert outcome.process is not None
    assert outcome.process.accuracy is not None
    assert "not with this model" in str(outcome.process.accuracy.unverified)
    assert flags(trial, outcome) == {"accuracy_unverified"}


def test_error_of_the_compiled_step_in_the_check_is_no_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    from sweeper.worker.measurement.bench import Bench

    run_on = Bench.run_on

    def fails(bench, arm, batch):
        if arm.name == "compiled":
            raise ValueError("an argument of a kernel")
        return run_on(bench, arm, batch)

    monkeypatch.setattr(Bench, "run_on", fails)
    outcome, _ = run(custom("mlp"))
    assert (outcome.status, outcome.phase) == ("runtime_error", "checking"), outcome.message


def test_gradient_that_eager_gives_as_infinite_is_counted() -> None:
    outcome, _ = run(custom("one_gradient_is_infinite", optimizer="none"))
    assert outcome.status == "ok", outcome.message
    assert outcome.process is not None
    assert outcome.process.accuracy is not None
    assert outcome.process.accuracy.unjudged == 2, "the gradient, and all gradients together"
    assert outcome.process.accuracy.passed is None
    assert "all gradients" in str(outcome.process.accuracy.unverified)


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

    from sweeper.worker.setup import TrialSetup

    def fails(_setup, arm):
        raise torch.OutOfMemoryError(f"no room for {arm.name}")

    monkeypatch.setattr(TrialSetup, "measure_memory", fails)
    outcome, _ = run(custom("mlp"))
    assert outcome.status == "ok", outcome.message
    assert outcome.process is not None
    assert outcome.process.memory_bytes is None
    assert "no room for compiled" in str(outcome.process.memory_missing)


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


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_eager_that_differs_from_itself_is_told_apart_from_a_mismatch(backend: str) -> None:
    trial = custom("random_each_time", backend=backend)
    outcome, _ = run(trial)
    assert outcome.status == "ok", outcome.message
    assert {"eager_nondeterministic", "accuracy_unverified"} <= flags(trial, outcome)
    assert outcome.process is not None
    assert outcome.process.accuracy is not None
    assert outcome.process.accuracy.passed is None


@pytest.mark.slow  # Inductor compiles it for most of a minute; the rule itself is tried on tensors below
def test_correct_cnn_with_gradients_of_noise_passes() -> None:
    outcome, _ = run(custom("noisy_cnn", backend="inductor"))
    assert outcome.status == "ok", outcome.message
    assert outcome.process is not None
    assert outcome.process.accuracy is not None
    assert outcome.process.accuracy.passed


def tensors(**values: float) -> list:
    """Tensors of four elements that all have the value given; names are those of gradients."""
    import torch

    return [(f"gradient of {name}", torch.full((4,), value, dtype=torch.float64)) for name, value in values.items()]


@pytest.mark.parametrize(
    ("noise", "weight", "passed"),
    [
        (30e-9, 1.0, True),  # thirty times as far as eager is, on a gradient of nothing but rounding
        (1e-3, 1.0, False),  # the floor for noise: 1e-3 * the size of all gradients, which is sqrt(1 / 2)
        (1e-9, 1.00005, True),
        (1e-9, 1.0002, False),  # tolerance of fp32 is 1e-4
    ],
)
def test_rule_of_accuracy_by_hand(noise: float, weight: float, passed: bool) -> None:
    from sweeper.worker.accuracy.rule import judge, set_bounds
    from sweeper.worker.measurement.capture import Keep, StepTensors

    truth = StepTensors(Keep().copy(tensors(bias=0.0, weight=1.0)))
    eager = StepTensors(Keep().copy(tensors(bias=1e-9, weight=1.0 + 1e-7)))
    allowed = set_bounds(truth, eager, tensors(bias=1e-9, weight=1.0 + 1e-7), 1e-4)
    verdict = judge(tensors(bias=noise, weight=weight), truth, allowed)
    assert verdict.passed is passed
    assert not verdict.nondeterministic


def test_result_that_is_not_finite_fails_and_is_written_as_missing() -> None:
    from sweeper.worker.accuracy.rule import judge, set_bounds
    from sweeper.worker.measurement.capture import Keep, StepTensors

    truth = StepTensors(Keep().copy(tensors(weight=1.0)))
    verdict = judge(tensors(weight=math.nan), truth, set_bounds(truth, truth, tensors(weight=1.0), 1e-4))
    assert (verdict.passed, verdict.compiled_error) == (False, None)


def test_infinity_that_is_meant_is_left_out_of_the_comparison() -> None:
    import torch

    from sweeper.worker.accuracy.rule import compare
    from sweeper.worker.measurement.capture import StepTensors

    masked = torch.tensor([1.0, -math.inf])
    found = compare([("output", torch.tensor([1.5, -math.inf]))], StepTensors({"output": masked}, "float64"))
    assert found["output"].error == pytest.approx(0.5)


@pytest.mark.parametrize("factory", ["gives_tuple", "gives_dict", "gives_dataclass"])
@pytest.mark.parametrize("workload", ["train", "inference"])
def test_output_of_any_structure_is_judged(factory: str, workload: str) -> None:
    trial = custom(factory, workload=workload)
    outcome, _ = run(trial)
    assert outcome.status == "ok", outcome.message
    assert outcome.process is not None
    assert outcome.process.accuracy is not None
    assert outcome.process.accuracy.passed
    # Two outputs; training has the loss, the gradients of weight and bias, and both together as well.
    assert outcome.process.accuracy.tensors == (6 if workload == "train" else 2)
    wrong, _ = run(replace(trial, backend="slightly_off"))
    assert wrong.status == "accuracy_mismatch", wrong.message


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


def test_reference_falls_back_to_fp32_and_says_so() -> None:
    outcome, _ = run(custom("refuses_fp64"))
    assert outcome.status == "ok", outcome.message
    assert outcome.process is not None
    assert outcome.process.accuracy is not None
    assert (outcome.process.accuracy.reference, outcome.process.accuracy.passed) == ("float32", True)


def test_wrong_result_is_seen_through_half_precision_and_a_compiled_step() -> None:
    for changes in (
        {"precision": Precision(autocast="bfloat16")},
        {"precision": Precision(parameters="bfloat16")},
        {"compile": Compile(scope="step")},
    ):
        right, _ = run(custom("mlp", **changes))
        assert right.status == "ok", right.message
        wrong, _ = run(custom("mlp", backend="remembers", **changes))
        assert wrong.status == "accuracy_mismatch", (changes, wrong.message)


def test_step_in_half_precision_is_called_wrong_only_after_a_closer_look(monkeypatch: pytest.MonkeyPatch) -> None:
    from sweeper.worker.accuracy import rule

    # As far off as eager is too much at first, and is not when eager's numbers are moved by what rounding does.
    monkeypatch.setattr(rule, "MAX_TIMES", 0.9)
    monkeypatch.setattr(rule, "NOISE", 0.0)
    monkeypatch.setitem(rule.TOLERANCE, "reduced", 1e-9)
    trial = custom("mlp", precision=Precision(autocast="bfloat16"))
    right, _ = run(trial)
    assert right.status == "ok", right.message
    assert right.process is not None
    assert right.process.accuracy is not None
    assert right.process.accuracy.passed
    monkeypatch.setattr("sweeper.worker.accuracy.rule.PERTURBED_STEPS", 0)
    at_first, _ = run(trial)
    assert at_first.status == "accuracy_mismatch", at_first.message


def test_step_that_is_seen_keeps_no_output_alive() -> None:
    import torch

    from sweeper.worker.measurement.capture import OutputCapture
    from sweeper.worker.models.batches import Batch

    capture, output = OutputCapture(lambda output, _batch: output.sum()), torch.ones(3)
    capture.keeps = True
    capture(output, Batch())
    alive = weakref.ref(output)
    del output
    assert alive() is None
    assert [(name, kept.tolist()) for name, kept in capture.output] == [("output", [1.0, 1.0, 1.0])]


def test_gradients_are_compared_without_the_factor_of_the_scaler() -> None:
    for optimizer in ("adam", "sgd", "none"):
        outcome, _ = run(custom("mlp", optimizer=optimizer, precision=Precision(autocast="float16", grad_scaler=True)))
        assert outcome.status == "ok", outcome.message
        assert outcome.process is not None
        assert outcome.process.accuracy is not None
        assert outcome.process.accuracy.passed, outcome.process.accuracy


def test_step_that_the_scaler_skips_voids_the_round() -> None:
    import torch

    from sweeper.worker.monitoring.round_monitor import RoundMonitor

    monitor, scale = RoundMonitor(torch.device("cpu")), [65536.0]
    monitor.read_gradient_scales = lambda: tuple(scale)
    monitor.start_round()
    assert monitor.explain_void() is None
    scale[0] /= 2
    assert monitor.explain_void() == "the gradient scaler skipped a step"


def test_state_is_restored_in_place() -> None:
    import torch

    from sweeper.worker.accuracy.snapshot import Snapshot

    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    places = [parameter.data_ptr() for parameter in module.parameters()]
    optimizer = torch.optim.Adam(module.parameters())
    snapshot = Snapshot(module)
    module(torch.randn(4, 2)).sum().backward()
    optimizer.step()
    snapshot.restore([optimizer, None], 1)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert [parameter.data_ptr() for parameter in module.parameters()] == places
    assert all(not value.any() for state in optimizer.state.values() for value in state.values())


def test_traps_show_in_the_table(run_module, tmp_path: Path) -> None:
    """Through the command: each row has its status or flag, and what is wrong is in no mean."""
    done = run_module(
        "sweeper", "-m", "model=custom", "model.factory=factories:mlp", "batch_size=4", "device=cpu", "sweep=traps",
        "backend=aot_eager", "backend.name=aot_eager,gives_graph_back,slightly_off,switches_tf32_on",
        "measure=quick", "measure.rounds=2", "measure.block_s=0.002", "measure.block_steps=2", "measure.warmup_s=0.2",
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
        means = {row["backend"]: row["geomean_fp32"] for row in csv.DictReader(file) if row["family"] == "all"}
    assert means["aot_eager"]
    assert (means["slightly_off"], means["gives_graph_back"]) == ("", "")


def test_hang_in_compile_and_in_a_step_end_at_the_limit(run_module, tmp_path: Path) -> None:
    done = run_module(
        "sweeper", "-m", "model=custom", "model.factory=factories:mlp", "batch_size=4", "device=cpu", "sweep=hangs",
        "backend=aot_eager", "backend.name=hangs_in_compile,hangs_in_a_step", "measure=quick", "tracking=none",
        *(f"measure.phase_timeouts_s.{phase}=10" for phase in ("compiling", "checking", "warming", "measuring")),
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    with (tmp_path / "runs/hangs/report/failures.csv").open() as file:
        rows = {row["backend"]: (row["status"], row["phase"]) for row in csv.DictReader(file)}
    assert rows["hangs_in_compile"] == ("timeout", "compiling")
    assert rows["hangs_in_a_step"][0] == "timeout"
    assert rows["hangs_in_a_step"][1] in ("warming", "checking", "measuring")
