"""A witness: training steps, eager and compiled, timed by a loop as people write it. No code of
sweeper is in it.

    python benchmarks/plain_loop.py torchvision/resnet50 --batch-size 128 --json resnet50.json
    python benchmarks/plain_loop.py transformers/BertForMaskedLM --batch-size 16 --text padded

The model is as its library builds it, dropout included; the data are random. Texts are `padded` on
the right, with lengths that are uniform between half of the sequence length and all of it, with the
mask that tokenizers return and with labels of -100 in the padding; or `packed`, documents of such
lengths in a row, where `position_ids` start again at each document; or of full length without a
mask. A GPU is busy in the union of the kernels, copies and memsets of a trace by torch's profiler.
An arm waits for the host where a step takes over 5 % longer than that. Clocks are read while
the GPU works. `judge_by_plain_loop.py` compares sweeper with this loop.
"""

import argparse
import itertools
import json
import tempfile
import time
from inspect import signature
from pathlib import Path
from statistics import median

import torch
import transformers

ROUNDS, BLOCK_S, PROFILED_STEPS, WAITS = 5, 0.5, 10, 1.05


def make_texts(model, kind, options):
    size, length = options.batch_size, options.sequence_length
    # lower numbers mean padding, end, ...
    tokens = torch.randint(10, model.config.vocab_size, (size, length))
    batch = {"input_ids": tokens, "labels": tokens}
    if options.text == "packed" and "position_ids" in signature(model.forward).parameters:
        rows = [
            [torch.arange(n) for n in torch.randint(length // 2, length + 1, (3,))]
            for _ in range(size)
        ]
        batch["position_ids"] = torch.stack([torch.cat(documents)[:length] for documents in rows])
    elif options.text == "padded":
        lengths = torch.randint(length // 2, length + 1, (size, 1))
        lengths[0].clamp_(max=length - 1)  # at least one row is shorter
        padding = torch.arange(length) >= lengths
        batch = {
            "input_ids": tokens.masked_fill(padding, model.config.pad_token_id),
            "attention_mask": (~padding).long(),
            "labels": tokens.masked_fill(padding, -100),
        }
    if "Classification" in kind:
        batch["labels"] = torch.randint(model.config.num_labels, (size,))
    elif "QuestionAnswering" in kind:
        del batch["labels"]
        for end in ("start_positions", "end_positions"):
            batch[end] = torch.randint(length // 2, (size,))
    return batch


def build(options):
    """Return the model and two batches."""
    library, _, kind = options.model.partition("/")
    if library == "transformers":
        model_class = getattr(transformers, kind)
        # as transformers' Trainer does
        config = model_class.config_class(use_cache=False, **options.settings)
        if getattr(config, "pad_token_id", None) is None:
            config.pad_token_id = 0  # heads of classification ask for it
        if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
            config.decoder_start_token_id = config.pad_token_id
        model = model_class(config)
        return model, [make_texts(model, kind, options) for _ in range(2)]
    if library == "timm":
        import timm  # that library is imported for its models alone

        model = timm.create_model(kind, **options.settings)
        shape, classes = model.pretrained_cfg["input_size"], model.num_classes
    else:
        import torchvision

        model = getattr(torchvision.models, kind)(**options.settings)
        shape, classes = (3, 224, 224), 1000
    size = options.batch_size
    images = [
        {"images": torch.randn(size, *shape), "classes": torch.randint(classes, (size,))}
        for _ in range(2)
    ]
    return model, images


def find_loss(model, batch):
    if "images" in batch:
        output = model(batch["images"])
        return torch.nn.functional.cross_entropy(output, batch["classes"])
    return model(**batch).loss


def profile(queue):
    """Return the milliseconds per step in which the GPU works, and its clock in MHz."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        queue()
        clock = torch.cuda.clock_rate()  # the last steps are still on the GPU
        torch.cuda.synchronize()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiler.export_chrome_trace(file.name)
        events = json.loads(Path(file.name).read_text())["traceEvents"]
    work = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    busy_us = reached = 0.0
    for start, end in sorted((event["ts"], event["ts"] + event["dur"]) for event in work):
        busy_us += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return busy_us / PROFILED_STEPS / 1e3, clock


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

    def queue(arm, steps):
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast(options.device, torch.bfloat16, enabled=options.precision == "amp"):
                loss = find_loss(arm, next(batches))
            loss.backward()
            optimizer.step()

    def run(arm, steps):
        """Return wall milliseconds per step."""
        synchronize()
        start = time.perf_counter()
        queue(arm, steps)
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
    busy, clocks = {}, {}
    # the first starts the profiler
    for name in ("eager", "eager", "compiled") if options.device == "cuda" else ():
        run(arms[name], steps[name])
        busy[name], clocks[name] = profile(lambda arm=arms[name]: queue(arm, PROFILED_STEPS))
    figures |= {f"{name}_busy_ms": busy.get(name) for name in arms}
    figures |= {f"{name}_clock_mhz": clocks.get(name) for name in arms}
    figures["device_speedup"] = busy["eager"] / busy["compiled"] if busy else None
    waits = [name for name in busy if wall[name] > WAITS * busy[name]]
    gpu = torch.cuda.get_device_name() if options.device == "cuda" else None
    return figures | {"waits_for_host": waits, "gpu": gpu}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="LIBRARY/NAME, of timm, torchvision or transformers")
    parser.add_argument("--precision", choices=("amp", "fp32"), default="amp")
    parser.add_argument("--mode", default="default")
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--sequence-length", type=int, default=128)
    parser.add_argument("--text", choices=("padded", "packed", "none"), default="none")
    parser.add_argument(
        "--settings", type=json.loads, default={}, metavar="JSON", help="how the model is built"
    )
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu"
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
