"""A loop with accelerate, which wraps model, optimizer and loader."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
accelerator = Accelerator(cpu=not torch.cuda.is_available(), gradient_accumulation_steps=2)
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10))
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(
    TensorDataset(torch.randn(4096, 64), torch.randint(10, (4096,))), batch_size=32, drop_last=True
)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(100):
    for inputs, labels in loader:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.cross_entropy(model(inputs), labels))
            optimizer.step()
            optimizer.zero_grad()
