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
from sweeper.core.serialization import from_json
from sweeper.core.trial import Trial
from sweeper.report.tables.ablation import AblationTable
from sweeper.report.tables.registry import TABLES
from sweeper.report.tables.starts import StartsTable

JOB = "recommendations-for-a-job"
OF_JOBS = {("recommendations", column) for column in ("max_memory_gib", "total_compiled_s")}
# Columns that no stored sweep fills, and why.
NEVER_FILLED = {
    ("speedups", "memory_missing"): "every ok trial of the sweeps on GPUs has its memory",
    ("ladder", "variant"): "the stored ladder varies nothing but its rungs",
    **{
        ("ablation", column.name): "no sweep with an ablation is stored"
        for column in AblationTable.columns
        if column.name
    },
}


NO_STARTS = "no stored sweep varies compile.start"
NEVER_FILLED |= {
    ("starts", column.name): NO_STARTS for column in StartsTable.columns if column.name
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
        assert from_json(Trial, data["trial"]).id == data["trial_id"]


@pytest.mark.parametrize("name", archives.names())
def test_tables_of_stored_records_are_as_they_were(tmp_path: Path, name: str) -> None:
    for table, text in archives.tables_of(name, tmp_path).items():
        assert text == golden(name, table), (
            f"{name}/{table}.csv: if that is meant, make golden and read the difference"
        )


def test_together_they_have_every_status() -> None:
    found = set()
    for name in archives.names():
        for row in rows(golden(name, archives.LONG)):
            if row["column"] == "status":
                found.add(row["value"])
    assert found == set(STATUSES)


def find_filled(table: str) -> set[str]:
    """The columns of a table in which some archive has a value."""
    filled = set()
    for path in archives.GOLDEN.glob(f"*/{table}.csv"):
        for row in rows(path.read_text(encoding="utf-8")):
            if table == archives.LONG:
                filled.add(row["column"])
            else:
                filled.update(column for column, value in row.items() if value)
    return filled


def test_together_they_fill_every_column() -> None:
    specs = {spec.name: spec for spec in TABLES}
    empty = set()
    for table, spec in (*specs.items(), (JOB, specs["recommendations"])):
        names = {column.name for column in spec.columns if column.name}
        empty |= {(table, name) for name in names - find_filled(table)}
    assert empty == NEVER_FILLED.keys() | OF_JOBS


def test_together_they_have_every_kind_of_recommendation() -> None:
    found = [row for name in archives.names() for row in rows(golden(name, "recommendations"))]
    assert {row["recommended"] for row in found} >= {
        "default",
        "reduce-overhead",
        "stay eager",
        "open",
    }
    assert {row["sure"] for row in found} == {"true", "false"}
    assert {row["ends"] for row in found} == {"processes", "margin", ""}


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
