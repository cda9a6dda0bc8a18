"""The program `sweeper`: its commands, completion in a real bash, and output that nobody reads to its end."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import archives
import pytest
from checkout import ENVIRONMENT, ROOT, Run

BASH = """
eval "$(sweeper -sc install=bash)"
complete -p sweeper
press_tab() {
    COMP_LINE=$1 COMP_POINT=${#1} COMP_WORDS=($1) COMPREPLY=()
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    hydra_bash_completion
    echo "${COMPREPLY[*]}"
}
press_tab "sweeper -m mode=default,max-autotune-"
press_tab "sweeper dry"
press_tab "sweeper comp"
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The program as pip writes it: a file that calls what pyproject.toml names."""
    script = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["sweeper"]
    module, function = script.split(":")
    file = tmp_path / "bin" / "sweeper"
    file.parent.mkdir()
    file.write_text(f"#!{sys.executable}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n")
    file.chmod(0o755)
    return file


def run_program(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(program), *arguments], cwd=program.parent, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )


def test_program_plans_a_sweep(program: Path) -> None:
    result = run_program(program, "-m", "mode=default,eager", "device=cpu", "dry_run=true")
    assert result.returncode == 0, result.stderr
    assert "2 trials to run" in result.stdout


def run_into_closed_pipe(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a module as behind `| head`, when that has ended."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", *arguments]
    with os.fdopen(writer, "wb") as output:
        return subprocess.run(
            command, cwd=folder, env=ENVIRONMENT, stdout=output, stderr=subprocess.PIPE, text=True, check=False
        )


@pytest.mark.parametrize("command", ["report", "compare", "sync", "doctor", "explain"])
def test_a_command_is_the_module_of_its_name(program: Path, run_module: Run, command: str) -> None:
    result = run_program(program, command, "nigth", "--no-such-flag")
    direct = run_module(f"sweeper.{command}", "nigth", "--no-such-flag")
    assert (result.returncode, result.stdout, result.stderr) == (direct.returncode, direct.stdout, direct.stderr)
    assert result.returncode == 2
    assert run_program(program, command, "--help").returncode == 0


def test_bash_completes(program: Path) -> None:
    environment = {**ENVIRONMENT, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
    result = subprocess.run(
        ["bash", "--norc", "-c", BASH], cwd=program.parent, env=environment, capture_output=True, text=True, check=False
    )
    assert result.stderr == ""
    registered, *words = result.stdout.splitlines()
    assert registered.endswith("-F hydra_bash_completion sweeper")
    assert words == ["mode=default,max-autotune-no-cudagraphs", "dry_run=", "compare compile."]


@pytest.mark.parametrize(
    "arguments",
    [
        ["sweeper", "--help"], ["sweeper", "--version"], ["sweeper", "--cfg", "job"], ["sweeper", "report", "--help"],
        ["sweeper.report", "--help"], ["sweeper.compare", "--help"], ["sweeper.doctor", "--help"],
        ["sweeper.sync", "--help"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_output_that_nobody_reads_is_no_error(arguments: list[str], tmp_path: Path) -> None:
    result = run_into_closed_pipe(arguments, tmp_path)
    assert result.stderr == ""
    assert result.returncode in (0, 141)  # argparse itself says nothing of it


def test_a_report_that_nobody_reads_ends_like_a_closed_pipe(tmp_path: Path) -> None:
    """rich prints it, and would end with 1, which says that a trial is not ok."""
    archives.unpack("h200-resnet50-modes", tmp_path / "runs")
    result = run_into_closed_pipe(["sweeper.report", "h200-resnet50-modes"], tmp_path)
    assert (result.returncode, result.stderr) == (141, "")
