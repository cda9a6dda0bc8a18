from __future__ import annotations

import os
from pathlib import Path

import pytest

from sweeper.core.protocol import Package
from sweeper.doctor.software import find_cpp_compiler


def find(monkeypatch: pytest.MonkeyPatch, path: str, cxx: str | None = None) -> Package:
    """What is found with these PATH and CXX."""
    monkeypatch.setenv("PATH", path)
    monkeypatch.delenv("CXX", raising=False)
    if cxx:
        monkeypatch.setenv("CXX", cxx)
    return find_cpp_compiler()


def test_the_compiler_is_the_one_of_cxx_and_its_absence_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual_path = os.environ["PATH"]
    own = tmp_path / "own-c++"
    own.write_text("#!/bin/sh\necho own compiler 1.0\n")
    own.chmod(0o755)
    assert find(monkeypatch, "", str(own)).version == "own compiler 1.0 (from CXX)"
    assert "apt-get install g++" in str(find(monkeypatch, str(tmp_path)).note)
    own.rename(tmp_path / "clang++")
    assert "set CXX=clang++" in str(find(monkeypatch, str(tmp_path)).note)
    assert "does not work" in str(find(monkeypatch, usual_path, "false").note)


def test_the_compiler_is_g_plus_plus_where_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("g++", "clang++"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {name} 1.0\necho of somebody\n")
        (tmp_path / name).chmod(0o755)
    assert find(monkeypatch, str(tmp_path)).version == "g++ 1.0"
    (tmp_path / "g++").write_text("#!/bin/sh\n")
    assert find(monkeypatch, str(tmp_path)).version == "of no version"
    assert "CXX=icpx is not there; set CXX=g++, which is here" in str(
        find(monkeypatch, str(tmp_path), "icpx").note
    )
