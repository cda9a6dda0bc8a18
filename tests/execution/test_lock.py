"""What somebody else may have put where a lock belongs is neither followed nor emptied."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sweeper.core.errors import ConfigError
from sweeper.execution.lock import hold_lock


def test_a_link_in_place_of_a_lock_is_refused_and_its_target_stays(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("precious")
    (tmp_path / ".lock").symlink_to(tmp_path / "target")
    with pytest.raises(ConfigError, match="is a link; nothing was started"), hold_lock(tmp_path / ".lock", "it"):
        pass
    assert (tmp_path / "target").read_text() == "precious"


def test_a_link_to_nothing_makes_no_file(tmp_path: Path) -> None:
    (tmp_path / ".lock").symlink_to(tmp_path / "target")
    with pytest.raises(ConfigError, match="is a link"), hold_lock(tmp_path / ".lock", "it"):
        pass
    assert not (tmp_path / "target").exists()


def test_a_pipe_in_place_of_a_lock_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(ConfigError, match="no regular file"), hold_lock(tmp_path / ".lock", "it"):
        pass


def test_a_lock_names_its_holder_and_can_be_taken_again(tmp_path: Path) -> None:
    for _ in range(2):
        with (
            hold_lock(tmp_path / ".lock", "it"),
            pytest.raises(ConfigError, match=f"it is in use by process {os.getpid()}"),
            hold_lock(tmp_path / ".lock", "it"),
        ):
            pass
