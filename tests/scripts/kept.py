"""A loop that keeps the loss of each step as a tensor, and reads them all at the end of an epoch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(64, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 10)
        )

    def forward(self, inputs, labels):
        return nn.functional.cross_entropy(self.body(inputs), labels)


torch.manual_seed(0)
torch.set_num_threads(1)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = Classifier().to(device)
optimizer = torch.optim.AdamW(model.parameters())
data = TensorDataset(torch.randn(4096, 64), torch.randint(10, (4096,)))
loader = DataLoader(data, batch_size=32, shuffle=True, drop_last=True)
for epoch in range(50):
    losses = []
    for inputs, labels in loader:
        loss = model(inputs.to(device), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    print(f"epoch {epoch}: loss {torch.stack(losses).mean().item():.3f}")
