"""What stands in a user's process in place of what was there, and that nothing of it stays."""

from __future__ import annotations

import ast
import multiprocessing.process
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from checkout import ROOT
from script_runs import MEASURE, make_trial
from torch._dynamo.callback import callback_handler
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from sweeper.core.protocol import Job
from sweeper.core.record import Process, ScriptRun
from sweeper.core.trial import MIN_TRAJECTORY
from sweeper.worker.lease import Lease
from sweeper.worker.process_log import ProcessLog
from sweeper.worker.scripts.__main__ import run_script
from sweeper.worker.scripts.runs import RUNS
from sweeper.worker.scripts.watch.patches import Patches
from sweeper.worker.scripts.watch.script_runner import Program
from sweeper.worker.source_lines import name_place

PAGE = ROOT / "docs" / "scripts.md"
SCRIPTS = ROOT / "sweeper" / "worker" / "scripts"


class Net(torch.nn.Linear):
    pass


def read_process(module: Net) -> Mapping[str, object]:
    """Everything in the process that could have been replaced, and how many hooks there are."""
    modules = torch.nn.modules.module
    return {
        "call": vars(torch.nn.Module)["__call__"],
        "compile": torch.compile,
        "save": torch.save,
        "scaler": vars(torch.amp.GradScaler)["step"],
        "next": vars(_BaseDataLoaderIter)["__next__"],
        "iter": vars(DataLoader)["__iter__"],
        "spawn": torch.multiprocessing.spawn,
        "start": torch.multiprocessing.start_processes,
        "join": torch.distributed.init_process_group,
        "folder": vars(multiprocessing.process)["ORIGINAL_DIR"],
        "module": dict(vars(module)).get("_compiled_call_impl"),
        "hooks of modules": (
            len(modules._global_forward_pre_hooks),
            len(modules._global_forward_hooks),
            len(module._forward_pre_hooks),
        ),
        "hooks of optimizers": (
            len(optimizers._global_optimizer_pre_hooks),
            len(optimizers._global_optimizer_post_hooks),
        ),
        "callbacks": len(callback_handler.start_callbacks),
        "random": torch._inductor.config.fallback_random,
    }


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., set[str]]]:
    """Runs a script that trains a module here, and calls a function in each of its steps; the
    result is what stood in the process meanwhile.
    """
    torch._dynamo.reset()  # what other tests have registered
    trial = make_trial("train.py", backend="eager")
    trial = replace(trial, model=replace(trial.model, arguments={"trajectory": MIN_TRAJECTORY}))
    file = tmp_path / "train.py"
    file.write_text("")

    def run(which: str, module: Net, in_step: Callable[[int], None]) -> set[str]:
        seen: set[str] = set()
        optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
        loader = DataLoader(TensorDataset(torch.ones(100_000, 8)), batch_size=4)

        def train(_program: Program, patches: Patches) -> None:
            patches.replace(multiprocessing.process, "ORIGINAL_DIR", str(tmp_path))
            for step, (values,) in enumerate(loader):
                seen.update(patches.names)
                in_step(step)
                optimizer.zero_grad()
                module(values).sum().backward()
                seen.update(patches.names)
                optimizer.step()

        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(Program, "run", train)
        log = ProcessLog(lambda _message: None, Process(0, 0, cold=False), Lease())
        known = ScriptRun(modules=("Net",), called_at=(name_place(__file__, CALL_LINE),))
        patches = Patches()
        try:
            with patches:
                run_script(Job(trial, MEASURE), which, known, log, patches)
        finally:
            left.extend(patches.names)
        return seen

    left: list[str] = []
    yield run
    torch.compiler.set_stance("default")
    assert left == []


RECORDER = "hook before the forward of a module"
OF_SOME_RUNS = ("Module.", "hook before the forward", "hook after the forward")
CALL = "module(values).sum().backward()"
CALL_LINE = 1 + next(
    number for number, line in enumerate(Path(__file__).read_text().splitlines()) if CALL in line
)


@pytest.mark.parametrize("which", RUNS)
def test_what_stands_in_the_process_is_listed_and_undone(
    run: Callable[..., set[str]], which: str
) -> None:
    module, listed = Net(8, 8), list_on_page()
    before = read_process(module)
    seen = run(which, module, lambda _step: None)
    assert read_process(module) == before
    assert seen <= listed
    assert seen >= {name for name in listed if not name.startswith(OF_SOME_RUNS)}
    is_loop = which.startswith("loop")
    assert ("hook before the forward of modules" in seen) is not is_loop
    assert ("Module.__call__" in seen) is is_loop
    assert (RECORDER in seen) is (which == "steps")
    assert "Net._compiled_call_impl" in seen


@pytest.mark.parametrize("error", [ValueError("no batch left"), KeyboardInterrupt()])
def test_it_is_undone_where_the_script_fails_or_is_interrupted(
    run: Callable[..., set[str]], error: BaseException
) -> None:
    module = Net(8, 8)
    before = read_process(module)

    def fail(step: int) -> None:
        if step == 40:
            raise error

    run("steps", module, fail)
    assert read_process(module) == before


def list_on_page() -> set[str]:
    """The names in the first column of the table."""
    _, _, part = PAGE.read_text().partition("## What your process gets")
    return set(re.findall(r"^\| `?([^|`]+?)`? \|", part.partition("\n## ")[0], re.M)) - {
        "what",
        "---",
    }


def test_nothing_else_of_scripts_sets_attributes_or_registers_hooks() -> None:
    found = []
    for file in SCRIPTS.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                if name in ("setattr", "delattr") and file.name != "patches.py":
                    found.append(f"{file.name}:{node.lineno}: {name}")
    assert not found, "patches.py alone changes what is not ours"
