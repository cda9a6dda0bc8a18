"""A loop that trains what torch.compile gave, and evaluates the model that it was given."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10))

    def forward(self, inputs):
        return self.layers(inputs)


def load(rows):
    data = TensorDataset(torch.randn(rows, 64), torch.randint(10, (rows,)))
    return DataLoader(data, batch_size=32)


model = Net()
compiled = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
train, validation = load(2048), load(256)
for epoch in range(400):
    compiled.train()
    for inputs, labels in train:
        optimizer.zero_grad()
        nn.functional.cross_entropy(compiled(inputs), labels).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = sum((model(inputs).argmax(-1) == labels).sum() for inputs, labels in validation)
