from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from records import make_process, make_record

from sweeper.core.record import Accuracy, Attempt, Record
from sweeper.execution.attempts import may_replace, read_attempts

EARLIER = Attempt("crashed", "eager", "gone")


def attempts_of(folder: Path, record: Record) -> tuple[Attempt, ...]:
    (folder / "record.json").write_text(record.dumps())
    return read_attempts(folder / "record.json")


def test_no_record_is_no_attempt(tmp_path: Path) -> None:
    assert read_attempts(tmp_path / "record.json") == ()
    (tmp_path / "record.json").write_text("{")
    assert read_attempts(tmp_path / "record.json") == ()


@pytest.mark.parametrize(
    ("status", "kept"),
    [
        ("ok", False),
        ("interrupted", False),
        ("unavailable", False),
        ("oom", True),
        ("accuracy_mismatch", True),
    ],
)
def test_only_what_went_wrong_is_kept_behind_what_came_before(
    tmp_path: Path, status: str, kept: bool
) -> None:
    record = replace(make_record(status=status, message="why"), attempts=(EARLIER,))
    own = Attempt(status, "compiling", "why")
    assert attempts_of(tmp_path, record) == ((EARLIER, own) if kept else (EARLIER,))


def test_an_attempt_names_the_code_of_the_last_process_and_the_worst_tensor(tmp_path: Path) -> None:
    right = replace(
        make_process(), code_fingerprint="a", accuracy=Accuracy("float64", True, worst="loss")
    )
    wrong = replace(
        make_process(index=1),
        code_fingerprint="b",
        accuracy=Accuracy("float64", False, worst="output"),
    )
    record = replace(make_record(status="accuracy_mismatch"), processes=(right, wrong))
    assert attempts_of(tmp_path, record) == (
        Attempt("accuracy_mismatch", "compiling", worst="output", artifacts=("b-None",)),
    )


@pytest.mark.parametrize(
    ("earlier", "status", "processes", "replaces"),
    [
        (None, "interrupted", 0, True),
        (("interrupted", 0), "interrupted", 0, True),
        (("interrupted", 2), "interrupted", 2, True),
        (("interrupted", 2), "interrupted", 1, False),
        (("interrupted", 2), "oom", 0, True),
        (("ok", 1), "interrupted", 2, False),
        (("ok", 2), "ok", 1, True),
    ],
)
def test_an_interrupted_trial_replaces_what_knows_no_more(
    tmp_path: Path, earlier: tuple[str, int] | None, status: str, processes: int, replaces: bool
) -> None:
    def make(status: str, processes: int) -> Record:
        made = tuple(make_process(2.0, index=index) for index in range(processes))
        return replace(make_record(status=status), processes=made)

    path = tmp_path / "record.json"
    if earlier:
        path.write_text(make(*earlier).dumps())
    assert may_replace(make(status, processes), path) is replaces
