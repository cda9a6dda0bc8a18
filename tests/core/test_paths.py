from __future__ import annotations

from pathlib import Path

import pytest

from sweeper.core.paths import SweepPaths, check_sweep_name, move_aside, write_text


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "-x", "a b", "x" * 101, "a\n", "=1"])
def test_sweep_name_that_cannot_name_a_folder_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="sweep's name starts with"):
        check_sweep_name(name)


@pytest.mark.parametrize("name", ["resnets-h200", "007", "1e3", "true", "a.b_c"])
def test_sweep_name_is_taken_as_it_is(name: str) -> None:
    assert check_sweep_name(name) == name


def test_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_trial_folder_is_found_by_id_whatever_its_label(tmp_path: Path) -> None:
    paths = SweepPaths.of("s", tmp_path)
    write_text(paths.trial("old-label", "abc123").record, "{}")
    assert paths.trial("new-label", "abc123").folder.name == "old-label-abc123"


def test_what_is_moved_aside_replaces_nothing(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    for text in ("one", "two", "three"):
        write_text(path, text)
        move_aside(path)
    assert {file.read_text() for file in tmp_path.glob("record.json.unreadable-*")} == {"one", "two", "three"}
    assert not path.exists()
