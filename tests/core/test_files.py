from __future__ import annotations

import os
from pathlib import Path

import pytest

from sweeper.core.files import move_aside, open_inside, write_text


def test_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_files_have_the_rights_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_text(tmp_path / "private", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o600


def count_handles() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def strange(tmp_path: Path) -> Path:
    """A folder in which somebody else has put all kinds of files; `secret` lies outside."""
    (tmp_path / "secret").write_text("secret")
    folder = tmp_path / "sweep"
    write_text(folder / "trial" / "plain.log", "text")
    (folder / "link.log").symlink_to(tmp_path / "secret")
    (folder / "linked").symlink_to(tmp_path)
    (folder / "inner.log").symlink_to(folder / "trial" / "plain.log")
    os.mkfifo(folder / "pipe.log")
    return folder


def test_a_regular_file_is_opened_also_where_the_sweep_itself_is_a_link(strange: Path) -> None:
    (strange.parent / "again").symlink_to(strange)
    with open_inside(strange.parent / "again", "trial/plain.log", 4) as file:
        assert file.read() == b"text"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("link.log", "a link"),
        ("inner.log", "a link"),
        ("linked/secret", "a link"),
        ("pipe.log", "not a regular file"),
        ("trial", "not a regular file"),
        ("../secret", "not inside"),
        ("/etc/passwd", "not inside"),
        ("", "not inside"),
        ("none.log", "No such file"),
        ("trial/plain.log", "4 bytes, more than 3"),
    ],
)
def test_nothing_else_is_opened(strange: Path, name: str, why: str) -> None:
    handles = count_handles()
    with pytest.raises(OSError, match=why):
        open_inside(strange, name, 3)
    assert count_handles() == handles


def test_what_is_moved_aside_replaces_nothing(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    for text in ("one", "two", "three"):
        write_text(path, text)
        move_aside(path)
    assert {file.read_text() for file in tmp_path.glob("record.json.unreadable-*")} == {
        "one",
        "two",
        "three",
    }
    assert not path.exists()
