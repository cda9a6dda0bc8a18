"""Benchmarks take from sweeper only what it has; most run too long for tests."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from archives import unpack
from benchmark_scripts import load_script
from checkout import ROOT

from sweeper.core.record import Record


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


def test_the_plain_loop_gets_the_step_of_a_stored_row_and_is_judged_by_its_figures(
    tmp_path: Path,
) -> None:
    """docs/results/h200-plain-loop.md"""
    judge = load_script("judge_by_plain_loop")
    folder = unpack("h200-plain-loop", tmp_path)
    paths = {path.name.split("-")[0]: path / "record.json" for path in folder.iterdir()}
    records = {name: Record.loads(path.read_text()) for name, path in paths.items()}
    albert = ["--batch-size=4", "--sequence-length=512", "--text=padded", "--precision=amp"]
    assert judge.list_arguments(records["cell_albert"]) == [
        "transformers/AlbertForMaskedLM",
        *albert,
        "--mode=default",
        "--settings={}",
    ]
    llama = judge.list_arguments(records["cell_llama"])
    assert "--text=packed" in llama
    assert '"num_hidden_layers": 8' in llama[-1]
    plain = {"device_speedup": 1.431, "wall_speedup": 1.50, "waits_for_host": []}
    row = judge.judge(records["cell_albert"], plain)
    assert row[3:7] == ["1.473", "1.431", "+2.9%", "1.511"]
    assert row[-1] == "agrees by device, agrees by wall"
    row = judge.judge(records["cell_albert"], plain | {"device_speedup": 1.40})
    assert row[-1] == "DIFFERS by device, agrees by wall"
    # its arms wait for the host, so the wall clock says nothing
    row = judge.judge(records["cell_llama"], plain | {"device_speedup": 1.641})
    assert row[-1] == "agrees by device"
