from __future__ import annotations

from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import torch

from sweeper.worker.compilation import ptxas
from sweeper.worker.compilation.ptxas import VARIABLE, explain_second_ptxas


def install(program: Path, says: str) -> None:
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho {says}\n")
    program.chmod(0o755)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with torch and Triton; neither has an assembler."""
    triton = ModuleSpec("triton", None, origin=str(tmp_path / "triton" / "__init__.py"))
    monkeypatch.setattr(ptxas, "find_spec", {"triton": triton}.get)
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "torch" / "__init__.py"))
    monkeypatch.delenv(VARIABLE, raising=False)
    return tmp_path


def test_two_versions_are_told_with_the_line_to_paste(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = site / "torch" / "bin" / "ptxas"
    install(own, "release 13.0")
    install(site / "triton" / "backends" / "nvidia" / "bin" / "ptxas", "release 12.8")
    assert str(explain_second_ptxas()).endswith(f"; to compile it once: export {VARIABLE}={own}")
    monkeypatch.setenv(VARIABLE, str(own))
    assert explain_second_ptxas() is None


def test_one_version_or_one_assembler_needs_no_word(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(site / "triton" / "backends" / "nvidia" / "bin" / "ptxas", "release 13.0")
    assert explain_second_ptxas() is None
    install(site / "torch" / "bin" / "ptxas", "release 13.0")
    assert explain_second_ptxas() is None
    (site / "torch" / "bin" / "ptxas").write_text("#!/bin/sh\nexit 1\n")
    assert explain_second_ptxas() is None, "it does not run"
    monkeypatch.setattr(ptxas, "find_spec", {}.get)
    assert explain_second_ptxas() is None
