"""Classifies texts with a small BERT: each batch is padded to its longest text, so batches have many sizes."""

import random

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch.utils.data import DataLoader
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    get_linear_schedule_with_warmup,
)

EPOCHS = 50

random.seed(0)
torch.manual_seed(0)
torch.set_num_threads(1)
device = "cuda" if torch.cuda.is_available() else "cpu"
words = [f"word{number}" for number in range(500)]
reviews = [
    (" ".join(random.choices(words, k=random.randint(3, 100))), index % 2) for index in range(4000)
]

tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer.train_from_iterator(
    (text for text, _ in reviews), trainers.WordLevelTrainer(special_tokens=["[PAD]", "[UNK]"])
)
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]"
)


def collate(samples):
    texts, labels = zip(*samples)
    batch = tokenizer(list(texts), padding="longest", return_tensors="pt")
    batch["labels"] = torch.tensor(labels)
    return batch


loader = DataLoader(reviews, batch_size=4, shuffle=True, collate_fn=collate)
config = BertConfig(
    vocab_size=len(tokenizer),
    hidden_size=64,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=128,
    num_labels=2,
)
model = BertForSequenceClassification(config).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.01)
num_steps = EPOCHS * len(loader)
scheduler = get_linear_schedule_with_warmup(optimizer, num_steps // 10, num_steps)

model.train()
for epoch in range(EPOCHS):
    total = 0.0
    for batch in loader:
        batch = {name: tensor.to(device) for name, tensor in batch.items()}
        output = model(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            labels=batch["labels"],
        )
        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        total += output.loss.item()
    print(f"epoch {epoch}: loss {total / len(loader):.4f}")
