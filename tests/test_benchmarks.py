"""Benchmarks take from sweeper only what it has; most run too long for tests."""

from __future__ import annotations

import ast
from argparse import Namespace
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from archives import unpack
from benchmark_scripts import load_script
from checkout import ROOT

from sweeper.core.record import Record
from sweeper.core.trial import Compile, Precision


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("benchmarks/**/*.py")), ids=lambda path: path.stem
)
def test_a_benchmark_finds_what_it_takes(path: Path) -> None:
    tree = ast.parse(path.read_text())
    modules = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("sweeper"):
            package = import_module(str(node.module))
            for name in node.names:
                if not hasattr(package, name.name):
                    import_module(f"{node.module}.{name.name}")
                found = getattr(package, name.name)
                if isinstance(found, ModuleType):
                    modules[name.asname or name.name] = found
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id)
            assert module is None or hasattr(module, node.attr), f"{node.value.id}.{node.attr}"


JUDGE = load_script("judge_by_plain_loop")


def read_stored(archive: str, folder: Path) -> dict[str, Record]:
    """Its records by the model's label and the precision."""
    records = map(Record.read, unpack(archive, folder).glob("*/record.json"))
    return {f"{item.trial.labels.model} {item.trial.labels.precision}": item for item in records}


def test_the_plain_loop_gets_the_step_of_a_stored_row(tmp_path: Path) -> None:
    stored = read_stored("h200-hf", tmp_path) | read_stored("h200-timm", tmp_path)
    arguments = {
        "AlbertForMaskedLM fp32": "transformers/AlbertForMaskedLM --batch-size=4 "
        "--sequence-length=512 --text=padded --precision=fp32 --mode=default --settings={}",
        "DistillGPT2 amp": "transformers/GPT2LMHeadModel --batch-size=16 --sequence-length=512 "
        '--text=packed --precision=amp --mode=default --settings={"n_layer": 6}',
        "BartForCausalLM amp": "transformers/BartForCausalLM --batch-size=4 --sequence-length=1024 "
        "--text=packed --precision=amp --mode=default --settings={}",
        "repvgg_a2 amp": "timm/repvgg_a2 --batch-size=128 "
        "--text=none --precision=amp --mode=default --settings={}",
    }
    for name, expected in arguments.items():
        assert " ".join(JUDGE.list_arguments(stored[name])) == expected
    before = read_stored("h200-pt2-timm", tmp_path)["repvgg_a2 amp"]  # without dropout
    assert "--dropout=0" in JUDGE.list_arguments(before)
    assert JUDGE.has_step(before.trial)


@pytest.mark.parametrize(
    "change",
    [
        {"backend": "aot_eager"},
        {"optimizer": "sgd"},
        {"compile": Compile(dynamic=True)},
        {"precision": Precision(autocast="float16", grad_scaler=True)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_plain_loop_is_not_asked_about_another_step(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    trial = read_stored("h200-plain-loop", tmp_path)["cell_albert amp"].trial
    assert JUDGE.has_step(trial)
    assert not JUDGE.has_step(replace(trial, **change))
    model = replace(trial.model, memory_format="channels_last")
    assert not JUDGE.has_step(replace(trial, model=model))


def test_trials_with_figures_are_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs").mkdir()
    unpack("h200-hf", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    models = ["GoogleFnet", "BertForMaskedLM", "AlbertForMaskedLM"]
    for precisions, expected in {("amp",): models[1:], ("fp32",): models}.items():
        asked = Namespace(sweeps=["h200-hf"], models=models, precision=precisions)
        found = JUDGE.read_records(asked)
        assert sorted(item.trial.labels.model for item in found) == sorted(expected)
        assert {item.trial.labels.precision for item in found} == set(precisions)


def test_a_row_agrees_or_differs_by_clocks_that_can_tell(tmp_path: Path) -> None:
    """docs/results/h200-plain-loop.md"""
    stored = read_stored("h200-plain-loop", tmp_path)
    albert, llama = stored["cell_albert amp"], stored["cell_llama amp"]
    plain = {"device_speedup": 1.431, "wall_speedup": 1.50, "waits_for_host": [], "gpu": None}
    row = JUDGE.judge(albert, plain)
    assert row[3:7] == ["1.473", "1.431", "+2.9%", "1.511"]
    assert row[-3:] == ["1732", "", "agrees by device, agrees by wall"]
    assert JUDGE.judge(albert, plain | {"compiled_clock_mhz": 1980})[-2] == "1980"
    verdicts = {
        "DIFFERS by device, agrees by wall": {"device_speedup": 1.40},
        "DIFFERS by device, DIFFERS by wall": {"device_speedup": 1.60, "wall_speedup": 1.60},
        "device speedup is missing, agrees by wall": {"device_speedup": None},
        "agrees by device": {"waits_for_host": ["eager"]},
        "agrees by device, agrees by wall, but sweeper ran on NVIDIA H200, and the loop on NVIDIA "
        "H100": {"gpu": "NVIDIA H100"},
    }
    for verdict, change in verdicts.items():
        assert JUDGE.judge(albert, plain | change)[-1] == verdict
    # its own arms wait for the host, so the wall clock says nothing
    assert JUDGE.judge(llama, plain | {"device_speedup": 1.641})[-1] == "agrees by device"


def test_texts_of_the_plain_loop_are_padded_or_packed() -> None:
    plain_loop = load_script("plain_loop")

    class Decoder:
        config = Namespace(vocab_size=50, pad_token_id=1, num_labels=2)

        def forward(self, input_ids, position_ids) -> None: ...

    def make(text: str, kind: str = "GPT2LMHeadModel") -> dict[str, Any]:
        options = Namespace(batch_size=8, sequence_length=64, text=text)
        found: dict[str, Any] = plain_loop.make_texts(Decoder(), kind, options)
        return found

    padded = make("padded")
    padding = padded["attention_mask"] == 0
    assert padding[0].any()
    assert not padding[:, :32].any()
    assert (padded["labels"] == -100).equal(padding)
    assert (padded["input_ids"] == 1).equal(padding)
    packed = make("packed")["position_ids"]
    assert packed.shape == (8, 64)
    steps = packed.diff(dim=1)
    assert (packed[:, 0] == 0).all()
    assert ((steps == 1) | (packed[:, 1:] == 0)).all()
    assert (steps != 1).any(), "a second document begins"
    assert make("none").keys() == {"input_ids", "labels"}
    answers = make("none", "BertForQuestionAnswering")
    assert answers.keys() == {"input_ids", "start_positions", "end_positions"}
    assert make("none", "GPT2ForSequenceClassification")["labels"].shape == (8,)
