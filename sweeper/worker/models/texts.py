"""Texts as people feed them to a language model: padded with a mask, packed, or without either.

Lengths come from a generator on the CPU, so they are the same on every device.
"""

import inspect
import itertools
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from sweeper.core.trial import Text

# of the sequence length: drawn lengths are uniform between this share of it and all of it
SHORTEST = 0.5
IGNORED = -100  # the label of a place that the loss leaves out
CAUSAL = ("CausalLM", "LMHeadModel")  # ends of the names of classes that predict the next token
MASKED_FORMS = ("padded", "full", "words")
WORDS = Path(__file__).with_name("words.txt")
MAX_WORD_TOKENS = 1024  # the vocabulary of the tokenizer that is trained on these words
TextBatch = dict[str, torch.Tensor]


def choose_form(text: Text, module: torch.nn.Module, trains: bool) -> str:
    """The form in which a model gets its texts; `none` where its forward takes no mask.

    `auto` is `packed` for causal language models in training, else `padded`. Classes such as
    RobertaForCausalLM look both ways unless their configuration makes a decoder of them, so they
    get padded texts.
    """
    form, config = text.form, module.config
    if form == "auto":
        # XLNet
        looks_both_ways = (
            not getattr(config, "is_decoder", True) or getattr(config, "attn_type", None) == "bi"
        )
        form = (
            "packed"
            if may_be_packed(text, type(module), trains) and not looks_both_ways
            else "padded"
        )
    takes_mask = "attention_mask" in inspect.signature(type(module).forward).parameters
    return "none" if form in MASKED_FORMS and not takes_mask else form


def may_be_packed(text: Text, model_class: type, trains: bool) -> bool:
    """Whether a class gets packed texts, as far as its name says."""
    return text.form == "packed" or (
        text.form == "auto" and trains and model_class.__name__.endswith(CAUSAL)
    )


@dataclass(frozen=True)
class Shape:
    """Sizes of a batch of texts; `least_length` is the smallest that `vary.sequence_length` cuts
    them to.
    """

    batch_size: int
    length: int
    least_length: int
    vocabulary: int
    pad_token: int


class TextMaker:
    """Makes batches of texts of one form, each with lengths of its own."""

    def __init__(
        self, text: Text, form: str, shape: Shape, module: torch.nn.Module, device: torch.device
    ) -> None:
        self.form, self.shape, self._device = form, shape, device
        self._takes_positions = "position_ids" in inspect.signature(type(module).forward).parameters
        self._generator = torch.Generator().manual_seed(torch.initial_seed())
        self._given = itertools.cycle(text.lengths) if text.lengths else None

    def describe(self) -> str:
        """What the record says of the texts."""
        return (
            "packed without position_ids"
            if self.form == "packed" and not self._takes_positions
            else self.form
        )

    def make(self) -> TextBatch:
        """int64 [batch, length] each: `input_ids`, and `attention_mask` or `position_ids` where the
        form has them.
        """
        shape = self.shape
        tokens = torch.randint(
            shape.vocabulary, (shape.batch_size, shape.length), device=self._device
        )
        if self.form == "packed" and self._takes_positions:
            return {"input_ids": tokens, "position_ids": self._number_documents().to(self._device)}
        if self.form not in MASKED_FORMS:
            return {"input_ids": tokens}
        if self.form == "full":
            return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        lengths = self._draw_lengths()
        mask = torch.arange(shape.length).expand(shape.batch_size, -1) < lengths[:, None]
        if self.form == "words":
            tokens = self._read_words(lengths).to(self._device)
        else:  # tokenizers give the token of padding to nothing else
            tokens = tokens.where(
                tokens != shape.pad_token, (shape.pad_token + 1) % shape.vocabulary
            )
        mask = mask.to(self._device)
        return {"input_ids": tokens.where(mask, shape.pad_token), "attention_mask": mask.long()}

    def _draw_lengths(self) -> torch.Tensor:
        """int64 [batch]: those given, in turn, or drawn ones of which the first leaves room for
        padding.

        A mask without padding would not be the same step: eager drops it, after waiting for the
        device.
        """
        shape = self.shape
        if self._given is not None:
            lengths = torch.tensor(list(itertools.islice(self._given, shape.batch_size)))
            if lengths.max() > shape.length:
                raise ValueError(
                    f"text.lengths: a text of {lengths.max()} tokens in a batch of length "
                    f"{shape.length}"
                )
            return lengths
        lengths = self._draw(shape.length, shape.batch_size)
        lengths[0] = self._draw(max(shape.least_length - 1, 1), 1)
        return lengths

    def _draw(self, most: int, count: int) -> torch.Tensor:
        return torch.randint(
            max(int(SHORTEST * most), 1), most + 1, (count,), generator=self._generator
        )

    def _number_documents(self) -> torch.Tensor:
        """Positions of tokens in their documents, int64 [batch, length]; a row has several, the
        last one is cut.
        """
        return torch.stack([self._number_row() for _ in range(self.shape.batch_size)])

    def _number_row(self) -> torch.Tensor:
        length, numbers = self.shape.length, torch.empty(0, dtype=torch.int64)
        while len(numbers) < length:
            document = (
                int(self._draw(max(length - 1, 1), 1)) if self._given is None else next(self._given)
            )
            numbers = torch.cat([numbers, torch.arange(document)])
        return numbers[:length]

    def _read_words(self, lengths: torch.Tensor) -> torch.Tensor:
        """Tokens of the text from places at random, int64 [batch, length]."""
        tokens = tokenize_words(min(self.shape.vocabulary, MAX_WORD_TOKENS))
        starts = torch.randint(len(tokens), (len(lengths),), generator=self._generator)
        return tokens[(starts[:, None] + torch.arange(self.shape.length)) % len(tokens)]


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


def ignore_padding(labels: torch.Tensor, texts: TextBatch) -> torch.Tensor:
    """Labels int64 [batch, length], with those of padding left out of the loss."""
    mask = texts.get("attention_mask")
    return labels if mask is None else labels.where(mask.bool(), IGNORED)


def count_tokens(inputs: Any) -> int | None:
    """Tokens in the inputs of a step, without padding; None where there is no text.

    A mask counts if it is one of whole numbers or booleans for each token; others are no masks of
    padding.
    """
    if "input_ids" not in inputs:
        return None
    tokens, mask = inputs["input_ids"], inputs.get("attention_mask")
    masks_tokens = (
        isinstance(mask, torch.Tensor)
        and mask.shape == tokens.shape
        and not mask.is_floating_point()
    )
    return int(mask.count_nonzero()) if masks_tokens else tokens.numel()
