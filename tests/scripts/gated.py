"""A loop with a switch for the compiler that does not reach it: the compiled form is never called."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10))
use_compile = True
if use_compile:
    compiled = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(100_000):
    inputs, labels = torch.randn(32, 64), torch.randint(10, (32,))
    loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
