"""Texts that are padded to the longest of their batch, so that hardly any shape comes twice."""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
torch.set_num_threads(1)
random.seed(0)
texts = [torch.randint(1, 1000, (random.randint(5, 200),)) for _ in range(20_000)]


def pad(batch):
    tokens = nn.utils.rnn.pad_sequence(batch, batch_first=True)
    return tokens, tokens.sum(1) % 2


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(1000, 64)
        self.layer = nn.Linear(64, 64)
        self.head = nn.Linear(64, 2)

    def forward(self, tokens):
        hidden = torch.relu(self.layer(self.embedding(tokens)))
        return self.head(hidden.mean(1))


model = Classifier()
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(texts, batch_size=8, collate_fn=pad, shuffle=True)
for epoch in range(100):
    for tokens, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens), labels).backward()
        optimizer.step()
