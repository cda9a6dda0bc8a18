"""A witness: training steps, eager and compiled, timed by a loop as people write it. No code of
sweeper is in it.

    python benchmarks/plain_loop.py bert_base --precision amp --mode default --json bert_base.json

The model is as its library builds it, dropout included; the data are random. Rows of text are
padded on the right, and their lengths are uniform between half of the sequence length and all of
it. With them comes the mask that tokenizers return, and labels are -100 in the padding. Decoders
read documents of such lengths in a row, and `position_ids` start again at each document. A GPU is
busy in the union of the kernels, copies and memsets of a trace by torch's profiler. An arm waits
for the host where a step takes over 5 % longer than that. `judge_by_plain_loop.py` compares sweeper
with this loop.
"""

import argparse
import importlib
import itertools
import json
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
import transformers

LLAMA = {
    "hidden_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
}
IMAGE_MODELS = {  # where they are: that library is imported for them alone
    "resnet50": "torchvision.models",
    "mobilenet_v2": "torchvision.models",
    "vit_b_16": "torchvision.models",
    "swin_tiny_patch4_window7_224": "timm.models",
}
TEXT_MODELS = {  # class of transformers, batch size, sequence length, settings of the configuration
    "bert_base": ("BertForMaskedLM", 16, 512, {}),
    "distilbert": ("DistilBertForMaskedLM", 64, 256, {}),
    "roberta": ("RobertaForSequenceClassification", 32, 256, {}),
    "albert": ("AlbertForMaskedLM", 4, 512, {}),
    "t5": ("T5ForConditionalGeneration", 16, 512, {"decoder_start_token_id": 0}),
    "bart": ("BartForConditionalGeneration", 16, 512, {}),
    "gpt2": ("GPT2LMHeadModel", 8, 1024, {}),
    "llama": (
        "LlamaForCausalLM",
        4,
        1024,
        LLAMA | {"intermediate_size": 2816, "vocab_size": 32000},
    ),
}
IMAGE_BATCH, ROUNDS, BLOCK_S, PROFILED_STEPS, WAITS = 128, 5, 0.5, 10, 1.05


def make_text(kind, config, size, length, mask):
    # lower numbers mean padding, end, ...
    tokens = torch.randint(10, config.vocab_size, (size, length))
    batch = {"input_ids": tokens, "labels": tokens}
    if mask and kind.endswith(("CausalLM", "LMHeadModel")):
        rows = [
            [torch.arange(n) for n in torch.randint(length // 2, length + 1, (3,))]
            for _ in range(size)
        ]
        batch["position_ids"] = torch.stack([torch.cat(documents)[:length] for documents in rows])
    elif mask:
        lengths = torch.randint(length // 2, length + 1, (size, 1))
        lengths[0].clamp_(max=length - 1)  # at least one row is shorter
        padding = torch.arange(length) >= lengths
        ids, labels = (
            tokens.masked_fill(padding, config.pad_token_id),
            tokens.masked_fill(padding, -100),
        )
        batch = {"input_ids": ids, "attention_mask": (~padding).long(), "labels": labels}
    return (
        batch | {"labels": torch.randint(config.num_labels, (size,))}
        if "Classification" in kind
        else batch
    )


def build(options):
    """Return the model and two batches."""
    if options.model in IMAGE_MODELS:
        size = options.batch_size or IMAGE_BATCH
        images = (
            {"images": torch.randn(size, 3, 224, 224), "classes": torch.randint(1000, (size,))}
            for _ in range(2)
        )
        return getattr(importlib.import_module(IMAGE_MODELS[options.model]), options.model)(), list(
            images
        )
    kind, size, length, settings = TEXT_MODELS[options.model]
    size, length = options.batch_size or size, options.sequence_length or length
    model_class = getattr(transformers, kind)
    # as transformers' Trainer does
    model = model_class(model_class.config_class(use_cache=False, **settings))
    return model, [make_text(kind, model.config, size, length, options.mask) for _ in range(2)]


def find_loss(model, batch):
    if "images" in batch:
        return torch.nn.functional.cross_entropy(model(batch["images"]), batch["classes"])
    return model(**batch).loss


def busy_ms(run):
    """Return the milliseconds per step in which the GPU works."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        run()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiler.export_chrome_trace(file.name)
        events = json.loads(Path(file.name).read_text())["traceEvents"]
    work = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    busy_us = reached = 0.0
    for start, end in sorted((event["ts"], event["ts"] + event["dur"]) for event in work):
        busy_us += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return busy_us / PROFILED_STEPS / 1e3


def measure(options):
    torch.manual_seed(0)
    model, made = build(options)
    for part in model.modules() if options.dropout is not None else ():
        rates = [
            key
            for key, value in vars(part).items()
            if isinstance(value, float) and (key == "p" or "drop" in key)
        ]
        vars(part).update(dict.fromkeys(rates, options.dropout))
    model.to(options.device).train()
    batches = itertools.cycle(
        [{key: value.to(options.device) for key, value in batch.items()} for batch in made]
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    synchronize = torch.cuda.synchronize if options.device == "cuda" else lambda: None

    def run(arm, steps):
        """Return wall milliseconds per step."""
        synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast(options.device, torch.bfloat16, enabled=options.precision == "amp"):
                loss = find_loss(arm, next(batches))
            loss.backward()
            optimizer.step()
        synchronize()
        return (time.perf_counter() - start) / steps * 1e3

    arms = {"eager": model, "compiled": torch.compile(model, mode=options.mode)}
    for arm in arms.values():
        run(arm, 5)  # the compiled arm compiles here
    steps = {name: 1 + int(BLOCK_S * 1e3 / run(arm, 3)) for name, arm in arms.items()}
    rounds = [
        {name: run(arm, steps[name]) for name, arm in arms.items()} for _ in range(1 + ROUNDS)
    ]
    # the first round warms up
    wall = {name: median(each[name] for each in rounds[1:]) for name in arms}
    figures = {f"{name}_ms": wall[name] for name in arms} | {
        "wall_speedup": wall["eager"] / wall["compiled"]
    }
    busy = {}
    # the first starts the profiler
    for name in ("eager", "eager", "compiled") if options.device == "cuda" else ():
        run(arms[name], steps[name])
        busy[name] = busy_ms(lambda arm=arms[name]: run(arm, PROFILED_STEPS))
    figures |= {f"{name}_busy_ms": busy.get(name) for name in arms}
    figures["device_speedup"] = busy["eager"] / busy["compiled"] if busy else None
    return figures | {"waits_for_host": [name for name in busy if wall[name] > WAITS * busy[name]]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", choices=[*IMAGE_MODELS, *TEXT_MODELS])
    parser.add_argument("--precision", choices=("amp", "fp32"), default="amp")
    parser.add_argument("--mode", default="default")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--sequence-length", type=int)
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument(
        "--no-mask", dest="mask", action="store_false", help="text without padding and position_ids"
    )
    parser.add_argument(
        "--dropout", type=float, help="every rate of dropout; default: the model's own"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    chosen = parser.parse_args()
    figures = measure(chosen)
    for key, figure in figures.items():
        print(f"{key:18}", f"{figure:.3f}" if isinstance(figure, float) else figure)
    if chosen.json:
        chosen.json.write_text(json.dumps(figures))
