"""Benchmarks take from sweeper only what it has; most run too long for tests."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from checkout import ROOT


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
