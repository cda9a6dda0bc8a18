"""Scripts as people have them, each in a worker: what is measured, and how those end that cannot be
measured.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from script_runs import BEGIN, MEASURE, SCRIPTS, make_trial, read_script, run_stored, run_worker

from sweeper.core.protocol import Outcome
from sweeper.core.record import ARMS, HostState, Process, Round, Trajectory
from sweeper.core.system.gpus import visible_gpus
from sweeper.core.trial import Trial
from sweeper.worker.lease import Lease
from sweeper.worker.process_log import ProcessLog
from sweeper.worker.scripts import runs


def list_counted(process: Process) -> list[Round]:
    """The rounds that count: other tests may disturb some."""
    return [item for item in process.rounds if item.void is None]


@pytest.mark.compile
def test_a_plain_loop_is_measured(tmp_path: Path) -> None:
    _, outcome, printed = run_stored("plain", tmp_path, "--batch-size '16' --lr=1e-4")
    assert outcome.status == "ok", printed
    process, script = outcome.process, read_script(outcome)
    assert process is not None
    assert [item.order for item in list_counted(process)] == ["AB", "BA"]
    assert process.accuracy is not None
    assert process.accuracy.passed is True
    assert (script.modules, script.optimizers, script.loader) == (
        ("torch.nn.Sequential",),
        ("AdamW",),
        "no workers",
    )
    assert (script.num_shapes, script.shapes[0].shapes) == (1, "[16, 64]")
    assert script.read_ahead >= (process.steps_per_block or 0) > 0
    for loop in (script.loop_eager, script.loop_compiled):
        assert loop is not None
        assert (loop.batches, loop.calls, loop.recompiles) == (1.0, 1.0, 0)
        assert 0 < loop.loader_s < loop.step_s
    assert outcome.diagnostics is not None
    assert outcome.diagnostics.graphs == 1


SAYS_HOW_IT_RUNS = """
class Says(torch.nn.Linear):
    def forward(self, values):
        if not torch.compiler.is_compiling(): print("ran in eager")
        return super().forward(values)
module = Says(8, 4)
optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
steps(1_000_000)
"""


@pytest.mark.slow
@pytest.mark.compile
def test_the_compiled_loop_is_compiled_from_its_first_step(tmp_path: Path) -> None:
    """As it is by hand; what eager steps leave behind in the process may make later ones faster, or
    slower.
    """
    (tmp_path / "train.py").write_text(BEGIN + SAYS_HOW_IT_RUNS)
    outcome, printed = run_worker(make_trial("train.py"), tmp_path)
    assert outcome.status == "ok", f"{outcome.message}\n{printed}"
    _, in_eager, compiled = re.split("run of the script: loop_.*", printed)
    assert "ran in eager" in in_eager
    assert "ran in eager" not in compiled


@pytest.mark.slow
def test_single_steps_are_timed_and_energy_that_nobody_counts_is_missing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BEGIN + "steps(1_000_000)")
    outcome, printed = run_worker(
        make_trial("train.py"), tmp_path, replace(MEASURE, clock="step", energy=True)
    )
    assert outcome.status == "ok", printed
    process = outcome.process
    assert process is not None
    assert process.latencies is not None
    for arm in ARMS:
        found, step_s = getattr(process.latencies, arm), process.step_s(arm)
        assert 0 < found.p50_s <= found.p90_s <= found.p99_s
        assert found.steps == process.steps_per_block * len(list_counted(process))
        assert step_s is not None
        assert found.p50_s < 2 * step_s  # a block is the sum of its steps
    assert process.energy_j is None
    assert (
        process.energy_missing
        == "NoCounterError: no counter of energy: NVML knows none of this device"
    )
    assert list(process.phases_s)[-4:] == ["energy", "profiling", "reference", "checking"]


@pytest.mark.slow
def test_rounds_in_which_a_script_ends_are_kept(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BEGIN + "steps(8000)")
    # a short warm-up and short blocks leave most steps to the rounds, also on a fast machine
    brief = replace(MEASURE, warmup_s=0.001, block_s=0.001)
    measure = replace(brief, rounds=10**6, rounds_s=None, energy=True)
    outcome, printed = run_worker(make_trial("train.py"), tmp_path, measure)
    assert outcome.status == "ok", printed
    process = outcome.process
    assert process is not None
    assert len(process.rounds) > 1
    assert process.compile_s is not None
    assert process.accuracy is not None
    assert process.accuracy.unverified == "the script ended before its modules could be judged"
    assert process.energy_missing == "the script ended before"


@pytest.mark.slow
def test_a_script_that_ends_in_its_first_round_has_too_few_steps(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BEGIN + "steps(8000)")
    outcome, printed = run_worker(
        make_trial("train.py"), tmp_path, replace(MEASURE, warmup_s=0.001, block_steps=3000)
    )
    assert (outcome.status, outcome.phase) == ("eager_error", "measuring"), (
        f"{outcome.message}\n{printed}"
    )
    said = "more are needed to end the first round, which has 6,000; give it more epochs or steps"
    assert said in (outcome.message or "")


EPOCHS = """
for epoch in range(3):
    for batch in torch.utils.data.DataLoader(torch.ones(64, 8), batch_size=4): steps(1)
"""


def test_a_script_that_is_too_short_says_how_long_it_is_and_has_to_be(tmp_path: Path) -> None:
    """Its epochs end as they would by themselves."""
    (tmp_path / "train.py").write_text(BEGIN + EPOCHS)
    outcome, printed = run_worker(make_trial("train.py"), tmp_path)
    said = (
        r"the script ended by itself: 48 steps were seen, and more are needed: about [\d,]+; give"
    )
    assert re.match(said, outcome.message or ""), f"{outcome.message}\n{printed}"
    script = read_script(outcome)
    assert (script.length, script.optimizers, script.autocast) == (48, ("SGD",), "off")


@pytest.mark.slow
def test_a_script_with_slow_first_steps_is_told_of_no_number_below_its_own(tmp_path: Path) -> None:
    """At the pace of its first steps, fewer steps would do than it has."""
    slow = "import time\nfor index in range(300): steps(1); time.sleep(0.05 * (index < 40))"
    (tmp_path / "train.py").write_text(BEGIN + slow)
    outcome, printed = run_worker(make_trial("train.py"), tmp_path, replace(MEASURE, block_s=1))
    said = (
        "the script ended by itself: 300 steps were seen, and more are needed before the first "
        "round; give it more epochs or steps by its arguments"
    )
    assert outcome.message == said, printed


@pytest.mark.slow
def test_a_script_that_ends_while_it_is_watched_says_how_many_steps_are_needed(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(BEGIN + "steps(11)")
    outcome, _ = run_worker(make_trial("train.py"), tmp_path)
    said = (
        "the script ended by itself: 11 steps were seen, and up to 32 are watched before the first "
        "one is timed; give it several hundred by its arguments"
    )
    assert outcome.message == said


VALIDATES = """
def load(count): return torch.utils.data.DataLoader(torch.ones(count, 8), batch_size=2)
while True:
    for index, _ in enumerate(load(400)):
        steps(1)
        if index % {every} == 0:
            for batch in load(6): module(batch)
"""


@pytest.mark.slow
def test_rounds_lie_between_the_evaluations_of_a_script(tmp_path: Path) -> None:
    """A block of a hundred steps would have one in it; there are more rounds of shorter ones."""
    (tmp_path / "train.py").write_text(BEGIN + VALIDATES.format(every=40))
    measure = replace(MEASURE, block_s=0.001, block_steps=100, rounds_s=None)
    outcome, printed = run_worker(make_trial("train.py"), tmp_path, measure)
    assert outcome.status == "ok", f"{outcome.message}\n{printed}"
    process = outcome.process
    assert process is not None
    assert process.steps_per_block == 40 - 1 - 2
    assert len(list_counted(process)) == math.ceil(100 / 37) * 2
    assert process.script is not None
    assert process.script.loop_compiled is not None


@pytest.mark.slow
def test_evaluations_that_leave_no_room_for_a_round_are_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BEGIN + VALIDATES.format(every=3))
    outcome, _ = run_worker(make_trial("train.py"), tmp_path)
    assert outcome.status == "runtime_error"
    said = (
        "3 of 3 rounds were void: the script read another loader, every 3 steps; a block takes "
        "3 or more"
    )
    assert outcome.message == said


WRONG = """
class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(context, values): return values * {forward}
    @staticmethod
    def backward(context, gradient): return gradient * {backward}
def wrong(graph, _inputs): return lambda *given: tuple(Scaled.apply(item) for item in graph(*given))
module = torch.nn.Sequential(
    torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 4)
)
optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
compiled = torch.compile(module, backend=wrong, fullgraph=True)  # nothing of ours may be in its way
while True:
    optimizer.zero_grad()
    outputs, labels = compiled(torch.randn(16, 8)), torch.randint(4, (16,))
    torch.nn.functional.cross_entropy(outputs, labels).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("forward", "backward", "status"),
    [
        pytest.param(1.0, 1.0, "ok", marks=pytest.mark.slow),
        (1.01, 1.0, "accuracy_mismatch"),
        pytest.param(1.0, 1.01, "accuracy_mismatch", marks=pytest.mark.slow),
    ],
)
def test_outputs_or_gradients_that_are_one_percent_off_are_a_mismatch(
    tmp_path: Path, forward: float, backward: float, status: str
) -> None:
    (tmp_path / "train.py").write_text(BEGIN + WRONG.format(forward=forward, backward=backward))
    outcome, printed = run_worker(make_trial("train.py"), tmp_path)
    assert outcome.status == status, f"{outcome.message}\n{printed}"
    assert outcome.process is not None
    assert outcome.process.accuracy is not None
    assert outcome.process.accuracy.passed is (status == "ok")


@pytest.mark.slow
def test_what_a_script_does_after_a_failure_compiles_nothing(tmp_path: Path) -> None:
    saves = "try:\n    while True: steps(2); torch.save({}, 'kept.pt')\n"
    ends = "finally: print('stance', torch._dynamo.eval_frame._stance.stance)\n"
    (tmp_path / "train.py").write_text(BEGIN + saves + ends)
    outcome, printed = run_worker(make_trial("train.py"), tmp_path)
    assert (outcome.status, outcome.phase) == ("runtime_error", "measuring"), printed
    assert "stance force_eager" in printed


@pytest.mark.slow
def test_what_fails_in_the_eager_loop_alone_is_the_script_s_own_error(tmp_path: Path) -> None:
    fails = (
        "import glob\nopen(f'run{len(glob.glob(\"run*\"))}', 'w')\nif len(glob.glob('run*')) "
        "== 2:\n"
    )
    (tmp_path / "train.py").write_text(
        f"{BEGIN}{fails}    steps(60); raise ValueError('late')\nsteps(1_000_000)"
    )
    outcome, printed = run_worker(make_trial("train.py"), tmp_path)
    said = "in its loop in eager: train.py:15: ValueError: late"
    assert (outcome.status, outcome.phase, outcome.message) == ("eager_error", "measuring", said), (
        printed
    )


@pytest.mark.slow
def test_a_compiled_loop_that_calls_its_module_elsewhere_is_not_compiled(tmp_path: Path) -> None:
    counts = (
        "import glob\nopen(f'run{len(glob.glob(\"run*\"))}', 'w')\nif len(glob.glob('run*')) "
        "== 3:\n"
    )
    other = (
        counts
        + "    while True: optimizer.zero_grad(); module(torch.ones(4, 8)).sum().backward(); "
        "optimizer.step()"
    )
    (tmp_path / "train.py").write_text(f"{BEGIN}{other}\nsteps(1_000_000)")
    outcome, printed = run_worker(make_trial("train.py"), tmp_path)
    said = "not called for training as in the script's first run: torch.nn.Sequential (train.py:10)"
    assert (outcome.status, outcome.message) == ("not_compiled", said), printed


@pytest.mark.parametrize(
    ("of_rounds", "of_loop", "busy"),
    [(0.02, 0.4, 0.4), (0.3, 0.1, 0.3), (None, 0.2, 0.2), (0.2, None, 0.2)],
)
def test_others_that_keep_the_host_busy_while_a_loop_is_timed_count(
    of_rounds: float | None, of_loop: float | None, busy: float
) -> None:
    process = Process(0, 0, cold=True, host=HostState(0.01, of_rounds, throttled_s=1.0))
    notes = ProcessLog(lambda _phase: None, process, Lease())
    loop = replace(process, host=HostState(busy_while_measuring=of_loop))
    runs._merge(Outcome("ok", process=loop), "loop_eager", notes)
    assert notes.process.host == HostState(0.01, busy, throttled_s=1.0)


ENDINGS = {
    "": ("eager_error", "no step of an optimizer of torch was seen"),
    "sys.stdin.read(1) or steps(3)": ("eager_error", "3 steps were seen"),
    "steps(3); sys.exit(3)": ("eager_error", "train.py:12: the script ended with exit code 3"),
    "import threading; t = threading.Thread(target=steps, args=[40]); t.start(); t.join()": (
        "eager_error",
        "40 steps were in other threads, and only those of the main thread are measured; call",
    ),
    "sys.exit('give --data')": (
        "eager_error",
        "train.py:12: the script ended with the message: give --data",
    ),
    "import argparse; argparse.ArgumentParser(prog='train.py').parse_args(['--depth', '3'])": (
        "eager_error",
        "train.py:12: the script ended with exit code 2; the last line of its output: train.py: "
        "error: unrecognized arguments: --depth 3",
    ),
    "import no_such_package": (
        "eager_error",
        "train.py:12: ModuleNotFoundError: No module named 'no_such_package'",
    ),
    "steps(3); os.write(2, b'no disk\\n'); os._exit(4)": (
        "eager_error",
        "ended its process with exit code 4, before enough steps were seen; the last line of its "
        "output: no disk",
    ),
    "os.kill(os.getpid(), signal.SIGKILL)": ("eager_error", "was killed by SIGKILL"),
    "steps(10); raise ValueError('no batch left')": ("eager_error", "ValueError: no batch left"),
    "sys.stderr = None; steps(10); raise KeyboardInterrupt('no')": (
        "eager_error",
        "train.py:12: KeyboardInterrupt: no",
    ),
    "steps(40); os._exit(5)": ("crashed", "ended its process with exit code 5"),
    "import torch.multiprocessing as m; m.spawn(print, nprocs=2)": (
        "unavailable",
        "trains in 2 processes",
    ),
    "torch.distributed.init_process_group('gloo', world_size=4, rank=0)": (
        "unavailable",
        "trains in 4 processes (torch.distributed.init_process_group); give what starts them: "
        "model.launch='torchrun --nproc-per-node N'",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("code", ENDINGS, ids=lambda code: code or "nothing")
def test_a_script_that_ends_by_itself_says_how(code: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BEGIN + code)
    outcome, printed = run_worker(make_trial("train.py"), tmp_path)
    status, message = ENDINGS[code]
    assert (outcome.status, message in (outcome.message or "")) == (status, True), (
        f"{outcome.message}\n{printed}"
    )


def with_trajectory(trial: Trial, steps: int = 20) -> Trial:
    arguments = {**trial.model.arguments, "trajectory": steps}
    return replace(trial, model=replace(trial.model, arguments=arguments))


def read_trajectory(outcome: Outcome) -> Trajectory:
    found = read_script(outcome).trajectory
    assert found is not None
    return found


@pytest.mark.slow
def test_a_training_is_compared_step_by_step(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        BEGIN + "module.append(torch.nn.Dropout(0.5))\nsteps(10_000)"
    )
    outcome, printed = run_worker(with_trajectory(make_trial("train.py")), tmp_path)
    assert outcome.status == "ok", printed
    found = read_trajectory(outcome)
    assert (found.passed, found.steps, found.samples) == (True, 20, 20)


GOES_ROUND = """
class Net(torch.nn.Linear):
    def forward(self, values): return super().forward(values).relu()
class Head(Net): pass
net, head = Net(8, 8), torch.compile(Head(8, 8), backend='aot_eager')
torch.compile(net, backend='aot_eager')
model = torch.nn.Sequential(net)
optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=1e-3)
while True:
    optimizer.zero_grad()
    head(model(torch.ones(4, 8))).sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_a_module_that_is_called_past_its_compiled_form_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BEGIN + GOES_ROUND)
    outcome, printed = run_worker(make_trial("train.py"), tmp_path)
    assert outcome.status == "ok", printed
    assert read_script(outcome).gone_round == ("Net",)


TWO_COMPILED = """
modules = [torch.compile(torch.nn.Linear(8, 8), backend='aot_eager') for _ in range(2)]
optimizer = torch.optim.SGD([item for module in modules for item in module.parameters()], lr=1e-3)
while True:
    optimizer.zero_grad()
    (modules[0](torch.ones(4, 8)).sum() + modules[1](torch.ones(4, 8)).sum()).backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_a_trajectory_names_a_module_that_the_script_compiles_as_the_record_does(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(BEGIN + TWO_COMPILED)
    outcome, printed = run_worker(with_trajectory(make_trial("train.py")), tmp_path)
    assert outcome.status == "ok", printed
    script = read_script(outcome)
    assert script.modules == ("torch.nn.Linear",) * 2
    ends = tuple(f" of torch.nn.Linear ({place})" for place in script.called_at)
    assert (read_trajectory(outcome).worst or "").endswith(ends)


@pytest.mark.slow
def test_a_trajectory_that_fails_keeps_what_was_measured(tmp_path: Path) -> None:
    """The script ends by itself in its fourth run."""
    counts = (
        "import pathlib\nruns = "
        "pathlib.Path('runs')\nruns.touch()\nruns.write_text(runs.read_text() + 'x')\n"
    )
    ends = (
        "steps(5)\nif len(runs.read_text()) > 3: raise ValueError('no batch left')\nsteps(10_000)\n"
    )
    (tmp_path / "train.py").write_text(BEGIN + counts + ends)
    outcome, printed = run_worker(with_trajectory(make_trial("train.py")), tmp_path)
    assert outcome.status == "ok", printed
    found = read_trajectory(outcome)
    assert found.passed is None
    assert re.fullmatch(r"train\.py:\d+: ValueError: no batch left", found.unknown or "")
    assert read_script(outcome).loop_compiled is not None


def test_a_script_finds_what_python_would_give_it(tmp_path: Path) -> None:
    """Arguments, folder, path, name and files of its own, also where it changes folder and signal
    handlers; the error that it ends with is its own, too.
    """
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "helper.py").write_text("VALUE = 7\n")
    seen = (
        "import json, helper, pathlib\nseen = [sys.argv, __name__, __file__, os.getcwd(), "
        "helper.VALUE]\n"
    )
    does = (
        "pathlib.Path('seen.json').write_text(json.dumps(seen)); os.chdir('/'); print('x' * "
        "10_000_000)\n"
    )
    # as without our own `__future__`
    does += "def typed(x: int): pass\nassert typed.__annotations__ == {'x': int}\n"
    does += "if os.fork() == 0: steps(20); os._exit(0)\n"  # a child's steps are its own
    does += "signal.signal(signal.SIGTERM, signal.SIG_IGN); steps(10)\n"
    does += "raise ValueError('no batch left')\n"
    (tmp_path / "sub" / "train.py").write_text(BEGIN + seen + does)
    outcome, printed = run_worker(make_trial("sub/train.py", "--name 'two words'"), tmp_path)
    assert outcome.status == "eager_error", outcome.message
    assert re.search(r"train\.py:\d+: ValueError: no batch left", outcome.message or "")
    found = json.loads((tmp_path / "seen.json").read_text())
    file = str(tmp_path / "sub/train.py")
    assert found == [["sub/train.py", "--name", "two words"], "__main__", file, str(tmp_path), 7]
    assert len(printed) > 10_000_000


@pytest.mark.slow
def test_a_module_runs_as_python_would_run_it(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()
    (tmp_path / "pkg" / "helper.py").write_text("VALUE = 7\n")
    code = (
        "from pkg.helper import VALUE\nassert __package__ == 'pkg' and sys.argv[1:] == "
        "['a']\nsteps(VALUE)\n"
    )
    (tmp_path / "pkg" / "train.py").write_text(BEGIN + code)
    outcome, printed = run_worker(make_trial("-m pkg.train", "a"), tmp_path)
    assert "7 steps were seen" in (outcome.message or ""), printed


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["", "--reentrant"])
def test_blocks_that_are_computed_again_in_the_backward_pass_are_part_of_their_module(
    tmp_path: Path, kind: str
) -> None:
    _, outcome, printed = run_stored("checkpoints", tmp_path, f"--save-every=1000000 {kind}")
    assert outcome.status == "ok", f"{outcome.message}\n{printed[-3000:]}"
    script, process = read_script(outcome), outcome.process
    assert (script.modules, [item.shapes for item in script.shapes]) == (("Net",), ["[32, 64]"])
    assert outcome.diagnostics is not None
    assert outcome.diagnostics.graph_breaks == ()
    assert process is not None
    assert process.accuracy is not None
    assert (process.accuracy.passed, process.accuracy.reference) == (True, "float64")


@pytest.mark.slow
def test_a_script_that_saves_every_few_steps_leaves_no_round_that_counts(tmp_path: Path) -> None:
    _, outcome, _ = run_stored("checkpoints", tmp_path, "--save-every=3")
    assert (outcome.status, outcome.phase) == ("runtime_error", "measuring")
    assert (
        outcome.message
        == "3 of 3 rounds were void: the script saved a file, every 3 steps; a block takes 3 or "
        "more"
    )
    assert (tmp_path / "checkpoint.pt").is_file()


@pytest.mark.gpu
@pytest.mark.xdist_group("gpu")
@pytest.mark.skipif(not visible_gpus(), reason="no NVIDIA GPU is visible")
def test_a_tensor_that_the_script_keeps_and_a_cuda_graph_overwrites_is_named(
    tmp_path: Path,
) -> None:
    trial = replace(
        make_trial("kept.py", backend="inductor"), mode="reduce-overhead", device="cuda"
    )
    (tmp_path / "kept.py").write_bytes((SCRIPTS / "kept.py").read_bytes())
    outcome, printed = run_worker(trial, tmp_path)
    assert outcome.status == "runtime_error", printed[-3000:]
    assert (outcome.message or "").startswith(
        "kept.py:34 reads a tensor that the script has kept from an earlier step"
    )


AUTOCAST_INSIDE = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        layers = [torch.nn.Linear(64, 64) for _ in range(6)]
        self.layers = torch.nn.Sequential(*layers, torch.nn.GELU())
    @torch.autocast('cpu', torch.bfloat16)
    def forward(self, inputs):
        return torch.nn.functional.layer_norm(self.layers(inputs) * inputs, (64,))
module = Net()
optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
for _ in range(10_000):
    optimizer.zero_grad()
    # the mean square of a normalised output is constant: its gradients would be rounding alone
    (module(torch.randn(16, 64)).float() - torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_a_module_under_autocast_of_its_own_is_judged_as_such(tmp_path: Path) -> None:
    """As accelerate has it, for the Trainer of transformers too."""
    (tmp_path / "train.py").write_text(BEGIN + AUTOCAST_INSIDE)
    outcome, printed = run_worker(
        with_trajectory(make_trial("train.py", backend="inductor"), 40), tmp_path
    )
    assert outcome.status == "ok", printed
    assert outcome.process is not None
    assert outcome.process.accuracy is not None
    assert outcome.process.accuracy.passed is True
    assert read_trajectory(outcome).passed is True
