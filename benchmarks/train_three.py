"""A training script, a factory of the same models, and a loop that takes its own time. No code of
sweeper is in it.

As a script, its step speedup is to be that of the factory, and its loop speedup that of two runs by
hand:

    python -m sweeper -m model=script model.path=benchmarks/train_three.py \\
        "model.args='resnet50','bert','gpt'"
    PYTHONPATH=benchmarks python -m sweeper model=custom precision=amp optimizer=sgd \\
        model.factory=train_three:resnet50 batch_size=256             bert has 96, gpt 64
    python benchmarks/train_three.py resnet50 --time 300
    python benchmarks/train_three.py resnet50 --time 300 --compile

Images are bytes until they are on the device, and are copied from pinned memory while it computes.
Texts are padded on the right to one length, with their mask; the decoder reads full rows. Dropout
is on. With `--time N` the script prints milliseconds per step over N steps, after 40 that nobody
times, and ends.
"""

import argparse
import time
from contextlib import nullcontext
from functools import partial

import torch
import transformers
from torch.utils.data import DataLoader, Dataset

UNTIMED = 40
SIZES = {"resnet50": 256, "bert": 96, "gpt": 64}  # so large that no arm waits for the host


class Images(Dataset):
    def __init__(self, count, side):
        self.images = torch.randint(256, (min(count, 512), 3, side, side), dtype=torch.uint8)
        self.labels = torch.randint(1000, (count,))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index % len(self.images)], self.labels[index]


class Texts(Dataset):
    def __init__(self, count, length, vocabulary, padded):
        self.tokens, self.length, self.padded = (
            torch.randint(10, vocabulary, (count, length)),
            length,
            padded,
        )
        self.lengths, self.labels = (
            torch.randint(length // 4, length + 1, (count,)),
            torch.randint(2, (count,)),
        )

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        tokens = self.tokens[index]
        if not self.padded:
            return {"input_ids": tokens, "labels": tokens}
        mask = (torch.arange(self.length) < self.lengths[index]).long()
        return {"input_ids": tokens * mask, "attention_mask": mask, "labels": self.labels[index]}


def make(name, small):
    """The model and its data."""
    count = 20_000
    if name == "resnet50":
        import timm

        return timm.create_model("resnet18" if small else "resnet50"), Images(
            count, 32 if small else 224
        )
    sizes = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 128,
    }
    if name == "bert":
        config = transformers.BertConfig(**(sizes if small else {}), num_labels=2)
        return transformers.BertForSequenceClassification(config), Texts(
            count, 32 if small else 256, 30522, True
        )
    wide = (
        {"n_embd": 64, "n_layer": 2, "n_head": 2}
        if small
        else {"n_embd": 512, "n_layer": 8, "n_head": 8}
    )
    config = transformers.GPT2Config(**wide, use_cache=False)
    return transformers.GPT2LMHeadModel(config), Texts(count, 32 if small else 512, 50257, False)


def take_loss(model, batch):
    if isinstance(batch, dict):
        return model(**batch).loss
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])


def copy(batch, device):
    if isinstance(batch, dict):
        return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
    images, labels = (tensor.to(device, non_blocking=True) for tensor in batch)
    return images.float() / 255, labels


def build(name, batch_size, device):
    """The model and three batches, for a factory; images have the labels of the first batch."""
    model, data = make(name, small=False)
    loader = iter(DataLoader(data, batch_size=batch_size))
    batches = [copy(next(loader), device) for _ in range(3)]
    if isinstance(batches[0], dict):
        return model.to(device), batches
    loss = partial(torch.nn.functional.cross_entropy, target=batches[0][1])
    return model.to(device), [(images,) for images, _ in batches], loss


def resnet50(batch_size, device):
    return build("resnet50", batch_size, device)


def bert(batch_size, device):
    return build("bert", batch_size, device)


def gpt(batch_size, device):
    return build("gpt", batch_size, device)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", choices=SIZES)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--small", action="store_true", help="for a CPU")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--time", type=int)
    options = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, data = make(options.model, options.small)
    model.to(device).train()
    if options.compile:
        model.compile()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    size = options.batch_size or SIZES[options.model]
    workers, pinned = (0 if options.small else 8), device == "cuda"
    loader = DataLoader(
        data, size, shuffle=True, drop_last=True, num_workers=workers, pin_memory=pinned
    )
    step, start = 0, 0.0
    for _ in range(100):
        for batch in loader:
            batch = copy(batch, device)
            with torch.autocast(device, torch.bfloat16) if device == "cuda" else nullcontext():
                loss = take_loss(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if options.time and step in (UNTIMED, UNTIMED + options.time):
                if device == "cuda":
                    torch.cuda.synchronize()
                if step == UNTIMED + options.time:
                    print(
                        f"{options.model} {(time.perf_counter() - start) / options.time * 1e3:.3f} "
                        "ms per step"
                    )
                    return
                start = time.perf_counter()


if __name__ == "__main__":
    main()
