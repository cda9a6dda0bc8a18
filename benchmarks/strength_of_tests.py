"""Do the tests notice faults in sweeper's own code? Mutation testing by cosmic-ray, with a sample
of a fixed seed.

    make mutation                    every mutant of every package: hours
    make mutation SAMPLE=60          sixty of each package
    make mutation SAMPLE=60 PACKAGES=core,rule

A mutant is the source with one operator, number, condition, decorator or loop changed. It runs in a
copy of the tracked files and in a namespace of processes of its own (`unshare`, so on Linux),
against the tests that concern its package, until the first of them fails; the tests of its own
module come first. Survivors are printed as lines for `docs/results/test-strength.md`, which says
why each may live. The exit code is 1 where fewer than 85 % of a package are killed, or a survivor
has no reason there. Faults in compiled graphs, which the accuracy check has to see, are another
matter: `mutants.py`.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import importlib
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from cosmic_ray.commands.init import init
from cosmic_ray.mutating import mutate_code, use_mutation
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec

SEED = 1337
LEAST_KILLED = 0.85
# A fault in what ends processes may end any process: mutants see none but their own. A shell
# gathers what they lose.
NAMESPACE = (
    "unshare",
    "--map-root-user",
    "--pid",
    "--fork",
    "--mount-proc",
    "--kill-child",
    "sh",
    "-c",
    '"$0" "$@"; exit $?',
)
INSIDE = "SWEEPER_MUTANTS_INSIDE"
# address space of the tests, for mutants that never stop to ask for more
MAX_MEMORY_BYTES = 12 * 2**30
FROZEN = "tests/test_walls.py::test_values_between_stages_are_frozen"  # for every package
UNCHANGED = Path("tmp", "unchanged.txt")  # what the tests print without a mutant
SURVIVORS = Path(__file__).parents[1] / "docs" / "results" / "test-strength.md"
MARKERS = "not catalog and not slow and not browser and not gpu and not slurm and not ray"
# cosmic-ray puts each operator in the place of each other one. Most of these fail at the first
# call, so they are left out: a comparison moves by its boundary or is turned around, and arithmetic
# becomes its opposite.
LEFT_OUT = re.compile(
    r"core/(ReplaceBinaryOperator_(?!Add_Sub|Sub_Add|Mul_Div|Div_Mul|FloorDiv_Div|Mod_Mul|Pow_Mul|BitOr_BitAnd"
    r"|BitAnd_BitOr|LShift_RShift|RShift_LShift)"
    r"|ReplaceComparisonOperator_(?!Lt_LtE|Lt_GtE|LtE_Lt$|LtE_Gt$|Gt_GtE|Gt_LtE|GtE_Gt|GtE_Lt$|Eq_NotEq|NotEq_Eq"
    r"|Is_IsNot|IsNot_Is)"
    r"|ReplaceUnaryOperator_(?!USub_UAdd|Delete_Not))"
)


@dataclass(frozen=True)
class Package:
    """What is mutated, and the tests that have to notice; `heavy` modules are imported once for all
    of its mutants.
    """

    sources: str
    tests: tuple[str, ...]
    left_out: tuple[str, ...] = ()  # tests that take seconds each and are about something else
    heavy: tuple[str, ...] = ("numpy", "scipy.special")


STATS = "tests/analysis/test_stats.py"
COMMAND = "tests/compare/test_compare_command.py"
PACKAGES = {
    "core": Package("sweeper/core/**/*.py", ("tests/core",), heavy=()),
    "analysis": Package(
        "sweeper/analysis/*.py",
        (
            "tests/analysis/test_derive.py",
            "tests/analysis/test_flags.py",
            "tests/analysis/test_metrics.py",
            "tests/analysis/test_stats.py",
        ),
        (
            f"{STATS}::test_interval_of_a_trial_covers_the_truth_in_95_of_100",
            f"{STATS}::test_weighted_interval_for_these_models_covers_the_truth_in_95_of_100",
            f"{STATS}::test_prior_is_found_again_in_simulated_variances",
        ),
    ),
    "execution": Package("sweeper/execution/*.py", ("tests/execution",), heavy=()),
    "compare": Package(
        "sweeper/compare/*.py",
        ("tests/compare/test_verdicts.py", "tests/compare/test_changes.py", COMMAND),
        (f"{COMMAND}::test_sweeps_are_compared_from_where_they_were_sent_to",),
        ("scipy.special", "rich.console", "mlflow", "pandas", "jinja2"),
    ),
    "rule": Package(
        "sweeper/worker/accuracy/rule.py", ("tests/worker/accuracy/test_rule.py",), heavy=("torch",)
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--packages", default=",".join(PACKAGES), help="of these, with commas")
    parser.add_argument("--sample", type=int, help="mutants of a package; all unless given")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument(
        "--match", default="", help="only mutants of sources whose path contains this"
    )
    options = parser.parse_args()
    if os.environ.pop(INSIDE, None) is None:
        os.execvpe("unshare", [*NAMESPACE, sys.executable, *sys.argv], {**os.environ, INSIDE: "1"})
    good = True
    with copied_tree() as tree:
        os.chdir(tree)
        sys.path.insert(0, str(tree))
        (tree / "tmp").mkdir()
        os.environ.update(PYTHONPATH=str(tree), TMPDIR=str(tree / "tmp"), OMP_NUM_THREADS="1")
        for name in options.packages.split(","):
            good &= judge(name, draw(PACKAGES[name], options.match, options.sample, options.seed))
    return 0 if good else 1


@contextlib.contextmanager
def copied_tree() -> Iterator[Path]:
    """A copy of the tracked files as they are now, so that a run that is killed leaves no fault in
    the checkout.
    """
    with tempfile.TemporaryDirectory(prefix="sweeper-mutants-") as folder:
        names = subprocess.run(["git", "ls-files", "-z"], check=True, capture_output=True).stdout
        subprocess.run(
            ["cp", "--parents", "-t", folder, "--", *names.decode().strip("\0").split("\0")],
            check=True,
        )
        yield Path(folder)


def draw(package: Package, match: str, sample: int | None, seed: int) -> list[MutationSpec]:
    """The mutants of a package, or a sample of them, in the order of their places."""
    paths = [path for path in sorted(Path().glob(package.sources)) if match in str(path)]
    with use_db(":memory:", WorkDB.Mode.create) as database:
        init(paths, database, {})
        found = [item.mutations[0] for item in database.work_items]
    found = [
        mutant
        for mutant in found
        if not LEFT_OUT.match(mutant.operator_name) and not is_annotation(mutant)
    ]
    found.sort(
        key=lambda mutant: (
            str(mutant.module_path),
            mutant.start_pos,
            mutant.operator_name,
            mutant.occurrence,
        )
    )
    kept = found if sample is None else random.Random(seed).sample(found, min(sample, len(found)))
    return sorted(filter(can_be_made, kept), key=found.index)


def can_be_made(mutant: MutationSpec) -> bool:
    """Whether cosmic-ray can: it stumbles over dotted names behind `except`."""
    try:
        mutate_code(
            mutant.module_path.read_text(), get_operator(mutant.operator_name)(), mutant.occurrence
        )
    except AttributeError:
        return False
    return True


def is_annotation(mutant: MutationSpec) -> bool:
    """Whether it changes the type of an argument, a result or a local variable, which nobody reads
    at run time.
    """
    return any(start <= mutant.start_pos < end for start, end in annotations(mutant.module_path))


@functools.cache
def annotations(path: Path) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    found: list[Any] = [node.annotation for node in nodes if isinstance(node, ast.arg)]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    found += [node.returns for node in functions]
    found += [
        node.annotation
        for one in functions
        for node in ast.walk(one)
        if isinstance(node, ast.AnnAssign)
    ]
    return [
        ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))
        for node in found
        if node
    ]


def judge(name: str, mutants: list[MutationSpec]) -> bool:
    """Run the mutants of a package; whether enough are killed, and all survivors are explained."""
    package, explained = PACKAGES[name], " ".join(SURVIVORS.read_text().split())
    for module in package.heavy:
        importlib.import_module(module)
    for plugin in entry_points(group="pytest11"):
        plugin.load()
    write_bytecode(True)
    begin = time.monotonic()
    if (status := run_tests(package, None, 600)) != 0:
        raise SystemExit(
            f"{UNCHANGED.read_text()}\nthe tests of {name} fail without a mutant: {status}"
        )
    limit_s = 20 + 2 * (time.monotonic() - begin)
    write_bytecode(False)  # what is compiled already is of the sources as they were
    killed = late = 0
    new = []
    for number, mutant in enumerate(mutants, 1):
        operator = get_operator(mutant.operator_name)()
        with use_mutation(mutant.module_path, operator, mutant.occurrence) as (old, mutated):
            status = run_tests(package, mutant.module_path, limit_s)
        killed += status != 0
        print(f"\r{name}: {killed} of {number} killed", end="", file=sys.stderr, flush=True)
        late += status is None
        if status == 0:
            line = describe(mutant, old, mutated)
            print(line if line in explained else f"{line}. NEW", flush=True)
            new += [line] if line not in explained else []
    share = killed / len(mutants)
    print(
        f"\n{name}: {killed} of {len(mutants)} killed ({share:.1%}), {late} of them by the limit "
        f"of {limit_s:.0f} s"
    )
    print(f"{len(new)} survivors of {name} have no reason in {SURVIVORS.name}\n", flush=True)
    return share >= LEAST_KILLED and not new


def write_bytecode(write: bool) -> None:
    """Whether the tests and the programs that they start keep what they compile."""
    sys.dont_write_bytecode = not write
    os.environ["PYTHONDONTWRITEBYTECODE"] = "" if write else "1"


def describe(mutant: MutationSpec, old: str, new: str) -> str:
    """A survivor in one line: where, what the line was and what it became."""
    lines = (text.splitlines()[mutant.start_pos[0] - 1] for text in (old, new))
    was, became = (" ".join(line.split()) for line in lines)
    return f"- `{mutant.module_path}`, {mutant.definition_name or 'module'}: `{was}` → `{became}`"


def run_tests(package: Package, source: Path | None, limit_s: float) -> int | None:
    """Pytest's exit code in a process of its own, forked after the heavy imports; None at the
    limit.
    """
    name = f"test_{source.stem}.py" if source else "-"
    own = [
        str(path)
        for test in package.tests
        for path in Path(test.partition("::")[0]).glob(f"**/{name}")
    ]
    left_out = [f"--deselect={test}" for test in package.left_out]
    arguments = [
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        MARKERS,
        *left_out,
        *own,
        *package.tests,
        FROZEN,
    ]
    if (child := os.fork()) == 0:
        status = 99
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
            output = os.open(
                os.devnull if source else UNCHANGED, os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            )
            for number in (1, 2):
                os.dup2(output, number)
            status = int(pytest.main(arguments))
        finally:
            os._exit(status)
    deadline = time.monotonic() + limit_s
    status = None
    while status is None and time.monotonic() < deadline:
        ended, code = os.waitpid(child, os.WNOHANG)
        status = os.waitstatus_to_exitcode(code) if ended else None
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # and what the tests have started
    if status is None:
        os.waitpid(child, 0)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
