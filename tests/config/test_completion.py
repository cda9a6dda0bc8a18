"""What the shell is offered at the end of a command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweeper.config.completion import complete


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("sweeper rep", ["report"]),
        ("sweeper -m rep", []),  # commands stand first
        ("sweeper mod", ["mode=", "model.", "model="]),
        ("sweeper precision=amp back", ["backend="]),
        ("sweeper -m mode=default,re", ["mode=default,reduce-overhead"]),
        ("sweeper model=resnet18 -m workload=", ["decode", "inference", "prefill", "train"]),
        ("sweeper model=timm/dl", ["model=timm/dla102"]),
        ("sweeper model=tor", ["model=torchbench", "model=torchbench/", "model=torchvision"]),
        ("sweeper compile.s", ["compile.scope=", "compile.start="]),
        ("sweeper compile.scope=", ["blocks", "loss", "model", "optimizer", "step"]),
        ("sweeper ++compile.full", ["++compile.fullgraph="]),
        ("sweeper inspect=", ["false", "true"]),
        ("sweeper --ver", ["--version"]),
        ("sweeper --help mod", ["mode", "mode", "model", "models"]),
        ("sweeper --cfg ", ["all", "hydra", "job"]),
        ("sweeper hydra/launcher=s", ["hydra/launcher=slurm"]),
        ("sweeper --config-dir ", []),  # the shell offers folders
        ("sweeper nonsense=", []),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_words_that_can_follow(line: str, offered: list[str]) -> None:
    last = line.rpartition(" ")[2]
    prefix = last if last.endswith("=") else ""
    found = [
        word
        for word in complete(line)
        if not word.startswith(("model.", "mode.")) or word == "model."
    ]
    assert found == sorted(
        {word if "=" in word or not prefix else f"{prefix}{word}" for word in offered}
    )


def test_commands_take_names_of_sweeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("night", "noon"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "sweep.json").write_text("{}")
    assert complete("sweeper report n") == ["night", "noon"]
    assert complete("sweeper compare night ") == ["night", "noon"]
    assert complete("sweeper sweep=ni") == ["sweep=night"]
    assert complete("sweeper doctor ") == []


def test_models_of_the_user_are_offered(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text("library: custom\n")
    assert complete(f"sweeper --config-dir {tmp_path} model=min") == ["model=mine"]
