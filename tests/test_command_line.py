"""The program `sweeper`: its commands, completion in real shells, and output that nobody reads to
its end.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import archives
import pytest
from checkout import ENVIRONMENT, ROOT, Run

# without the user's own files
SHELLS = {"bash": "bash --norc -i", "zsh": "zsh -f -i", "fish": "fish --no-config -i"}
BEGINNING_OF_LINE = "\x01"  # Ctrl-A


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The program as pip writes it: a file that calls what pyproject.toml names."""
    script = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["sweeper"]
    module, function = script.split(":")
    file = tmp_path / "bin" / "sweeper"
    file.parent.mkdir()
    file.write_text(
        f"#!{sys.executable}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n"
    )
    file.chmod(0o755)
    return file


def run_program(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(program), *arguments],
        cwd=program.parent,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
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
            command,
            cwd=folder,
            env=ENVIRONMENT,
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )


@pytest.mark.parametrize(
    "command",
    [
        "report",
        "explain",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("compare", "doctor", "sync")),
    ],
)
def test_a_command_is_the_module_of_its_name(program: Path, run_module: Run, command: str) -> None:
    result = run_program(program, command, "nigth", "--no-such-flag")
    direct = run_module(f"sweeper.{command}", "nigth", "--no-such-flag")
    assert (result.returncode, result.stdout, result.stderr) == (
        direct.returncode,
        direct.stdout,
        direct.stderr,
    )
    assert result.returncode == 2
    assert run_program(program, command, "--help").returncode == 0


@pytest.mark.parametrize(
    "shell",
    ["bash", *(pytest.param(name, marks=pytest.mark.slow) for name in SHELLS if name != "bash")],
)
def test_the_tab_key_completes(program: Path, shell: str) -> None:
    """At a terminal, after what docs/cli.md says to type."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed: apt-get install {shell}")
    documented = re.search(
        rf"^\| {shell} \| `(.+?)` in ", (ROOT / "docs/cli.md").read_text(), re.MULTILINE
    )
    assert documented is not None
    words = ["-m mode=default,max-autotune-", "dry", "explain", "compile.sco"]
    typed = [f"sweeper {word}\t{BEGINNING_OF_LINE}echo [ \n" for word in words]
    result = subprocess.run(
        # runs the shell at a terminal of its own
        ["script", "--quiet", "--command", SHELLS[shell], "/dev/null"],
        input="".join([documented[1].replace(r"\|", "|"), "\n", *typed, "exit\n"]),
        cwd=program.parent,
        env={
            **ENVIRONMENT,
            "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
            "TERM": "dumb",
            "HOME": str(program.parent),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    completed = re.findall(r"^\[ sweeper (.+?) *$", result.stdout, re.MULTILINE)
    assert completed == [
        "-m mode=default,max-autotune-no-cudagraphs",
        "dry_run=",
        "explain",
        "compile.scope=",
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["sweeper", "--help"], ["sweeper", "--version"], ["sweeper", "--cfg", "job"], ["sweeper",
        "report", "--help"],
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


COMMANDS = {
    "help": "sweeper --help",
    "version": "sweeper --version",
    "dry run": "sweeper -m mode=default device=cpu dry_run=true",
    "bad input": "sweeper model=nothing",
    "report": "sweeper.report h200-resnet50-modes",
    "report as a command": "sweeper report nothing",
    "compare": "sweeper.compare h200-resnet50-modes --by mode default reduce-overhead",
    "compare json": "sweeper.compare h200-resnet50-modes --by mode --format json",
    "sync": "sweeper.sync nothing",
    "explain": "sweeper.explain host_bound",
    "doctor": "sweeper.doctor --device cuda:99",
    "worker": "sweeper.worker --help",
}
IN_EACH_RUN = ("help", "explain")
CLOSED = (">&-", "2>/dev/full", "<&- >&- 2>&-", "<&- 2>&-")


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, id=name, marks=() if name in IN_EACH_RUN else pytest.mark.slow)
        for name, command in COMMANDS.items()
    ],
)
def test_closed_streams_and_full_disks_change_no_exit_code(command: str, tmp_path: Path) -> None:
    archives.unpack("h200-resnet50-modes", tmp_path / "runs")

    def run(redirection: str) -> tuple[int, str]:
        line = f"exec {sys.executable} -m {command} {redirection}"
        result = subprocess.run(
            ["/bin/sh", "-c", line], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True
        )
        assert "Traceback" not in result.stderr
        return result.returncode, result.stderr

    code, said = run("")
    assert run(">&-") == (code, said)
    for redirection in CLOSED[1:]:
        assert run(redirection)[0] == code, redirection


def test_output_that_is_lost_changes_no_exit_code_of_a_comparison(tmp_path: Path) -> None:
    """1 would say that a step is SLOWER."""
    archives.unpack("h200-resnet50-modes", tmp_path / "runs")
    arguments = ["sweeper.compare", "h200-resnet50-modes", "--by", "mode", "default", "default"]
    found = run_into_closed_pipe(arguments, tmp_path).returncode
    line = f"exec {sys.executable} -m {' '.join(arguments)} >/dev/full"
    full = subprocess.run(["/bin/sh", "-c", line], cwd=tmp_path, env=ENVIRONMENT, check=False)
    plain = subprocess.run([sys.executable, "-m", *arguments], cwd=tmp_path, env=ENVIRONMENT)
    assert (found, full.returncode) == (plain.returncode, plain.returncode)
