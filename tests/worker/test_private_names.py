"""Every private name of torch that the worker uses, looked up in the installed torch.

torch promises nothing about names that begin with an underscore. This test fails by name where a
new torch lacks one, before a sweep does. docs/versions.md says with which versions of torch it has
passed.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

WORKER = Path(__file__).parents[2] / "sweeper" / "worker"


def dotted(node: ast.AST) -> str | None:
    """`a.b.c` of an expression that is nothing else."""
    if isinstance(node, ast.Name):
        return node.id
    inner = dotted(node.value) if isinstance(node, ast.Attribute) else None
    return None if inner is None else f"{inner}.{node.attr}"  # type: ignore[attr-defined]


def resolve(name: str, aliases: Mapping[str, str]) -> str:
    """A dotted name with what its first part stands for in the file."""
    first, dot, rest = name.partition(".")
    return f"{aliases[first]}{dot}{rest}" if first in aliases else name


def names_of(file: Path) -> Iterator[str]:
    """Every dotted name of torch in a file, by whatever name it was imported or kept."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    aliases = {"torch": "torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            aliases |= {
                alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names
            }
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("torch."))
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            (target, *others) = node.targets if isinstance(node, ast.Assign) else [node.target]
            value = resolve(dotted(node.value) or "", aliases)
            if isinstance(target, ast.Name) and not others and value.startswith("torch._"):
                aliases[target.id] = value
    yield from aliases.values()
    for node in ast.walk(tree):
        found = resolve(dotted(node) or "", aliases) if isinstance(node, ast.Attribute) else ""
        if found.startswith("torch."):
            yield found


def is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


# Names that the worker looks for before it uses them, and the first torch that has each.
SINCE = {"torch._inductor.runtime.benchmarking.set_gpu_benchmark_lock_context": (2, 13)}
PRIVATE = sorted(
    {name for file in WORKER.rglob("*.py") for name in names_of(file) if is_private(name)}
)


def test_names_are_found_however_they_are_written(tmp_path: Path) -> None:
    file = tmp_path / "uses.py"
    file.write_text(
        "import torch._a.b\nfrom torch._c import d as e\nconfig = torch._f.config\n"
        "torch.cuda._sleep(1)\ne.g()\nconfig.budget = 1\ntorch.nn.Linear(1, 1)\n"
    )
    found = {name for name in names_of(file) if is_private(name)}
    assert found >= {"torch._a.b", "torch._c.d.g", "torch._f.config.budget", "torch.cuda._sleep"}
    assert "torch.nn.Linear" not in found


@pytest.mark.parametrize("name", PRIVATE)
def test_the_installed_torch_has(name: str) -> None:
    version = tuple(int(part) for part in importlib.metadata.version("torch").split(".")[:2])
    if version < SINCE.get(name, version):
        pytest.skip(f"torch has it from {SINCE[name]} on")
    parts = name.split(".")
    found: object = importlib.import_module("torch")
    for number, part in enumerate(parts[1:], 2):
        try:
            found = getattr(found, part)
        except AttributeError:  # a module that nothing has imported yet
            found = importlib.import_module(".".join(parts[:number]))


@pytest.mark.parametrize(
    "name",
    [
        "_call_impl",
        "_compiled_call_impl",
        "_forward_hooks",
        "_forward_pre_hooks",
        "_backward_hooks",
    ],
)
def test_a_module_of_the_installed_torch_has(name: str) -> None:
    """What the worker uses of modules themselves, under names that it has as texts."""
    import torch

    assert name in "".join(file.read_text(encoding="utf-8") for file in WORKER.rglob("*.py"))
    assert hasattr(torch.nn.Linear(1, 1), name)


def test_the_list_is_not_empty() -> None:
    assert {"torch._dynamo.reset", "torch.cuda._sleep"} <= set(PRIVATE)
