"""Prefill and decode: a static cache that steps write to, its fill level, and the check of the rows
written.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from worker_runs import private_cache, run

from sweeper.core.trial import Labels, Model, Precision, Trial
from sweeper.worker import models
from sweeper.worker.failures import UnavailableError
from sweeper.worker.measurement.step import make_cached_step
from sweeper.worker.models import Built
from sweeper.worker.models.decoding import CachedDecoder

assert private_cache  # a fixture that every test here uses
CPU = torch.device("cpu")
ROWS, POSITION, VOCABULARY = 48, 30, 100
LLAMA = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 64,
}  # fmt: skip
WINDOW = {
    "head_dim": 8,
    "sliding_window": 16,
    "layer_types": ["sliding_attention", "full_attention"],
}
LAYERS = {"head_dim": 8, "layer_types": ["linear_attention", "full_attention"], "num_experts": 4}
STATES = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
EXPERTS = {
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
BART = {"vocab_size": VOCABULARY, "d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4}


def trial_of(workload: str, name: str = "LlamaForCausalLM", **arguments: Any) -> Trial:
    model = Model("transformers", name, sequence_length=ROWS, arguments=arguments or LLAMA)
    trial = Trial(
        model,
        2,
        Labels(name, "fp32"),
        workload,
        backend="aot_eager",
        optimizer="none",
        device="cpu",
    )
    return replace(trial, decode_position=POSITION if workload == "decode" else None)


def build(trial: Trial) -> tuple[Built, CachedDecoder]:
    built = models.build(trial, 0, CPU)
    assert isinstance(built.module, CachedDecoder)
    built.module.fill()
    return built, built.module


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("LlamaForCausalLM", LLAMA),
        ("Gemma3ForCausalLM", LLAMA | WINDOW),  # the position is beyond the window
        ("Qwen3NextForCausalLM", LLAMA | LAYERS | STATES | EXPERTS),
        ("BartForCausalLM", BART),  # its cache has more layers than the decoder
    ],
)
def test_decode_gives_what_a_forward_of_all_tokens_gives(
    name: str, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[torch.Tensor] = []
    draw = CachedDecoder.draw_tokens

    def draw_and_keep(self, length):
        batch = draw(self, length)
        drawn.append(batch.kwargs["input_ids"])
        return batch

    monkeypatch.setattr(CachedDecoder, "draw_tokens", draw_and_keep)
    built, decoder = build(trial_of("decode", name, **arguments))
    prompt, token = drawn[-1], built.batches[0].kwargs["input_ids"]
    assert (prompt.shape, token.shape) == ((2, POSITION), (2, 1))
    assert models.tokens_per_step(built) == 2
    logits = make_cached_step(built, decoder, nullcontext)(built.batches[0])
    with torch.no_grad():
        expected = decoder.decoder(input_ids=torch.cat([prompt, token], 1), use_cache=False).logits[
            :, -1:
        ]
    assert isinstance(logits, torch.Tensor)
    assert not logits.requires_grad
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("workload", "written"), [("prefill", range(ROWS)), ("decode", [POSITION])]
)
def test_every_step_writes_the_same_rows_whatever_came_before(workload: str, written: Any) -> None:
    built, decoder = build(trial_of(workload))
    before = decoder.keys_of_layer_1.clone()
    step = make_cached_step(built, decoder, nullcontext)
    first, rows = step(built.batches[0]), decoder.keys_of_layer_1.clone()
    assert (rows != before).any(-1).any(1).nonzero()[:, 1].unique().tolist() == list(written)
    step(built.batches[1])
    assert not torch.equal(decoder.keys_of_layer_1, rows)
    again = step(built.batches[0])
    assert isinstance(first, torch.Tensor)
    assert isinstance(again, torch.Tensor)
    assert torch.equal(again, first)
    assert torch.equal(decoder.keys_of_layer_1, rows)
    assert int(decoder.cumulative_length_of_layer_1) == written[-1] + 1


def test_prefill_reads_the_prompt_and_gives_logits_of_its_last_token() -> None:
    built, decoder = build(trial_of("prefill"))
    assert models.tokens_per_step(built) == 2 * ROWS
    logits = make_cached_step(built, decoder, nullcontext)(built.batches[0])
    assert isinstance(logits, torch.Tensor)
    assert logits.shape == (2, 1, VOCABULARY)


def test_model_without_a_static_cache_is_unavailable() -> None:
    built = models.build(trial_of("decode"), 0, CPU)
    assert isinstance(built.module, CachedDecoder)
    built.module._make_cache = lambda: {}["no such layer"]
    with pytest.raises(UnavailableError, match="LlamaForCausalLM has no static cache: KeyError"):
        built.module.fill()


def test_autocast_that_a_static_cache_cannot_take_is_unavailable() -> None:
    outcome, _ = run(replace(trial_of("decode"), precision=Precision(autocast="bfloat16")))
    assert outcome.status == "unavailable"
    assert "take precision=bf16" in str(outcome.message)


@pytest.mark.compile
@pytest.mark.parametrize(
    "precision",
    [
        pytest.param(Precision(), id="fp32"),
        pytest.param(Precision("bfloat16"), id="bf16", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("workload", [pytest.param("prefill", marks=pytest.mark.slow), "decode"])
def test_compiled_step_is_compared_in_logits_and_cache(workload: str, precision: Precision) -> None:
    outcome, _ = run(replace(trial_of(workload), precision=precision))
    assert outcome.status == "ok", outcome.message
    assert outcome.process is not None
    assert outcome.process.tokens_per_step == (2 if workload == "decode" else 2 * ROWS)
    found = outcome.process.accuracy
    assert found is not None
    assert (found.passed, found.reference, found.moved) == (True, "float64", "full")
    assert found.tensors == 1 + 2 * 3 + 3  # logits; keys, values and counter of each layer; inputs
    assert outcome.diagnostics is not None
    assert (outcome.diagnostics.graphs, outcome.diagnostics.recompiles) == (1, 0)


@pytest.mark.compile
@pytest.mark.parametrize(
    ("workload", "row"),
    [
        ("prefill", 7),
        pytest.param("decode", POSITION, marks=pytest.mark.slow),
        pytest.param("decode", 3, marks=pytest.mark.slow),
    ],
)
def test_wrong_row_of_the_cache_is_found_where_the_logits_are_right(
    workload: str, row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = CachedDecoder.forward

    def write_a_wrong_row(self, input_ids):
        logits = forward(self, input_ids)
        if torch.compiler.is_compiling():
            self._cache.layers[1].values[:, :, row].mul_(1.1)
        return logits

    monkeypatch.setattr(CachedDecoder, "forward", write_a_wrong_row)
    outcome, _ = run(trial_of(workload))
    assert (outcome.status, outcome.phase) == ("accuracy_mismatch", "checking"), outcome
    assert outcome.process is not None
    assert outcome.process.accuracy is not None
    assert outcome.process.accuracy.worst == "change of buffer values_of_layer_1"
