"""`python -m sweeper.explain` as its users run it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sweeper.analysis.flags import FLAGS, RANKS
from sweeper.core.system.exit_codes import BAD_INPUT, OK
from sweeper.explain import ALL, FIGURES, main


def test_a_flag_is_explained_with_its_rank_and_what_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["host-bound", "graph_break"]) == OK, "the report's column is called host-bound"
    flag, _, cause = capsys.readouterr().out.partition("\n\n")
    said = " ".join(flag.split())
    assert said.startswith("host_bound (flag, context) The device waits for the host")
    assert FLAGS["host_bound"].why in said
    assert f"Context: {RANKS['context']}" in said
    assert "What to do: `mode=reduce-overhead`" in said
    assert cause.startswith("graph_break (cause of lost time)")


def test_a_figure_is_explained_by_its_column_and_its_metric(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["eager-step-ms", "eager_step_s", "speedup_min"]) == OK
    assert capsys.readouterr().out.split("\n\n") == [
        "eager_step_ms (column of speedups.csv)\n"
        "  Wall time per step of the eager arm, geometric mean over processes.\n"
        "  A metric in MLflow, eager_step_s.",
        "eager_step_s (in speedups.csv eager_step_ms)\n"
        "  Wall time per step of the eager arm, geometric mean over processes.\n"
        "  A metric in MLflow, eager_step_s.",
        "speedup_min (column of speedups.csv)\n  Smallest speedup of a process, where there are "
        "several.\n",
    ]


def test_no_figure_hides_a_flag_a_status_or_a_cause() -> None:
    assert not set(ALL) & set(FIGURES)


def test_without_a_name_every_name_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == OK
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line.split()[0] for line in lines if line.startswith("  ")) == sorted(ALL)
    assert [line for line in lines if line.startswith("flags, ")] == [
        f"flags, {rank}: {RANKS[rank]}" for rank in RANKS
    ]


def test_an_unknown_name_is_bad_input_with_the_nearest() -> None:
    command = [sys.executable, "-m", "sweeper.explain", "hostbound"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (BAD_INPUT, "")
    assert result.stderr == (
        "hostbound: no flag, status, cause or figure of speedups.csv; "
        "nearest: host_bound, host_bound_arms, host_busy, host_bound_fraction\n"
    )
