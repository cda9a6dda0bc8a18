"""Tiny trials for mutants: real architectures of every family, small enough that a check takes a
fraction of a second.

Narrow and shallow as they are, they keep what makes a check difficult: branches that begin at zero,
layer scales, batch normalisation, masks, embeddings, shared parameters, an optimizer in the
compiled region.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from mutation.graphs import AOT
from sweeper.core.trial import Compile, Labels, Model, Precision, Trial

PRECISIONS = {"fp32": Precision(), "amp": Precision(autocast="auto", grad_scaler=True)}
CLASSES = 10
NARROW = {"channels": [16, 32, 48, 64]}
VIT = {"embed_dim": 48, "depth": 2, "num_heads": 2, "patch_size": 8, "img_size": 32}
ENDS = {"bos_token_id": 0, "eos_token_id": 0}
TEXT = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 96}


def _timm(name: str, size: int = 32, **arguments: Any) -> Model:
    return Model("timm", name, image_size=size, num_classes=CLASSES, arguments=arguments)


def _text(name: str, **arguments: Any) -> Model:
    return Model("transformers", name, sequence_length=12, arguments=arguments)


def _custom(name: str) -> Model:
    return Model("custom", f"mutation.factories:{name}")


MODELS = {
    "resnet18": _timm("resnet18", 64, zero_init_last=True, **NARROW),
    "resnet50": _timm("resnet50", 64, zero_init_last=True, **NARROW),
    "densenet": _timm("densenet121", 64, growth_rate=8, block_config=[2, 2, 2]),
    "mobilenetv3": _timm("mobilenetv3_small_050", 64),
    "tinynet": _timm("tinynet_e", 64),
    "regnet": _timm("regnetx_002", 64),
    "convnext": _timm("convnext_atto", 64, depths=[1, 1, 2, 1], dims=[16, 24, 32, 48]),
    "vit": _timm("vit_tiny_patch16_224", **VIT),
    "deit3": _timm("deit3_small_patch16_224", **VIT),
    "cait": _timm("cait_xxs24_224", **VIT, depth_token_only=1),
    "swin": _timm(
        "swin_tiny_patch4_window7_224",
        32,
        img_size=32,
        window_size=4,
        embed_dim=24,
        depths=[2, 2],
        num_heads=[2, 2],
    ),
    "shufflenet": Model("torchvision", "shufflenet_v2_x0_5", image_size=64, num_classes=CLASSES),
    "bert": _text("BertForMaskedLM", **TEXT, intermediate_size=96),
    "gpt2": _text(
        "GPT2LMHeadModel", n_embd=48, n_layer=2, n_head=2, vocab_size=96, n_positions=16, **ENDS
    ),
    "llama": _text("LlamaForCausalLM", **TEXT, intermediate_size=96, num_key_value_heads=2),
    "t5": _text(
        "T5ForConditionalGeneration",
        d_model=48,
        d_kv=16,
        d_ff=96,
        num_layers=2,
        num_heads=2,
        vocab_size=96,
    ),
    "distilbert": _text(
        "DistilBertForMaskedLM", dim=48, n_layers=2, n_heads=2, hidden_dim=96, vocab_size=96
    ),
    "albert": _text("AlbertForMaskedLM", **TEXT, embedding_size=32, intermediate_size=96),
    "mixer": _custom("mixer"),
    "embedding_bag": _custom("embedding_bag"),
    "mixture_of_experts": _custom("mixture_of_experts"),
    "causal_transformer": _custom("causal_transformer"),
    "recurrent": _custom("recurrent"),
    "autoencoder": _custom("autoencoder"),
    "answers": _custom("answers"),
}
WHOLE_STEPS = (
    "vit",
    "gpt2",
    "resnet18",
    "causal_transformer",
    "mixture_of_experts",
    "autoencoder",
    "embedding_bag",
)
INFERENCES = ("resnet50", "bert", "llama", "answers")
BATCH_SIZE = 4


def trials(precision: str, device: str) -> Iterator[Trial]:
    """Every trial in a precision: all models in training, some with the whole step compiled, some
    in inference.
    """
    for name, model in MODELS.items():
        labels = Labels(name, precision)
        trial = Trial(
            model, BATCH_SIZE, labels, precision=PRECISIONS[precision], backend=AOT, device=device
        )
        yield trial
        if name in WHOLE_STEPS:
            whole = replace(labels, model=f"{name} (step)")
            yield replace(trial, labels=whole, compile=Compile(scope="step"))
        if name in INFERENCES:
            inference = replace(labels, model=f"{name} (inference)")
            yield replace(trial, labels=inference, workload="inference", optimizer="none")
