"""Four batches to a step, a learning-rate schedule and an average of the weights."""

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
average = copy.deepcopy(model).eval()
optimizer = torch.optim.AdamW(model.parameters())
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
loader = DataLoader(
    TensorDataset(torch.randn(4096, 64), torch.randint(10, (4096,))), batch_size=16, drop_last=True
)
EVERY = 4
for epoch in range(100):
    for index, (inputs, labels) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(inputs), labels) / EVERY
        loss.backward()
        if (index + 1) % EVERY == 0:
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for old, new in zip(average.parameters(), model.parameters()):
                    old.lerp_(new, 0.01)
