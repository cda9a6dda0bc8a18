"""Records with faults, of a fixed seed, among good ones: no command ends for the others."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import archives
import pytest
from mutations import mutate
from records import make_record, write_sweep

from sweeper.compare.__main__ import main as compare
from sweeper.core.paths import SweepPaths
from sweeper.core.record import Record, RecordError
from sweeper.core.settings import Settings
from sweeper.core.system.exit_codes import OK
from sweeper.report.__main__ import main as report
from sweeper.sweep.driver import run_sweep
from sweeper.sweep.preflight import Found
from sweeper.sync import main as sync

COUNT = 3000
ARCHIVES = archives.names()
GOOD = [make_record(name, speedups=[2.0, 2.1]) for name in ("good", "fine")]


def write_mutations(archive: str, count: int, folder: Path) -> int:
    """Add mutated records of an archive to a sweep, and return how many of them are refused."""
    refused = 0
    texts = [
        path.read_text()
        for path in SweepPaths(archives.unpack(archive, folder.parent / "unpacked")).records()
    ]
    for number, data in enumerate(mutate(texts, count)):
        path = folder / f"mutated-{number:012x}" / "record.json"
        path.parent.mkdir()
        path.write_bytes(data)
        try:
            Record.read(path)
        except RecordError:
            refused += 1
    return refused


def count_lines(text: str) -> int:
    """The lines about records, none of which holds what a terminal would obey."""
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff]", text)
    return sum("/mutated-" in line for line in text.splitlines())


@pytest.mark.parametrize(
    ("archive", "count"),
    [
        ("cpu-statuses", 40),
        *(
            pytest.param(name, COUNT // len(ARCHIVES) + 1, marks=pytest.mark.slow)
            for name in ARCHIVES
        ),
    ],
)
def test_no_command_ends_for_the_others(
    archive: str,
    count: int,
    store: object,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = write_sweep(Path("runs"), GOOD)
    write_sweep(Path("runs"), GOOD, "base")
    refused = write_mutations(archive, count, folder)
    assert 0 < refused < count

    assert report(["night"]) == 1
    assert count_lines(capsys.readouterr().err) == refused
    with (folder / "report" / "speedups.csv").open() as file:
        assert {"good", "fine"} < {row["model"] for row in csv.DictReader(file)}

    compare(["base", "night"])
    output = capsys.readouterr()
    assert count_lines(output.err) >= refused
    assert "good" in output.out

    monkeypatch.setattr("sweeper.sweep.driver.require_runnable", lambda *_: Found((), ()))
    trials = [record.trial for record in GOOD]
    assert run_sweep(trials, Settings("night", device="cpu", dry_run=True)) == OK
    assert "0 trials to run" in capsys.readouterr().out

    assert sync(["night"]) == 1
    output = capsys.readouterr()
    assert count_lines(output.err) == refused
    # two mutations may be of one trial
    counted = re.search(r": (\d+) records sent, (\d+) were there", output.out)
    assert counted
    assert sum(map(int, counted.groups())) == count + len(GOOD) - refused
