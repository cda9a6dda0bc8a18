"""A training script for several processes, which takes its own time. No code of sweeper is in it.

With `model.launch`, its step speedup and its loop speedup should equal those of two runs by hand:

    torchrun --nproc-per-node 2 benchmarks/train_ranks.py nano --time 60
    torchrun --nproc-per-node 2 benchmarks/train_ranks.py nano --time 60 --compile
    python -m sweeper -m model=script model.launch='torchrun --nproc-per-node 2' \\
        model.path=benchmarks/train_ranks.py "model.args='nano','resnet50','bert','nano_fsdp2'"

`nano` is a GPT written here in DistributedDataParallel, `nano_fsdp2` the same GPT with
`fully_shard` on each block and on the whole, `resnet50` is timm's, and `bert` a classifier of
transformers in accelerate, which `accelerate launch` starts as well. All train in bfloat16, with
autocast or the policy of `fully_shard`, and a GPU for each process. `--compile` compiles what
`parallel.compile=inside` compiles.

Each process gives its own batches to its model. Images are bytes until they are on the device.
With `--time N` the script prints two times of N steps each, in milliseconds per step of the slowest
process: of steps whose batches were loaded beforehand, and of the loop with its loader. 40 untimed
steps come before each. Processes wait for each other before the clock and after
it.
"""

import argparse
import itertools
import os
import time
from contextlib import nullcontext

import torch
from torch import distributed, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

UNTIMED = 40
COUNT = 20_000  # of samples
WORKERS = 8  # of the loader of each process
SIZES = {"nano": 16, "nano_fsdp2": 16, "resnet50": 256, "bert": 128}  # per process
DEVICE_TYPE = "cuda" if torch.cuda.is_available() else "cpu"
PINNED = DEVICE_TYPE == "cuda"


class Images(Dataset):
    def __init__(self, side):
        self.images = torch.randint(256, (512, 3, side, side), dtype=torch.uint8)
        self.labels = torch.randint(1000, (COUNT,))

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return self.images[index % len(self.images)], self.labels[index]


class Rows(Dataset):
    """Rows of a long text, each with the tokens that follow."""

    def __init__(self, length, vocabulary):
        self.text, self.length = torch.randint(vocabulary, (COUNT + length + 1,)), length

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        row = self.text[index : index + self.length + 1]
        return row[:-1], row[1:]


class Texts(Dataset):
    """Texts of unlike length, padded on the right, and their classes."""

    def __init__(self, length):
        self.tokens = torch.randint(10, 30522, (COUNT, length))
        self.lengths = torch.randint(length // 4, length + 1, (COUNT,))
        self.labels = torch.randint(2, (COUNT,))

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        mask = (torch.arange(self.tokens.shape[1]) < self.lengths[index]).long()
        return {
            "input_ids": self.tokens[index] * mask,
            "attention_mask": mask,
            "labels": self.labels[index],
        }


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, values):
        batch, length, width = values.shape
        parts = self.attention(self.before_attention(values)).chunk(3, dim=-1)
        query, key, value = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts
        )
        found = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        values = values + self.projection(found.transpose(1, 2).reshape(batch, length, width))
        return values + self.mlp(self.before_mlp(values))


class Nano(nn.Module):
    """A small GPT; its output is the loss."""

    def __init__(self, vocabulary, length, width, heads, layers):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.last, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for item in self.parameters():
            if item.dim() > 1:
                nn.init.normal_(item, std=0.02)

    def forward(self, tokens, targets):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        values = self.tokens(tokens) + self.positions(positions)
        for block in self.blocks:
            values = block(values)
        scores = self.head(self.last(values))
        return nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def make(name, small):
    """The model and its data."""
    if name == "resnet50":
        import timm

        return timm.create_model("resnet18" if small else "resnet50"), Images(32 if small else 224)
    if name == "bert":
        from transformers import BertConfig, BertForSequenceClassification

        width = 64 if small else 1024
        config = BertConfig(
            hidden_size=width,
            num_hidden_layers=2 if small else 6,
            num_attention_heads=width // 32 if small else 16,
            intermediate_size=4 * width,
        )
        return BertForSequenceClassification(config), Texts(16 if small else 256)
    if small:
        return Nano(256, 16, width=32, heads=2, layers=2), Rows(16, 256)
    return Nano(50304, 1024, width=1024, heads=16, layers=6), Rows(1024, 50304)


def shard(model, compiled):
    """Shard a GPT by blocks, and compile the blocks by themselves."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
        if compiled:
            block.compile()
    return fully_shard(model, mp_policy=policy)


def prepare_with_accelerate(model, data, size, workers, compiled):
    """What a step needs, and a loader, as accelerate gives them."""
    from accelerate import Accelerator

    accelerator = Accelerator(mixed_precision="bf16", cpu=DEVICE_TYPE == "cpu")
    loader = DataLoader(
        data, size, shuffle=True, drop_last=True, num_workers=workers, pin_memory=PINNED
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if compiled:
        model.module.compile()

    def step(batch):
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()

    return step, loader, accelerator.device


def prepare(name, model, data, size, workers, compiled):
    """What a step needs, and a loader, by torch alone."""
    device = torch.device(DEVICE_TYPE)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(
        data, size, sampler=sampler, drop_last=True, num_workers=workers, pin_memory=PINNED
    )
    model.to(device)
    if name == "nano_fsdp2":
        model, autocast = shard(model, compiled), nullcontext()
    else:
        ids = [device.index] if device.type == "cuda" else None
        model = DistributedDataParallel(model, device_ids=ids)
        autocast = torch.autocast(device.type, torch.bfloat16)
        if compiled:
            model.module.compile()
    if name == "resnet50":
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step(batch):
        first, second = (tensor.to(device, non_blocking=True) for tensor in batch)
        with autocast:
            if name == "resnet50":
                loss = nn.functional.cross_entropy(model(first.float() / 255), second)
            else:
                loss = model(first, second)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step, loader, device


def read_epochs(loader):
    """The batches of 100 epochs."""
    for epoch in range(100):
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        yield from loader


def measure_ms(step, batches, count, device):
    """Milliseconds per step of the slowest process, over `count` steps after those untimed."""

    def synchronize():
        if device.type == "cuda":
            torch.cuda.synchronize()

    for batch in itertools.islice(batches, UNTIMED):
        step(batch)
    synchronize()
    distributed.barrier()
    synchronize()
    start = time.perf_counter()
    for batch in itertools.islice(batches, count):
        step(batch)
    synchronize()
    spent = torch.tensor(time.perf_counter() - start, dtype=torch.float64, device=device)
    distributed.barrier()
    distributed.all_reduce(spent, distributed.ReduceOp.MAX)
    return spent.item() / count * 1e3


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", choices=SIZES)
    parser.add_argument("--batch-size", type=int, help="of each process")
    parser.add_argument("--small", action="store_true", help="for a CPU")
    parser.add_argument("--compile", action="store_true", help="compile the model")
    parser.add_argument("--time", type=int, help="steps to time")
    options = parser.parse_args()
    torch.manual_seed(0)
    model, data = make(options.model, options.small)
    size = options.batch_size or (4 if options.small else SIZES[options.model])
    model.train()
    arguments = (model, data, size, 1 if options.small else WORKERS, options.compile)
    if options.model == "bert":
        step, loader, device = prepare_with_accelerate(*arguments)
    else:
        step, loader, device = prepare(options.model, *arguments)
    batches = read_epochs(loader)
    if options.time is None:
        for batch in batches:
            step(batch)
    else:
        read = list(itertools.islice(batches, UNTIMED + options.time))
        step_ms = measure_ms(step, iter(read), options.time, device)
        read.clear()
        loop_ms = measure_ms(step, batches, options.time, device)
        if distributed.get_rank() == 0:
            arm = "compiled" if options.compile else "eager"
            print(f"{options.model} {arm}: step {step_ms:.3f} ms, loop {loop_ms:.3f} ms")
    batches.close()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
