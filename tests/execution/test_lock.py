from __future__ import annotations

import errno
import fcntl
import os
import re
from pathlib import Path

import pytest

from sweeper.core.errors import ConfigError
from sweeper.execution.lock import hold_lock


def try_to_hold(path: Path) -> None:
    with hold_lock(path, "sweep=s"):
        pass


def test_lock_has_one_holder_whom_the_others_are_told(tmp_path: Path) -> None:
    path = tmp_path / "s" / ".lock"
    with (
        hold_lock(path, "sweep=s"),
        pytest.raises(ConfigError, match=f"sweep=s is in use by process {os.getpid()} on"),
    ):
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
    with pytest.raises(
        ConfigError, match=r"has no locks .*nothing was started.*scheduler\.locks=false goes on"
    ):
        try_to_hold(tmp_path / ".lock")
    with hold_lock(tmp_path / ".lock", "sweep=s", enabled=False):
        pass


def test_other_users_can_read_and_lock_a_new_file_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        try_to_hold(tmp_path / ".lock")
    finally:
        os.umask(before)
    assert (tmp_path / ".lock").stat().st_mode & 0o777 == 0o644


def test_holder_is_one_line_of_a_fixed_length(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with hold_lock(path, "sweep=s"):
        text = path.read_text()
    assert (len(text), text.count("\n"), text[-1]) == (200, 1, "\n")
    assert re.fullmatch(
        rf"process {os.getpid()} on \S+ since \d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d\S+", text.rstrip()
    )


def test_holder_that_has_left_no_name_is_another_process(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="sweep=s is in use by another process"):
            try_to_hold(path)


def test_rights_of_a_file_that_is_there_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    path.touch()
    path.chmod(0o600)
    try_to_hold(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_file_of_another_user_is_locked_without_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be a link or a pipe by now, so it is opened as carefully."""
    path = tmp_path / ".lock"
    path.write_text("process 1 on a machine")
    opened: list[int] = []
    open_file = os.open

    def refuse_to_write(file: Path, flags: int, *mode: int) -> int:
        if flags & os.O_RDWR and not flags & os.O_EXCL:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        opened.append(flags & (os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC))
        return open_file(file, flags, *mode)

    monkeypatch.setattr(os, "open", refuse_to_write)
    with hold_lock(path, "sweep=s"):
        with pytest.raises(ConfigError, match="sweep=s is in use by process 1 on a machine"):
            try_to_hold(path)
        assert path.read_text() == "process 1 on a machine"
    assert set(opened) == {os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC}


def test_name_that_cannot_be_written_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(
        ConfigError, match=r"cannot write to .*\.lock: No space left on device; nothing was started"
    ):
        try_to_hold(tmp_path / ".lock")


def test_folders_of_a_lock_are_made(tmp_path: Path) -> None:
    try_to_hold(tmp_path / "a" / "b" / ".lock")
    assert (tmp_path / "a" / "b" / ".lock").exists()


def test_folder_that_is_a_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(ConfigError, match=r"cannot write to .*a/\.lock: .*; nothing was started"):
        try_to_hold(tmp_path / "a" / ".lock")
