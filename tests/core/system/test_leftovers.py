from __future__ import annotations

import ast
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from checkout import ROOT

from sweeper.core.system.leftovers import make_prefix, remove_leftovers

KILLED = """
import os, signal, sys, tempfile
from pathlib import Path
from sweeper.core.files import write_text
from sweeper.core.system.leftovers import make_prefix
folder = Path(tempfile.mkdtemp(prefix=make_prefix("sweeper"), dir="."))
(folder / "sweeper").symlink_to(Path("kept").absolute())
os.fsync = lambda _handle: os.kill(os.getpid(), signal.SIGKILL)
write_text(Path("record.json"), "half")
"""


def test_what_a_killed_process_has_left_is_removed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (kept := tmp_path / "kept").mkdir()
    (kept / "file").touch()
    subprocess.run([sys.executable, "-c", KILLED], cwd=tmp_path, check=False)
    assert len(list(tmp_path.iterdir())) == 3
    (theirs := tmp_path / ".record.json.another-host-4026531836-1.abcdefgh").touch()
    (tmp_path / ".record.json.abcdefgh").touch()
    ours = Path(tempfile.mkdtemp(prefix=make_prefix("sweeper"), dir=tmp_path))
    remove_leftovers(tmp_path.iterdir())
    assert set(tmp_path.iterdir()) == {theirs, tmp_path / ".record.json.abcdefgh", ours, kept}
    assert (kept / "file").exists(), "a link in it is not followed"


def test_every_temporary_name_says_who_made_it() -> None:
    """Only the folder of torch's trace does not; it goes with the trial's cache that it is in."""
    calls = [
        ast.unparse(node)
        for file in sorted((ROOT / "sweeper").rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("tempfile.mkdtemp", "tempfile.TemporaryDirectory")
    ]
    assert [call for call in calls if "prefix=make_prefix(" not in call] == [
        "tempfile.mkdtemp(dir=parent, prefix='trace-')"
    ]
