from __future__ import annotations

import os
from pathlib import Path

from sweeper.doctor.cpp_compiler import find_cpp_compiler


def test_the_compiler_is_the_one_of_cxx_and_its_absence_says_what_to_do(tmp_path: Path) -> None:
    own = tmp_path / "own-c++"
    own.write_text("#!/bin/sh\necho own compiler 1.0\n")
    own.chmod(0o755)
    assert find_cpp_compiler({"CXX": str(own), "PATH": ""}).version == "own compiler 1.0 (from CXX)"
    assert "apt-get install g++" in str(find_cpp_compiler({"PATH": str(tmp_path)}).note)
    own.rename(tmp_path / "clang++")
    assert "set CXX=clang++" in str(find_cpp_compiler({"PATH": str(tmp_path)}).note)
    assert "does not work" in str(
        find_cpp_compiler({"CXX": "false", "PATH": os.environ["PATH"]}).note
    )


def test_the_compiler_is_g_plus_plus_where_it_is_there(tmp_path: Path) -> None:
    for name in ("g++", "clang++"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {name} 1.0\necho of somebody\n")
        (tmp_path / name).chmod(0o755)
    assert find_cpp_compiler({"PATH": str(tmp_path)}).version == "g++ 1.0"
    (tmp_path / "g++").write_text("#!/bin/sh\n")
    assert find_cpp_compiler({"PATH": str(tmp_path)}).version == "of no version"
    assert "CXX=icpx is not there; set CXX=g++, which is here" in str(
        find_cpp_compiler({"CXX": "icpx", "PATH": str(tmp_path)}).note
    )
