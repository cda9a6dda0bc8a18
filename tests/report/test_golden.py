"""Tables of records of real sweeps are the ones that were looked at; `make golden` rewrites
them.
"""

from __future__ import annotations

import csv
import io
import json
import re
import tarfile
from pathlib import Path

import archives
import pytest

from sweeper.core.record import STATUSES
from sweeper.core.trial import Trial

OF_JOBS = ("max_memory_gib", "total_compiled_s")
# Columns that no stored sweep fills, and why.
NEVER_FILLED = {
    (
        "speedups",
        "device_speedup_low",
    ): "the sweeps on GPUs with device step times have one process a trial",
    ("speedups", "device_speedup_high"): "the same",
    ("speedups", "busy_speedup_low"): "the sweeps on GPUs have one process a trial",
    ("speedups", "busy_speedup_high"): "the same",
    ("speedups", "memory_missing"): "every ok trial of the sweeps on GPUs has its memory",
    **{
        (table, f"{name}_{end}"): "the stored ladder has one process a trial"
        for table, names in {
            "speedups": ("speedup_over_strongest_eager",),
            "ladder": ("speedup", "speedup_over_before", "speedup_over_strongest_eager"),
        }.items()
        for name in names
        for end in ("low", "high")
    },
    ("ladder", "variant"): "the stored ladder varies nothing but its rungs",
    **{
        (
            "recommendations-for-a-job",
            column,
        ): "the sweep with several processes that recommends a mode knows no memory"
        for column in ("speedup_low", "speedup_high", "compile_warm_s", "break_even_warm_steps")
    },
}


def golden(name: str, table: str) -> str:
    return (archives.GOLDEN / name / f"{table}.csv").read_text(encoding="utf-8")


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize("name", archives.names())
def test_ids_of_stored_trials_stay_what_they_were(tmp_path: Path, name: str) -> None:
    """A new axis is left out of the id at its default, which is what older records mean."""
    for path in archives.unpack(name, tmp_path).glob("*/record.json"):
        data = json.loads(path.read_text())
        assert Trial.from_json(data["trial"]).id == data["trial_id"]


@pytest.mark.parametrize("name", archives.names())
def test_tables_of_stored_records_are_as_they_were(tmp_path: Path, name: str) -> None:
    for table, text in archives.tables_of(name, tmp_path).items():
        assert text == golden(name, table), (
            f"{name}/{table}.csv: if that is meant, make golden and read the difference"
        )


def test_together_they_have_every_status() -> None:
    found = {row["status"] for name in archives.names() for row in rows(golden(name, "speedups"))}
    assert found == set(STATUSES)


def test_together_they_fill_every_column() -> None:
    empty = set()
    for table in (*archives.TABLES, "recommendations-for-a-job"):
        texts = [
            golden(name, table)
            for name in archives.names()
            if (archives.GOLDEN / name / f"{table}.csv").exists()
        ]
        found = [row for text in texts for row in rows(text)]
        empty |= {(table, column) for column in found[0] if not any(row[column] for row in found)}
    of_jobs_alone = {("recommendations", column) for column in OF_JOBS}
    assert empty == set(NEVER_FILLED) | of_jobs_alone


def test_together_they_have_every_kind_of_recommendation() -> None:
    found = [row for name in archives.names() for row in rows(golden(name, "recommendations"))]
    assert {row["certainty"] for row in found} >= {"tested", "single_process", ""}
    assert {row["recommended"] for row in found} >= {"default", "reduce-overhead", "stay eager", ""}


def test_no_golden_table_is_left_of_an_archive_that_is_gone() -> None:
    assert (
        sorted(path.name for path in archives.GOLDEN.iterdir() if path.is_dir()) == archives.names()
    )


@pytest.mark.parametrize("name", archives.names())
def test_stored_records_name_no_place_of_a_machine(name: str) -> None:
    with tarfile.open(archives.RECORDS / f"{name}.tar.xz") as archive:
        for member in archive:
            assert member.isdir() or re.fullmatch(
                rf"{name}/(sweep|[^/]+/(record|trial))\.json", member.name
            )
            file = archive.extractfile(member)
            text = file.read().decode() if file else ""
            found = set(re.findall(r"(?<![\w./<:-])/[\w.-]+(?:/[\w.-]+)+", text))
            assert {path for path in found if not path.startswith("/usr/")} == set(), member.name
