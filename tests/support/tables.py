"""Comparison of CSV text with the tables under `tests/golden/`, which are written by hand."""

from __future__ import annotations

import csv
import io
import math
import re
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "golden"


def differences(text: str, golden: str) -> list[tuple[str, str]]:
    """Cells that differ: names, counts and texts must be equal, floats to nine digits; ids of
    trials are called ID.

    Columns are found by name, in any order. A column that the golden table does not have must be
    empty.
    """
    text = re.sub(r"(?<![^,\n-])[0-9a-f]{12}(?=[,/])", "ID", text)
    ours, theirs = (
        list(csv.DictReader(io.StringIO(lines))) for lines in (text, (GOLDEN / golden).read_text())
    )
    cells = []
    for our, their in zip(ours, theirs, strict=True):
        missing = their.keys() - our.keys()
        assert not missing, f"no columns {', '.join(sorted(missing))}"
        cells += [(value, their.get(column, "")) for column, value in our.items()]
    return [(a, b) for a, b in cells if a != b and not _close(a, b)]


def _close(a: str, b: str) -> bool:
    try:
        return "." in a and "." in b and math.isclose(float(a), float(b), rel_tol=1e-9)
    except ValueError:
        return False
