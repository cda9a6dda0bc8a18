"""Trainings in several processes: what the ranks share, and how they end."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from checkout import ROOT
from processes import assert_gone
from script_runs import MEASURE, SCRIPTS, find, make_trial, read_script, run_worker

from sweeper.core.protocol import Job, Message, Outcome, Phase
from sweeper.core.record import OTHERS_BUSY, Process, Record
from sweeper.core.trial import Compile, Trial
from sweeper.worker.children import run_child
from sweeper.worker.lease import Lease
from sweeper.worker.process_log import ProcessLog
from sweeper.worker.scripts import launcher
from sweeper.worker.scripts.launcher import Hub
from sweeper.worker.scripts.ranks import ALONE

START = "import os, sys, time\n"
RANK = """
from sweeper.core.protocol import Outcome, Phase
from sweeper.worker.scripts.ranks import ApartError, LaunchedRanks
ranks = LaunchedRanks(sys.argv[1])
number = ranks.number
def end(status="ok", message=None):
    ranks.say(Outcome(status, "eager", message)); os._exit(0)
"""


class Launched:
    """A hub, and processes that do as ranks do."""

    def __init__(self) -> None:
        self.said: list[Message] = []
        self.ranks: list[subprocess.Popen[bytes]] = []

    def find_failed(self) -> dict[int, int]:
        codes = enumerate(one.poll() for one in self.ranks)
        return {number: code for number, code in codes if code}

    def run(
        self, code: str, size: int = 2, limit_s: float = 60.0, asked: int = 0, before: str = ""
    ) -> Outcome:
        hub = Hub(asked or size, self.said.append, time.monotonic() + limit_s)
        for number in range(size):
            variables = {"RANK": str(number), "WORLD_SIZE": str(size), "PYTHONPATH": str(ROOT)}
            command = [sys.executable, "-c", f"{START}{before}{RANK}{code}", hub.address]
            self.ranks.append(subprocess.Popen(command, env={**os.environ, **variables}))

        def launch() -> None:
            while not (codes := self.find_failed()) and None in [one.poll() for one in self.ranks]:
                time.sleep(0.1)
            for one in self.ranks:
                one.terminate()
                one.wait()
            hub.codes = codes
            hub.is_over.set()

        threading.Thread(target=launch, daemon=True).start()
        return hub.serve()


@pytest.fixture
def launched() -> Iterator[Launched]:
    with ExitStack() as stack:
        made = Launched()
        yield made
        for process in made.ranks:
            process.kill()
            stack.enter_context(process)


def test_a_script_in_one_process_shares_with_nobody() -> None:
    assert ALONE.share("block", 0.5) == [0.5]


def test_each_rank_gets_the_values_of_all(launched: Launched) -> None:
    code = """
for step in range(50):
    assert ranks.share("block", [number, step]) == [[0, step], [1, step], [2, step]]
assert len(set(ranks.sessions)) == 1
ranks.say(Phase("eager"))
end(message=f"of rank {number}")
"""
    assert launched.run(code, size=3) == Outcome("ok", "eager", "of rank 0")
    assert launched.said == [Phase("eager")]


ENDS = {
    # the others fail because of it, and may be the first to say so
    "if number == 0: end('runtime_error', 'connection reset')\ntime.sleep(0.3); os._exit(4)": (
        "eager_error",
        "rank 1: the script ended its process with exit code 4, before enough steps were seen",
    ),
    "if number: os.write(2, b'no disk\\n'); os.kill(os.getpid(), 9)\ntime.sleep(0.5); end()": (
        "eager_error",
        "rank 1: the script was killed by SIGKILL, before enough steps were seen; the last line of "
        "its output: no disk",
    ),
    "if number: end('oom', 'no memory')\ntime.sleep(0.5); end('runtime_error', 'reset')": (
        "oom",
        "rank 1: no memory",
    ),
    "if number: end()\nend('runtime_error', 'wrong')": ("runtime_error", "rank 0: wrong"),
    "end('eager_error', 'no such file')": ("eager_error", "no such file"),
    # the launcher ends the other one then
    "if number: end('oom', 'no memory')\ntime.sleep(0.5); os._exit(0)": ("oom", "no memory"),
    "if number: os.kill(os.getpid(), 9)\n[ranks.share('block', 1) for _ in range(9)]": (
        "eager_error",
        "rank 1: the script was killed by SIGKILL",
    ),
    # one has ended, and the other waits for it
    "if number: end()\ntry: ranks.share('block', 1)\n"
    "except ApartError as error: end(error.status, str(error))": (
        "runtime_error",
        "rank 0: another rank has ended before this one (block)",
    ),
    "try: ranks.share(f'block {number}', 1)\n"
    "except ApartError as error: end(error.status, 'apart')": ("runtime_error", "apart"),
    "if number: end()\ntime.sleep(600)": (
        "crashed",
        "rank 0 went on for 1 s after another one had ended",
    ),
}


@pytest.mark.parametrize("code", ENDS)
def test_the_first_rank_that_goes_wrong_is_named(
    code: str, launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "END_S", 1.0)
    found, (status, message) = launched.run(code), ENDS[code]
    assert found.status == status
    assert message in (found.message or "")


def test_after_the_time_limit_each_rank_says_where_it_is(launched: Launched) -> None:
    code = "ranks.say(Phase('eager', f'at train.py:{number}')); time.sleep(600)"
    assert launched.run(code, limit_s=3.0) == Outcome(
        "timeout",
        "eager",
        "measure.timeout_s was over; rank 0: at train.py:0; rank 1: at train.py:1",
    )
    assert Phase("eager", "rank 1: at train.py:1") in launched.said


def test_a_rank_that_dies_before_it_is_heard_is_named(launched: Launched) -> None:
    found = launched.run("", before="if os.environ['RANK'] == '1': sys.exit(1)")
    assert found.status == "eager_error"
    assert "rank 1 ended before it could run the script" in (found.message or "")


def test_a_launcher_that_starts_another_number_of_processes_is_refused(launched: Launched) -> None:
    assert launched.run("end()", size=2, asked=3) == Outcome(
        "eager_error",
        "starting",
        "the launcher started 2 processes, and model.launch says 3",
    )


TRAIN = """
import os, signal, subprocess, sys, time, torch
torch.manual_seed(0)
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
class Net(torch.nn.Linear):
    def forward(self, values): return super().forward(values).relu()
DDP = torch.nn.parallel.DistributedDataParallel
module = DDP(Net(8, 8))
optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
def steps(count, size=4):
    for _ in range(count):
        optimizer.zero_grad()
        (module(torch.full((size, 8), 1.0 + rank)) - 1).square().sum().backward()
        optimizer.step()
"""


def make_launched(path: str, wrapper: str = "inside") -> Trial:
    trial = make_trial(path)
    model = replace(trial.model, arguments={"launch": "torchrun --nproc-per-node 2"})
    return replace(trial, model=model, compile=Compile(wrapper=wrapper))


def run_steps(
    code: str, folder: Path, limit_s: float = 200.0, wrapper: str = "inside"
) -> Outcome | int:
    """Run a script's steps in two ranks, without a worker around."""
    (folder / "train.py").write_text(TRAIN + code)
    job = folder / "trial.json"
    trial = make_launched(str(folder / "train.py"), wrapper)
    job.write_text(Job(trial, replace(MEASURE, timeout_s=8 * 2.0)).dumps())
    command = [sys.executable, "-m", "sweeper.worker.scripts.launcher", str(job), "steps"]
    log = ProcessLog(lambda _: None, Process(0, 0, cold=True), Lease())
    return run_child([*command, "--timeout-s", str(limit_s)], log, time.monotonic() + limit_s + 60)


STARTS = """
other = subprocess.Popen(["sleep", "600"], start_new_session=True)
for pid in (os.getpid(), other.pid): os.write(2, f"started {pid}\\n".encode())  # at once: both do
"""


def test_a_rank_that_dies_is_named_and_nothing_of_the_group_is_left(tmp_path: Path) -> None:
    dies = "if rank: steps(10); os.write(2, b'no disk\\n'); os._exit(4)\nsteps(10**6)"
    (tmp_path / "train.py").write_text(TRAIN + STARTS + dies)
    found, printed = run_worker(make_launched("train.py"), tmp_path)
    assert found.status == "eager_error", printed
    # the last line is that of another rank or of torchrun, where these write before it is read
    said = "rank 1: the script ended its process with exit code 4, before enough steps were seen; "
    assert (found.message or "").startswith(said)
    started = [int(pid) for pid in re.findall(r"started (\d+)", printed)]
    assert len(started) == 4
    for pid in started:
        assert_gone(pid)


@pytest.mark.compile
def test_steps_of_two_ranks_are_compared(tmp_path: Path) -> None:
    found = run_steps("steps(10**6)", tmp_path)
    assert isinstance(found, Outcome)
    assert found.status == "ok", found.message
    process, script = found.process, read_script(found)
    assert process is not None
    rounds = [item for item in process.rounds if item.void != OTHERS_BUSY]
    assert [(item.order, item.void) for item in rounds] == [("AB", None), ("BA", None)]
    assert process.accuracy is not None
    assert process.accuracy.passed is True, process.accuracy.unverified
    assert script.modules == ("Net in DistributedDataParallel",)
    assert found.diagnostics is not None
    assert found.diagnostics.graph_breaks == ()  # none in DistributedDataParallel itself
    assert [(rank.graphs, rank.recompiles) for rank in script.ranks] == [(1, 0), (1, 0)]
    assert script.rank_spread is not None
    assert (script.rank_spread.eager or 0.0) >= 0


LIVES = {
    "if rank: steps(10); raise ValueError('no batch left')\nsteps(10**6)": (
        "eager_error",
        r"rank 1: .*train.py:\d+: ValueError: no batch left",
    ),
    "if rank: steps(10); sys.exit(0)\nsteps(10**6)": (
        "eager_error",
        "rank 1: the script ended by itself: 10 steps were seen",
    ),
    "steps(38)\nif rank: sys.exit(0)\nsteps(10**6)": (
        "eager_error",
        "rank 1: .*: about \\d+; see that no rank ends before the others, or give it more epochs",
    ),
    "steps(38)\nif rank: os.kill(os.getpid(), signal.SIGKILL)\nsteps(10**6)": (
        "crashed",
        "rank 1: the script was killed by SIGKILL",
    ),
    "if rank: steps(10); time.sleep(10**6)\nsteps(10**6)": (
        "timeout",
        r"rank 0: no step for .* at .*train.py:\d+, .*; rank 1: no step for .* at .*train.py:\d+",
    ),
    "steps(36)\nif rank: module(torch.ones(4, 9))\nsteps(10**6)": (
        "compile_error",
        "rank 1: .*train.py",
    ),
}


@pytest.mark.slow
@pytest.mark.compile
def test_the_wrapper_may_be_compiled_from_outside(tmp_path: Path) -> None:
    found = run_steps("steps(10**6)", tmp_path, wrapper="outside")
    assert isinstance(found, Outcome)
    assert found.status == "ok", found.message
    assert found.process is not None
    assert found.process.accuracy is not None
    assert found.process.accuracy.passed is True, found.process.accuracy.unverified
    assert "graph breaks in DistributedDataParallel itself" in find(make_trial("t"), found)


COMPILE = """
def backend(graph, _): return lambda *values: wrong(graph, values)
module = DDP(torch.compile(Net(8, 8), backend=backend))
optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
steps(10**6)
"""
WRONG = {
    # its own output, whose gradients reach all ranks
    "def wrong(graph, values): return [one * (1 + rank) for one in graph(*values)]": (
        r"rank 1: output is off by 100 % .* \(as built, unseen batch\)"
    ),
    # what it sends to the others
    "def wrong(graph, values):\n"
    "    factor = 1 + (rank and module.require_backward_grad_sync)\n"
    "    return [one * factor for one in graph(*values)]": (
        r"gradient of \S+ is off by .* \(reduced over the ranks\)"
    ),
    # nothing: each rank trains for itself from then on
    "def wrong(graph, values):\n"
    "    module.require_backward_grad_sync = False\n"
    "    return graph(*values)": (
        r"rank 1: module\.\S+ has other values than in rank 0 after compiled steps"
    ),
}


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.parametrize("code", WRONG)
def test_a_wrong_step_of_one_rank_is_a_mismatch(code: str, tmp_path: Path) -> None:
    found = run_steps(code + COMPILE, tmp_path)
    assert isinstance(found, Outcome)
    assert found.status == "accuracy_mismatch", found.message
    assert re.match(WRONG[code], found.message or ""), found.message


TRAPS = {
    "module = torch.compile(module, backend='aot_eager')\nsteps(10**6)": (
        "torch.compile DistributedDataParallel at ",
        "graph breaks in DistributedDataParallel itself",
    ),
    # gradients of a call past the wrapper are not reduced
    "module = module.module\nsteps(10**6)": (
        "the ranks train apart, in eager too: rank 1: weight has other values than in rank 0",
    ),
    # as a wrapper does that is bound to what it has copied
    """
class Task(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.compile(Net(8, 8), backend="aot_eager")
        self.head = torch.compile(torch.nn.Linear(8, 8), backend="aot_eager")
        self.last = self.head._orig_mod
    def forward(self, values): return self.last(self.body(values))
module = DDP(Task())
optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
steps(10**6)
""": ("compiled, but called past the compiler: torch.nn.Linear",),
}


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.parametrize("code", TRAPS)
def test_what_two_processes_do_beside_the_compiler_is_named(code: str, tmp_path: Path) -> None:
    found = run_steps(code, tmp_path)
    assert isinstance(found, Outcome)
    assert found.status == "ok", found.message
    said = find(make_launched("train.py"), found)
    assert not [one for one in TRAPS[code] if one not in said], said


GAN = """
def make(): return DDP(torch.nn.Sequential(Net(8, 8), torch.nn.Linear(8, 8)))
generator, critic = make(), make()
optimizers = [torch.optim.Adam(one.parameters(), lr=1e-4) for one in (critic, generator)]
def update(optimizer, output):
    optimizer.zero_grad()
    output.square().mean().backward()
    optimizer.step()
for _ in range(10**6):
    fake = generator(torch.randn(64, 8))
    update(optimizers[0], critic(torch.randn(64, 8) + rank) - critic(fake.detach()))
    update(optimizers[1], critic(fake))
"""
SHARDED = """
from torch.distributed.fsdp import fully_shard
module = torch.nn.Sequential(Net(8, 8), Net(8, 8))
for part in (*module, module): fully_shard(part)
optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
steps(10**6)
"""
# as a bias of keys, whose gradient is nothing but what rounding leaves, in another order each time
NOISY = """
from random import SystemRandom
module = DDP(Net(8, 8))
noise = lambda gradient: torch.tensor([SystemRandom().gauss(0, 3e-6) for _ in gradient])
module.module.bias.register_hook(noise)
optimizer = torch.optim.SGD(module.parameters(), lr=0)
steps(10**6)
"""
WHAT_IS_JUDGED = {
    NOISY: (["Net in DistributedDataParallel"], True, None),
    GAN: (["torch.nn.Sequential in DistributedDataParallel"] * 2, True, None),
    SHARDED: (
        ["FSDPSequential"],
        None,
        "FSDPModule computes in all ranks at once, and no rank can be judged by itself",
    ),
}


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.parametrize("code", WHAT_IS_JUDGED)
def test_what_one_rank_computes_alone_is_judged(code: str, tmp_path: Path) -> None:
    found = run_steps(code, tmp_path)
    assert isinstance(found, Outcome)
    assert found.status == "ok", found.message
    assert found.process is not None
    accuracy, (modules, passed, why) = found.process.accuracy, WHAT_IS_JUDGED[code]
    assert accuracy is not None
    assert (list(read_script(found).modules), accuracy.passed) == (modules, passed), accuracy
    assert accuracy.unverified == why
    graphs = 1 if code == NOISY else 2  # of two nets or blocks
    assert [one.graphs for one in read_script(found).ranks] == [graphs] * 2


@pytest.mark.slow
@pytest.mark.parametrize("code", LIVES)
def test_each_kind_of_end_names_the_rank(code: str, tmp_path: Path) -> None:
    status, message = LIVES[code]
    found = run_steps(code, tmp_path, 25.0 if status == "timeout" else 200.0)
    assert isinstance(found, Outcome)
    assert found.status == status, found.message
    assert re.search(message, found.message or "")


@pytest.mark.slow
@pytest.mark.compile
def test_the_sweep_goes_on_after_a_rank_has_died(tmp_path: Path) -> None:
    dies = "if rank and sys.argv[1] == 'dies': os._exit(4)\nsteps(10**6)"
    (tmp_path / "train.py").write_text(TRAIN + dies)
    command = [sys.executable, "-m", "sweeper", "-m", "model=script", "model.path=train.py"]
    options = (
        "mode=default backend=aot_eager measure=quick measure.rounds_s=0.3 measure.block_s=0.01 "
        "model.args='dies','lives' sweep=s tracking.enabled=false device=cpu"
    )
    found = subprocess.run(
        [*command, *options.split(), "model.launch=torchrun --nproc-per-node 2"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    records = [Record.read(path) for path in tmp_path.glob("runs/s/*/record.json")]
    ends = {str(one.trial.model.arguments["args"]): one.status for one in records}
    assert ends == {"dies": "eager_error", "lives": "ok"}, found.stdout + found.stderr


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.parametrize("name", ["ddp", "fsdp2", "with_accelerate"])
def test_a_training_in_two_processes_is_measured(name: str, tmp_path: Path) -> None:
    if name == "with_accelerate" and importlib.util.find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed: make slow installs it")
    (tmp_path / f"{name}.py").write_bytes((SCRIPTS / f"{name}.py").read_bytes())
    outcome, printed = run_worker(make_launched(f"{name}.py"), tmp_path)
    assert outcome.status == "ok", printed
    script = read_script(outcome)
    assert len(script.ranks) == 2
    for loop in (script.loop_eager, script.loop_compiled):
        assert loop is not None
        assert loop.step_s > 0
    assert len(script.compile_calls) == (name == "fsdp2")
    assert outcome.process is not None
    assert outcome.process.accuracy is not None
    assert outcome.process.accuracy.passed is (None if name == "fsdp2" else True)
    said = find(make_launched(f"{name}.py"), outcome)
    assert ("2 batches per step" in said) == (name == "with_accelerate"), said
