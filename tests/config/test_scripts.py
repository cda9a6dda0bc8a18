"""`model=script`: what makes a trial, what the script decides, and arguments as one types them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import fake_python
import pytest
from checkout import Run

from sweeper.config.overrides import quote_arguments
from sweeper.core.system.exit_codes import BAD_INPUT, OK

Plan = Callable[..., subprocess.CompletedProcess[str]]
PLAN = ("sweeper", "model=script", "device=cpu", "sweep=s", "dry_run=true")


@pytest.fixture
def script(in_empty_folder: Path) -> Path:
    path = in_empty_folder / "train.py"
    path.write_text("print(1)\n")
    return path


@pytest.fixture
def unchecked(script: Path) -> str:
    """The override by which no process imports torch to look at the script."""
    return f"worker.python={fake_python.write(script.with_name('python'))}"


@pytest.fixture
def plan(run_forked: Run, unchecked: str) -> Plan:
    """What sweeper plans for overrides, in the folder of the script."""
    return partial(run_forked, *PLAN, unchecked)


def test_arguments_are_typed_as_for_python(plan: Plan) -> None:
    found = plan(
        "-m",
        "model.path=train.py",
        r"model.args=--lr=1e-3 --name 'two words' --re a\d",
        "mode=default,eager",
    )
    assert found.returncode == OK, found.stderr
    lines = found.stdout.splitlines()
    assert sum(r"[model.args=--lr=1e-3 --name 'two words' --re a\d; " in one for one in lines) == 2
    assert "train.py-script-default" in found.stdout
    assert "train.py-script-eager" in found.stdout


def test_scripts_of_one_file_name_are_told_apart(plan: Plan) -> None:
    for folder in ("old", "new"):
        Path(folder).mkdir()
        (Path(folder) / "train.py").write_text("print(1)\n")
    found = plan("-m", "model.path=old/train.py,./new/train.py,train.py")
    assert found.returncode == OK, found.stderr
    for name in ("old_train.py", "new_train.py", "train.py"):
        assert f" {name}-script-default" in found.stdout


@pytest.mark.parametrize(
    ("typed", "given"),
    [
        ("model.args=--lr=1", "model.args='--lr=1'"),
        ("model.args='--lr=1','--lr=2'", "model.args='--lr=1','--lr=2'"),
        ("model.args='two words' --x", r"model.args='\'two words\' --x'"),
        (r"model.args=a\d \'", r"model.args='a\d \\\''"),
        ("model.args=x\\", r"model.args='x\\'"),
        ("model.args=", "model.args="),
        ("model.launch=torchrun --n=2", "model.launch='torchrun --n=2'"),
        ("model.path=./=cmd(a|b).py", "model.path='./=cmd(a|b).py'"),
        ("model.path='a.py','b.py'", "model.path='a.py','b.py'"),
        ("model.path=choice(a.py,b.py)", "model.path=choice(a.py,b.py)"),
        ("model.path=${oc.env:HOME}/a.py", "model.path=${oc.env:HOME}/a.py"),
        (r"model.path=a\(.py", r"model.path=a\(.py"),
        ("model.name=a b", "model.name=a b"),
    ],
)
def test_arguments_are_quoted_unless_they_are(typed: str, given: str) -> None:
    assert quote_arguments(typed) == given


@pytest.mark.parametrize("name", ["=cmd().py", "a|b.py", "it's {1}.py", "ü ✓.py"])
@pytest.mark.parametrize("typed", ["./{}", "model.path=./{}"])
def test_a_script_with_an_odd_name_is_found(
    plan: Plan, script: Path, name: str, typed: str
) -> None:
    script.rename(name)
    found = plan(typed.format(name))
    assert found.returncode == OK, found.stderr
    assert f"\n{name} will run " in found.stdout


@pytest.mark.parametrize("name", ["a\x1b[31m.py", "a\nb.py", "a\udcff.py", "a\u202e.py"])
def test_a_name_that_cannot_be_shown_is_to_be_changed(plan: Plan, script: Path, name: str) -> None:
    script.rename(name)
    found = plan(f"./{name}")
    assert found.returncode == BAD_INPUT
    assert found.stderr == (
        f"sweeper: model.path={f'./{name}'!r}: the name has a character that is not printable; "
        "rename it\n"
    )


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("model.path=nope.py", "model.path=nope.py: there is no such file in"),
        (
            "model.path=/",
            "model.path=/: a folder; name the script in it, or write '-m package.module'",
        ),
        (f"model.path={'x' * 300}.py", "there is no such file in"),
        ("model.path='a'b.py'", "quote a value with unusual characters twice"),
        ("model.path=null", "model=script needs a script"),
        ("model.path='-m no module'", "write -m package.module"),
        ("model.path='-m torch.distributed.run'", "a launcher starts other processes"),
        ("model.cwd=nowhere", "model.cwd=nowhere: there is no such folder"),
        ("model.args=it's", "model.args=it's: No closing quotation"),
        ("preset=pt2", "preset=pt2: with model=script the script decides this"),
        ("precision=amp", "precision=amp: with model=script the script decides this"),
        ("batch_size=4", "batch_size=4: with model=script the script decides this"),
        (
            "compile.scope=step",
            "compile.scope=step: a script's modules are compiled whole; leave compile.scope out",
        ),
        ("compile.start=mega_cache", "a script starts from torch's caches on disk"),
        ("experiment=start", "compile.start=mega_cache is for models"),
        (
            "model.args=--lr 1,--lr 2",
            "each set of arguments needs quotes of its own, e.g. \"model.args='--lr 1','--lr 2'\"",
        ),
        ("inspect=true", "inspect=true: scripts have no inspection yet; leave it out"),
        (
            "vary.batch_size=[1,2]",
            "vary.batch_size=[1, 2]: with model=script the script decides this",
        ),
        ("backend=jit_trace", "backend=jit_trace converts a model by hand"),
        ("parallel=ddp", "parallel=ddp: what starts a script's processes is model.launch; leave"),
        (
            "parallel.compile=outside",
            "parallel=ddp or fsdp2, and for model=script with model.launch",
        ),
        ("parallel.devices=2", "parallel.devices=2: model.launch says how many processes"),
        ("model.total_steps=0", "model.total_steps=0: it must be a whole number of at least 1"),
        ("model.total_steps=-5", "model.total_steps=-5: it must be a whole number of at least 1"),
        ("model.total_steps=1e3", "model.total_steps"),
        ("model.total_steps=1.5", "model.total_steps"),
        ("model.total_steps=true", "model.total_steps"),
        ("model.trajectory=19", "model.trajectory=19: at least 20 steps"),
        ("model.launch=mpirun -n 2", "allowed are torchrun, python -m torch.distributed.run, acc"),
        ("model.launch=torchrun", "give the number of processes, e.g. --nproc-per-node 2"),
        (
            "model.total_steps=9007199254740993",
            "it must be a whole number of at most 9007199254740992",
        ),
    ],
)
def test_what_a_script_cannot_have_is_refused(plan: Plan, override: str, said: str) -> None:
    found = plan("model.path=train.py", override)
    assert found.returncode == BAD_INPUT
    assert said in found.stderr


def find_id(found: subprocess.CompletedProcess[str]) -> str:
    """The id of the one trial of a plan."""
    assert found.returncode == OK, found.stderr
    (line,) = [line for line in found.stdout.splitlines() if "train.py-script" in line]
    return line.split()[0]


def test_what_starts_a_script_is_part_of_the_trial_and_its_length_and_clock_are_not(
    plan: Plan,
) -> None:
    launch = "model.launch=torchrun --nproc-per-node 2"
    plain = plan("model.path=train.py")
    launched = plan("model.path=train.py", launch)
    measured = plan(
        "model.path=train.py",
        "model.total_steps=10000",
        "measure.clock=step",
        "measure.energy=true",
    )
    assert f"[{launch}; " in launched.stdout
    assert find_id(launched) != find_id(plain) == find_id(measured)


def test_a_trajectory_is_of_one_process(plan: Plan) -> None:
    launch = "model.launch=torchrun --nproc-per-node 2"
    found = plan("model.path=train.py", launch, "model.trajectory=300")
    assert "model.trajectory is for a script in one process" in found.stderr


def test_a_launcher_whose_package_is_missing_is_refused(run_forked: Run, script: Path) -> None:
    pytest.importorskip("torch")
    if importlib.util.find_spec("accelerate"):
        pytest.skip("accelerate is installed")
    launch = "model.launch=accelerate launch --num_processes 2"
    found = run_forked(*PLAN, "model.path=train.py", launch)
    assert found.returncode == BAD_INPUT
    assert "the package accelerate is not installed" in found.stderr


def test_a_file_that_python_cannot_read_is_refused(run_forked: Run, script: Path) -> None:
    script.write_text("for\n")
    found = run_forked(*PLAN, "model.path=train.py")
    assert found.returncode == BAD_INPUT
    assert "model.path=train.py: Python cannot read it" in found.stderr


@pytest.mark.parametrize(
    "key",
    [
        "model.args=--lr=1",
        "model.launch=torchrun",
        "model.total_steps=1000",
        "model.trajectory=300",
    ],
)
def test_scripts_keys_are_for_scripts(run_forked: Run, key: str) -> None:
    found = run_forked("sweeper", "model=resnet18", key, "dry_run=true", "device=cpu")
    assert found.returncode == BAD_INPUT
    assert f"{key.partition('=')[0]}: only with model=script" in found.stderr


NASTY = [
    "a b",
    "x=1",
    "a,b",
    "'single'",
    '"double"',
    "it's",
    "{a: 1}",
    "[1,2]",
    "$HOME",
    "${HOME}",
    r"\${HOME}",
    r"\\${x",
    "back\\slash\\",
    r"\'",
    "",
    "*",
    "~x",
    "#",
    "ünï €",
    "a\nb",
    "???",
    "--",
    "null",
    "-m",
    "--help",
    "mode=eager",
    "other.py",
]


@pytest.mark.parametrize("flags", [["--run", "mode=default"], ["-m", "mode=default,eager"]])
def test_arguments_behind_dashes_arrive_as_the_shell_gave_them(
    script: Path, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """As the composed configuration gives them, in a single run and in a grid."""
    code = """
import json, shlex, sys
from sweeper.sweep import hydra_app
def show(trials, settings, *_):
    print("trials", json.dumps([shlex.split(trial.model.arguments["args"]) for trial in trials]))
    return 0
hydra_app.run_sweep = show
from sweeper.__main__ import main
sys.exit(main())
"""
    command = [sys.executable, "-c", code, "train.py", *flags, "device=cpu", "--", *NASTY]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == OK, found.stderr
    arrived = json.loads(found.stdout.partition("trials ")[2])
    assert arrived == [NASTY] * (2 if "-m" in flags else 1)


def test_a_script_alone_is_a_command_and_several_modes_are_a_grid(
    run_forked: Run, unchecked: str
) -> None:
    trials = set()
    for words in (["train.py"], ["./train.py", "mode=default,eager", "--", "--lr", "1"]):
        found = run_forked("sweeper", "device=cpu", "dry_run=true", unchecked, *words)
        assert found.returncode == OK, found.stderr
        trials |= {line.split()[1] for line in found.stdout.splitlines() if "-script-" in line}
        assert "train.py will run " in found.stdout
        assert "no estimate yet: the first run of a script tells" in found.stdout
    assert trials == {"train.py-script-default", "train.py-script-eager"}
