"""FSDP2 by blocks, each compiled by itself: torchrun --nproc-per-node 2 fsdp2.py"""

import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, values):
        return values + self.down(nn.functional.gelu(self.up(values)))


torch.manual_seed(0)
init_process_group("gloo")
model = nn.Sequential(Block(), Block())
for block in model:
    block.compile(backend="aot_eager")
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
try:
    for _ in range(100_000):
        loss = model(torch.randn(8, 32)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
finally:
    destroy_process_group()
