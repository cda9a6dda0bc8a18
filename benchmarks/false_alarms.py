"""Does the accuracy check let correct models pass? Named models of `conf/model/`, compiled and
checked, not timed.

    python benchmarks/false_alarms.py timm/* transformers/*   small, on the CPU, through Inductor
    python benchmarks/false_alarms.py timm/* --backend aot_eager --jobs 2
    python benchmarks/false_alarms.py resnet50 bert_base --device cuda --full --precisions fp32,amp
    python benchmarks/false_alarms.py timm/* --device cuda --full --margins margins.jsonl

Prints a line for each model and precision: seconds of compiling and of the check, the verdict, the
tensor that came nearest to its bound. `--full` takes the batch and the size of the model's option;
otherwise a batch of four, and of transformers one narrow layer. `--margins` writes a line for each
tensor with the projections of eager, of eager with its numbers moved by what rounding does, and of
the compiled step.
"""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from sweeper.config.schema import conf_folder
from sweeper.core.trial import TEXTS, Labels, Model, Precision, Text, Trial

PRECISIONS = {"fp32": Precision(), "amp": Precision(autocast="auto", grad_scaler=True)}
SMALL_BATCH, SMALL_LENGTH, VOCABULARY = 4, 64, 1000
LAYERS = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "encoder_layers",
    "decoder_layers",
    "num_layers",
    "num_decoder_layers",
)
# Of configurations that have them, so that a step takes a fraction of a second.
WIDTHS = {
    "hidden_size": 128, "d_model": 128, "n_embd": 128, "dim": 128, "word_embed_proj_dim": 128,
    "embedding_size": 64,
    "intermediate_size": 256, "ffn_dim": 256, "encoder_ffn_dim": 256, "decoder_ffn_dim": 256,
    "d_ff": 256,
    "hidden_dim": 256, "d_inner": 256, "num_attention_heads": 4, "attention_heads": 4, "n_head": 4,
    "n_heads": 4,
    "num_heads": 4, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "d_kv": 32,
}  # fmt: skip
TIMEOUT_S = 900


def find_options(patterns: Sequence[str]) -> list[str]:
    """Options of the group `model` that match shell patterns, in alphabetical order."""
    root = conf_folder() / "model"
    known = sorted(
        file.relative_to(root).with_suffix("").as_posix() for file in root.glob("**/*.yaml")
    )
    found = [
        name for name in known if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    ]
    return [
        name
        for name in found
        if name not in ("timm", "torchvision", "transformers", "torchbench", "custom")
    ]


def make_trial(option: str, precision: str, arguments: argparse.Namespace) -> Trial:
    """The trial of an option, small unless `--full` was given."""
    values: dict[str, Any] = yaml.safe_load(
        (conf_folder() / "model" / f"{option}.yaml").read_text()
    )
    known = ("library", "name", "sequence_length", "arguments", "image_size", "num_classes")
    model = Model(
        **{"name": values.get("factory"), **{key: values[key] for key in known if key in values}}
    )
    batch_size = values.get("batch_size", 8)
    if not arguments.full:
        batch_size = min(batch_size, SMALL_BATCH)
        if model.library == "transformers":
            model = replace(model, sequence_length=SMALL_LENGTH, arguments=shrink(model))
    model = replace(model, dropout=arguments.dropout)
    labels = Labels(option, precision)
    return Trial(
        model, max(1, batch_size // arguments.divide), labels, workload=arguments.workload,
        text=Text(arguments.text), precision=PRECISIONS[precision], mode=arguments.mode,
        backend=arguments.backend,
        device=arguments.device,
    )  # fmt: skip


def shrink(model: Model) -> dict[str, Any]:
    """Arguments for one narrow layer and few tokens."""
    from sweeper.worker import models

    models.builder("transformers")  # guards the import of torchvision
    import transformers

    config = getattr(transformers, model.name).config_class(**model.arguments)
    known = config.to_dict()
    numbers = [
        known.get(f"{token}_token_id") or 0
        for token in ("pad", "bos", "eos", "sep", "decoder_start")
    ]
    fewer = (
        {"vocab_size": VOCABULARY} if "vocab_size" in known and max(numbers) < VOCABULARY else {}
    )
    narrow = {name: width for name, width in WIDTHS.items() if isinstance(known.get(name), int)}
    axes = (
        {"axial_pos_embds_dim": [32, 96], "axial_pos_shape": [8, 8]}
        if "axial_pos_shape" in known
        else {}
    )
    return {
        **model.arguments,
        **fewer,
        **narrow,
        **axes,
        **{name: 1 for name in LAYERS if name in known},
    }


def check(trial: Trial, margins: bool) -> dict[str, Any]:
    """Compile a trial and check it in this process; seconds, the verdict, and with `margins` every
    projection.
    """
    import torch

    from sweeper.core.protocol import Job
    from sweeper.core.serialization import to_json
    from sweeper.core.settings import Measure
    from sweeper.worker import models
    from sweeper.worker.accuracy.check import AccuracyCheck
    from sweeper.worker.compilation.counters import CompileCounters
    from sweeper.worker.failures import MismatchError
    from sweeper.worker.lease import Lease
    from sweeper.worker.model_subject import ModelSubject
    from sweeper.worker.monitoring.round_monitor import RoundMonitor

    models.builder(trial.model.library).load(trial.model)
    device = torch.device(trial.device)
    setup = ModelSubject(Job(trial, Measure()), device, RoundMonitor(device, frozenset), Lease())
    lines: list[dict[str, Any]] = []
    judged = record_projections(AccuracyCheck, lines)(setup) if margins else AccuracyCheck(setup)
    setup.bench.run(setup.eager, 2)
    begin = time.perf_counter()
    setup.compile_arm(CompileCounters())
    setup.bench.run(setup.compiled, 3)
    setup.bench.synchronize()
    compiled_s = time.perf_counter() - begin
    spent_s: dict[str, float] = {}

    @contextmanager
    def enter(phase: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        setup.bench.synchronize()
        spent_s[phase] = spent_s.get(phase, 0.0) + time.perf_counter() - start

    try:
        verdict = to_json(judged.judge(enter))
    except MismatchError as error:
        verdict = {"passed": False, "unverified": None, "worst": str(error)}
    return {"compile_s": compiled_s, "check_s": spent_s, "accuracy": verdict, "margins": lines}


def record_projections(check_class: type, lines: list[dict[str, Any]]) -> type:
    """The check with a closer look in every case, which appends a line for each tensor."""
    from sweeper.worker.accuracy import rule
    from sweeper.worker.failures import Missing

    class Recording(check_class):  # type: ignore[misc]
        def _judge_step(self, case: Any, bounds: Any) -> Any:
            if len(bounds.comparisons) == 1:
                closer = self._try(self._look_closer, case, bounds)
                bounds = bounds if isinstance(closer, Missing) else closer
            self._case = case
            return super()._judge_step(case, bounds)

        def _compare_with_reference(self, named: Any, bounds: Any) -> Any:
            found = rule.compare(named, bounds.reference, self._stages)
            eager, *moved = bounds.comparisons
            lines.extend(describe_tensor(name, sums, eager, moved) for name, sums in found.items())
            for line in lines[-len(found) :]:
                line["case"] = self._case.name
            return rule.judge(found, bounds)

    return Recording


def describe_tensor(name: str, compiled: Any, eager: Any, moved: Sequence[Any]) -> dict[str, Any]:
    """Errors relative to the reference, and projections; `share` is the tensor's size beside all
    gradients.
    """
    size = compiled.reference_size or 1.0
    gradients = eager["all gradients"].reference_size if "all gradients" in eager else 0.0
    return {
        "tensor": name,
        "elements": compiled.elements,
        "share": compiled.reference_size / (gradients or 1.0),
        "error": eager[name].error / size,
        "moved_errors": [item[name].error / size for item in moved],
        "compiled_error": compiled.error / size,
        "eager": eager[name].projection,
        "moved": [item[name].projection for item in moved],
        "compiled": compiled.projection,
    }


def run_one(
    option: str, precision: str, arguments: Sequence[str], cache: str, gpu: str
) -> dict[str, Any]:
    """Check a model in a process of its own."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "answer.json")
        command = [
            sys.executable,
            __file__,
            option,
            *arguments,
            "--precisions",
            precision,
            "--answer",
            str(answer),
        ]
        environment = {
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": cache,
            "CUDA_VISIBLE_DEVICES": gpu,
        }
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
            )
            failure = done.stderr.strip().splitlines()[-1:]
        except subprocess.TimeoutExpired:
            failure = ["timeout"]
        found = (
            json.loads(answer.read_text())
            if answer.exists()
            else {"failure": " ".join(failure)[:300]}
        )
    return {"model": option, "precision": precision, "wall_s": time.perf_counter() - begin, **found}


def describe(found: dict[str, Any]) -> str:
    """A line for people."""
    name = f"{found['model']:44} {found['precision']:5} {found['wall_s']:6.1f} s"
    if "failure" in found:
        return f"{name}  no verdict: {found['failure']}"
    accuracy = found["accuracy"]
    verdict = {True: "passed", False: "WRONG", None: "unverified"}[accuracy["passed"]]
    spent_s = sum(found["check_s"].values())
    rest = (
        f"{accuracy.get('unverified') or ''} {accuracy.get('worst')} ({accuracy.get('case')}, "
        f"{accuracy.get('moved')})"
    )
    return f"{name}  compile {found['compile_s']:5.1f}  check {spent_s:5.1f}  {verdict:10} {rest}"


def list_gpus(count: int) -> list[str]:
    """List the names of so many visible GPUs, or of fewer."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return list(map(str, range(count))) if named is None else named.split(",")[:count]


def parse() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", help="options of the group model, shell patterns too")
    parser.add_argument("--precisions", default="fp32,amp")
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--mode", default="default")
    parser.add_argument("--workload", default="train")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dropout", action="store_true")
    parser.add_argument("--text", choices=TEXTS, default="none")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--divide", type=int, default=1, help="divide the batch by this")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--gpus", type=int, default=1, help="of the visible ones, used in turn")
    parser.add_argument("--margins", type=Path)
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    passed_on = [item for item in sys.argv[1:] if item not in arguments.models]
    return arguments, passed_on


def main() -> None:
    arguments, passed_on = parse()
    options = find_options(arguments.models)
    precisions = arguments.precisions.split(",")
    if arguments.answer:
        found = check(make_trial(options[0], precisions[0], arguments), bool(arguments.margins))
        arguments.answer.write_text(json.dumps(found))
        sys.stdout.flush()
        os._exit(0)
    gpus = list_gpus(arguments.gpus)
    if len(gpus) < arguments.gpus:
        sys.exit(f"--gpus {arguments.gpus}: CUDA_VISIBLE_DEVICES has {len(gpus)}")
    begin, counts = time.perf_counter(), {True: 0, False: 0, None: 0, "none": 0}
    pairs = [(option, precision) for option in options for precision in precisions]
    with tempfile.TemporaryDirectory() as cache, ThreadPoolExecutor(arguments.jobs) as pool:
        tasks = [
            pool.submit(run_one, *pair, passed_on, cache, gpu)
            for pair, gpu in zip(pairs, itertools.cycle(gpus), strict=False)
        ]
        for found in map(Future.result, as_completed(tasks)):
            print(describe(found), flush=True)
            counts[found["accuracy"]["passed"] if "accuracy" in found else "none"] += 1
            if arguments.margins and "margins" in found:
                with arguments.margins.open("a") as file:
                    file.writelines(
                        json.dumps(
                            {"model": found["model"], "precision": found["precision"], **line}
                        )
                        + "\n"
                        for line in found["margins"]
                    )
    print(
        f"{len(pairs)} trials in {time.perf_counter() - begin:.0f} s: {counts[True]} passed, "
        f"{counts[False]} wrong, "
        f"{counts[None]} unverified, {counts['none']} without a verdict"
    )


if __name__ == "__main__":
    main()
