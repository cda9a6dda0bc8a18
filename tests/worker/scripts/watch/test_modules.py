"""What is compiled of a module that a script calls."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from sweeper.worker.scripts.watch.modules import ModuleWatch, find_parts
from sweeper.worker.scripts.watch.patches import Patches
from sweeper.worker.source_lines import name_class


@pytest.fixture(autouse=True)
def group_of_one() -> Iterator[None]:
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_inside_a_wrapper_is_the_module_in_it() -> None:
    module = DistributedDataParallel(nn.Linear(2, 2))
    assert find_parts(module, "inside") == [module.module]
    assert find_parts(module, "outside") == [module]
    assert name_class(module) == "torch.nn.Linear in DistributedDataParallel"


def test_of_sharded_modules_each_outermost_block_is_compiled_by_itself() -> None:
    blocks = [nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) for _ in range(2)]
    module = nn.Sequential(nn.Sequential(*blocks), nn.Linear(2, 2))
    mesh = torch.distributed.init_device_mesh("cpu", (1,))
    for part in (blocks[0][0], *blocks, module):
        fully_shard(part, mesh=mesh)
    assert find_parts(module, "inside") == blocks
    assert find_parts(module, "outside") == [module]
    assert find_parts(blocks[1], "inside") == [blocks[1]]


def test_other_modules_are_compiled_whole() -> None:
    module = nn.Sequential(nn.Linear(2, 2))
    assert find_parts(module, "inside") == [module]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 2))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.body.forward(values)


def test_a_module_whose_forward_is_called_is_named_and_its_parts_are_what_is_compiled() -> None:
    net, other = Net(), Net()
    both = Net()
    with Patches() as patches:
        watch = ModuleWatch(patches)
        watch.begin()
        begin = sys._getframe().f_lineno
        net.forward(torch.ones(2))
        other(torch.ones(2))
        both.forward(torch.ones(2))
        both(torch.ones(2))
        watch.stop()
    assert list(watch.modules) == [net.body[0], other, both]
    assert watch.entered == {net: f"tests/worker/scripts/watch/test_modules.py:{begin + 1}"}
