"""A loop as most tutorials have it."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--epochs", type=int, default=50)
args = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 10)).to(
    device
)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
data = TensorDataset(torch.randn(2048, 64), torch.randint(10, (2048,)))
loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, drop_last=True)
for epoch in range(args.epochs):
    for inputs, labels in loader:
        inputs, labels = inputs.to(device), labels.to(device)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}")
