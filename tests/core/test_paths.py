from __future__ import annotations

from pathlib import Path

import pytest

from sweeper.core.files import write_text
from sweeper.core.paths import SweepPaths, TrialPaths, check_sweep_name


@pytest.mark.parametrize(
    "name", ["../x", "a/b", "", ".hidden", "-x", "a b", "x" * 101, "a\n", "=1", "mlflow.db"]
)
def test_sweep_name_that_cannot_name_a_folder_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="sweep's name starts with"):
        check_sweep_name(name)


@pytest.mark.parametrize("name", ["resnets-h200", "007", "1e3", "true", "a.b_c", "x" * 100])
def test_sweep_name_is_taken_as_it_is(name: str) -> None:
    assert check_sweep_name(name) == name


def test_trial_folder_is_found_by_id_whatever_its_label(tmp_path: Path) -> None:
    paths = SweepPaths.of("s", tmp_path)
    write_text(paths.trial("old-label", "abc123").record, "{}")
    assert paths.trial("new-label", "abc123").folder.name == "old-label-abc123"


def test_links_in_a_trial_are_removed_before_workers_write_through_them(tmp_path: Path) -> None:
    trial, elsewhere = TrialPaths(tmp_path / "trial"), tmp_path / "elsewhere"
    write_text(elsewhere / "kept", "x")
    write_text(trial.trial, "{}")
    for path in (trial.inspection, trial.cache(0), trial.log(0)):
        path.symlink_to(elsewhere)
    trial.clear_caches()
    trial.clear_logs()
    assert [path.name for path in trial.folder.iterdir()] == ["trial.json"]
    assert (elsewhere / "kept").exists()


def test_a_sweep_with_links_in_it_is_refused_by_name(tmp_path: Path) -> None:
    paths = SweepPaths.of("s", tmp_path)
    paths.require_no_links()
    write_text(paths.sweep, "{}")
    paths.require_no_links()
    paths.report.symlink_to(tmp_path)
    with pytest.raises(ValueError, match="'report' is a link"):
        paths.require_no_links()


def test_files_of_a_sweep_are_found(tmp_path: Path) -> None:
    paths = SweepPaths.of("s", tmp_path)
    assert paths.trials() == {}
    for trial_id in ("b2", "a1"):
        write_text(paths.trial("label-x", trial_id).record, "{}")
    write_text(paths.folder / "notes", "")
    assert paths.records() == [
        paths.folder / "label-x-a1/record.json",
        paths.folder / "label-x-b2/record.json",
    ]
    assert {trial_id: found.folder.name for trial_id, found in paths.trials().items()} == {
        "a1": "label-x-a1", "b2": "label-x-b2",
    }  # fmt: skip


def test_report_with_others_has_a_folder_of_its_own_whose_name_a_file_system_takes(
    tmp_path: Path,
) -> None:
    paths = SweepPaths.of("s", tmp_path)
    assert paths.report_with([]) == paths.report
    assert paths.report_with([Path("a"), tmp_path / "b"]).name == "report-with-a-b"
    assert len(paths.report_with([Path("x" * 100)] * 3).name) == 200


def test_several_links_are_counted(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        (tmp_path / name).symlink_to("x")
    with pytest.raises(ValueError, match="'a' is a link, like 2 more, and"):
        SweepPaths(tmp_path).require_no_links()


def test_links_in_place_of_caches_go_and_what_they_point_to_stays(tmp_path: Path) -> None:
    trial = TrialPaths(tmp_path)
    write_text(trial.cache(0) / "inner", "x")
    write_text(trial.inspection / "inner", "x")
    write_text(trial.log("1"), "x")
    trial.clear_caches()
    trial.clear_logs()
    assert list(tmp_path.iterdir()) == []
    trial.clear_logs()  # nothing to remove is no error
