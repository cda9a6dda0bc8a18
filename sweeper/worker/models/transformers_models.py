"""Hugging Face models, built from the default configuration of their class with random weights, or
from a checkpoint.

`model.arguments` changes the configuration. The loss is the model's own, from random labels. Models
of text get token numbers, models of images pixels, Whisper spectrograms, and those that compare
images with texts both.
"""

import inspect
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import transformers

from sweeper.core.errors import nearest
from sweeper.core.trial import CACHED, Model, Trial
from sweeper.worker.failures import UnavailableError

from . import Built, Examined, read_attention
from .batches import Batch, OwnLossOrMean, mean_of_floats
from .decoding import CachedDecoder, list_problems
from .dropout import silence_rates
from .pretrained import report_unreachable_hub
from .texts import SEQUENCE_LENGTH, TextMaker, may_be_packed

REMOVED = {  # classes that earlier releases had
    "Speech2Text2ForCausalLM": "removed in transformers 5.0 "
    "(https://github.com/huggingface/transformers/pull/42235); transformers 4 has it"
}
FLASH = "flash_attention_2"


def names() -> list[str]:
    """Model classes, those that earlier releases had included; their modules are not imported for
    this.
    """
    found = [name for name in dir(transformers) if not name.startswith(("TF", "Flax", "Auto"))]
    return [*(name for name in found if "For" in name or name.endswith("Model")), *REMOVED]


def examine(trial: Trial) -> Examined:
    """Find a class that wants other inputs, and settings that its configuration lacks (it takes
    them silently).
    """
    model = trial.model
    if _is_removed(model.name):
        return Examined()
    model_class = getattr(transformers, model.name)
    config: Any = None
    main_input = None
    if getattr(model_class, "config_class", None):
        config = model_class.config_class()
        main_input = _main_input(model_class, config)
    if main_input is None:
        reads = "reads neither tokens nor images nor Whisper's spectrograms; no others are fed"
        return Examined([f"model.name={model.name}: {reads}"])
    known, wrong = config.to_dict(), f"{type(config).__name__} has no such setting"
    found = []
    for key in model.arguments:
        if key not in known:
            found.append(f"model.arguments.{key}: {wrong}; {nearest(key, known)}")
    if model.image_size and not hasattr(config, "image_size"):
        found.append(f"model.image_size={model.image_size}: {wrong}")
    length, longest = model.sequence_length or SEQUENCE_LENGTH, max(trial.text.lengths, default=0)
    if longest > length and main_input == "input_ids" and not may_be_packed(trial, model_class):
        found.append(
            f"text.lengths: the longest text has {longest} tokens, and model.sequence_length is "
            f"{length}"
        )
    if trial.workload in CACHED:
        found += list_problems(trial, model_class, config)
    return Examined(found)


def load(model: Model) -> None:
    """Classes are imported when they are first asked for."""
    if _is_removed(model.name):
        raise UnavailableError(
            f"transformers {transformers.__version__} has no {model.name}: {REMOVED[model.name]}"
        )
    model_class = getattr(transformers, model.name)
    if model.attention == FLASH:
        # where flash-attn's kernel cannot be had, transformers would fetch one from its hub
        allowed = getattr(model_class, "_compatible_flash_implementations", None) or [FLASH]
        if FLASH not in allowed:
            raise UnavailableError(
                f"model.attention={FLASH}: {model_class.__name__} takes {', '.join(allowed)} "
                "instead"
            )
        if not transformers.utils.is_flash_attn_2_available():
            raise UnavailableError(
                f"model.attention={FLASH} needs a GPU and flash-attn: pip install flash-attn"
            )
    if model.pretrained:
        _make_module(model)


def build(trial: Trial, device: torch.device) -> Built:
    with torch.device(device):
        module = _make_module(trial.model)
    module = module.to(device)
    if trial.workload in CACHED:
        length = trial.model.sequence_length or SEQUENCE_LENGTH
        make_cache = partial(transformers.StaticCache, config=module.config, max_cache_len=length)
        decoder = CachedDecoder(module, make_cache, trial, device)
        timed = 1 if trial.workload == "decode" else length
        first, second, unseen = (decoder.draw_tokens(timed) for _ in range(3))
        return Built(decoder, (first, second), unseen, mean_of_floats)
    texts = TextMaker(trial, module, device)
    first, second, unseen = (_make_batch(trial, module, texts, device) for _ in range(3))
    text = texts.form if "input_ids" in first.kwargs else None
    return Built(module, (first, second), unseen, OwnLossOrMean(), text=text)


def _is_removed(name: str) -> bool:
    return name in REMOVED and not hasattr(transformers, name)


def _make_config(model: Model) -> Any:
    config_class = getattr(transformers, model.name).config_class
    with report_unreachable_hub(model):
        if model.pretrained:
            config = config_class.from_pretrained(model.checkpoint, **model.arguments)
        else:
            config = config_class(**model.arguments)
    if model.num_classes:
        config.num_labels = model.num_classes
    if model.image_size:
        config.image_size = model.image_size
    config.use_cache = False
    if not model.dropout:
        silence_rates(config, set())
    if getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = 0  # sequence classification heads ask for one
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        # as T5's checkpoints have it; labels are shifted with it
        config.decoder_start_token_id = config.pad_token_id
    return config


def _make_module(model: Model) -> Any:
    """Construct the model. Raises UnavailableError where its class refuses `model.attention`."""
    config = _make_config(model)
    if model.attention is None:
        return _construct(model, config)
    config._attn_implementation = model.attention
    try:
        module = _construct(model, config)
    except (ValueError, ImportError) as error:
        other = replace(model, attention=None, pretrained=False)
        with torch.device("meta"):
            _construct(other, _make_config(other))  # raises what attention is not the cause of
        raise UnavailableError(f"model.attention={model.attention}: {error}") from error
    if (chosen := read_attention(module)) != model.attention:
        raise UnavailableError(
            f"model.attention={model.attention}: transformers took {chosen} instead"
        )
    return module


def _construct(model: Model, config: Any) -> Any:
    model_class = getattr(transformers, model.name)
    if not model.pretrained:
        return model_class(config)
    with report_unreachable_hub(model), torch.device("cpu"):
        return model_class.from_pretrained(
            model.checkpoint,
            config=config,
            dtype=torch.float32,
            # a head for other classes begins anew
            ignore_mismatched_sizes=model.num_classes is not None,
        )


def _main_input(model_class: Any, config: Any) -> str | None:
    """What a model reads: tokens, images of one size or Whisper's spectrograms; None for everything
    else.
    """
    name: str = model_class.main_input_name
    match name:
        case "input_ids":
            is_known = hasattr(config.get_text_config(), "vocab_size")
        case "pixel_values":  # ViTForImageClassification
            is_known = isinstance(getattr(config, "image_size", None), int)
        case _:
            is_known = name == "input_features" and config.model_type == "whisper"
    return name if is_known else None


def _make_batch(trial: Trial, module: Any, texts: TextMaker, device: torch.device) -> Batch:
    """Make what the model is called with, and the labels that its head wants."""
    config = module.config
    inputs: dict[str, Any] = {}
    main_input = _main_input(type(module), config)
    takes = inspect.signature(type(module).forward).parameters
    has_labels = trial.workload == "train" or trial.text.labels
    if main_input == "input_features":
        # its second convolution halves the frames, https://arxiv.org/abs/2212.04356
        shape = (trial.batch_size, config.num_mel_bins, 2 * config.max_source_positions)
        inputs["input_features"] = torch.randn(shape, device=device)
    elif main_input == "pixel_values":
        inputs["pixel_values"] = _make_pixels(config, trial.batch_size, device)
    else:
        inputs |= texts.make()
    if "return_loss" in takes:  # images with texts, e.g. CLIPModel
        inputs["pixel_values"] = _make_pixels(config.vision_config, trial.batch_size, device)
        if has_labels:
            inputs["return_loss"] = True
    if has_labels:
        inputs |= _make_labels(module, inputs.get("attention_mask"), texts, device)
    elif "decoder_input_ids" in takes:
        inputs["decoder_input_ids"] = texts.make()["input_ids"]
    return Batch(kwargs=inputs)


def _make_labels(
    module: Any, mask: torch.Tensor | None, texts: TextMaker, device: torch.device
) -> dict[str, torch.Tensor]:
    """Labels of the head; those of padding are left out of the loss, and answers lie within their
    text.
    """
    name, config = type(module).__name__, module.config
    batch_size, length = texts.batch_size, texts.length
    if name.endswith(("SequenceClassification", "ImageClassification", "AudioClassification")):
        return {"labels": torch.randint(config.num_labels, (batch_size,), device=device)}
    if name.endswith("QuestionAnswering"):
        answers = {}
        for end in ("start_positions", "end_positions"):
            place = torch.randint(length, (batch_size,), device=device)
            answers[end] = place if mask is None else place % mask.sum(1)
        return answers
    if name.endswith("TokenClassification"):
        classes = config.num_labels
    elif name.endswith(("MaskedLM", "CausalLM", "ConditionalGeneration", "LMHeadModel")):
        classes = config.get_text_config().vocab_size
    else:
        return {}
    labels = torch.randint(classes, (batch_size, length), device=device)
    if mask is not None:
        labels = labels.where(mask.bool(), -100)  # the loss leaves such places out
    return {"labels": labels}


def _make_pixels(config: Any, batch_size: int, device: torch.device) -> torch.Tensor:
    """float32 [batch, channels, side, side]"""
    channels = getattr(config, "num_channels", 3)
    return torch.randn(batch_size, channels, config.image_size, config.image_size, device=device)
