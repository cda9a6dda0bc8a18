"""A loop that compiles its model by itself."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 10)
        )

    def forward(self, inputs):
        return self.layers(inputs)


model = torch.compile(Net(), dynamic=False)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
loader = DataLoader(
    TensorDataset(torch.randn(2048, 64), torch.randint(10, (2048,))), batch_size=32, drop_last=True
)
for epoch in range(50):
    for inputs, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
