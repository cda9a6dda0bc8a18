"""Records of real sweeps (docs/results/records) and the tables that were made of them
(tests/golden/<archive>).

`speedups` is in long form, a line per value that is there: a new metric adds lines where records
have it, and changes no other. Rewrite the tables after a change that is meant: `make golden`, then
read the difference.
"""

from __future__ import annotations

import csv
import io
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from reports import write_report

from sweeper.core.files import write_text
from sweeper.loading.sources import SweepFolder
from sweeper.report.answers.decision import Limits
from sweeper.report.build import make_report
from sweeper.report.tables.recommendations import RecommendationsTable

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "docs/results/records"
GOLDEN = ROOT / "tests/golden"
OF_SOME = ("scripts", "ladder")  # no other sweep has rows there
TABLES = ("speedups", "summary", "failures", "recommendations", "causes", *OF_SOME)
LONG = "speedups"
JOB = Limits(steps=10_000, memory_gib=10)  # of `recommendations-for-a-job.csv`


def names() -> list[str]:
    return sorted(path.name.removesuffix(".tar.xz") for path in RECORDS.glob("*.tar.xz"))


def unpack(name: str, folder: Path) -> Path:
    """The folder of the sweep."""
    with tarfile.open(RECORDS / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / name


def tables_of(name: str, folder: Path) -> dict[str, str]:
    """Texts of the CSV files by name; `folder` must be empty. Paths in them are relative to it."""
    unpack(name, folder)
    with _in(folder):
        write_report([Path(name)], Path("report"))
        texts = {table: Path(f"report/{table}.csv").read_text(encoding="utf-8") for table in TABLES}
        job = RecommendationsTable().csv(make_report([SweepFolder(Path(name))], JOB).findings)
    for table in OF_SOME:
        if texts[table].count("\n") == 1:
            del texts[table]
    texts[LONG] = list_values(texts[LONG])
    return texts | {"recommendations-for-a-job": job}


def list_values(text: str) -> str:
    """Turn a CSV of trials into one with a line per value that is not empty."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("trial", "column", "value"))
    seen = set()
    for row in csv.DictReader(io.StringIO(text)):
        trial = f"{row['model']}-{row['trial_id'][:4]}"
        assert trial not in seen, f"two trials are called {trial}"
        seen.add(trial)
        writer.writerows((trial, column, value) for column, value in row.items() if value)
    return file.getvalue()


@contextmanager
def _in(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def rewrite() -> None:
    for name in names():
        with TemporaryDirectory() as folder:
            for table, text in tables_of(name, Path(folder)).items():
                write_text(GOLDEN / name / f"{table}.csv", text)


if __name__ == "__main__":
    rewrite()
