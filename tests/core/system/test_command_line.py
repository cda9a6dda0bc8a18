from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from sweeper.core.system.command_line import make_resume_command, name_program, remember_sweep


@pytest.mark.parametrize(
    ("typed", "command"),
    [
        ("-m sweeper model=vit_b16", "python -m sweeper model=vit_b16 sweep=night"),
        ("-m sweeper sweep=night x=a b", "python -m sweeper sweep=night 'x=a b'"),
        ("-m sweeper --multirun sweep=a b", "python -m sweeper --multirun 'sweep=a b'"),
        ("-m sweeper ++sweep=night", "python -m sweeper ++sweep=night"),
        ("-m sweeper t.py -- sweep=a b", "python -m sweeper t.py sweep=night -- 'sweep=a b'"),
    ],
)
def test_command_that_goes_on_names_the_sweep_once(
    typed: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = typed.split(" ", 4 if " -- " in typed else 3)
    monkeypatch.setattr(sys, "orig_argv", ["/usr/bin/python3.11", *words])
    remember_sweep("night")
    assert make_resume_command() == command


@pytest.mark.parametrize(
    ("environment", "activated", "named"),
    [
        ("here/.venv", "here/.venv", "python"),
        ("here/.venv", None, ".venv/bin/python"),
        ("here/my env", "other", "'my env/bin/python'"),
        ("there", None, "{}/there/bin/python"),
        (None, None, "python"),
    ],
)
def test_a_command_names_the_python_that_has_sweeper(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: str | None,
    activated: str | None,
    named: str,
) -> None:
    for name in filter(None, ("here", environment, activated)):
        python = tmp_path / name / "bin/python"
        python.parent.mkdir(parents=True, exist_ok=True)
        python.touch(0o755)
    prefix = tmp_path / environment if environment else Path("/usr")
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    monkeypatch.setattr(sys, "executable", str(prefix / "bin/python"))
    folders = [tmp_path / activated / "bin"] if activated else []
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, [*folders, tmp_path])))
    monkeypatch.chdir(tmp_path / "here")
    assert name_program("python -m sweeper") == f"{named.format(tmp_path)} -m sweeper"
    assert name_program("sweeper train.py") == "sweeper train.py"
