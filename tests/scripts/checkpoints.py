"""Recomputes its blocks in the backward pass to save memory, and saves a checkpoint every few steps."""

import argparse

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--save-every", type=int, default=5)
parser.add_argument("--reentrant", action="store_true")
args = parser.parse_args()


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, inputs):
        return inputs + self.layers(self.norm(inputs))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(64, 64)
        self.blocks = nn.ModuleList(Block(64) for _ in range(3))
        self.head = nn.Linear(64, 10)

    def forward(self, inputs):
        hidden = self.stem(inputs)
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=args.reentrant)
        return self.head(hidden)


torch.manual_seed(0)
torch.set_num_threads(1)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = Net().to(device)
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(
    TensorDataset(torch.randn(2048, 64), torch.randint(10, (2048,))), batch_size=32, shuffle=True
)
step = 0
for epoch in range(100):
    for inputs, labels in loader:
        loss = nn.functional.cross_entropy(model(inputs.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % args.save_every == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, "checkpoint.pt")
