"""The implementation of attention that a trial asks for: what is built, and what a class
refuses.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from worker_runs import MEASURE, private_cache, run

from sweeper.core.serialization import Json
from sweeper.core.trial import Labels, Model, Trial
from sweeper.worker import model_subject, models
from sweeper.worker.failures import UnavailableError

assert private_cache  # a fixture that every test here uses
CPU = torch.device("cpu")
SMALL: dict[str, Json] = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "vocab_size": 100,
}  # fmt: skip


def trial_of(attention: str | None, name: str = "BertForMaskedLM", **changes: object) -> Trial:
    model = Model("transformers", name, sequence_length=16, arguments=SMALL, attention=attention)
    return Trial(model, 2, Labels(name, "fp32"), device="cpu", **changes)  # type: ignore[arg-type]


def build(trial: Trial) -> models.Built:
    models.builder("transformers").load(trial.model)
    return models.build(trial, 0, CPU)


@pytest.mark.parametrize(("attention", "calls"), [(None, 1), ("sdpa", 1), ("eager", 0)])
def test_model_runs_the_attention_that_it_was_built_with(
    attention: str | None, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, called = build(trial_of(attention)), []
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def count(*args, **kwargs):
        called.append(args)
        return sdpa(*args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", count)
    loss = built.loss(built.module(**built.batches[0].kwargs), built.batches[0])
    assert torch.isfinite(loss)
    assert len(called) == calls
    assert models.read_attention(built.module) == (attention or "sdpa")


def test_checkpoint_is_loaded_with_the_attention_that_was_asked_for(tmp_path: Path) -> None:
    build(trial_of(None)).module.save_pretrained(tmp_path)
    model = Model(
        "transformers",
        "BertForMaskedLM",
        pretrained=True,
        checkpoint=str(tmp_path),
        attention="eager",
    )
    assert (
        models.read_attention(build(Trial(model, 1, Labels("x", "fp32"), device="cpu")).module)
        == "eager"
    )


@pytest.mark.parametrize(
    ("name", "attention", "says"),
    [
        ("FNetForMaskedLM", "sdpa", "FNetForMaskedLM does not support an attention implementation"),
        ("OpenAIGPTLMHeadModel", "flex_attention", "does not support an attention implementation"),
        ("GptOssForCausalLM", "flash_attention_2", "takes kernels-community/"),
        (
            "BertForMaskedLM",
            "flash_attention_2",
            "needs a GPU and flash-attn: pip install flash-attn",
        ),
    ],
)
def test_attention_that_a_class_refuses_or_would_fetch_is_unavailable(
    name: str, attention: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    monkeypatch.setattr(transformers.utils, "is_flash_attn_2_available", lambda: False)
    with pytest.raises(UnavailableError, match=f"model.attention={attention}.*{says}"):
        build(trial_of(attention, name))


def test_error_of_another_cause_stays_what_it_is() -> None:
    model = Model(
        "transformers", "BertForMaskedLM", arguments={**SMALL, "hidden_size": 31}, attention="eager"
    )
    with pytest.raises(ValueError, match="not a multiple of the number of attention heads"):
        build(Trial(model, 1, Labels("x", "fp32"), device="cpu"))


@pytest.mark.slow
@pytest.mark.compile
def test_eager_arm_with_flex_attention_keeps_its_kernel_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled_before: list[int] = []

    class Counters(model_subject.CompileCounters):
        def __init__(self, keep_compiled: bool = False) -> None:
            compiled_before.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
            super().__init__(keep_compiled)

    monkeypatch.setattr(model_subject, "CompileCounters", Counters)
    trial = trial_of("flex_attention", workload="inference", optimizer="none", backend="aot_eager")
    outcome, _ = run(trial, MEASURE)
    assert (outcome.status, outcome.message) == ("ok", None)
    assert outcome.process is not None
    assert outcome.diagnostics is not None
    assert [count > 0 for count in compiled_before] == [True]
    settings = outcome.diagnostics.settings
    assert (settings["attention"], settings["eager_compiles"]) == (
        "flex_attention",
        "flex_attention",
    )
    assert outcome.process.accuracy is not None
    assert outcome.process.accuracy.passed
    assert {item.void for item in outcome.process.rounds} == {None}


def test_eager_arm_with_any_other_attention_never_compiles() -> None:
    from sweeper.worker.measurement.bench import Arm

    double = torch.compile(lambda value: 2 * value, backend="eager")
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for compiles in (False, True):
        arm = Arm("eager", double, eager=True, compiles_kernels=compiles)
        with arm.stance():
            assert arm.run(torch.ones(2)).tolist() == [2, 2]  # type: ignore[arg-type, attr-defined]
        assert (torch._dynamo.utils.counters["stats"]["unique_graphs"] > before) is compiles
