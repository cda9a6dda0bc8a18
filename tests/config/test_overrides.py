from __future__ import annotations

import re

import pytest

from sweeper.config.overrides import allow_new_keys, normalise
from sweeper.core.errors import ConfigError


def test_flags_come_last_wherever_they_stood() -> None:
    arguments = normalise(["mode=default", "-m", "model=a,b", "--config-dir", "mine", "sweep=x"])
    assert arguments == ["sweep='x'", "mode=default", "model=a,b", "-m", "--config-dir", "mine"]


@pytest.mark.parametrize("name", ["007", "1e3", "true", "null"])
def test_sweep_name_stays_text(name: str) -> None:
    assert normalise([f"sweep={name}"]) == [f"sweep='{name}'"]


@pytest.mark.parametrize(
    "argument", ["sweep=../../x", "++sweep=/etc", "sweep=a,b", "sweep=", "sweep=mlflow.db"]
)
def test_sweep_name_that_leaves_the_folder_is_refused(argument: str) -> None:
    with pytest.raises(ConfigError, match="sweep's name"):
        normalise([argument])


def test_two_unnamed_sweeps_have_two_names() -> None:
    names = {normalise([])[0] for _ in range(20)}
    assert len(names) == 20
    assert all(re.fullmatch(r"sweep='\d{8}-\d{6}-[0-9a-f]{4}'", name) for name in names)


@pytest.mark.parametrize(
    "key",
    [
        "compile.options.triton.cudagraphs",
        "compile.dynamo.capture_scalar_outputs",
        "compile.functorch.donated_buffer",
        "model.arguments.hidden_size",
        "hydra.launcher.ray.init.num_cpus",
        "hydra.launcher.additional_parameters.nice",
    ],
)
def test_new_keys_of_open_dictionaries_are_allowed(key: str) -> None:
    assert allow_new_keys(f"{key}=1") == f"++{key}=1"
    assert allow_new_keys("compile.scope=step") == "compile.scope=step"


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["--dry-run", "model=resnet18"], "write dry_run=VALUE, without dashes"),
        (["--model", "resnet18"], "write model=VALUE, without dashes"),
        (["-m", "model=resnet50", "vit_b16"], "write model=vit_b16; several with -m and a comma"),
        (["-m", "mode=default,", "eager"], "write mode=eager or backend=eager or rung=eager"),
        (["timm/dla102"], "write model=timm/dla102"),
        (["path=train.py"], "path=train.py: write model.path=train.py"),
        (["-m", "script=train.py"], "script=train.py: write model.path=train.py"),
        (["model=script", "args=--lr"], "args=--lr: write model.args=--lr"),
        (["factory=a:b"], "factory=a:b: write model.factory=a:b"),
        (["mode="], "mode=: an option is missing; write mode=OPTION"),
        (["-m", "mode=default,"], "mode=default,: an option is missing; write mode=OPTION"),
        (["-m", "batch_size=8,"], "batch_size=8,: a value is missing behind the last comma"),
        (["train.py", "--batch-size", "64"], "sweeper train.py -- --batch-size 64"),
        (["train.py", "mode=eager", "a b"], "sweeper train.py mode=eager -- 'a b'"),
        (["train.py", "other.py"], "sweeper train.py -- other.py"),
        (
            ["model=script", "model.path=t.py", "model.args=--batch-size", "64"],
            "sweeper t.py model=script -- --batch-size 64",
        ),
        (
            ["model=script", "model.args=--lr", "0.1", "--epochs", "2", "model.path=t.py"],
            "sweeper t.py model=script -- --lr 0.1 --epochs 2",
        ),
        (["mode=default", "--", "--lr", "1"], "--: name a script before it, e.g. sweeper train.py"),
        (["train.py", "model.path=a.py"], "give the script once"),
        (["train.py", "model.args=a", "--", "b"], "and its arguments once"),
        (["help"], "all flags, groups and keys: python -m sweeper --help"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_people_type_instead_of_an_override_is_told_in_overrides(
    arguments: list[str], advice: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(advice)):
        normalise(arguments)


@pytest.mark.parametrize(
    ("arguments", "overrides"),
    [
        (["train.py"], ["model.path='train.py'", "model=script", "-m"]),
        (["train.py", "--"], ["model.path='train.py'", "model=script", "model.args=''", "-m"]),
        (
            ["-m", "a/train.py", "mode=a,b", "--", "--lr", "1", "-m"],
            ["model.path='a/train.py'", "mode=a,b", "model=script", "model.args='--lr 1 -m'", "-m"],
        ),
        (["model=script", "train.py"], ["model=script", "model.path='train.py'", "-m"]),
        (
            ["model.path='-m pkg.train'", "--", "x"],
            ["model.path='-m pkg.train'", "model=script", "model.args='x'", "-m"],
        ),
        # Hydra takes one of these flags
        (["train.py", "--cfg", "job"], ["model.path='train.py'", "model=script", "--cfg", "job"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_a_script_is_named_with_its_arguments_behind_dashes(
    arguments: list[str], overrides: list[str]
) -> None:
    assert normalise(arguments)[1:] == overrides
