from __future__ import annotations

import sys

import pytest

from sweeper.core.system.command_line import make_resume_command, remember_sweep


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
