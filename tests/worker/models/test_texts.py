"""Texts as a language model of transformers gets them. The models are tiny."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sweeper.core.trial import Labels, Model, Text, Trial
from sweeper.worker.models import Built, build, builder, tokens_per_step
from sweeper.worker.models.texts import MAX_WORD_TOKENS, count_tokens, tokenize_words

LENGTH, BATCH = 16, 3
BERT = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 100,
}
GPT2 = {
    "n_embd": 32,
    "n_layer": 1,
    "n_head": 2,
    "vocab_size": 100,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
T5 = {"d_model": 32, "d_kv": 16, "d_ff": 32, "num_layers": 1, "num_heads": 2, "vocab_size": 100}
ROBERTA = {**BERT, "max_position_embeddings": 32}
XLNET = {"d_model": 32, "n_layer": 1, "n_head": 2, "d_inner": 32, "vocab_size": 100}
FNET = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 32, "vocab_size": 100}


def trial_of(name: str, arguments: dict[str, Any], text: Text, **changes: Any) -> Trial:
    model = Model("transformers", name, sequence_length=LENGTH, arguments=arguments)
    return Trial(model, BATCH, Labels(name, "fp32"), device="cpu", text=text, **changes)


def build_text(name: str, arguments: dict[str, Any], text: Text, **changes: Any) -> Built:
    return build(trial_of(name, arguments, text, **changes), 0, torch.device("cpu"))


def run(built: Built) -> Any:
    return built.module(**built.batches[0].kwargs)


@pytest.mark.parametrize(
    ("name", "arguments", "workload", "form"),
    [
        ("BertForMaskedLM", BERT, "train", "padded"),
        ("GPT2LMHeadModel", GPT2, "train", "packed"),
        ("GPT2LMHeadModel", GPT2, "inference", "padded"),
        ("GPT2ForSequenceClassification", GPT2, "train", "padded"),
        ("T5ForConditionalGeneration", T5, "train", "padded"),
        ("RobertaForCausalLM", ROBERTA, "train", "padded"),
        ("RobertaForCausalLM", {**ROBERTA, "is_decoder": True}, "train", "packed"),
        ("FNetForMaskedLM", FNET, "train", "none"),
        ("XLNetLMHeadModel", XLNET, "train", "padded"),
    ],
)
def test_each_kind_of_model_gets_the_texts_that_it_is_fed(
    name: str, arguments: Any, workload: str, form: str
) -> None:
    built = build_text(name, arguments, Text("auto", labels=False), workload=workload)
    assert built.text == form
    output = run(built)
    assert torch.isfinite(output.loss if workload == "train" else output.logits).all()


def test_every_padded_batch_has_padding_that_no_label_and_no_token_count_sees() -> None:
    built = build_text("BertForMaskedLM", BERT, Text("padded"))
    pad = built.module.config.pad_token_id
    real = 0
    for batch in (*built.batches, built.unseen):
        tokens, mask, labels = (
            batch.kwargs[name] for name in ("input_ids", "attention_mask", "labels")
        )
        lengths = mask.sum(1)
        assert lengths.min() < LENGTH
        assert lengths.min() >= LENGTH // 4
        assert torch.equal(mask.bool(), torch.arange(LENGTH) < lengths[:, None])
        assert torch.equal(tokens == pad, mask == 0)
        assert torch.equal(labels == -100, mask == 0)
        real += int(lengths.sum()) if batch is not built.unseen else 0
    assert tokens_per_step(built) == real / len(built.batches)


def test_lengths_come_from_the_seed() -> None:
    first, again = (build_text("BertForMaskedLM", BERT, Text("padded")) for _ in range(2))
    other = build(trial_of("BertForMaskedLM", BERT, Text("padded")), 1, torch.device("cpu"))
    masks = [built.batches[0].kwargs["attention_mask"] for built in (first, again, other)]
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])


def test_lengths_may_be_given() -> None:
    built = build_text("BertForMaskedLM", BERT, Text("padded", lengths=(5, 16, 1, 7)))
    lengths = [batch.kwargs["attention_mask"].sum(1).tolist() for batch in built.batches]
    assert lengths == [[5, 16, 1], [7, 5, 16]]


def test_a_text_longer_than_the_sequence_is_told_before_the_sweep() -> None:
    examine = builder("transformers").examine
    assert (
        "17 tokens"
        in examine(trial_of("BertForMaskedLM", BERT, Text("padded", lengths=(17, 3)))).problems[0]
    )
    for form in ("packed", "auto"):
        assert not examine(trial_of("GPT2LMHeadModel", GPT2, Text(form, lengths=(17, 3)))).problems


def test_positions_of_packed_texts_begin_anew_with_each_document() -> None:
    built = build_text("GPT2LMHeadModel", GPT2, Text("packed", lengths=(10, 4)))
    inputs = built.batches[0].kwargs
    assert "attention_mask" not in inputs
    assert inputs["position_ids"][0].tolist() == [*range(10), *range(4), *range(2)]
    drawn = build_text("GPT2LMHeadModel", GPT2, Text("packed")).batches[0].kwargs["position_ids"]
    assert ((drawn[:, 1:] == 0).sum(1) >= 1).all()


def test_packed_texts_of_a_model_without_positions_say_so() -> None:
    bart = {
        "d_model": 32,
        "vocab_size": 100,
        "decoder_layers": 1,
        "decoder_ffn_dim": 32,
        "decoder_attention_heads": 2,
    }
    built = build_text("BartForCausalLM", bart, Text("auto"))
    assert built.text == "packed without position_ids"
    assert set(built.batches[0].kwargs) == {"input_ids", "labels"}


def test_words_are_the_tokens_of_a_text() -> None:
    built = build_text("BertForMaskedLM", {**BERT, "vocab_size": 2000}, Text("words"))
    tokens, mask = (built.batches[0].kwargs[name] for name in ("input_ids", "attention_mask"))
    text = tokenize_words(MAX_WORD_TOKENS)
    row = tokens[1][mask[1].bool()]
    starts = [
        start for start in range(len(text)) if torch.equal(text.roll(-start)[: len(row)], row)
    ]
    assert starts
    assert text.bincount().max() > 20  # some words are frequent


def test_words_need_room_for_their_characters() -> None:
    with pytest.raises(ValueError, match="text=words: its characters need"):
        build_text("BertForMaskedLM", {**BERT, "vocab_size": 20}, Text("words"))


@pytest.mark.parametrize("labels", [True, False])
def test_inference_has_labels_only_when_asked(labels: bool) -> None:
    built = build_text(
        "T5ForConditionalGeneration", T5, Text("auto", labels=labels), workload="inference"
    )
    inputs = set(built.batches[0].kwargs)
    assert inputs == {"input_ids", "attention_mask"} | (
        {"labels"} if labels else {"decoder_input_ids"}
    )
    assert (run(built).loss is not None) is labels


def test_the_old_workload_is_what_it_was() -> None:
    built = build_text("BertForMaskedLM", BERT, Text())
    assert built.text == "none"
    assert set(built.batches[0].kwargs) == {"input_ids", "labels"}
    assert tokens_per_step(built) == BATCH * LENGTH


def test_batches_cut_to_a_shorter_sequence_still_have_padding() -> None:
    trial = trial_of("BertForMaskedLM", BERT, Text("padded"), vary={"sequence_length": [8, LENGTH]})
    for batch in build(trial, 0, torch.device("cpu")).batches:
        mask = batch.kwargs["attention_mask"]
        assert mask.shape == batch.kwargs["input_ids"].shape
        assert mask.sum() < mask.numel()


def test_answers_lie_within_their_texts() -> None:
    batch = (
        build_text("BertForQuestionAnswering", BERT, Text("padded", lengths=(1, 3, 2)))
        .batches[0]
        .kwargs
    )
    lengths = batch["attention_mask"].sum(1)
    assert all((batch[end] < lengths).all() for end in ("start_positions", "end_positions"))


def test_models_of_images_have_no_form_of_text() -> None:
    vit = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "image_size": 32,
    }
    built = build_text("ViTForImageClassification", vit, Text("auto"))
    assert built.text is None
    assert tokens_per_step(built) is None


def test_only_a_mask_of_tokens_counts() -> None:
    tokens = torch.ones(2, 4, dtype=torch.int64)
    scores = torch.zeros(2, 1, 4, 4).masked_fill(torch.ones(4, 4).triu(1).bool(), float("-inf"))
    assert count_tokens({"input_ids": tokens, "attention_mask": scores}) == 8
    assert count_tokens({"input_ids": tokens, "attention_mask": torch.zeros(2, 4)}) == 8
    assert count_tokens({"input_ids": tokens, "attention_mask": tokens.bool().tril()}) == 3
