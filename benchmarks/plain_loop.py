"""A witness: training steps, eager and compiled, timed by a loop as people write it. No code of sweeper is in it.

    python benchmarks/plain_loop.py bert_base --precision amp --mode default --json bert_base.json

The model is as its library builds it, dropout included; the data are random. Rows of text are padded on the right, and
their lengths are uniform between half of the sequence length and all of it. With them comes the mask that tokenizers
return, and labels are -100 in the padding. Decoders read documents of such lengths in a row, and `position_ids` start
again at each document. A GPU is busy during the union of the kernels, copies and memsets in a trace of torch's profiler.
An arm waits for the host where a step takes over 5 % longer than that. `judge_by_plain_loop.py` compares sweeper with
this loop.
"""

import argparse
import itertools
import json
import math
import tempfile
import time
from pathlib import Path
from statistics import median

import timm
import torch
import torchvision
import transformers

LLAMA = {"hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 8}
MODELS = {  # what builds it, its name there, batch size, sequence length, settings of the configuration
    "resnet50": (torchvision.models.get_model, "resnet50", 128, None, {}),
    "mobilenet_v2": (torchvision.models.get_model, "mobilenet_v2", 128, None, {}),
    "vit_b_16": (torchvision.models.get_model, "vit_b_16", 128, None, {}),
    "swin_tiny": (timm.create_model, "swin_tiny_patch4_window7_224", 128, None, {}),
    "bert_base": (transformers, "BertForMaskedLM", 16, 512, {}),
    "distilbert": (transformers, "DistilBertForMaskedLM", 64, 256, {}),
    "roberta": (transformers, "RobertaForSequenceClassification", 32, 256, {}),
    "albert": (transformers, "AlbertForMaskedLM", 4, 512, {}),
    "t5": (transformers, "T5ForConditionalGeneration", 16, 512, {"decoder_start_token_id": 0}),
    "bart": (transformers, "BartForConditionalGeneration", 16, 512, {}),
    "gpt2": (transformers, "GPT2LMHeadModel", 8, 1024, {}),
    "llama": (transformers, "LlamaForCausalLM", 4, 1024, LLAMA | {"intermediate_size": 2816, "vocab_size": 32000}),
}
ROUNDS, BLOCK_S, PROFILED_STEPS, WAITS = 5, 0.5, 10, 1.05


def build(library, name, settings, dropout):
    if library is transformers:
        model_class = getattr(transformers, name)
        model = model_class(model_class.config_class(use_cache=False, **settings))  # as transformers' Trainer does
    else:
        model = library(name)
    for part in model.modules() if dropout is not None else ():
        rates = [key for key, value in vars(part).items() if isinstance(value, float) and (key == "p" or "drop" in key)]
        vars(part).update(dict.fromkeys(rates, dropout))
    return model.train()


def make_batch(model, size, length, mask):
    if length is None:
        return {"images": torch.randn(size, 3, 224, 224), "classes": torch.randint(1000, (size,))}
    tokens = torch.randint(10, model.config.vocab_size, (size, length))  # lower numbers mean padding, end, ...
    batch, kind = {"input_ids": tokens, "labels": tokens}, type(model).__name__
    if mask and kind.endswith(("CausalLM", "LMHeadModel")):
        rows = [[torch.arange(n) for n in torch.randint(length // 2, length + 1, (3,))] for _ in range(size)]
        batch["position_ids"] = torch.stack([torch.cat(documents)[:length] for documents in rows])
    elif mask:
        lengths = torch.randint(length // 2, length + 1, (size, 1))
        lengths[0].clamp_(max=length - 1)  # at least one row is shorter
        padding = torch.arange(length) >= lengths
        ids, labels = (tokens.masked_fill(padding, filler) for filler in (model.config.pad_token_id, -100))
        batch = {"input_ids": ids, "attention_mask": (~padding).long(), "labels": labels}
    if kind.endswith("Classification"):
        batch["labels"] = torch.randint(model.config.num_labels, (size,))
    return batch


def find_loss(model, batch):
    if "images" in batch:
        return torch.nn.functional.cross_entropy(model(batch["images"]), batch["classes"])
    return model(**batch).loss


def measure(options):
    library, name, size, length, settings = MODELS[options.model]
    torch.manual_seed(0)
    model = build(library, name, settings, options.dropout).to(options.device)
    size, length = options.batch_size or size, length and (options.sequence_length or length)
    made = [make_batch(model, size, length, options.mask) for _ in range(2)]
    batches = itertools.cycle([{key: value.to(options.device) for key, value in batch.items()} for batch in made])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    on_gpu = options.device != "cpu"
    synchronize = torch.cuda.synchronize if on_gpu else lambda: None

    def run(arm, steps):
        """Return wall milliseconds per step."""
        synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast("cuda" if on_gpu else "cpu", torch.bfloat16, enabled=options.precision == "amp"):
                loss = find_loss(arm, next(batches))
            loss.backward()
            optimizer.step()
        synchronize()
        return (time.perf_counter() - start) / steps * 1e3

    arms = {"eager": model, "compiled": torch.compile(model, mode=options.mode)}
    for arm in arms.values():
        run(arm, 5)  # the compiled arm compiles here
    steps = {name: math.ceil(BLOCK_S * 1e3 / run(arm, 3)) for name, arm in arms.items()}
    rounds = [{name: run(arm, steps[name]) for name, arm in arms.items()} for _ in range(1 + ROUNDS)][1:]
    wall = {name: median(each[name] for each in rounds) for name in arms}
    busy = {}
    for name in ("eager", "eager", "compiled") if on_gpu else ():  # the first profile only starts the profiler
        run(arms[name], steps[name])
        busy[name] = profile(lambda arm=arms[name]: run(arm, PROFILED_STEPS))
    return {
        "eager_ms": wall["eager"],
        "compiled_ms": wall["compiled"],
        "wall_speedup": wall["eager"] / wall["compiled"],
        "eager_busy_ms": busy.get("eager"),
        "compiled_busy_ms": busy.get("compiled"),
        "device_speedup": busy["eager"] / busy["compiled"] if busy else None,
        "waits_for_host": [name for name in busy if wall[name] > WAITS * busy[name]],
    }


def profile(run):
    """Return the milliseconds per step in which the GPU is busy."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        run()
    with tempfile.TemporaryDirectory() as folder:
        profiler.export_chrome_trace(f"{folder}/trace.json")
        events = json.loads(Path(folder, "trace.json").read_text())["traceEvents"]
    work = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    busy_us, reached = 0.0, 0.0
    for start, end in sorted((event["ts"], event["ts"] + event["dur"]) for event in work):
        busy_us += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return busy_us / PROFILED_STEPS / 1e3


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--precision", choices=("amp", "fp32"), default="amp")
    parser.add_argument("--mode", default="default")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--sequence-length", type=int)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--no-mask", dest="mask", action="store_false", help="text without padding and position_ids")
    parser.add_argument("--dropout", type=float, help="every rate of dropout; default: the model's own")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    chosen = parser.parse_args()
    figures = measure(chosen)
    for key, figure in figures.items():
        print(f"{key:18}", f"{figure:.3f}" if isinstance(figure, float) else figure)
    if chosen.json:
        chosen.json.write_text(json.dumps(figures))
