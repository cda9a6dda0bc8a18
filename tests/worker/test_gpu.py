"""Traps that only a GPU has. `python -m pytest -m gpu` on a machine with one."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import pytest
from worker_runs import MEASURE, custom, flags, private_cache, run

from sweeper.analysis.derive import derive
from sweeper.analysis.flags import find_flags
from sweeper.core.system.gpus import visible_gpus

pytestmark = [
    pytest.mark.xdist_group("gpu"),  # one after the other: some look for other processes on the GPU
    pytest.mark.gpu,
    pytest.mark.skipif(not visible_gpus(), reason="no NVIDIA GPU is visible"),
]
assert private_cache  # a fixture that every test here uses


def on_gpu(name: str, **changes: object):
    return replace(
        custom(name, **{"backend": "inductor", "batch_size": 64, **changes}), device="cuda"
    )


def measure(trial):
    """The process of a trial that has to be ok."""
    outcome, _ = run(trial)
    assert outcome.status == "ok", outcome.message
    assert outcome.process is not None
    return outcome.process


def test_device_time_is_measured_and_no_longer_than_wall() -> None:
    trial = on_gpu("wide_mlp")
    process = measure(trial)
    assert process.device_time_missing is None
    assert process.device_time_s is not None
    assert process.device_kernels is not None
    for arm in ("eager", "compiled"):
        blocks = [
            getattr(item, f"{arm}_s") / process.steps_per_block
            for item in process.rounds
            if item.void is None
        ]
        assert 0 < getattr(process.device_time_s, arm) <= 1.02 * max(blocks)
        assert getattr(process.device_kernels, arm) > 0
        assert (
            getattr(process.device_time_s, arm)
            < getattr(process.device_step_s, arm)
            <= 1.02 * max(blocks)
        )
        assert 0.3e-6 < getattr(process.device_gap_s, arm) < 5e-6
        assert process.device_gap_source[arm] in ("steps", "calibration")
    assert process.gpu is not None
    assert process.gpu.clock_mhz.eager is not None


def test_the_calibrated_gap_is_about_a_microsecond() -> None:
    from sweeper.worker.measurement.device_time import calibrate_gap_s

    assert 0.3e-6 < calibrate_gap_s() < 5e-6


def test_replays_of_cuda_graphs_show_their_kernels() -> None:
    outcome, _ = run(on_gpu("wide_mlp", mode="reduce-overhead"))
    assert outcome.status == "ok", outcome.message
    process = outcome.process
    assert process is not None
    assert process.device_kernels is not None
    assert process.device_kernels.compiled is not None
    assert process.device_kernels.compiled > 5
    assert outcome.diagnostics is not None
    assert outcome.diagnostics.cudagraph_skips == ()


def test_skipped_cuda_graph_is_listed_and_flagged() -> None:
    from sweeper.core.record import Record

    trial = on_gpu("changes_its_input", mode="reduce-overhead", workload="inference")
    outcome, _ = run(trial)
    assert outcome.status == "ok", outcome.message
    assert outcome.diagnostics is not None
    assert outcome.diagnostics.cudagraph_skips
    record = Record(trial.id, "s", trial.label, "ok", trial=trial, diagnostics=outcome.diagnostics)
    assert "cudagraphs_skipped" in find_flags(record, derive(record), MEASURE)


def test_check_replays_a_graph_whose_output_died_in_between() -> None:
    """Its output is gone when backward begins, while it is recorded and while it is checked."""
    outcome, _ = run(on_gpu("output_is_dropped", mode="reduce-overhead"))
    assert outcome.status == "ok", outcome.message
    assert outcome.process is not None
    assert outcome.process.accuracy is not None
    assert outcome.process.accuracy.passed


def test_first_steps_are_timed_with_the_device_at_rest() -> None:
    """A step that the host launches in a millisecond and the device works on for long: the clock
    waits for it.
    """
    process = measure(on_gpu("long_on_the_device", backend="aot_eager", optimizer="none"))
    assert process.device_time_s is not None
    assert process.device_time_s.compiled is not None
    assert min(process.first_steps_s) >= 0.9 * process.device_time_s.compiled


def test_host_time_leaves_out_what_the_device_works_on_after_the_call() -> None:
    process = measure(on_gpu("long_on_the_device", backend="aot_eager", optimizer="none"))
    assert process.host_time_missing is None
    assert process.host_step_s is not None
    assert process.device_time_s is not None
    for arm in ("eager", "compiled"):
        assert 0 < getattr(process.host_step_s, arm) < 0.5 * getattr(process.device_time_s, arm)


def test_a_step_that_asks_the_device_has_no_host_time() -> None:
    outcome, _ = run(on_gpu("branches_on_data", backend="aot_eager"))
    assert outcome.status == "ok", outcome.message
    process = outcome.process
    assert process is not None
    assert process.host_time_missing is not None
    assert (
        "eager: the step waits for the device by itself (factories.py:" in process.host_time_missing
    )
    assert process.host_step_s is not None
    assert process.host_step_s.eager is None


def test_a_replay_of_a_cuda_graph_is_one_launch() -> None:
    import torch

    from sweeper.worker.measurement.bench import Arm, ModelBench, complete
    from sweeper.worker.measurement.host_time import count_launches
    from sweeper.worker.models.batches import Batch

    x, graph = torch.zeros(8, device="cuda"), torch.cuda.CUDAGraph()

    def add(_batch: Batch | None = None) -> None:
        for _ in range(50):
            x.add_(1)

    add()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        add()
    bench = ModelBench((Batch(args=()), Batch(args=())), torch.device("cuda"))
    assert complete(count_launches(bench, Arm("eager", add, eager=True))) == 50
    assert (
        complete(count_launches(bench, Arm("compiled", lambda _batch: graph.replay(), eager=True)))
        == 1
    )


@pytest.mark.parametrize("precision_scaler", [False, True], ids=["fp32", "amp_fp16"])
def test_gradients_behind_a_scaler_are_judged(precision_scaler: bool) -> None:
    from sweeper.core.trial import Precision

    precision = Precision(autocast="float16", grad_scaler=True) if precision_scaler else Precision()
    for optimizer in ("adam", "sgd"):
        trial = on_gpu("wide_mlp", precision=precision, optimizer=optimizer)
        outcome, _ = run(trial)
        assert outcome.status == "ok", outcome.message
        assert outcome.process is not None
        assert outcome.process.accuracy is not None
        assert outcome.process.accuracy.passed, outcome.process.accuracy


def test_memory_of_two_eager_arms_is_the_same() -> None:
    outcome, _ = run(replace(on_gpu("wide_mlp"), mode="eager", backend=None))
    assert outcome.status == "ok", outcome.message
    process = outcome.process
    assert process is not None
    assert process.memory_missing is None
    assert process.memory_bytes is not None
    assert process.memory_bytes.eager == pytest.approx(process.memory_bytes.compiled, rel=0.02)
    # weights, gradients and Adam's moments
    assert process.memory_bytes.eager > 4 * 2 * 1024 * 1024 * 4


NEIGHBOUR = """
import torch
x = torch.randn(2048, 2048, device="cuda")
print("ready", flush=True)
while True:
    for _ in range(50):
        x = (x @ x).clamp(-1, 1)
    torch.cuda.synchronize()
"""


def test_second_process_on_the_gpu_is_flagged_and_memory_is_missing() -> None:
    neighbour = subprocess.Popen(
        [sys.executable, "-c", NEIGHBOUR], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert neighbour.stdout is not None
        assert neighbour.stdout.readline() == b"ready\n"
        time.sleep(1)
        trial = on_gpu("wide_mlp")
        outcome, _ = run(trial)
        assert "shared_gpu" in flags(trial, outcome)
        assert outcome.process is not None
        assert outcome.process.memory_bytes is None
    finally:
        neighbour.kill()
        neighbour.wait()


def test_check_says_the_same_wherever_its_tensors_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    from sweeper.worker import model_subject
    from sweeper.worker.accuracy import check

    class CheckOnHost(check.AccuracyCheck):
        def __init__(self, judged: check.Judged) -> None:
            super().__init__(judged)
            self._place = check.HOST

    verdicts, peaks, places, take = [], [], [], check.run_reference

    def reference(*arguments, **options):
        places.append(arguments[-1].place.type)
        return take(*arguments, **options)

    monkeypatch.setattr(check, "run_reference", reference)
    for kind in (check.AccuracyCheck, CheckOnHost):
        monkeypatch.setattr(model_subject, "AccuracyCheck", kind)
        outcome, _ = run(on_gpu("wide_mlp"))
        assert outcome.status == "ok", outcome.message
        assert outcome.process is not None
        verdicts.append(outcome.process.accuracy)
        peaks.append(outcome.process.check_peak_bytes)
        assert 0 < outcome.process.held_bytes < peaks[-1]
    near, far = verdicts
    assert peaks[0] > peaks[1]
    # one for each case, and one or two after the rounds
    assert places == ["cuda"] * places.count("cuda") + ["cpu"] * places.count("cpu")
    assert min(places.count("cuda"), places.count("cpu")) > 3
    assert near.passed
    assert (near.reference, near.tensors, near.worst) == (far.reference, far.tensors, far.worst)
    assert near.eager_error == pytest.approx(far.eager_error, rel=0.5)


@pytest.mark.parametrize(
    ("mode", "tolerance"), [("default", "full"), ("reduce-overhead", "reduced")]
)
def test_check_convolves_in_fp32_where_the_program_follows(
    monkeypatch: pytest.MonkeyPatch, mode: str, tolerance: str
) -> None:
    import torch

    from sweeper.worker.accuracy import rule

    found, choose = [], rule.choose_tolerance

    def choose_and_keep(*arguments):
        found.append(choose(*arguments))
        return found[-1]

    monkeypatch.setattr(rule, "choose_tolerance", choose_and_keep)
    outcome, _ = run(on_gpu("noisy_cnn", mode=mode))
    assert outcome.status == "ok", outcome.message
    assert outcome.process is not None
    assert outcome.process.accuracy is not None
    assert outcome.process.accuracy.passed, outcome.process.accuracy
    assert set(found) == {tolerance}
    assert not outcome.process.changed_settings
    assert outcome.diagnostics is not None
    assert outcome.diagnostics.recompiles == 0
    assert torch.backends.cudnn.allow_tf32


def test_check_goes_to_the_host_when_the_device_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from sweeper.worker.accuracy import check
    from sweeper.worker.measurement.capture import HOST

    places, take = [], check.run_reference

    def reference(*arguments, **options):
        places.append(arguments[-1].place)
        if arguments[-1].place != HOST:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return take(*arguments, **options)

    monkeypatch.setattr(check, "run_reference", reference)
    outcome, _ = run(on_gpu("wide_mlp"))
    assert outcome.status == "ok", outcome.message
    assert outcome.process is not None
    assert outcome.process.accuracy is not None
    assert (outcome.process.accuracy.reference, outcome.process.accuracy.passed) == (
        "float64",
        True,
    )
    # what follows are cases after the rounds
    assert [place.type for place in places][:4] == ["cuda", "cpu", "cpu", "cpu"]


@pytest.mark.parametrize("workload", ["train", "inference"])
@pytest.mark.parametrize(
    "factory", ["factories:wide_mlp", "factories:dict_and_loss", "wrong_models:functional_dropout"]
)
def test_graphs_recorded_by_hand_give_what_eager_gives(factory: str, workload: str) -> None:
    from sweeper.core.trial import Model, Precision

    for precision in (
        Precision(),
        Precision(autocast="bfloat16"),
        Precision(autocast="float16", grad_scaler=True),
    ):
        trial = on_gpu("any", backend="graphed", workload=workload, precision=precision)
        outcome, _ = run(replace(trial, model=Model("custom", factory, dropout=True)))
        assert outcome.status == "ok", outcome.message
        assert outcome.process is not None
        assert outcome.process.accuracy is not None
        assert outcome.process.accuracy.passed, outcome.process.accuracy


def test_a_recording_that_fails_is_a_compile_error_with_its_first_reason() -> None:
    """A branch on the data waits for the device, which a recording cannot.

    In a process of its own, as a trial has one: torch's generator stays in the state of a recording
    afterwards.
    """
    trial = on_gpu("branches_on_data", backend="graphed")
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as worker:
        outcome, _ = worker.submit(run, trial).result()
    assert (outcome.status, outcome.phase) == ("compile_error", "compiling"), outcome.message
    assert "captur" in str(outcome.message)


def test_a_recording_leaves_eager_on_its_own_stream() -> None:
    """Else each parameter's gradient would wait for a stream of the recording, in both arms; torch
    warns of that.
    """
    import warnings

    import torch

    from sweeper.worker.compilation.graphed import GraphedModule

    module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 4)).cuda()
    graphed, x = GraphedModule(module), torch.randn(8, 64, device="cuda")
    found = []
    try:
        # the first call watches, the second one records
        for arm in (graphed, graphed, module, graphed):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                module.zero_grad(set_to_none=True)
                arm(x).sum().backward()
            torch.set_warn_always(True)  # after this, not only the first time
            texts = [str(item.message) for item in caught]
            found.append((texts, [parameter.grad.clone() for parameter in module.parameters()]))
    finally:
        torch.set_warn_always(False)
    (_, first), _, *later = found
    for texts, gradients in later:
        assert not [text for text in texts if "AccumulateGrad" in text]
        torch.testing.assert_close(gradients, first)


def test_kernels_of_coordinate_descent_are_compiled_without_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch
    import triton

    from sweeper.core.protocol import DEVICE, NOTHING, LeaseGrant
    from sweeper.worker.compilation.lease_breaks import LeaseBreaks
    from sweeper.worker.lease import Lease

    lease, held, compile_kernel = Lease(lambda _wants: LeaseGrant()), [], triton.compile

    def note(*arguments, **options):
        held.append(lease.holds)
        return compile_kernel(*arguments, **options)

    torch._dynamo.reset()
    monkeypatch.setattr(triton, "compile", note)
    lease.take()
    LeaseBreaks(lease).begin()
    step = torch.compile(
        lambda x: (x.sin() + 1).sum(1), options={"coordinate_descent_tuning": True}
    )
    step(torch.randn(512, 1024, device="cuda"))
    assert set(held) == {NOTHING}
    assert lease.holds == DEVICE
