"""The worker on tiny models: what becomes of each kind of trouble. Real torch.compile, aot_eager
where it will do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from worker_runs import MEASURE, custom, private_cache, run

from sweeper.analysis.derive import derive
from sweeper.analysis.flags import find_flags
from sweeper.core.protocol import Job
from sweeper.core.record import Process, Record
from sweeper.core.trial import Compile, Model, Precision
from sweeper.worker.lease import Lease
from sweeper.worker.process_log import ProcessLog

if TYPE_CHECKING:
    from sweeper.worker.monitoring.round_monitor import RoundMonitor

pytestmark = pytest.mark.compile
assert private_cache  # a fixture that every test here uses


def test_training_is_measured_in_alternating_order() -> None:
    outcome, phases = run(custom("mlp"))
    assert outcome.status == "ok", outcome.message
    # first, whether a step draws random numbers
    cases = ["reference", *["reference", "checking"] * 3]
    assert phases == [
        "building",
        "eager",
        "compiling",
        *cases,
        "warming",
        "measuring",
        "memory",
        "profiling",
        "reference",
    ]
    process = outcome.process
    assert process is not None
    assert [item.order for item in process.rounds] == ["AB", "BA", "AB", "BA"]
    assert all(item.eager_s and item.compiled_s and item.void is None for item in process.rounds)
    assert process.compile_s is not None
    assert process.memory_bytes is not None
    assert process.memory_bytes.eager is None  # a CPU has no device memory
    assert outcome.diagnostics is not None
    assert outcome.diagnostics.graphs == 1
    assert outcome.diagnostics.settings["optimizer"] == "Adam"
    assert process.accuracy is not None
    assert process.accuracy.passed
    assert process.accuracy.reference == "float64"
    # loss, output, four gradients, these put together, and the input
    assert process.accuracy.tensors == 8
    assert process.device_time_s is None  # there is no device to be busy
    assert process.device_step_s is None
    assert process.time_to_first_step_s is not None
    assert process.time_to_first_step_s > process.first_steps_s[0]
    assert set(phases) == set(process.phases_s)


def test_inductor_generates_code_and_counts_one_graph(tmp_path) -> None:
    outcome, _ = run(custom("mlp", backend="inductor"))
    assert outcome.status == "ok", outcome.message
    assert outcome.diagnostics is not None
    assert outcome.diagnostics.graphs == 1
    process = outcome.process
    assert process is not None
    assert process.code_fingerprint is not None
    assert process.compile_cache == {"hits": 0, "misses": 2, "bypassed": 0}  # forward and backward
    assert process.autograd_cache == {"hits": 0, "misses": 1, "bypassed": 0}
    assert process.cache_bypasses == {}
    assert {"dynamo", "aot_autograd", "inductor"} <= {
        part for part, took_s in process.compile_parts_s.items() if took_s > 0
    }
    assert list((tmp_path / "inductor").glob("**/*.cpp"))


def test_a_graph_that_a_cache_cannot_hold_is_counted_with_torchs_reason(capfd) -> None:
    outcome, _ = run(custom("autocast_inside", backend="inductor", workload="inference"))
    assert outcome.status == "ok", outcome.message
    process = outcome.process
    assert process is not None
    assert process.autograd_cache == {"hits": 0, "misses": 0, "bypassed": 1}
    assert process.compile_cache == {"hits": 0, "misses": 1, "bypassed": 0}
    [(reason, times)] = process.cache_bypasses.items()
    assert times == 1
    assert reason.startswith("Bypassing autograd cache due to: Unsupported call_function target")
    assert "_enter_autocast" in reason
    assert "0x" not in reason
    assert "Bypassing" not in capfd.readouterr().err  # torch shows as much as before


PRECISIONS = {
    "fp32": Precision(),
    "tf32": Precision(tf32=True),
    "amp": Precision(autocast="auto", grad_scaler=True),
    "amp_fp16": Precision(autocast="float16", grad_scaler=True),
    "bf16": Precision(parameters="bfloat16"),
}


@pytest.mark.parametrize(
    ("workload", "precision"),
    [
        *(("train", name) for name in PRECISIONS),
        ("inference", "amp_fp16"),
        *(
            pytest.param("inference", name, marks=pytest.mark.slow)
            for name in PRECISIONS
            if name != "amp_fp16"
        ),
    ],
)
def test_every_precision_runs(workload: str, precision: str) -> None:
    asked = PRECISIONS[precision]
    outcome, _ = run(custom("mlp", workload=workload, precision=asked))
    assert outcome.status == "ok", outcome.message
    settings = outcome.diagnostics.settings  # type: ignore[union-attr]
    expected = {"auto": "bfloat16", "float16": "float16", None: None}[asked.autocast]
    assert settings["autocast"] == expected
    assert settings["grad_scaler"] == (expected == "float16" and workload == "train")


@pytest.mark.parametrize(
    ("scope", "optimizer"),
    [
        *(("model", optimizer) for optimizer in ("adam", "sgd", "none")),
        ("step", "adam"),
        pytest.param("model", "adamw", marks=pytest.mark.slow),
        *(pytest.param("step", name, marks=pytest.mark.slow) for name in ("adamw", "sgd", "none")),
    ],
)
def test_every_optimizer_runs_under_both_scopes(optimizer: str, scope: str) -> None:
    outcome, _ = run(custom("mlp", optimizer=optimizer, compile=Compile(scope=scope)))
    assert outcome.status == "ok", outcome.message


# Loss, output, four gradients, these put together, and the input; with Adam four changes and three
# states of each, with SGD four changes and a momentum of each.
@pytest.mark.parametrize(
    ("scope", "optimizer", "tensors"),
    [
        ("loss", "adam", 8),
        ("optimizer", "adam", 24),
        pytest.param("optimizer", "sgd", 16, marks=pytest.mark.slow),
    ],
)
def test_part_of_the_step_is_compiled_alone_and_judged(
    scope: str, optimizer: str, tensors: int
) -> None:
    outcome, _ = run(custom("mlp", optimizer=optimizer, compile=Compile(scope=scope)))
    assert outcome.status == "ok", outcome.message
    assert outcome.process is not None
    assert outcome.process.accuracy is not None
    assert outcome.process.accuracy.tensors == tensors
    assert outcome.diagnostics is not None
    assert outcome.diagnostics.settings["optimizer_in_compiled_region"] is (scope == "optimizer")


def test_part_of_the_step_that_leaves_nothing_to_compile_says_so() -> None:
    bert = {
        "num_hidden_layers": 1,
        "hidden_size": 16,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    model = Model(
        "transformers", "BertForMaskedLM", sequence_length=8, arguments={**bert, "vocab_size": 50}
    )
    inside, _ = run(custom("bert", model=model, compile=Compile(scope="loss")))
    assert inside.status == "not_compiled"
    assert "compute their loss in their forward" in str(inside.message)
    fused, _ = run(custom("mlp", optimizer_impl="fused", compile=Compile(scope="optimizer")))
    assert fused.status == "not_compiled"
    assert "use optimizer.impl=foreach" in str(fused.message)


def test_gradient_scaler_calls_the_compiled_step_of_its_optimizer() -> None:
    fp16 = Precision(autocast="float16", grad_scaler=True)
    trial = custom(
        "mlp", optimizer_impl="foreach", compile=Compile(scope="optimizer"), precision=fp16
    )
    outcome, _ = run(trial)
    assert outcome.status == "ok", outcome.message
    assert outcome.diagnostics is not None
    assert outcome.diagnostics.settings["grad_scaler"]
    assert outcome.diagnostics.graphs


def test_lite_writes_no_kernels_and_is_compiled_all_the_same() -> None:
    from torch._inductor.codecache import PyCodeCache

    PyCodeCache.cache_clear()  # of the tests before; a worker process has one trial
    trial = custom("mlp", backend="inductor", mode="lite")
    outcome, _ = run(trial)
    assert outcome.status == "ok", outcome.message
    assert outcome.diagnostics is not None
    assert (outcome.diagnostics.graphs, outcome.diagnostics.kernels) == (1, 0)
    assert outcome.process is not None
    assert outcome.process.code_fingerprint is not None
    record = Record(trial.id, "s", trial.label, "ok", trial=trial, processes=(outcome.process,))
    assert "no_kernels" in find_flags(
        replace(record, diagnostics=outcome.diagnostics), derive(record), MEASURE
    )


def test_mode_that_this_torch_lacks_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    known = torch._inductor.list_mode_options()
    monkeypatch.setattr(
        torch._inductor, "list_mode_options", lambda *_: {"default": known["default"]}
    )
    outcome, _ = run(custom("mlp", backend="inductor", mode="lite"))
    assert outcome.status == "unavailable"
    assert f"torch {torch.__version__} has no mode lite, which torch 2.10 and later have" in str(
        outcome.message
    )


def test_cudnn_benchmark_is_on_in_both_arms_and_the_record_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    outcome, _ = run(custom("mlp", mode="eager", cudnn_benchmark=True))
    assert outcome.status == "ok", outcome.message
    assert outcome.diagnostics is not None
    assert outcome.diagnostics.settings["cudnn_benchmark"] is True
    assert outcome.process is not None
    assert outcome.process.changed_settings == {}, (
        "it is on from before the first step to after the last block"
    )


@pytest.mark.parametrize(("optimizer", "impl"), [("adam", "fused"), ("sgd", "foreach")])
def test_implementation_of_the_optimizer_is_the_one_asked_for(optimizer: str, impl: str) -> None:
    outcome, _ = run(custom("mlp", optimizer=optimizer, optimizer_impl=impl))
    assert outcome.status == "ok", outcome.message
    settings = outcome.diagnostics.settings  # type: ignore[union-attr]
    assert [name for name in ("fused", "foreach") if settings[f"optimizer_{name}"]] == [impl]


def test_blocks_are_compiled_and_the_rest_is_not() -> None:
    outcome, _ = run(custom("tower", compile=Compile(scope="blocks")))
    assert outcome.status == "ok", outcome.message
    assert outcome.diagnostics is not None
    # the first block's input needs no gradient; the two others share one
    assert outcome.diagnostics.graphs == 2
    without, _ = run(custom("dict_and_loss", compile=Compile(scope="blocks")))
    assert without.status == "unavailable"
    assert "no repeated blocks; use compile.scope=model" in str(without.message)


def test_sizes_come_in_turn_and_equally_often_in_both_arms() -> None:
    outcome, _ = run(
        custom("mlp", batch_size=6, vary={"batch_size": [2, 6, 3]}), replace(MEASURE, block_steps=4)
    )
    assert outcome.status == "ok", outcome.message
    process = outcome.process
    assert process is not None
    assert process.steps_per_block is not None
    assert process.steps_per_block % 3 == 0
    assert len(process.first_steps_s) % 3 == 0
    assert outcome.diagnostics is not None
    assert outcome.diagnostics.recompiles == 1  # once for a size that may change


def test_steps_that_are_waited_for_have_percentiles() -> None:
    outcome, _ = run(
        custom("mlp", workload="inference"), replace(MEASURE, clock="step", block_steps=20)
    )
    assert outcome.status == "ok", outcome.message
    process = outcome.process
    assert process is not None
    assert process.latencies is not None
    for arm in ("eager", "compiled"):
        found = getattr(process.latencies, arm)
        assert 0 < found.p50_s <= found.p90_s <= found.p99_s
        assert found.steps == process.steps_per_block * len(process.rounds)
        step_s = process.step_s(arm)
        assert step_s is not None
        assert found.p50_s < 2 * step_s  # the block is the sum of its steps


def test_energy_that_nobody_counts_is_missing_and_says_why() -> None:
    outcome, phases = run(custom("mlp"), replace(MEASURE, energy=True))
    assert outcome.status == "ok", outcome.message
    assert phases[-3:] == ["energy", "profiling", "reference"]
    assert outcome.process is not None
    assert outcome.process.energy_j is None
    assert "no counter of energy" in str(outcome.process.energy_missing)


def test_energy_of_a_step_by_hand() -> None:
    """A device that uses 50 J in each eager step of 0.5 s and half of that in a compiled one, on a
    clock of its own.
    """
    import torch

    from sweeper.worker.measurement.bench import Arm, ModelBench, complete
    from sweeper.worker.measurement.energy import measure_energy
    from sweeper.worker.models.batches import Batch

    used_j = [0.0]

    def step(joules: float) -> object:
        used_j[0] += joules
        return None

    bench = ModelBench((Batch(),), torch.device("cpu"))
    arms = {
        Arm("eager", lambda _batch: step(50.0), eager=True): 0.5,
        Arm("compiled", lambda _batch: step(25.0), eager=True): 0.5,
    }
    found = complete(measure_energy(bench, arms, lambda: used_j[0]))
    assert (found.eager, found.compiled) == (50.0, 25.0)


def test_inputs_as_dict_and_own_loss() -> None:
    outcome, _ = run(custom("dict_and_loss"))
    assert outcome.status == "ok", outcome.message


def test_mode_eager_compiles_nothing() -> None:
    outcome, _ = run(custom("mlp", mode="eager", backend=None))
    assert outcome.status == "ok", outcome.message
    assert outcome.process is not None
    assert outcome.process.compile_s is None
    assert outcome.diagnostics is not None
    assert outcome.diagnostics.graphs == 0


def test_options_and_mode_go_together() -> None:
    options = Compile(options={"epilogue_fusion": False, "triton.cudagraphs": False})
    outcome, _ = run(custom("mlp", backend="inductor", mode="reduce-overhead", compile=options))
    assert outcome.status == "ok", outcome.message


@pytest.mark.parametrize(
    ("name", "status", "phase", "says"),
    [
        ("raises", "eager_error", "eager", "this model divides by zero"),
        ("fails_to_build", "eager_error", "building", "no such dataset"),
        ("out_of_memory", "oom", "eager", "out of memory"),
        ("gives_nan", "eager_error", "eager", "NaN"),
        ("only_compiled_raises", "compile_error", "compiling", "reshape"),
        ("never_captured", "not_compiled", "compiling", "no graph"),
        (
            "raises_while_compiling",
            "not_compiled",
            "compiling",
            "ValueError('not while compiling')",
        ),
        ("multiplies_by_a_sparse_tensor", "not_compiled", "compiling", "sparse Tensor ("),
    ],
)
def test_trouble_becomes_a_status(name: str, status: str, phase: str, says: str) -> None:
    outcome, _ = run(custom(name))
    assert (outcome.status, outcome.phase) == (status, phase), outcome.message
    assert says in str(outcome.message)
    assert outcome.environment["versions"]


def test_model_that_fell_back_to_eager_past_the_limit_is_not_compiled() -> None:
    outcome, _ = run(custom("recompiles_each_time"))
    assert outcome.status == "not_compiled", outcome.message
    assert "limit of recompilations (8)" in str(outcome.message)


def test_backend_that_is_not_there_is_unavailable() -> None:
    for backend in ("no_such_backend", "cudagraphs"):
        outcome, phases = run(custom("mlp", backend=backend))
        assert outcome.status == "unavailable", outcome.message
        assert phases == ["building"]


def test_graph_break_is_listed_with_its_place() -> None:
    outcome, _ = run(custom("breaks_once"))
    assert outcome.status == "ok", outcome.message
    assert outcome.diagnostics is not None
    assert outcome.diagnostics.graphs == 2
    (broken,) = outcome.diagnostics.graph_breaks
    assert "graph_break" in broken.reason
    assert "factories.py" in str(broken.where)


class Growing:
    """A step that is called with another shape at the calls listed, which Dynamo compiles anew."""

    def __init__(self, at: set[int]) -> None:
        import torch

        self.compiled = torch.compile(lambda x: x * 2, backend="eager", dynamic=False)
        self.at, self.calls, self.width = at, 0, 1

    def __call__(self, _batch: object) -> object:
        import torch

        self.calls += 1
        self.width += self.calls in self.at
        return self.compiled(torch.ones(self.width))


@contextmanager
def see_programs() -> Iterator[RoundMonitor]:
    """A monitor that sees what is compiled."""
    import torch

    from sweeper.worker.compilation.counters import CompileCounters
    from sweeper.worker.monitoring.round_monitor import RoundMonitor

    monitor, counters = RoundMonitor(torch.device("cpu")), CompileCounters()
    monitor.read_programs = lambda: counters.programs
    counters.begin()
    yield monitor
    counters.end()


@pytest.mark.parametrize(
    ("recompiles_at", "void"),
    [(set(), 0), ({7}, 1), ({7, 17}, 2)],
    ids=["never", "once", "twice"],
)
def test_recompile_in_a_block_voids_the_round(recompiles_at: set[int], void: int) -> None:
    import torch

    from sweeper.worker.measurement.bench import Arm, ModelBench, Timed, complete, measure_rounds
    from sweeper.worker.models.batches import Batch

    cpu = torch.device("cpu")
    bench = ModelBench((Batch(),), cpu)
    compiled = Arm("compiled", Growing(recompiles_at), eager=False)
    arms, rounds = (Arm("eager", lambda _batch: None, eager=True), compiled), list[Timed]()
    with see_programs() as monitor:
        bench.run(compiled, 1)
        complete(measure_rounds(bench, arms, 2, MEASURE, monitor, rounds.append))
    assert [item.round.void for item in rounds].count("recompiled") == void
    assert [item.round.void for item in rounds].count(None) == 4


def test_three_void_rounds_end_the_trial() -> None:
    import torch

    from sweeper.worker.failures import UnsteadyError
    from sweeper.worker.measurement.bench import Arm, ModelBench, Timed, complete, measure_rounds
    from sweeper.worker.models.batches import Batch

    cpu = torch.device("cpu")
    bench = ModelBench((Batch(),), cpu)
    compiled = Arm("compiled", Growing({2, 6, 10, 14}), eager=False)
    arms, rounds = (Arm("eager", lambda _batch: None, eager=True), compiled), list[Timed]()
    said = "3 of 3 rounds were void: recompiled"
    with see_programs() as monitor:
        bench.run(compiled, 1)
        with pytest.raises(UnsteadyError, match=said):
            complete(measure_rounds(bench, arms, 2, MEASURE, monitor, rounds.append))
    assert [item.round.void for item in rounds] == ["recompiled"] * 3


def rates(module: object) -> set[float]:
    """Every rate at which something is dropped at random, found by looking at all float
    attributes.
    """
    found = set()
    for child in module.modules():  # type: ignore[attr-defined]
        kind = type(child).__name__.lower()
        if "drop" in kind or "stochastic" in kind or "attention" in kind:
            found |= {
                value
                for name, value in vars(child).items()
                if isinstance(value, float)
                and name in ("p", "drop_prob", "dropout", "dropout_prob", "dropout_p")
            }
    return found


@pytest.mark.parametrize(
    ("model", "kept"),
    [
        (Model("torchvision", "alexnet", num_classes=3), 0.5),
        (Model("torchvision", "efficientnet_b0", num_classes=3), 0.2),
        (Model("timm", "vit_tiny_patch16_224", arguments={"drop_path_rate": 0.1}), 0.1),
        (Model("transformers", "BertForMaskedLM", arguments={"num_hidden_layers": 1}), 0.1),
        (Model("custom", "factories:transformer_layer"), 0.1),
    ],
    ids=lambda value: value.name if isinstance(value, Model) else None,
)
def test_dropout_is_off_unless_asked_for(model: Model, kept: float) -> None:
    import torch

    from sweeper.worker.models import build

    silent = build(custom("mlp", model=model), 0, torch.device("cpu")).module
    assert rates(silent) <= {0.0}
    as_it_is = build(
        custom("mlp", model=replace(model, dropout=True)), 0, torch.device("cpu")
    ).module
    assert any(rate == pytest.approx(kept) for rate in rates(as_it_is))


@pytest.mark.parametrize(
    ("where", "status"), [("for_good", "eager_error"), ("poison", "accuracy_mismatch")]
)
def test_failure_after_the_rounds_keeps_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, where: str, status: str
) -> None:
    import factories

    from sweeper.worker import subject

    def rounds_then_poison(*arguments):
        yield from measure_rounds(*arguments)
        getattr(factories.poisoned[-1], where).fill_(float("nan"))

    measure_rounds = subject.measure_rounds
    monkeypatch.setattr(subject, "measure_rounds", rounds_then_poison)
    outcome, _ = run(custom("turns_nan"))
    assert outcome.status == status, outcome.message
    assert outcome.process is not None
    assert len(outcome.process.rounds) == MEASURE.rounds
    assert outcome.process.first_steps_s
    assert outcome.process.compile_s is not None
    assert outcome.process.phases_s["measuring"] > 0


def test_the_first_loss_is_of_the_model_as_built() -> None:
    import torch

    from sweeper.worker.measurement.bench import complete
    from sweeper.worker.model_subject import ModelSubject
    from sweeper.worker.monitoring.round_monitor import RoundMonitor

    for workload in ("train", "inference"):
        device, job = torch.device("cpu"), Job(custom("mlp", workload=workload), MEASURE)
        subject = ModelSubject(job, device, RoundMonitor(device), Lease())
        built, batch = subject.built, subject.built.batches[0]
        loss = built.loss(built.module(*batch.args, **batch.kwargs), batch).item()
        complete(subject.run_eager(ProcessLog(lambda _: None, Process(0, 0, cold=True), Lease())))
        expected = pytest.approx(loss, rel=1e-7) if workload == "train" else None
        assert subject.bench.first_loss == expected


@pytest.mark.parametrize("autocast", [None, pytest.param("float16", marks=pytest.mark.slow)])
def test_training_that_diverges_while_it_warms_up_does_so_in_eager_alone(
    monkeypatch: pytest.MonkeyPatch, autocast: str | None
) -> None:
    """The steps of the rounds alone would be too few, and so would those of a gradient scaler whose
    scale has fallen to zero.
    """
    from sweeper.worker.measurement.bench import ModelBench

    def warm_up(bench, arm, _limit_s):
        yield from bench.run(arm, 500)
        return 1e-3, True

    monkeypatch.setattr(ModelBench, "warm_up", warm_up)
    precision = Precision(autocast=autocast, grad_scaler=True)
    outcome, phases = run(custom("diverges", optimizer="sgd", precision=precision))
    assert (outcome.status, phases[-1]) == ("eager_error", "measuring"), outcome.message
    assert "the loss of eager alone is NaN or infinite after" in str(outcome.message)


def test_what_torch_compile_itself_refuses_is_the_compilers_fault() -> None:
    outcome, _ = run(
        custom("mlp", backend="inductor", compile=Compile(options={"max_autotune": "abc"}))
    )
    assert (outcome.status, outcome.phase) == ("compile_error", "compiling"), outcome.message


def test_mode_eager_runs_no_compiled_code_that_the_model_brings() -> None:
    outcome, _ = run(custom("compiles_itself", mode="eager", backend=None))
    assert outcome.status == "ok", outcome.message
    assert outcome.diagnostics is not None
    assert outcome.diagnostics.graphs == 0


def test_infinite_output_of_inference_is_no_error() -> None:
    outcome, _ = run(custom("masks_with_infinity", workload="inference"))
    assert outcome.status == "ok", outcome.message


def test_second_batch_of_a_custom_model_holds_the_samples_in_another_order() -> None:
    import torch

    from sweeper.worker.models import build

    first, second = build(custom("mlp"), 0, torch.device("cpu")).batches
    assert torch.equal(first.args[0].roll(1, 0), second.args[0])


@pytest.mark.parametrize("seconds", [1.0, 0.002], ids=["slow first step", "even"])
def test_warm_up_is_not_fooled_by_a_slow_first_step(seconds: float) -> None:
    """On a clock that only steps move: 2 ms each, the first as given."""
    import torch

    from sweeper.worker.measurement import bench as bench_module
    from sweeper.worker.models.batches import Batch

    class Clock:
        now, steps = 0.0, 0

        def step(self, _batch: Batch) -> None:
            self.now += seconds if self.steps == 0 else 0.002
            self.steps += 1

    clock = Clock()
    bench = bench_module.ModelBench((Batch(),), torch.device("cpu"), lambda: clock.now)
    arm = bench_module.Arm("eager", clock.step, eager=True)
    assert bench_module.complete(bench.warm_up(arm, 10.0)) == (pytest.approx(0.002), True)
    assert clock.steps > 50


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (Model("torchvision", "resnet18", image_size=64), (2, 3, 64, 64)),
        (Model("timm", "vit_tiny_patch16_224", image_size=32), (2, 3, 32, 32)),
        (Model("timm", "resnet18", num_classes=7), (2, 3, 224, 224)),
        (
            Model(
                "transformers",
                "BertForMaskedLM",
                sequence_length=16,
                arguments={"num_hidden_layers": 1},
            ),
            (2, 16),
        ),
        (
            Model(
                "transformers",
                "BertForQuestionAnswering",
                sequence_length=16,
                arguments={"num_hidden_layers": 1},
            ),
            (2, 16),
        ),
        (
            Model(
                "transformers",
                "BertForSequenceClassification",
                num_classes=5,
                arguments={"num_hidden_layers": 1},
            ),
            (2, 128),
        ),
        (
            Model("transformers", "GPT2LMHeadModel", sequence_length=16, arguments={"n_layer": 1}),
            (2, 16),
        ),
        (
            Model(
                "transformers", "BertModel", sequence_length=16, arguments={"num_hidden_layers": 1}
            ),
            (2, 16),
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Model) else None,
)
def test_builders_give_a_model_with_a_finite_loss(model: Model, shape: tuple[int, ...]) -> None:
    import torch

    from sweeper.worker.models import build

    built = build(custom("mlp", model=model, batch_size=2), 0, torch.device("cpu"))
    losses = []
    for batch in built.batches:
        inputs = batch.args[0] if batch.args else batch.kwargs["input_ids"]
        assert tuple(inputs.shape) == shape
        with torch.no_grad():
            losses.append(float(built.loss(built.module(*batch.args, **batch.kwargs), batch)))
    assert all(map(math.isfinite, losses))
    assert losses[0] != losses[1]  # two batches, not one twice


def test_the_same_seed_gives_the_same_data() -> None:
    import torch

    from sweeper.worker.models import build

    first, second = (build(custom("mlp"), 7, torch.device("cpu")) for _ in range(2))
    assert torch.equal(first.batches[0].args[0], second.batches[0].args[0])
    assert not torch.equal(first.batches[0].args[0], first.batches[1].args[0])


def test_what_others_have_to_fit_beside_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The most that was held while others had the device, and the peak of all checks."""
    import torch

    held, peaks = iter((7,)), iter((20, 10))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: next(held, 3))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: next(peaks))
    outcome, _ = run(custom("mlp"))
    assert outcome.process is not None
    assert outcome.process.check_peak_bytes == 20
    assert outcome.process.held_bytes == 7
