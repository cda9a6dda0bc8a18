"""`python -m sweeper.explain` as its users run it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sweeper.analysis.meanings import FLAGS, RANKS
from sweeper.core.system.exit_codes import BAD_INPUT, OK
from sweeper.explain import ALL, main


def test_a_flag_is_explained_with_its_rank_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["host-bound", "graph_break"]) == OK, "the report's column is called host-bound"
    flag, _, cause = capsys.readouterr().out.partition("\n\n")
    said = " ".join(flag.split())
    assert said.startswith("host_bound (flag, doubt) The device waits for the host")
    assert FLAGS["host_bound"].why in said
    assert f"Doubt: {RANKS['doubt']}" in said
    assert "What to do: `mode=reduce-overhead`" in said
    assert cause.startswith("graph_break (cause of lost time)")


def test_without_a_name_every_name_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == OK
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line.split()[0] for line in lines if line.startswith("  ")) == sorted(ALL)
    assert [line for line in lines if line.startswith("flags, ")] == [f"flags, {rank}: {RANKS[rank]}" for rank in RANKS]


def test_an_unknown_name_is_bad_input_with_the_nearest() -> None:
    command = [sys.executable, "-m", "sweeper.explain", "hostbound"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (BAD_INPUT, "")
    assert result.stderr == "hostbound: no flag, status or cause; nearest: host_bound, host_busy\n"
