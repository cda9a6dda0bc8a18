"""A model that looks at its loss while it computes it, which breaks the graph."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class WithLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10))

    def forward(self, inputs, labels):
        loss = nn.functional.cross_entropy(self.layers(inputs), labels)
        if loss.item() > 1e6:
            raise RuntimeError("training has diverged")
        return loss


model = WithLoss()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(100_000):
    optimizer.zero_grad()
    model(torch.randn(32, 64), torch.randint(10, (32,))).backward()
    optimizer.step()
