"""The walls of the house: which package may import which, what the parent must not load, and what
no module does.

Imports are read with `ast`, also those inside functions and under TYPE_CHECKING, so that nothing
has to be loaded.
"""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import fake_python
import pytest
from checkout import ENVIRONMENT

ROOT = Path(__file__).parents[1]
PACKAGE = "sweeper"
# From the top floor to the ground. A package imports packages of lower floors only, not its
# neighbours.
FLOORS = """
    __init__  __main__
    bisect  compare  dataframes  doctor  explain  sweep  sync
    report
    loading
    execution  tracking
    analysis  config  worker
    core
"""
# The same within `sweeper/report/`.
REPORT_FLOORS = """
    __init__  __main__
    build
    page
    text
    tables
    published
    answers
    columns
"""
MAX_ENTRIES = 17  # of `ls sweeper/`
TYPED = ("compare", "report")  # where values have fields and no keys
HEAVY = ("torch", "torchvision", "timm", "transformers", "mlflow", "pandas", "plotly", "jinja2")


class Import(NamedTuple):
    """One imported module, and where the import stands."""

    file: str
    line: int
    importer: str
    imported: str
    in_function: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.importer} -> {self.imported}"


@cache
def files() -> dict[str, Path]:
    """Every file of the package by the dotted name of its module."""
    found = {}
    for file in sorted((ROOT / PACKAGE).rglob("*.py")):
        parts = file.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


@cache
def imports() -> tuple[Import, ...]:
    return tuple(item for module, file in files().items() for item in imports_of(module, file))


def imports_of(module: str, file: Path) -> Iterator[Import]:
    def visit(node: ast.AST, in_function: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import | ast.ImportFrom):
            where = str(file.relative_to(ROOT)), node.lineno, module
            for imported in imported_modules(node):
                yield Import(*where, imported, in_function)
        in_function = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, in_function)

    def imported_modules(node: ast.Import | ast.ImportFrom) -> list[str]:
        if isinstance(node, ast.Import):
            return [alias.name for alias in node.names]
        package = module if file.name == "__init__.py" else module.rpartition(".")[0]
        source = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
        names = [f"{source}.{alias.name}" for alias in node.names]
        return sorted({name if name in files() else source for name in names})

    return visit(ast.parse(file.read_text(encoding="utf-8")), False)


def room(module: str, house: str = PACKAGE) -> str:
    """The entry of `sweeper/`, or of another package, to which a module belongs."""
    return module.removeprefix(house).lstrip(".").partition(".")[0] or "__init__"


def is_ours(module: str) -> bool:
    return module.partition(".")[0] == PACKAGE


def assert_none(allowed: Callable[[Import], bool], wall: str) -> None:
    breaches = [str(item) for item in imports() if not allowed(item)]
    assert not breaches, "\n".join([wall, *breaches])


def test_core_imports_the_standard_library_only() -> None:
    def allowed(item: Import) -> bool:
        if room(item.importer) != "core":
            return True
        top = item.imported.partition(".")[0]
        of_nvml = (
            top == "pynvml" and item.importer == "sweeper.core.system.gpus" and item.in_function
        )
        return (
            top in sys.stdlib_module_names
            or of_nvml
            or (is_ours(item.imported) and room(item.imported) == "core")
        )

    assert_none(
        allowed,
        "core/ imports the standard library only; core/system/gpus.py alone pynvml, inside a "
        "function",
    )


def test_core_system_knows_nothing_of_trials() -> None:
    """Of the rest of core/ it needs the error for bad input, and text for a terminal."""
    system, others = f"{PACKAGE}.core.system", (f"{PACKAGE}.core.errors", f"{PACKAGE}.core.text")

    def allowed(item: Import) -> bool:
        inside = not item.importer.startswith(system) or not is_ours(item.imported)
        return inside or item.imported.startswith((system, *others))

    assert_none(allowed, "core/system/ imports itself, core.errors and core.text only")


def test_worker_imports_core_and_itself_only_and_nothing_imports_worker() -> None:
    """A worker may run in an interpreter that has torch and nothing else; the parent must not load
    torch.
    """

    def allowed(item: Import) -> bool:
        rooms = {room(item.importer), room(item.imported)} if is_ours(item.imported) else set()
        return "worker" not in rooms or rooms == {"worker"} or (rooms == {"worker", "core"})

    assert_none(
        allowed, "worker/ imports sweeper.core and itself only, and nothing imports worker/"
    )


def assert_floors(floors: str, house: str) -> None:
    """The rooms of a house import rooms of lower floors only."""
    levels = [line.split() for line in reversed(floors.strip().splitlines())]
    height = {name: number for number, names in enumerate(levels) for name in names}
    inside = {module for module in files() if f"{module}.".startswith(f"{house}.")}
    rooms = {room(module, house) for module in inside}
    assert set(height) == rooms, f"the floors and {house} differ in {sorted(set(height) ^ rooms)}"

    def allowed(item: Import) -> bool:
        if not {item.importer, item.imported} <= inside:
            return True
        importer, imported = room(item.importer, house), room(item.imported, house)
        return importer == imported or height[imported] < height[importer]

    assert_none(allowed, f"a part of {house} imports parts of lower floors only:\n{floors}")


def test_a_package_imports_lower_floors_only() -> None:
    assert_floors(FLOORS, PACKAGE)


def test_a_room_of_the_report_imports_lower_floors_only() -> None:
    assert_floors(REPORT_FLOORS, f"{PACKAGE}.report")


def find_lookups(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The lines with `x["name"]` or `x.get("name")`, and what `x` is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript):
            container, key = node.value, node.slice
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            container, key = node.func.value, node.args[0]
            if node.func.attr != "get":
                continue
        else:
            continue
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield node.lineno, ast.unparse(container)


def test_find_lookups_sees_subscripts_and_get_with_constant_names_only() -> None:
    code = """
row["a"]
row["b"] = 1
row.get("c", 0)
find(row)["d"]
row[name], row[0], row.get(name), row.pop("e"), {"f": 1}, f"{row}"
"""
    found = ["row", "row", "row", "find(row)"]
    assert [what for _, what in sorted(find_lookups(ast.parse(code)))] == found


def test_reports_and_comparisons_take_no_value_by_its_name() -> None:
    """A type checker knows fields; of a key it does not know whether it is there."""
    breaches = []
    for module, file in files().items():
        if room(module) not in TYPED:
            continue
        for line, what in find_lookups(ast.parse(file.read_text(encoding="utf-8"))):
            breaches.append(f"{file.relative_to(ROOT)}:{line}: {what}")
    wall = "report/ and compare/ have fields, and take no value by its name"
    assert not breaches, "\n".join([wall, *breaches])


def test_no_two_classes_have_one_name() -> None:
    """Names of nested and of private classes count as well."""
    places: dict[str, list[str]] = {}
    for file in files().values():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                place = f"{file.relative_to(ROOT)}:{node.lineno}"
                places.setdefault(node.name, []).append(place)
    twice = [f"{name}: {', '.join(at)}" for name, at in places.items() if len(at) > 1]
    assert not twice, "\n".join(["a class has a name of its own", *twice])


def test_no_modules_import_each_other_in_a_circle() -> None:
    ours = {(item.importer, item.imported): item for item in imports() if item.imported in files()}
    graph: dict[str, set[str]] = {}
    for importer, imported in ours:
        graph.setdefault(importer, set()).add(imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle = error.args[1][::-1]
        pytest.fail(
            "\n".join(["an import circle", *(str(ours[arrow]) for arrow in pairwise(circle))])
        )


def test_a_newcomer_sees_few_entries() -> None:
    entries = sorted(path.name for path in (ROOT / PACKAGE).iterdir() if path.name != "__pycache__")
    assert len(entries) <= MAX_ENTRIES, (
        f"{len(entries)} entries in sweeper/, {MAX_ENTRIES} at most: {entries}"
    )


@pytest.mark.parametrize(
    "code",
    [
        "import sweeper",
        "import sweeper.sweep.hydra_app, sweeper.tracking.tracker, sweeper.report.build, "
        "sweeper.execution.execute",
        "import runpy, sys; sys.argv = ['sweeper', '--help']; runpy.run_module('sweeper', "
        "run_name='__main__')",
        "import runpy, sys; sys.argv = ['sweeper', 'model=nope']; runpy.run_module('sweeper', "
        "run_name='__main__')",
        "import runpy, sys; sys.argv = ['sweeper', 'dry_run=true', 'device=cpu', "
        "'worker.python=PYTHON']; runpy.run_module('sweeper', run_name='__main__')",
        "import sweeper.worker.__main__, sweeper.worker.scripts.runs",
    ],
    ids=["package", "parent", "help", "bad option", "dry run", "worker that leads a script"],
)
def test_parent_imports_nothing_heavy(code: str, tmp_path: Path) -> None:
    python = str(fake_python.write(tmp_path / "python"))
    script = f"""
import sys
try:
    exec({code.replace("PYTHON", python)!r})
except SystemExit:
    pass
print("heavy:", [name for name in {HEAVY!r} if name in sys.modules])
"""
    result = subprocess.run(
        [sys.executable, "-c", script], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-1] == "heavy: []", result.stdout + result.stderr


def test_values_between_stages_are_frozen() -> None:
    """Hydra's schemas cannot be, and the state of a measurement, a trial, its turn, a rank, a lease
    or the progress changes by its nature.
    """
    changing = (
        "config.schema", "core.settings", "execution.device_lease", "execution.draft",
        "execution.memory_budget", "execution.trial_runner", "execution.turns",
        "execution.worker_channel",
        "sweep.progress",
        "worker.process_log", "worker.scripts.launcher", "worker.scripts.watch.loader",
    )  # fmt: skip
    found = {
        name
        for name, file in files().items()
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef)
        for decorator in map(ast.unparse, node.decorator_list)
        if decorator.startswith("dataclass") and "frozen=True" not in decorator
    }
    assert found == {f"{PACKAGE}.{name}" for name in changing}
