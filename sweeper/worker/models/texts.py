"""Texts as people feed them to a language model: padded with a mask, packed, or without either.

Lengths come from a generator on the CPU, so they are the same on every device.
"""

import inspect
import itertools
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from sweeper.core.trial import Trial

SEQUENCE_LENGTH = 128


MASKED_FORMS = ("padded", "full", "words")
WORDS = Path(__file__).with_name("words.txt")
MAX_WORD_TOKENS = 1024  # the vocabulary of the tokenizer that is trained on these words


def choose_form(trial: Trial, module: torch.nn.Module) -> str:
    """The form in which a model gets its texts; `none` where its forward takes no mask.

    `auto` is `packed` for causal language models in training, else `padded`. Classes such as
    RobertaForCausalLM look both ways unless their configuration makes a decoder of them, so they
    get padded texts.
    """
    form, config = trial.text.form, module.config
    if form == "auto":
        # XLNet
        looks_both_ways = (
            not getattr(config, "is_decoder", True) or getattr(config, "attn_type", None) == "bi"
        )
        is_packed = may_be_packed(trial, type(module)) and not looks_both_ways
        form = "packed" if is_packed else "padded"
    takes_mask = "attention_mask" in inspect.signature(type(module).forward).parameters
    if form in MASKED_FORMS and not takes_mask:
        return "none"
    return form


def may_be_packed(trial: Trial, model_class: type) -> bool:
    """Whether a class gets packed texts, as far as its name says."""
    if trial.text.form == "auto":
        is_causal = model_class.__name__.endswith(("CausalLM", "LMHeadModel"))
        return trial.workload == "train" and is_causal
    return trial.text.form == "packed"


class TextMaker:
    """Makes batches of texts of one form for a model of transformers, each with lengths of its
    own.
    """

    def __init__(self, trial: Trial, module: Any, device: torch.device) -> None:
        config = module.config.get_text_config()
        self.form, self._device = choose_form(trial, module), device  # as the record has it
        self.batch_size = trial.batch_size
        self.length = trial.model.sequence_length or SEQUENCE_LENGTH
        self._least_length = min(trial.vary.get("sequence_length", (self.length,)))
        self._vocabulary = getattr(config, "vocab_size", 1)
        self._pad_token = getattr(config, "pad_token_id", None) or 0
        takes_positions = "position_ids" in inspect.signature(type(module).forward).parameters
        if self.form == "packed" and not takes_positions:
            self.form = "packed without position_ids"
        self._generator = torch.Generator().manual_seed(torch.initial_seed())
        self._given = itertools.cycle(trial.text.lengths) if trial.text.lengths else None

    def make(self) -> dict[str, torch.Tensor]:
        """int64 [batch, length] each: `input_ids`, and `attention_mask` or `position_ids` where the
        form has them.
        """
        form, pad_token = self.form, self._pad_token
        shape = (self.batch_size, self.length)
        tokens = torch.randint(self._vocabulary, shape, device=self._device)
        if form == "packed":
            return {"input_ids": tokens, "position_ids": self._number_documents().to(self._device)}
        if form not in MASKED_FORMS:
            return {"input_ids": tokens}
        if form == "full":
            return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        lengths = self._draw_lengths()
        mask = (torch.arange(self.length) < lengths[:, None]).to(self._device)
        if form == "words":  # the text from places at random
            text = tokenize_words(min(self._vocabulary, MAX_WORD_TOKENS))
            starts = torch.randint(len(text), (len(lengths),), generator=self._generator)
            places = starts[:, None] + torch.arange(self.length)
            tokens = text[places % len(text)].to(self._device)
        else:  # tokenizers give the token of padding to nothing else
            tokens = tokens.where(tokens != pad_token, (pad_token + 1) % self._vocabulary)
        return {"input_ids": tokens.where(mask, pad_token), "attention_mask": mask.long()}

    def _draw_lengths(self) -> torch.Tensor:
        """int64 [batch]: those given, in turn, or drawn ones of which the first leaves room for
        padding.

        A mask without padding would not be the same step: eager drops it, after waiting for the
        device.
        """
        if self._given is not None:
            lengths = torch.tensor(list(itertools.islice(self._given, self.batch_size)))
            if lengths.max() > self.length:
                raise ValueError(
                    f"text.lengths: a text of {lengths.max()} tokens in a batch of length "
                    f"{self.length}"
                )
            return lengths
        lengths = self._draw(self.length, self.batch_size)
        lengths[0] = self._draw(max(self._least_length - 1, 1), 1)
        return lengths

    def _draw(self, most: int, count: int) -> torch.Tensor:
        """Lengths that are uniform between half of the most and all of it."""
        return torch.randint(max(most // 2, 1), most + 1, (count,), generator=self._generator)

    def _number_documents(self) -> torch.Tensor:
        """Positions of tokens in their documents, int64 [batch, length]; a row has several, the
        last one is cut.
        """
        rows = []
        for _ in range(self.batch_size):
            numbers: list[int] = []
            while len(numbers) < self.length:
                if self._given is None:
                    numbers += range(int(self._draw(max(self.length - 1, 1), 1)))
                else:
                    numbers += range(next(self._given))
            rows.append(numbers[: self.length])
        return torch.tensor(rows)


@cache
def tokenize_words(vocabulary: int) -> torch.Tensor:
    """Train a tokenizer of at most `vocabulary` tokens on `words.txt`, and read the text with it:
    int64 [tokens].

    Raises ValueError where the vocabulary has no room for the characters of the text.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    text = WORDS.read_text(encoding="utf-8")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(
        [text], trainers.BpeTrainer(vocab_size=vocabulary, show_progress=False)
    )
    if (needed := tokenizer.get_vocab_size()) > vocabulary:
        raise ValueError(
            f"text=words: its characters need {needed} tokens, the model's vocabulary has "
            f"{vocabulary}"
        )
    return torch.tensor(tokenizer.encode(text).ids)


def count_tokens(inputs: Mapping[str, Any]) -> int:
    """Tokens of the texts in the inputs of a step, without padding.

    A mask counts if it is one of whole numbers or booleans for each token; others are no masks of
    padding.
    """
    tokens, mask = inputs["input_ids"], inputs.get("attention_mask")
    if (
        isinstance(mask, torch.Tensor)
        and mask.shape == tokens.shape
        and not mask.is_floating_point()
    ):
        return int(mask.count_nonzero())
    return int(tokens.numel())
