"""Two networks and two optimizers that take turns."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
generator = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 64))
discriminator = nn.Sequential(nn.Linear(64, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1))
of_discriminator = torch.optim.Adam(discriminator.parameters(), lr=2e-4)
of_generator = torch.optim.Adam(generator.parameters(), lr=2e-4)
bce = nn.BCEWithLogitsLoss()
loader = DataLoader(TensorDataset(torch.randn(4096, 64)), batch_size=32, drop_last=True)
for epoch in range(100):
    for (real,) in loader:
        fake = generator(torch.randn(len(real), 16))
        loss = bce(discriminator(real), torch.ones(len(real), 1))
        loss = loss + bce(discriminator(fake.detach()), torch.zeros(len(real), 1))
        of_discriminator.zero_grad()
        loss.backward()
        of_discriminator.step()
        of_generator.zero_grad()
        bce(discriminator(fake), torch.ones(len(real), 1)).backward()
        of_generator.step()
