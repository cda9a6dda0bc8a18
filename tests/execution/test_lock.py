from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from sweeper.core.errors import ConfigError
from sweeper.execution.lock import hold_lock


def try_to_hold(path: Path) -> None:
    with hold_lock(path, "sweep=s"):
        pass


def test_lock_has_one_holder_whom_the_others_are_told(tmp_path: Path) -> None:
    path = tmp_path / "s" / ".lock"
    with hold_lock(path, "sweep=s"), pytest.raises(ConfigError, match=f"sweep=s is in use by process {os.getpid()} on"):
        try_to_hold(path)
    try_to_hold(path)


def test_link_in_the_place_of_a_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    (tmp_path / ".lock").symlink_to(tmp_path / "notes")
    with pytest.raises(ConfigError, match="it is a link, which is not followed"):
        try_to_hold(tmp_path / ".lock")
    assert (tmp_path / "notes").read_text() == "mine"


def test_link_to_nothing_makes_no_file(tmp_path: Path) -> None:
    (tmp_path / ".lock").symlink_to(tmp_path / "target")
    with pytest.raises(ConfigError, match="it is a link"):
        try_to_hold(tmp_path / ".lock")
    assert not (tmp_path / "target").exists()


def test_file_with_another_name_is_locked_and_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    (tmp_path / ".lock").hardlink_to(tmp_path / "notes")
    with hold_lock(tmp_path / ".lock", "sweep=s"):
        assert (tmp_path / "notes").read_text() == "mine"


def test_pipe_in_the_place_of_a_lock_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(ConfigError, match="is not a regular file; remove it"):
        try_to_hold(tmp_path / ".lock")


def test_name_of_the_last_holder_is_covered(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    path.write_text("process 1 on a machine with a long name " * 4)
    with hold_lock(path, "sweep=s"):
        assert "long name" not in path.read_text()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP])
def test_file_system_without_locks_is_said_with_a_way_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(_handle: int, _operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(ConfigError, match=r"has no locks .*nothing was started.*scheduler\.locks=false goes on"):
        try_to_hold(tmp_path / ".lock")
    with hold_lock(tmp_path / ".lock", "sweep=s", enabled=False):
        pass
