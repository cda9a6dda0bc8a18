"""The check on models that compute something else when they are compiled, and on models that do
not.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from worker_runs import accuracy_of, custom, faulty, flags, private_cache, run

from sweeper.core.protocol import Known
from sweeper.core.trial import Compile, Model, Precision
from sweeper.worker.accuracy.seeds import STEPS, SeedTest

pytestmark = pytest.mark.compile
assert private_cache  # a fixture that every test here uses

AMP = Precision(autocast="bfloat16")


@pytest.mark.parametrize(
    ("name", "changes", "worst"),
    [
        ("zero_init", {}, "gradient"),
        pytest.param("zero_init", {"precision": AMP}, "gradient", marks=pytest.mark.slow),
        pytest.param("layer_scale", {}, "gradient", marks=pytest.mark.slow),
        pytest.param("layer_scale", {"precision": AMP}, "gradient", marks=pytest.mark.slow),
        ("mask_of_infinity", {}, "gradient"),
        ("hook_on_a_parameter", {}, "gradient of first.weight"),
        ("buffer_not_updated", {}, "change of buffer norm.running_"),
        pytest.param(
            "buffer_not_updated",
            {"precision": AMP},
            "change of buffer norm.running_",
            marks=pytest.mark.slow,
        ),
        ("input_not_written", {}, "change of input 0"),
        ("second_batch_alone", {}, ""),
        ("largest_size_alone_is_right", {"vary": {"batch_size": [2, 4]}}, ""),
        pytest.param(
            "deep_norms_tripled",
            {"precision": AMP, "batch_size": 64},
            "",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_wrong_step_is_a_mismatch(name: str, changes: dict[str, object], worst: str) -> None:
    outcome, _ = run(faulty(name, optimizer="sgd", **changes))
    assert (outcome.status, outcome.phase) == ("accuracy_mismatch", "checking"), outcome
    assert str(accuracy_of(outcome).worst).startswith(worst)


def test_switch_of_convolutions_is_put_back_after_a_mismatch() -> None:
    import torch

    from sweeper.worker.accuracy.check import Judged, convolve_in_fp32
    from sweeper.worker.failures import MismatchError

    class Follows(Judged):
        trial = custom("x")

        def heeds_switches(self) -> bool:
            return True

    def fail() -> None:
        with convolve_in_fp32(Follows()):
            assert not torch.backends.cudnn.allow_tf32
            raise MismatchError("wrong")

    with pytest.raises(MismatchError):
        fail()
    assert torch.backends.cudnn.allow_tf32


RIGHT = (
    "right_zero_init",
    "right_layer_scale",
    "right_mask_of_infinity",
    "right_hook_on_a_parameter",
)


@pytest.mark.parametrize(
    ("name", "precision"),
    # the deep one is hard in half precision alone, and compiles for long
    [
        *((name, Precision()) for name in RIGHT if name != "right_layer_scale"),
        ("right_hook_on_a_parameter", AMP),
        pytest.param("right_layer_scale", Precision(), marks=pytest.mark.slow),
        *(pytest.param(name, AMP, marks=pytest.mark.slow) for name in RIGHT[:3]),
        pytest.param("right_deep_norms", AMP, marks=pytest.mark.slow),
    ],
    ids=lambda value: (
        value if isinstance(value, str) else "fp32" if value == Precision() else "amp"
    ),
)
def test_right_step_of_the_same_model_passes(name: str, precision: Precision) -> None:
    trial = faulty(name, optimizer="sgd", precision=precision)
    outcome, _ = run(trial)
    assert outcome.status == "ok", outcome.message
    found = accuracy_of(outcome)
    assert found.passed, found
    assert flags(trial, outcome) == set()
    assert found.moved == "full"
    assert found.cases == ("as built, unseen batch", "moved, batch 1", "moved, batch 2")


@pytest.mark.parametrize("workload", ["train", pytest.param("inference", marks=pytest.mark.slow)])
def test_every_size_and_every_timed_batch_is_judged(workload: str) -> None:
    outcome, _ = run(custom("mlp", workload=workload, batch_size=6, vary={"batch_size": [2, 6, 3]}))
    assert outcome.status == "ok", outcome.message
    found = accuracy_of(outcome)
    assert found.cases == (
        "as built, unseen batch",
        *(f"moved, batch {index}" for index in range(1, 7)),
    )
    assert found.elements is not None
    assert found.elements > 6 * 4


@pytest.mark.parametrize(
    ("precision", "scope"),
    [
        (Precision(), "step"),
        pytest.param(AMP, "step", marks=pytest.mark.slow),
        pytest.param(AMP, "optimizer", marks=pytest.mark.slow),
    ],
    ids=["fp32-step", "amp-step", "amp-optimizer"],
)
def test_optimizer_that_does_nothing_is_seen_where_it_is_compiled(
    precision: Precision, scope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    class Idle(torch.optim.Adam):
        def step(self, closure=None):
            if not torch.compiler.is_compiling():
                return super().step(closure)
            with torch.no_grad():
                for parameter in self.param_groups[0]["params"]:
                    parameter.mul_(1.0)  # so that there is a graph
            return None

    trial = custom("mlp", compile=Compile(scope=scope), precision=precision)
    right, _ = run(trial)
    assert right.status == "ok", right.message
    assert accuracy_of(right).passed
    monkeypatch.setattr(torch.optim, "Adam", Idle)
    torch._dynamo.reset()
    wrong, _ = run(trial)
    assert wrong.status == "accuracy_mismatch", wrong


def compile_a_fault_later(monkeypatch: pytest.MonkeyPatch, fault: float) -> None:
    """Have a model that changes later do so before its rounds."""
    from sweeper.worker.subject import Subject

    time_rounds = Subject.time_rounds

    def change_and_measure(setup, notes):
        setup.built.module.late, setup.built.module.fault = True, fault
        yield from time_rounds(setup, notes)

    monkeypatch.setattr(Subject, "time_rounds", change_and_measure)


@pytest.mark.parametrize(("fault", "status"), [(1.1, "accuracy_mismatch"), (1.0, "ok")])
def test_code_that_was_compiled_after_the_check_is_checked(
    fault: float, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_a_fault_later(monkeypatch, fault)
    outcome, phases = run(faulty("changes_later", optimizer="none"))
    assert outcome.status == status, outcome
    assert "checking" in phases[phases.index("measuring") :]
    assert accuracy_of(outcome).passed is (status == "ok")


def test_noise_does_not_hide_what_is_wrong_after_the_rounds_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compile_a_fault_later(monkeypatch, 1.1)
    outcome, _ = run(faulty("shakes_and_changes_later", optimizer="none", batch_size=64))
    assert outcome.status == "accuracy_mismatch", outcome
    assert "after the rounds" in str(outcome.message)
    assert accuracy_of(outcome).nondeterministic


def test_code_that_was_compiled_after_the_check_and_cannot_be_checked_is_unverified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from sweeper.worker.subject import Subject

    time_rounds = Subject.time_rounds

    def change_and_measure(setup, notes):
        setup.built.module.late = True
        yield from time_rounds(setup, notes)

        def fails(*_arguments, **_options):
            raise KeyError("no reference any more")

        monkeypatch.setattr("sweeper.worker.accuracy.check.run_reference", fails)

    monkeypatch.setattr(Subject, "time_rounds", change_and_measure)
    trial = faulty("changes_later", optimizer="none")
    outcome, _ = run(trial)
    assert outcome.status == "ok", outcome
    assert accuracy_of(outcome).passed is None
    assert {"accuracy_unverified", "recompiled"} <= flags(trial, outcome)


def test_a_process_judges_before_and_after_the_rounds_unless_others_have_judged_its_code() -> None:
    def judges(phases: list[str]) -> tuple[bool, bool]:
        rounds = phases.index("measuring")
        return "reference" in phases[:rounds], "reference" in phases[rounds:]

    trial = custom("mlp", backend="inductor", workload="inference")
    first, phases = run(trial)
    assert judges(phases) == (True, True)
    other, phases = run(trial, known=Known(checked="other code"))
    assert (accuracy_of(other).passed, judges(phases)) == (True, (True, True))
    assert first.process is not None
    for load_checked in (False, True):
        known = Known(checked=first.process.artifact, load_checked=load_checked)
        later, phases = run(trial, known=known)
        assert later.process is not None
        assert (later.process.accuracy, judges(phases)) == (None, (False, not load_checked))


@pytest.mark.parametrize("name", ["hook_that_counts", "hook_that_draws"])
def test_hooks_that_keep_state_or_draw_random_numbers_leave_the_step_unverified(name: str) -> None:
    trial = faulty(name)
    outcome, _ = run(trial)
    assert outcome.status == "ok", outcome
    found = accuracy_of(outcome)
    assert found.passed is None
    assert "hook" in str(found.unverified)
    assert "accuracy_unverified" in flags(trial, outcome)


@pytest.mark.parametrize(
    ("name", "passed"),
    [
        ("right_shakes", True),
        ("right_steadies", True),
        ("shakes_and_scales", False),
        ("steadies_and_scales", False),
    ],
)
def test_steps_of_which_none_is_like_another_are_judged_as_those_that_draw_numbers(
    name: str, passed: bool
) -> None:
    trial = faulty(name, batch_size=64)
    outcome, _ = run(trial)
    found = accuracy_of(outcome)
    assert outcome.status == ("ok" if passed else "accuracy_mismatch"), outcome.message
    assert (found.passed, found.nondeterministic, found.randomness) == (passed, True, "seeds")
    assert found.random_in_step is False
    assert "eager_nondeterministic" in flags(trial, outcome)


def test_step_in_half_precision_is_called_wrong_only_after_a_closer_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from sweeper.worker.accuracy import rule

    # As far off as eager is too much at first, and is not when eager's numbers are moved by what
    # rounding does.
    monkeypatch.setattr(rule, "MAX_TIMES", 0.9)
    monkeypatch.setitem(rule.NOISE, "reduced", 0.0)
    monkeypatch.setitem(rule.TOLERANCE, "reduced", 1e-9)
    monkeypatch.setattr(rule, "perturbation", lambda _precision, _tolerance: 0.05)
    trial = custom("mlp", precision=Precision(autocast="bfloat16"))
    right, _ = run(trial)
    assert right.status == "ok", right.message
    assert right.process is not None
    assert right.process.accuracy is not None
    assert right.process.accuracy.passed
    monkeypatch.setattr(rule, "PERTURBED_STEPS", 0)
    at_first, _ = run(trial)
    assert at_first.status == "accuracy_mismatch", at_first.message


@pytest.mark.parametrize(
    ("wrong", "share", "status"),
    [
        pytest.param(4, 1.5, "ok", id="narrowly, all but once"),
        pytest.param(5, 1.5, "accuracy_mismatch", id="narrowly, every time"),
        pytest.param(2, 2.5, "accuracy_mismatch", id="by far"),
    ],
)
def test_step_that_is_narrowly_wrong_has_to_be_so_every_time(
    monkeypatch: pytest.MonkeyPatch, wrong: int, share: float, status: str
) -> None:
    """At first, after a closer look at eager, and three times with its own numbers moved."""
    from sweeper.worker.accuracy import rule
    from sweeper.worker.accuracy.check import AccuracyCheck

    judge, verdicts = rule.judge, itertools.count()
    capture, moved = AccuracyCheck._capture, []

    def be_wrong_at_first(*arguments):
        found = judge(*arguments)
        if next(verdicts) < wrong:
            return found._replace(accuracy=replace(found.accuracy, passed=False), share=share)
        return found

    def note_moved(check, arm, case, seed_offset=0, perturbation=0.0):
        if perturbation and arm.name == "compiled":
            moved.append(seed_offset)
        return capture(check, arm, case, seed_offset, perturbation)

    monkeypatch.setattr(rule, "judge", be_wrong_at_first)
    monkeypatch.setattr(AccuracyCheck, "_capture", note_moved)
    outcome, _ = run(custom("mlp"))
    assert outcome.status == status, outcome.message
    assert moved == ([1, 2, 3] if share < 2 else [])


def test_step_whose_moved_step_is_unverified_is_not_called_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its tensors were compared, and the comparison does not say that the step is wrong."""
    from sweeper.worker.accuracy import rule
    from sweeper.worker.accuracy.check import AccuracyCheck

    judge, capture, moved = rule.judge, AccuracyCheck._capture, [0]

    def note_moved(check, arm, case, seed_offset=0, perturbation=0.0):
        if arm.name == "compiled":
            moved.append(seed_offset if perturbation else 0)
        return capture(check, arm, case, seed_offset, perturbation)

    def judge_none_that_is_moved(*arguments):
        found = judge(*arguments)
        assert found.accuracy.worst
        accuracy = replace(found.accuracy, passed=False)
        if moved[-1]:
            accuracy = replace(found.accuracy, passed=None, unverified="no telling")
        return found._replace(accuracy=accuracy, share=1.5)

    monkeypatch.setattr(rule, "judge", judge_none_that_is_moved)
    monkeypatch.setattr(AccuracyCheck, "_capture", note_moved)
    outcome, _ = run(custom("mlp"))
    assert outcome.status == "ok", outcome.message
    found = accuracy_of(outcome)
    assert (found.passed, found.unverified) == (None, "no telling")
    assert set(moved) == {0, 1}, "the first moved step is enough"


def test_step_whose_moved_steps_cannot_be_run_stays_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that refuses inputs outside of a range."""
    from sweeper.worker.accuracy import rule
    from sweeper.worker.accuracy.check import AccuracyCheck

    judge, capture = rule.judge, AccuracyCheck._capture

    def be_narrowly_wrong(*arguments):
        found = judge(*arguments)
        return found._replace(accuracy=replace(found.accuracy, passed=False), share=1.5)

    def refuse_moved(check, arm, case, seed_offset=0, perturbation=0.0):
        if perturbation and arm.name == "compiled":
            raise ValueError("an input is outside of its range")
        return capture(check, arm, case, seed_offset, perturbation)

    monkeypatch.setattr(rule, "judge", be_narrowly_wrong)
    monkeypatch.setattr(AccuracyCheck, "_capture", refuse_moved)
    outcome, _ = run(custom("mlp"))
    assert outcome.status == "accuracy_mismatch", outcome.message


def test_moved_inputs_are_as_others_to_a_compiler() -> None:
    import torch

    from sweeper.worker.accuracy.states import perturb
    from sweeper.worker.models.batches import Batch, copy_batch

    asks, slice_, numbers = (
        torch.ones(2, requires_grad=True),
        torch.ones(4, 6)[:, ::2],
        torch.ones(2),
    )
    batch = Batch((asks, slice_, numbers.int()))
    moved = copy_batch(batch)
    perturb(torch.nn.Linear(1, 1), moved, 0.1)
    for one, other in zip(batch.inputs, moved.inputs, strict=True):
        assert (one.stride(), one.requires_grad) == (other.stride(), other.requires_grad)
        assert torch.equal(one, other) != one.is_floating_point()


@pytest.mark.slow
@pytest.mark.parametrize("looks_per_case", [2, 3])
def test_closer_look_is_against_the_reference_of_the_first(
    monkeypatch: pytest.MonkeyPatch, looks_per_case: int
) -> None:
    """Where fp64 does not run, later looks are against fp32 as well, with steps that the first had
    not.
    """
    from sweeper.worker.accuracy import rule

    looks, set_bounds = [], rule.set_bounds
    few = 1 + rule.PERTURBED_STEPS
    steps = [1, few, few + rule.DIRECTION_STEPS][:looks_per_case]
    elsewhere = rule.Span(9.0, 9.0, margin=0.1, error=0.0)

    def allow_nothing_at_first(reference, comparisons, *others):
        looks.append((reference.kind, len(comparisons)))
        found = set_bounds(reference, comparisons, *others)
        if len(comparisons) in steps[:-1]:
            return replace(found, projections=dict.fromkeys(found.projections, elsewhere))
        return found

    monkeypatch.setattr(rule, "set_bounds", allow_nothing_at_first)
    outcome, _ = run(custom("refuses_fp64", backend="inductor", precision=AMP))
    assert outcome.status == "ok", outcome.message
    assert looks[:-1] == [("float32", number) for number in steps] * 3
    assert looks[-1] == ("as timed", 1), "after the rounds eager is enough"


@pytest.mark.slow
def test_gradients_are_compared_without_the_factor_of_the_scaler() -> None:
    for optimizer in ("adam", "sgd", "none"):
        outcome, _ = run(
            custom(
                "dict_and_loss",  # which has a minimum: SGD finds the infinity of others
                optimizer=optimizer,
                precision=Precision(autocast="float16", grad_scaler=True),
            )
        )
        assert outcome.status == "ok", outcome.message
        assert outcome.process is not None
        assert outcome.process.accuracy is not None
        assert outcome.process.accuracy.passed, outcome.process.accuracy


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


def test_gradient_that_eager_gives_as_infinite_is_counted() -> None:
    outcome, _ = run(custom("one_gradient_is_infinite", optimizer="none"))
    assert outcome.status == "ok", outcome.message
    assert outcome.process is not None
    assert outcome.process.accuracy is not None
    assert outcome.process.accuracy.unjudged >= 2, "the gradient, and all gradients together"
    assert outcome.process.accuracy.passed is None
    assert "all gradients" in str(outcome.process.accuracy.unverified)


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        pytest.param("factories:random_each_time", AMP, marks=pytest.mark.slow),
        ("wrong_models:functional_dropout", Precision()),
        pytest.param("factories:random_each_time", Precision(), marks=pytest.mark.slow),
        pytest.param("wrong_models:functional_dropout", AMP, marks=pytest.mark.slow),
    ],
    ids=["each_time-amp", "dropout-fp32", "each_time-fp32", "dropout-amp"],
)
def test_step_that_draws_random_numbers_is_verified_over_seeds(
    name: str, precision: Precision
) -> None:
    trial = custom(
        name, model=Model("custom", name), backend="inductor", precision=precision, batch_size=64
    )
    outcome, _ = run(trial)
    assert outcome.status == "ok", outcome.message
    found = accuracy_of(outcome)
    assert (found.passed, found.random_in_step, found.randomness) == (True, True, "seeds"), found
    assert found.cases == ("moved, batch 1", "moved, batch 2")
    assert flags(trial, outcome) == {"random_in_step"}, "dropout was to be off"


@pytest.mark.parametrize(
    ("vary", "sizes"),
    [
        pytest.param({}, 1, id="one size"),
        pytest.param({"batch_size": [32, 64]}, 2, id="two sizes", marks=pytest.mark.slow),
    ],
)
def test_slopes_are_taken_on_the_first_batch_of_each_size(
    vary: dict[str, object], sizes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses: list[float] = []
    monkeypatch.setattr(
        SeedTest, "add_displaced_loss", lambda _self, loss: losses.append(float(loss))
    )
    outcome, _ = run(custom("random_each_time", vary=vary, batch_size=64, backend="aot_eager"))
    assert len(accuracy_of(outcome).cases) == 2 * sizes
    assert len(losses) == sizes * 2 * STEPS


@pytest.mark.slow
def test_another_rate_of_dropout_is_a_mismatch() -> None:
    outcome, _ = run(faulty("wrong_functional_dropout", backend="inductor", batch_size=64))
    assert (outcome.status, outcome.phase) == ("accuracy_mismatch", "checking"), outcome
    assert "over seeds" in str(outcome.message)


def test_dropout_in_a_dead_branch_is_random_too() -> None:
    outcome, _ = run(faulty("dropout_lost_in_a_dead_branch", workload="inference", batch_size=64))
    assert outcome.status == "accuracy_mismatch", outcome
    assert accuracy_of(outcome).random_in_step


def test_dropout_that_is_off_is_a_fact() -> None:
    outcome, _ = run(custom("mlp"))
    assert accuracy_of(outcome).random_in_step is False


# Inductor compiles it for most of a minute; the rule itself is tried on tensors below
@pytest.mark.slow
def test_correct_cnn_with_gradients_of_noise_passes() -> None:
    outcome, _ = run(custom("noisy_cnn", backend="inductor"))
    assert outcome.status == "ok", outcome.message
    assert outcome.process is not None
    assert outcome.process.accuracy is not None
    assert outcome.process.accuracy.passed


@pytest.mark.parametrize("factory", ["gives_tuple", "gives_dict", "gives_dataclass"])
@pytest.mark.parametrize("workload", ["train", pytest.param("inference", marks=pytest.mark.slow)])
def test_output_of_any_structure_is_judged(factory: str, workload: str) -> None:
    trial = custom(factory, workload=workload)
    outcome, _ = run(trial)
    assert outcome.status == "ok", outcome.message
    assert outcome.process is not None
    assert outcome.process.accuracy is not None
    assert outcome.process.accuracy.passed
    # Two outputs and the input; training has the loss, the gradients of weight and bias, and both
    # together as well.
    assert outcome.process.accuracy.tensors == (7 if workload == "train" else 3)
    wrong, _ = run(replace(trial, backend="slightly_off"))
    assert wrong.status == "accuracy_mismatch", wrong.message


@pytest.mark.parametrize("factory", ["head_without_a_loss", "head_without_a_loss_and_dropout"])
def test_zeros_are_no_wrong_gradient_where_eager_has_none(factory: str) -> None:
    outcome, _ = run(custom(factory))
    assert outcome.status == "ok", outcome.message
    assert outcome.process is not None
    assert outcome.process.accuracy is not None
    assert outcome.process.accuracy.passed


def test_reference_falls_back_to_fp32_and_says_so() -> None:
    outcome, _ = run(custom("refuses_fp64"))
    assert outcome.status == "ok", outcome.message
    assert outcome.process is not None
    assert outcome.process.accuracy is not None
    assert (outcome.process.accuracy.reference, outcome.process.accuracy.passed) == (
        "float32",
        True,
    )


def test_reference_in_fp32_where_fp64_is_another_model() -> None:
    outcome, _ = run(custom("other_path_in_fp64", backend="aot_eager"))
    assert outcome.status == "ok", outcome.message
    assert outcome.process is not None
    assert outcome.process.accuracy is not None
    assert (outcome.process.accuracy.reference, outcome.process.accuracy.passed) == (
        "float32",
        True,
    )
    outcome, _ = run(custom("other_path_in_fp64", backend="nothing_but_zeros"))
    assert outcome.status == "accuracy_mismatch", outcome.message


def test_error_of_the_compiled_step_in_the_check_is_no_mismatch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from sweeper.worker.measurement.bench import ModelBench

    run_on, calls = ModelBench.run_on, itertools.count()

    def fails(bench, arm, batch):
        # the first is the last of the compiling steps
        if arm.name == "compiled" and next(calls) > 0:
            raise ValueError("an argument of a kernel")
        return run_on(bench, arm, batch)

    monkeypatch.setattr(ModelBench, "run_on", fails)
    outcome, _ = run(custom("mlp"))
    assert (outcome.status, outcome.phase) == ("runtime_error", "checking"), outcome.message


@pytest.mark.slow
def test_wrong_result_is_seen_through_half_precision_and_a_compiled_step() -> None:
    for changes in (
        {"precision": Precision(autocast="bfloat16")},
        {"precision": Precision(parameters="bfloat16")},
        {"compile": Compile(scope="step")},
        {"compile": Compile(scope="optimizer")},
        {"compile": Compile(scope="loss")},
    ):
        right, _ = run(custom("mlp", **changes))
        assert right.status == "ok", right.message
        wrong, _ = run(custom("mlp", backend="remembers", **changes))
        assert wrong.status == "accuracy_mismatch", (changes, wrong.message)


@pytest.mark.parametrize(
    ("name", "passed"),
    [
        ("factories:mlp", True),
        pytest.param("wrong_models:right_zero_init", None, marks=pytest.mark.slow),
    ],
)
def test_program_that_holds_its_weights_is_judged_as_built(name: str, passed: bool | None) -> None:
    trial = custom(
        name, model=Model("custom", name), backend="inductor", workload="inference",
        compile=Compile(options={"freezing": True}),
    )  # fmt: skip
    outcome, _ = run(trial)
    assert outcome.status == "ok", outcome
    found = accuracy_of(outcome)
    assert found.passed is passed
    assert "has the weights in it" in str(found.moved)
    assert found.cases == ("as built, unseen batch", "as built, batch 1", "as built, batch 2")
    assert passed or "where no branch is dead" in str(found.unverified)
