"""The Trainer of transformers, with a tokenizer that is built here and texts that are padded as they come."""

import sys
import tempfile

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

torch.manual_seed(0)
torch.set_num_threads(1)
words = [
    "a",
    "compiler",
    "reads",
    "the",
    "whole",
    "step",
    "and",
    "writes",
    "one",
    "kernel",
    "where",
    "eager",
    "runs",
    "many",
    "small",
    "ones",
]
texts = [" ".join(words[: 2 + index % len(words)]) for index in range(4000)]
tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=["[UNK]", "[PAD]"]))
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]"
)
config = BertConfig(
    vocab_size=64,
    hidden_size=64,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=128,
    num_labels=2,
)
# The gradients of two labels would cancel in some batches, and dropout would be all that is left.
# With one label and a tiny rate, gradients stay as large as at the start.
data = [{**tokenizer(text), "labels": 1} for text in texts]
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_train_epochs=50,
    learning_rate=1e-7,
    report_to=[],
    use_cpu=not torch.cuda.is_available(),
    disable_tqdm=True,
    save_steps=10_000,
    logging_steps=10_000,
    torch_compile="--compile" in sys.argv,
)
Trainer(
    BertForSequenceClassification(config), arguments, DataCollatorWithPadding(tokenizer), data
).train()
