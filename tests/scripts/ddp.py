"""DistributedDataParallel as torch's tutorial has it: torchrun --nproc-per-node 2 ddp.py"""

import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10))

    def forward(self, inputs):
        return self.layers(inputs)


torch.manual_seed(0)
init_process_group("gloo")
model = DistributedDataParallel(Net())
optimizer = torch.optim.AdamW(model.parameters())
data = TensorDataset(torch.randn(2048, 64), torch.randint(10, (2048,)))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=16, sampler=sampler)
try:
    for epoch in range(500):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
finally:
    destroy_process_group()
